"""The way of a principal's rows into a table, and the columns that are filled in on it. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from icetower.contracts.deliveries import Delivery, delivery_of, next_slot, with_every_slot
from icetower.contracts.model import Operation
from icetower.contracts.patterns import THROUGH, Orchestration
from icetower.contracts.terms import Layout
from icetower.errors import ContractViolation, ValidationFailed
from icetower.iceberg.partitions import spec_of
from icetower.protocol.marks import AGENT_COLUMN, CHANGE_COLUMN, EVENT_TIME_COLUMN, WRITTEN_COLUMN
from icetower.protocol.names import Identifier
from icetower.protocol.rows import Act
from icetower.registry.principals import Principal
from icetower.registry.tokens import contract_revoked

_ADMINISTRATORS = Delivery(Orchestration.DIRECT, (), None)
_GRANTS = {Act.APPEND: Operation.APPEND, Act.UPSERT: Operation.OVERWRITE, Act.DELETE: Operation.DELETE}


def way_of(principal: Principal, table: Identifier, operation: Operation) -> Delivery:
    """How rows come into a table by an operation.

    Raises:
        Forbidden: ``contract.revoked``.
        ContractViolation: ``contract.operation``: the contract grants it nowhere; ``contract.through``: it does not
            tell through which table.
    """
    contract = principal.contract
    if principal.revoked:
        raise contract_revoked(f"contract {contract.name} of {principal.name}")
    found = _ADMINISTRATORS if principal.administrator else delivery_of(contract, table, operation)
    if found is None:
        if contract.shadow:
            return _ADMINISTRATORS
        raise ContractViolation(
            f"contract {contract.name} grants {operation} on no partition of {table}", rule="contract.operation"
        )
    if found.pattern in THROUGH and found.through is None:
        raise ContractViolation(
            f"contract {contract.name} lets rows into {table} through its {THROUGH[found.pattern]}, and does not tell "
            "which table that is; add 'through' to its entry",
            rule="contract.through",
        )
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """Where rows go, and what is filled in where they leave it out.

    Attributes:
        table: the one that they are written to.
        filled: by column; a moment is in UTC.
        whole: the rows take the place of those with the same keys, and must name every other column.
    """

    table: Identifier
    filled: dict[str, Any]
    _delivery: Delivery
    whole: bool = False

    def with_slot(self, metadata: Any, now_ms: int) -> dict[str, Any]:
        """With the beginning of the slot that goes on, where the contract gives one by a column."""
        slot = next_slot(map(with_every_slot, self._delivery.rules), now_ms)
        if slot is None or slot.term == "now" or slot.starts_ms > now_ms:
            return self.filled
        field = Layout.of(metadata).field(slot.term, spec_of(metadata, metadata["default-spec-id"]))
        return self.filled if field is None else self.filled | {field.source_name: _moment(slot.starts_ms)}


def way_of_rows(principal: Principal, table: Identifier, act: Act, now_ms: int) -> Way:
    """The way of rows that a principal sends to a table.

    Raises:
        ContractViolation: as `way_of`.
        ValidationFailed: ``rows.operation``: that way takes no such operation.
    """
    found = way_of(principal, table, _GRANTS[act])
    filled: dict[str, Any] = {EVENT_TIME_COLUMN: _moment(now_ms)}
    through = None if found.through is None else Identifier.parse(str(found.through))
    if through is None:
        if act is not Act.APPEND:
            raise ValidationFailed(
                f"rows of {table} that are sent here are appended, and this asks to {act} them: that goes through a "
                "delta table (pattern: collector), or by a commit of the agent's own. The contract's pattern is "
                f"{found.pattern}",
                rule="rows.operation",
            )
        return Way(table, filled, found)
    if act is Act.DELETE and found.pattern is Orchestration.MEDIATOR:
        raise ValidationFailed(
            f"a write-ahead log takes no deletes, and the rows of {table} come through {through}; the pattern "
            "collector takes them",
            rule="rows.operation",
        )
    filled |= {
        AGENT_COLUMN: principal.contract.name,
        WRITTEN_COLUMN: filled[EVENT_TIME_COLUMN],
        CHANGE_COLUMN: "delete" if act is Act.DELETE else "upsert",
    }
    return Way(through, filled, found, whole=act is Act.UPSERT)


def _moment(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
