"""The keys that count as applied to a target: those of the batches in its history, regardless of what was logged.

`wal_line` decides by metadata. If the target's history has expired so far that it has no batch, the target's rows
decide: a row whose key came with one batch only shows that the batch was applied.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from icetower.errors import BadRequest
from icetower.pipelines.tables import literal, quoted
from icetower.pipelines.wal_line import BatchStates, LoggedBatch, Metadata, batch_states, lineage, with_predecessors
from icetower.pipelines.wal_logs import SNAPSHOT, Logs, Mediations
from icetower.pipelines.wal_plan import AppliedBatch, marked
from icetower.pipelines.wal_rows import KEY_COLUMN


@dataclass(frozen=True)
class AppliedKeys:
    """The keys applied to one target, by its current metadata and the logs.

    Attributes:
        name: the target's current name.
        mediations: the mediations of this target.
    """

    logs: Logs
    target: Metadata
    name: str
    mediations: Mediations

    @property
    def uuid(self) -> str:
        return str(self.target["table-uuid"])

    @cached_property
    def batches(self) -> dict[int, LoggedBatch]:
        logged = {batch.snapshot: batch for batch in self.mediations.batches}
        return with_predecessors((logged | {batch.snapshot: batch for batch in marked(self.target)}).values())

    @cached_property
    def legacy(self) -> dict[tuple[str, int], int]:
        """Batches that earlier versions logged: the target's name then and the time → the snapshot."""
        names = {self.name, *(name for name, _ in self.mediations.legacy)}
        old = [batch for batch in marked(self.target) if batch.previous is None]
        return {(name, batch.committed_at_ms): batch.snapshot for name in names for batch in old} | dict(
            self.mediations.legacy
        )

    def before(self, done: AppliedBatch) -> DataFrame:
        """The keys of the same log's batches before an applied one."""
        known = self.batches.get(done.snapshot)
        chain, _ = lineage(self.batches, done.previous if known is None else known.previous)
        return self.logs.of_snapshots(self.logs.logged_keys(self.uuid, self.legacy, None), chain)

    def keys(self, rows: DataFrame | None, since_ms: int | None) -> tuple[DataFrame, BatchStates]:
        """Every key that counts as applied, and the states of the batches.

        Args:
            rows: of the target, at its head.
            since_ms: keys that were logged earlier are left out.

        Raises:
            BadRequest: it is not known whether batches were applied or rolled back.
        """
        logged = self.logs.logged_keys(self.uuid, self.legacy, since_ms)
        found = batch_states(self.target, self.batches)
        if found.complete:
            return self.logs.of_snapshots(logged, found.applied), found
        there = rows.select(KEY_COLUMN) if rows is not None else logged.limit(0).select(KEY_COLUMN)
        in_question = self._in_question(logged, found, there)
        seen = [snapshot for snapshot, shown in in_question.items() if shown]
        # Of a batch that is not in the log of mediations, the log of keys has only the snapshot.
        unlisted = [LoggedBatch(i, f"? {i}", None, 0, 0, None) for i in in_question if i not in self.batches]
        found = batch_states(self.target, self.batches | {batch.snapshot: batch for batch in unlisted}, seen)
        unknown = found.unknown & in_question.keys()
        if unknown:
            raise self._not_known(f"{len(unknown)} batches", self._logged_as(unknown))
        known = self.logs.of_snapshots(logged, found.applied).unionByName(logged.where(f"{SNAPSHOT} IS NULL"))
        unplaced = self.logs.unplaced_keys(self.name, self.legacy, (since_ms or 0, found.cut_at_ms))
        missing = unplaced.join(known, KEY_COLUMN, "left_anti").join(there, KEY_COLUMN, "left_anti")
        if not unplaced.isEmpty() and not missing.isEmpty():
            at = f"timestamp_millis({found.cut_at_ms})"
            where = f"table_uuid IS NULL AND table_name = {literal(self.name)} AND committed_at <= {at}"
            raise self._not_known("an earlier version", where)
        return known, found

    def _in_question(self, logged: DataFrame, found: BatchStates, there: DataFrame) -> dict[int, bool]:
        """The batches that metadata does not decide, and whether the target's rows show them."""
        decided = self.batches.keys() - found.unknown
        applied = self.logs.of_snapshots(logged, found.applied)
        rows = self.logs.of_snapshots(logged, decided, others=True)
        if rows.isEmpty():  # the usual case, in which the target need not be read
            return {}
        rows = rows.join(applied.select(KEY_COLUMN), KEY_COLUMN, "left_anti")
        alone = f.count(f.lit(1)).over(Window.partitionBy(KEY_COLUMN)) == 1
        shown = there.distinct().withColumn("__there", f.lit(True))
        rows = rows.withColumn("__alone", alone).join(shown, KEY_COLUMN, "left")
        shows = f.max(f.coalesce(f.col("__there"), f.lit(False)) & f.col("__alone"))
        return {row[0]: row[1] for row in rows.groupBy(SNAPSHOT).agg(shows).collect()}

    def _logged_as(self, snapshots: Collection[int]) -> str:
        """The condition on the log of keys for batches, including those that an earlier version logged."""
        ids = ", ".join(map(str, sorted(snapshots)))
        places = [f"table_uuid = {literal(self.uuid)} AND snapshot_id IN ({ids})"]
        for name in sorted({name for name, _ in self.legacy}):
            times = sorted(at for (its, at), snapshot in self.legacy.items() if its == name and snapshot in snapshots)
            if times:
                at = ", ".join(map(str, times))
                places.append(
                    f"table_uuid IS NULL AND table_name = {literal(name)} AND unix_millis(committed_at) IN ({at})"
                )
        return " OR ".join(places)

    def _not_known(self, what: str, where: str) -> BadRequest:
        keys, kept = quoted(self.logs.keys), f"table_uuid = {literal(self.uuid)}, snapshot_id = NULL"
        keep = f"UPDATE {keys} SET {kept} WHERE {where}"  # noqa: S608 - names are quoted
        forget = f"DELETE FROM {keys} WHERE {where}"  # noqa: S608
        return BadRequest(
            f"{self.logs.keys} has keys of {what}, and it is not known whether {self.name} still has their rows: the "
            "snapshots of that time have expired, no row has the keys, and the table may have been rolled back before. "
            f"If it was not rolled back: {keep}. If it was rolled back, and the rows are to be applied again: "
            f"{forget}",
            rule="wal.applied",
        )
