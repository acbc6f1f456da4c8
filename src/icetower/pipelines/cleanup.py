"""Deletes orphaned files where their writer's contract says so, and reports the others.

A file's writer is known by its folder alone (`write_location: own`); a name in a partition proves nothing. So manifests
and other files outside the principals' folders are only reported.

A file is deleted only after two proofs that nothing refers to it. The first is `find_orphans`: by its path, in its own
table. The second is independent: by its name alone, with any spelling of the path around it, in every table of the
catalog, its own last, and in tables that appear meanwhile. A table may be registered under two names, or refer to
another's files. If any table cannot be read, nothing is deleted.

A file that was written again since it was found is a new file, and is kept. A file behind a symbolic link is somewhere
else, where nothing was proven, and is kept: anyone who may write to the folder could have created the link.

One race remains: a commit that refers to a file between its proof and its deletion. That commit would have to take as
long as the clause's age, and the contract states that none of the agent's commits does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from icetower.ambient import Ambient, SystemAmbient
from icetower.contracts.model import Contract
from icetower.contracts.upkeep import Orphans
from icetower.errors import UpstreamFailed
from icetower.pipelines.orphans import DAY_S, decoded, find_orphans, referenced_by
from icetower.pipelines.tables import iceberg_table, identifier, quoted, tables_of, translating_errors
from icetower.protocol.names import Identifier


class Disposition(StrEnum):
    """What is done with an orphan."""

    REPORTED = "reported"
    TO_DELETE = "would be deleted"
    DELETED = "deleted"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that its table does not refer to.

    Attributes:
        table: the table, as Spark names it.
        principal: the principal whose own folder it is in.
        agent: its writer, if its path names one.
        fate: what is done with it.
        why: the reason to keep it although a contract asks for its deletion.
    """

    table: str
    path: str
    size_bytes: int
    modified_ms: int
    principal: str | None
    agent: str | None
    fate: Disposition = Disposition.REPORTED
    why: str | None = None

    @property
    def modified_at(self) -> datetime:
        return datetime.fromtimestamp(self.modified_ms / 1000, UTC)

    def to_json(self) -> dict[str, Any]:
        """As one line of a report, without `table`, which the caller adds."""
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
    """The contracts' clauses about orphans.

    Args:
        contracts: those in force, by the principals that are bound by them.
    """

    def __init__(self, contracts: Mapping[str, Contract]) -> None:
        self._contracts = contracts

    def of(self, principal: str | None, table: Identifier) -> Orphans | None:
        """The clause of a principal's contract for files in its own folder; None if there is none.

        A contract in shadow mode has no effect, and without a folder of its own no file is known to be the principal's.
        """
        contract = self._contracts.get(principal or "")
        if contract is None or contract.shadow or not contract.on(table).own_location:
            return None
        return contract.orphans

    def youngest_s(self, table: Identifier, otherwise_s: float) -> float:
        """The least age, in seconds, of any orphan of a table that is reported or deleted."""
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
    before: Callable[[Sequence[Orphan]], None] = lambda _: None,
    ambient: Ambient | None = None,
) -> Iterator[Orphan]:
    """The orphans of tables; each is yielded once it has been dealt with.

    Args:
        spark: a session with the catalog, as a principal that sees all of its tables.
        tables: ``catalog.namespace.table``, of one catalog.
        older_than_s: files modified later than this many seconds ago are left out, unless a clause sets the age.
        dry_run: do everything except deleting.
        before: is given all of them, before any is deleted.
        ambient: the clock.

    Raises:
        NoSuchTable: one of the tables does not exist.
        UpstreamFailed: the catalog or the storage failed, or some table could not be read. Nothing was deleted.
    """
    clock = ambient or SystemAmbient()
    found = [each for table in dict.fromkeys(tables) for each in _found(spark, table, clauses, older_than_s, clock)]
    before(found)
    referenced = _referenced_elsewhere(spark, [each for each in found if each.fate is Disposition.TO_DELETE])
    deleter = _Deleter(spark, referenced, dry_run=dry_run)
    yield from (deleter.of(each) if each.fate is Disposition.TO_DELETE else each for each in found)


