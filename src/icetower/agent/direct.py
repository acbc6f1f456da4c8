"""What an agent commits itself, by PyIceberg: upserts, deletes and overwrites of tables that it writes to directly.

PyIceberg is imported with the first of them. All of it blocks.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from icetower.agent.client import Tower
from icetower.agent.deliveries import Act, Sent, require_taken
from icetower.agent.keys import keyed, reads
from icetower.agent.known import Known
from icetower.agent.recovery import Patience, carry_out
from icetower.agent.sending import committed, leave_key, prepared_for, send
from icetower.agent.slots import in_time
from icetower.errors import UsageError
from icetower.protocol.marks import LEASES

Where = str | Mapping[str, Any]
"""Rows of a table: a filter as PyIceberg reads it, or the values of some columns."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is done with rows of a table.

    Attributes:
        keys: the columns that identify a row; none: the schema's own.
        leases: what it says of the leases that the agent believes to hold.
        known: what the rows were computed from; None: what is there when it is committed.
    """

    table: str
    rows: Any
    key: str
    keys: Sequence[str] = ()
    leases: str = ""
    known: Known | None = None

    @property
    def said(self) -> Mapping[str, str]:
        """The same, in a snapshot's summary."""
        return {LEASES: self.leases} if self.leases else {}


class Direct:
    """A principal's tower and catalog, opened when they are needed first. Threads may share it.

    Args:
        reason: for the person who is asked for partitions.
    """

    def __init__(self, uri: str, *, reason: str, patience: Patience) -> None:
        self._uri = uri
        self._reason = reason
        self._patience = patience
        self._mutex = threading.Lock()
        self._open: tuple[str | None, Tower, Any] | None = None

    def close(self) -> None:
        with self._mutex:
            if self._open is not None:
                self._open[1].close()
                self._open = None

    def require_installed(self) -> None:
        """Raises `UsageError` where what commits is not installed."""
        try:
            import_module("pyarrow")
            import_module("pyiceberg.catalog")
        except ImportError as error:
            raise UsageError(
                "the contract has the agent commit this itself, for which it needs PyIceberg: install "
                "pyiceberg[pyarrow,pyiceberg-core], or have the contract name a delta table (collector)"
            ) from error

    def write(self, change: Change, operation: Act, token: str | None) -> Sent:
        """Upsert or delete rows. Raises what `send` raises."""
        tower, catalog = self._of(token)
        return send(
            change.rows,
            change.table,
            tower,
            catalog,
            operation=operation,
            key=change.key,
            keys=change.keys,
            reason=self._reason,
            patience=self._patience,
            said=change.said,
            known=change.known,
        )

    def overwrite(self, change: Change, where: Where, token: str | None) -> Sent:
        """Put rows in the place of those that a filter selects.

        Raises:
            IcetowerError: a refusal from which there is no way on.
            UsageError: a row is none of the filter's, or the pattern does not overwrite.
        """
        tower, catalog = self._of(token)

        def work(using: Tower, now: str) -> Sent:
            delivery = in_time(using, change.table, "overwrite", 0.0, self._patience)
            require_taken(delivery, "overwrite_partition")
            target = catalog.load_table(change.table)
            selected = _filter(where)
            rows = prepared_for(change.rows, target.schema().as_arrow(), delivery, "append", change.key, self._patience)
            _require_selected(rows, selected, target)
            known = change.known
            read = reads(target, selected) if known is None else known.declared(target, selected)
            said = keyed(now) | read | dict(change.said)

            def commit() -> None:
                head = target.metadata.current_snapshot_id
                target.overwrite(rows, overwrite_filter=selected, snapshot_properties=said)
                if target.metadata.current_snapshot_id == head:
                    leave_key(target, said, deletes=False)

            again, snapshot_id = committed(target, now, said, commit, known)
            return Sent(delivery.pattern, delivery.written, now, delivery.slot, again, snapshot_id)

        return carry_out(
            work,
            tower,
            change.table,
            operations=["overwrite"],
            reason=self._reason,
            key=change.key,
            patience=self._patience,
        )

    def _of(self, token: str | None) -> tuple[Tower, Any]:
        with self._mutex:
            if self._open is None or self._open[0] != token:
                self.require_installed()
                load_catalog = import_module("pyiceberg.catalog").load_catalog
                tower = Tower(self._uri, token)
                self._open = (token, tower, load_catalog("tower", **tower.pyiceberg_properties()))
            return self._open[1:]


def _filter(where: Where) -> Any:
    """As an expression of PyIceberg's."""
    expressions = import_module("pyiceberg.expressions")
    if isinstance(where, str):
        return import_module("pyiceberg.expressions.parser").parse(where)
    if not where:
        raise UsageError("name the partition that is overwritten: a filter, or the values of some columns")
    parts = [
        expressions.IsNull(name) if value is None else expressions.EqualTo(name, _literal(value))
        for name, value in where.items()
    ]
    return expressions.And(*parts) if len(parts) > 1 else parts[0]


def _literal(value: Any) -> Any:
    # As text a moment keeps its zone in the filter's JSON, which the tower reads.
    return value.isoformat() if isinstance(value, dt.date | dt.time) else value


def _require_selected(rows: Any, selected: Any, target: Any) -> None:
    """Raises `UsageError` for a row that the filter does not select: it would be there twice after the next one."""
    bound = import_module("pyiceberg.expressions.visitors").bind(target.schema(), selected, case_sensitive=True)
    condition = import_module("pyiceberg.io.pyarrow").expression_to_pyarrow(bound)
    others = rows.num_rows - rows.filter(condition).num_rows
    if others:
        raise UsageError(
            f"{others} of {rows.num_rows} rows lie outside of the partition of {'.'.join(target.name())} that they "
            f"overwrite ({selected}); leave them out, or overwrite theirs, too"
        )
