"""On whose behalf a tool works, and which tools that is enough for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icetower.contracts.document import load
from icetower.contracts.model import ADMINISTRATOR, FILE_OPERATIONS, Contract, Operation

READING = frozenset(
    {
        "whoami",
        "list_tables",
        "describe_table",
        "query_rows",
        "summarize_rows",
        "check_write",
        "commit_status",
        "explain_refusal",
        "my_metrics",
    }
)
"""Tools that change nothing. All others are left out for a caller that only reads."""

NEEDED: Mapping[str, frozenset[Operation]] = {
    "describe_table": frozenset({Operation.READ}),
    "query_rows": frozenset({Operation.READ}),
    "summarize_rows": frozenset({Operation.READ}),
    "check_write": frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE}),
    "append_rows": frozenset({Operation.APPEND}),
    "upsert_rows": frozenset({Operation.OVERWRITE}),
    "delete_rows": frozenset({Operation.DELETE}),
    "fence_write": frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE}),
    "publish_branch": frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE}),
    "revert_my_commit": frozenset({Operation.OVERWRITE, Operation.DELETE}),
    "declare_intent": frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE}),
    "renew_intent": frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE}),
    "release_intent": frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE}),
}
"""Tool → operations one of which the contract must grant on something. Others need none."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who calls tools.

    Attributes:
        uri: of the tower that is asked.
        token: the credential, which the tower judges; None for an open tower.
        read_only: only what changes nothing.
        storage: properties for PyIceberg's FileIO, beside those that the tower names.
    """

    uri: str
    token: str | None
    read_only: bool = False
    storage: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Me:
    """What the tower says of a caller."""

    principal: str
    contract: Contract
    version: int

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Me:
        """From the answer of `GET /icetower/v1/me`."""
        text = answer.get("text")
        contract = ADMINISTRATOR if text is None else load(str(text), source="the contract")
        return cls(str(answer["principal"]), contract, int(answer.get("version") or 0))

    def may(self, operation: Operation) -> bool:
        """Whether the contract grants an operation on some part of some table."""
        contract = self.contract
        if contract.administrator or contract.shadow:
            return True
        anywhere = operation not in FILE_OPERATIONS  # what needs no partitions of one's own
        return any(rule.grants(operation) and (anywhere or rule.partitions != ()) for rule in contract.rules)

    def tools(self, names: tuple[str, ...], *, read_only: bool) -> tuple[str, ...]:
        """Which of these tools the caller has."""
        return tuple(
            name
            for name in names
            if (not read_only or name in READING)
            and (name not in NEEDED or any(map(self.may, NEEDED[name])))
            and not (name == "request_partition" and self.contract.administrator)
        )
