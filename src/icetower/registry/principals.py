"""A principal: the name that acts, and the contract that bounds it."""

from __future__ import annotations

from dataclasses import dataclass

from icetower.contracts.model import ADMINISTRATOR, VIEWER, VIEWER_NAME, Contract

_ENDED = "(ended)"
"""All who bring a credential that has ended share the places of one principal; no principal has this name."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who has proven who they are.

    Attributes:
        contract: what it may do; nothing, where its contract was revoked.
        contract_version: counts from 1; 0: the built-in contract.
        revoked: its contract was.
        ended: it was proven by a credential that has ended.
    """

    name: str
    contract: Contract
    contract_version: int
    revoked: bool = False
    ended: bool = False

    @property
    def administrator(self) -> bool:
        return self.contract.administrator

    @property
    def viewer(self) -> bool:
        """Whether it may read the control API, and do nothing else."""
        return self.contract.name == VIEWER_NAME

    @property
    def sees_all(self) -> bool:
        """Whether the control API shows it other principals' affairs, too."""
        return self.administrator or self.viewer

    @property
    def waits_as(self) -> str:
        """The name by which its requests wait for turns: credentials that have ended hold up no principal."""
        return _ENDED if self.ended else self.name


def administrator(name: str) -> Principal:
    """A principal that may do everything: a tower that is started open on loopback, or the first one of all."""
    return Principal(name, ADMINISTRATOR, 0)


def viewer(name: str) -> Principal:
    """A principal that may look at everything the control API shows, and change nothing."""
    return Principal(name, VIEWER, 0)


def ended(name: str) -> Principal:
    """Who brings a credential that has ended: nothing is done, and of a commit it is looked whether it has landed."""
    return Principal(name, Contract("ended", description="the credential has ended"), 0, revoked=True, ended=True)