def _found(spark: SparkSession, table: str, clauses: Clauses, older_than_s: float, clock: Ambient) -> Iterator[Orphan]:
    """The orphans of a table that have the required age."""
    about, now_ms = identifier(table), clock.now_ms()
    least_s = clauses.youngest_s(about, older_than_s)
    orphans = find_orphans(spark, quoted(table), older_than_s=least_s, ambient=clock)
    orphans = orphans.withColumn("modified_ms", f.unix_millis("modified_at"))
    for row in translating_errors(f"looking for orphans of {table}", orphans.collect):
        clause = clauses.of(row.principal, about)
        age_s = older_than_s if clause is None else clause.older_than_s
        fate = Disposition.TO_DELETE if clause is not None and clause.delete else Disposition.REPORTED
        if row.modified_ms < now_ms - age_s * 1000:
            yield Orphan(table, row.path, row.size_bytes, row.modified_ms, row.principal, row.agent, fate)


def _referenced_elsewhere(spark: SparkSession, candidates: Sequence[Orphan]) -> dict[str, str]:
    """The paths whose file name some table of the catalog refers to, and that table: the second proof."""
    if not candidates:
        return {}
    own = list(dict.fromkeys(quoted(each.table) for each in candidates))
    catalog = candidates[0].table.partition(".")[0]
    paths = spark.createDataFrame([(each.path,) for each in candidates], "path STRING")
    last = f.regexp_extract("path", r"([^/]*)/*$", 1)
    paths = paths.withColumn("name", f.explode(_names(last))).localCheckpoint()
    found: dict[str, str] = {}
    waiting, read = [*(each for each in tables_of(spark, catalog) if each not in own), *own], set[str]()
    while waiting:
        for table in waiting:
            references = referenced_by(spark, table, iceberg_table(spark, table))
            names = references.select(f.explode(_names(f.col("path"))).alias("name"))
            used = paths.join(names, "name", "left_semi").select("path")
            found |= {row.path: table for row in translating_errors(f"reading what {table} refers to", used.collect)}
        read.update(waiting)
        # A table that was renamed or registered meanwhile was in none of the lists.
        waiting = [each for each in tables_of(spark, catalog) if each not in read]
    return found


def _names(path: Column) -> Column:
    """Every part of a path that could be a file's name, normalised: readers cut a path off at `?` and `#`.

    A comparison that errs takes two files for the same one, and keeps both.
    """
    parts = f.flatten(f.transform(f.split(path, "/"), lambda part: f.split(f.lower(decoded(part)), "[/?#]")))
    names = f.transform(parts, lambda part: f.regexp_replace(part, r"^\.(.+)\.crc$", "$1"))
    return f.array_distinct(f.filter(names, lambda name: name != ""))


class _Deleter:
    """Deletes files, one at a time, or returns the reason to keep them."""

    def __init__(self, spark: SparkSession, referenced: Mapping[str, str], *, dry_run: bool) -> None:
        self._spark = spark
        self._named = referenced
        self._dry_run = dry_run
        self._handles: dict[str, Any] = {}

    def of(self, orphan: Orphan) -> Orphan:
        if orphan.path in self._named:
            return _keep(orphan, f"{self._named[orphan.path]} refers to a file of this name")
        handle = self._handle(orphan.table)
        if (handle.properties().get("gc.enabled") or "true").lower() == "false":
            return _keep(orphan, "the table has gc.enabled = false: other tables may use its files, too")
        if _behind_a_link(orphan.path, handle.location()):
            return _keep(orphan, "it is behind a symbolic link")
        if self._dry_run:
            return orphan
        try:
            if not translating_errors(f"looking at {orphan.path}", lambda: _is_as_found(handle.io(), orphan)):
                return _keep(orphan, "it was written again since it was found")
            translating_errors(f"deleting {orphan.path}", lambda: handle.io().deleteFile(orphan.path))
        except UpstreamFailed as error:
            return _keep(orphan, str(error))
        return replace(orphan, fate=Disposition.DELETED)

    def _handle(self, table: str) -> Any:
        if table not in self._handles:
            self._handles[table] = iceberg_table(self._spark, quoted(table))
        return self._handles[table]


def _is_as_found(files: Any, orphan: Orphan) -> bool:
    """Whether a file is still the one that was found, by the time and size in Iceberg's own listing."""
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


def _keep(orphan: Orphan, why: str) -> Orphan:
    return replace(orphan, fate=Disposition.KEPT, why=why)
