"""What becomes of orphaned files: deleted where the contract of whoever wrote them says so, reported otherwise.

Whose a file is says the place that it lies in alone (`write_location: own`): a name in a partition can be anybody's. So
manifests and whatever lies beside the principals' places is only ever reported.

A file is deleted when it was proven twice that nothing refers to it. The first proof is `find_orphans`: by its place,
against its own table. The second is made anew, and differs in kind: by its name alone, however the path around it is
spelled, against every table of the catalog, its own last, and those that turn up meanwhile. A table may have been
registered under two names, or name another's files. Where a table cannot be read nothing is deleted at all.

A file that was written again since it was found is another file, and young. What lies behind a symbolic link lies
elsewhere, where nobody has looked; who may write to the place could have put that there.

What remains is a commit that names a file between its proof and its end. It would have to be as old as the clause says,
which is the contract's word that no commit of the agent takes so long.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient, SystemAmbient
from icetower.contracts.model import Contract, Orphans
from icetower.errors import UpstreamFailed
from icetower.pipelines.orphans import DAY_S, decoded, find_orphans, referenced_by
from icetower.pipelines.tables import iceberg_table, identifier, quoted, tables_of, told
from icetower.protocol.names import Identifier


class Fate(StrEnum):
    """What becomes of an orphan."""

    REPORTED = "reported"
    DOOMED = "would be deleted"
    DELETED = "deleted"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that its table does not refer to.

    Attributes:
        table: as Spark names it.
        principal: in whose own place it lies.
        agent: who wrote it, as far as its path says.
        why: it is kept although a contract says that it be deleted.
    """

    table: str
    path: str
    size_bytes: int
    modified_ms: int
    principal: str | None
    agent: str | None
    fate: Fate = Fate.REPORTED
    why: str | None = None

    @property
    def modified_at(self) -> datetime:
        return datetime.fromtimestamp(self.modified_ms / 1000, UTC)

    def to_json(self) -> dict[str, Any]:
        """As one line of a report; `table` is left to whoever knows what it was called."""
        return {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "modified_at": self.modified_at.isoformat(),
            "principal": self.principal,
            "agent": self.agent,
            "fate": self.fate,
            "why": self.why,
        }


class Clauses:
    """What contracts say of orphans.

    Args:
        contracts: those in force, by the principals that are bound to them.
    """

    def __init__(self, contracts: Mapping[str, Contract]) -> None:
        self._contracts = contracts

    def of(self, principal: str | None, table: Identifier) -> Orphans | None:
        """The clause of a principal's contract for what lies in its own place; None where there is none.

        In shadow mode nothing is done by a contract, and without a place of its own nothing is known to be its.
        """
        contract = self._contracts.get(principal or "")
        if contract is None or contract.shadow or not contract.on(table).own_location:
            return None
        return contract.orphans

    def youngest_s(self, table: Identifier, otherwise_s: float) -> float:
        """The least age, in seconds, from which on some orphan of a table is spoken of."""
        clauses = (self.of(principal, table) for principal in self._contracts)
        return min([otherwise_s, *(clause.older_than_s for clause in clauses if clause is not None)])


NO_CLAUSES = Clauses({})


def clean(
    spark: SparkSession,
    tables: Sequence[str],
    clauses: Clauses = NO_CLAUSES,
    *,
    older_than_s: float = DAY_S,
    dry_run: bool = False,
    ambient: Ambient | None = None,
) -> Iterator[Orphan]:
    """The orphans of tables, one after the other, each when its fate is known.

    Args:
        spark: a session with the catalog, as somebody who sees all of its tables.
        tables: ``catalog.namespace.table``, of one catalog.
        older_than_s: where no clause says it, files modified later than this many seconds ago are left out.
        dry_run: nothing is deleted, and all else is done.
        ambient: the clock.

    Raises:
        NoSuchTable: one of the tables is not there.
        UpstreamFailed: the catalog or the storage failed, or some table could not be read. Nothing was deleted.
    """
    clock = ambient or SystemAmbient()
    found = [each for table in dict.fromkeys(tables) for each in _found(spark, table, clauses, older_than_s, clock)]
    named = _named_somewhere(spark, [each for each in found if each.fate is Fate.DOOMED])
    ends = _Ends(spark, named, dry_run=dry_run)
    yield from (ends.of(each) if each.fate is Fate.DOOMED else each for each in found)


