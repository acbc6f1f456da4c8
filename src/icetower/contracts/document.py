"""Contracts as they are written: YAML, kept in review beside the agent's code. docs/contracts.md explains every field.

`model` has the fields, with an example of a whole contract in docs/contracts.md. This reads and writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from icetower.contracts.fields import read_part, text_like, written
from icetower.contracts.model import VERSION, Contract
from icetower.contracts.reading import read_document

_VERSION = text_like(str(VERSION), f"is {{!r}}; this release reads version {VERSION}")


def load(text: str, *, source: str) -> Contract:
    """The contract written in `text`; `source` names it in messages. Raises `BadRequest` with line and field."""
    return read_part(Contract, read_document(text, source=source), head={"version": _VERSION})


def to_json(contract: Contract) -> dict[str, Any]:
    """The contract as the JSON that `from_json` reads, in the fields of the YAML."""
    return {"version": VERSION, **written(contract)}


def from_json(document: Mapping[str, Any], *, source: str) -> Contract:
    """As `load`, from a JSON object."""
    # JSON is YAML as long as characters beyond the basic plane are not written as surrogate pairs.
    return load(json.dumps(document, ensure_ascii=False, indent=1), source=source)


def dump(contract: Contract) -> str:
    """The contract as YAML; `load` reads the same contract back."""
    return yaml.safe_dump(to_json(contract), sort_keys=False, allow_unicode=True)
