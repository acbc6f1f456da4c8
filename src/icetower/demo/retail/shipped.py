"""What is shipped beside the code: the tables' SQL, and the contracts."""

from __future__ import annotations

from importlib import resources

from icetower.contracts.document import load
from icetower.contracts.model import Contract


def text_of(name: str) -> str:
    """A file of this folder: ``tables.sql``, ``contracts/pricing_agent.yaml``, …"""
    return resources.files("icetower.demo.retail").joinpath(name).read_text(encoding="utf-8")


def contract_of(name: str) -> Contract:
    """The contract of an agent or the mediator."""
    return load(text_of(f"contracts/{name}.yaml"), source=f"{name}.yaml")


def statements() -> list[str]:
    """The statements of `tables.sql`."""
    return [statement for statement in text_of("tables.sql").split(";\n") if statement.strip()]