def _found(spark: SparkSession, table: str, clauses: Clauses, older_than_s: float, clock: Ambient) -> Iterator[Orphan]:
    """The orphans of a table that are as old as is asked of them."""
    about, now_ms = identifier(table), clock.now_ms()
    least_s = clauses.youngest_s(about, older_than_s)
    orphans = find_orphans(spark, quoted(table), older_than_s=least_s, ambient=clock)
    orphans = orphans.withColumn("modified_ms", f.unix_millis("modified_at"))
    for row in told(f"looking for orphans of {table}", orphans.collect):
        clause = clauses.of(row.principal, about)
        asked_s = older_than_s if clause is None else clause.older_than_s
        fate = Fate.DOOMED if clause is not None and clause.delete else Fate.REPORTED
        if row.modified_ms < now_ms - asked_s * 1000:
            yield Orphan(table, row.path, row.size_bytes, row.modified_ms, row.principal, row.agent, fate)


def _named_somewhere(spark: SparkSession, doomed: Sequence[Orphan]) -> dict[str, str]:
    """The paths of which some table of the catalog names the file, and that table: the second proof."""
    if not doomed:
        return {}
    own = list(dict.fromkeys(quoted(each.table) for each in doomed))
    catalog = doomed[0].table.partition(".")[0]
    paths = spark.createDataFrame([(each.path,) for each in doomed], "path STRING")
    last = f.regexp_extract("path", r"([^/]*)/*$", 1)
    paths = paths.withColumn("name", f.explode(_names(last))).localCheckpoint()
    found: dict[str, str] = {}
    waiting, read = [*(each for each in tables_of(spark, catalog) if each not in own), *own], set[str]()
    while waiting:
        for table in waiting:
            references = referenced_by(spark, table, iceberg_table(spark, table))
            names = references.select(f.explode(_names(f.col("path"))).alias("name"))
            used = paths.join(names, "name", "left_semi").select("path")
            found |= {row.path: table for row in told(f"reading what {table} refers to", used.collect)}
        read.update(waiting)
        # A table that was renamed or registered meanwhile, whose name no list has had.
        waiting = [each for each in tables_of(spark, catalog) if each not in read]
    return found


def _names(path: Column) -> Column:
    """Every part of a path that could be a file's name, in one spelling: readers cut off what follows `?` and `#`.

    A comparison that errs takes two files for one, and keeps both.
    """
    parts = f.flatten(f.transform(f.split(path, "/"), lambda part: f.split(f.lower(decoded(part)), "[/?#]")))
    names = f.transform(parts, lambda part: f.regexp_replace(part, r"^\.(.+)\.crc$", "$1"))
    return f.array_distinct(f.filter(names, lambda name: name != ""))


class _Ends:
    """Ends files that are to be deleted, one at a time."""

    def __init__(self, spark: SparkSession, named: Mapping[str, str], *, dry_run: bool) -> None:
        self._spark = spark
        self._named = named
        self._dry_run = dry_run
        self._handles: dict[str, Any] = {}

    def of(self, orphan: Orphan) -> Orphan:
        if orphan.path in self._named:
            return _kept(orphan, f"{self._named[orphan.path]} refers to a file of this name")
        handle = self._handle(orphan.table)
        if (handle.properties().get("gc.enabled") or "true").lower() == "false":
            return _kept(orphan, "the table has gc.enabled = false: its files may be others', too")
        if _behind_a_link(orphan.path, handle.location()):
            return _kept(orphan, "it lies behind a symbolic link")
        if self._dry_run:
            return orphan
        try:
            if not told(f"looking at {orphan.path}", lambda: _is_as_found(handle.io(), orphan)):
                return _kept(orphan, "it was written again since it was found")
            told(f"deleting {orphan.path}", lambda: handle.io().deleteFile(orphan.path))
        except UpstreamFailed as error:
            return _kept(orphan, str(error))
        return replace(orphan, fate=Fate.DELETED)

    def _handle(self, table: str) -> Any:
        if table not in self._handles:
            self._handles[table] = iceberg_table(self._spark, quoted(table))
        return self._handles[table]


def _is_as_found(files: Any, orphan: Orphan) -> bool:
    """Whether a file is still the one that was found, as far as Iceberg's own listing tells."""
    listed = files.listPrefix(orphan.path).iterator()
    while listed.hasNext():
        file = listed.next()
        if file.location() == orphan.path:
            return (file.createdAtMillis(), file.size()) == (orphan.modified_ms, orphan.size_bytes)
    return True  # it is gone


def _behind_a_link(path: str, location: str) -> bool:
    """Whether a directory on the way from a table's location to a local file is a symbolic link."""
    local, root = (re.sub(r"^file:/+", "/", each) for each in (path, location))
    if not local.startswith("/"):
        return False
    folder = os.path.dirname(local)
    return os.path.realpath(folder) != os.path.join(os.path.realpath(root), os.path.relpath(folder, root))


def _kept(orphan: Orphan, why: str) -> Orphan:
    return replace(orphan, fate=Fate.KEPT, why=why)
