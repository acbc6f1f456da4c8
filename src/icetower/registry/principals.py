"""A principal: the name that acts, and the contract that bounds it."""

from __future__ import annotations

from dataclasses import dataclass

from icetower.contracts.model import ADMINISTRATOR, Contract


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who has proven who they are.

    Attributes:
        contract: what it may do; nothing, where its contract was revoked.
        contract_version: counts from 1; 0: the built-in contract.
        revoked: its contract was.
    """

    name: str
    contract: Contract
    contract_version: int
    revoked: bool = False

    @property
    def administrator(self) -> bool:
        return self.contract.administrator


def administrator(name: str) -> Principal:
    """A principal that may do everything: a tower that is started open on loopback, or the first one of all."""
    return Principal(name, ADMINISTRATOR, 0)
