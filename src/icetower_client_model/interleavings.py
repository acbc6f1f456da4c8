"""Interleavings of two and more writers with known outcomes: Iceberg 1.12's exact answer to each. Pure.

`TABLE` holds every row of the table of interleavings with which the conflict model began, in every variant (``K2`` is
``K2-with`` and ``K2-without``); `facts` holds the further facts of the model, `figures.LISTED` all of them. The tests
run each on Iceberg and on the model.

Snapshot ids are the writers'; as a rule 1 sets the table up, and the last to commit is the one that matters. A manifest
in a message is written ``<manifest>``: its path is new every time. If Iceberg has no text, the expected one is the
exception's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from icetower.iceberg.validation import Level
from icetower_client_model.isolation import Command, Engine, Flags, flags
from icetower_client_model.sketch import (
    BY_CATEGORY,
    JSON,
    append,
    begin,
    case,
    commit,
    data,
    eq,
    equalities,
    expire,
    op,
    positions,
    rollback,
    upgrade,
    vector,
    write,
)

COMMITTED = "committed"
SI, SERIALIZABLE = Level.SNAPSHOT, Level.SERIALIZABLE
ONE, RED = eq("id", 1), eq("category", "red")
ONE_TEXT, RED_TEXT = 'ref(name="id") == 1', 'ref(name="category") == "red"'
NO_NEW_DELETES, NO_NEW_DATA = "no-conflicting-deletes", "no-conflicting-data"


@dataclass(frozen=True, slots=True)
class Listed:
    """One interleaving.

    Attributes:
        name: the name on the command line: ``K2-with``.
        row: the row of the table: ``K2``; ``fact`` for a fact that is not in the table.
        title: what happens, and how it ends.
        case: in the case format.
        expected: each writer's outcome: ``committed``, ``exhausted``, or Iceberg's exception text.
        rule: the rule that refuses; empty if no commit is refused.
    """

    name: str
    row: str
    title: str
    case: JSON
    expected: Mapping[int, str]
    rule: str = ""


def listed(name: str, title: str, life: JSON, refused: Mapping[int, str] | None = None, rule: str = "") -> Listed:
    """An interleaving in which every writer commits but those in `refused`."""
    writers = (step["id"] for step in life["steps"] if step["do"] in ("begin", "write"))
    expected = {writer: (refused or {}).get(writer, COMMITTED) for writer in writers}
    return Listed(name, name.partition("-")[0], title, {"name": name, **life}, MappingProxyType(expected), rule)


def by_name(*groups: Iterator[Listed]) -> Mapping[str, Listed]:
    """Interleavings by name, in order."""
    return MappingProxyType({item.name: item for group in groups for item in group})


# ── Iceberg's texts ──────────────────────────────────────────────────────────────────────────────────────────────────


def path(name: str) -> str:
    """The path of a data file of a case."""
    return f"mem://t/data/{name}.parquet"


def missing(name: str) -> str:
    """C6."""
    return f"Missing required files to delete: {path(name)}"


def gone(name: str) -> str:
    """C4."""
    return f"Cannot commit, missing data files: [{path(name)}]"


def struck(name: str, kind: str = "delete") -> str:
    """C3b."""
    return f"Cannot commit, found new {kind} for replaced data file: {path(name)}"


def data_matching(where: str, name: str) -> str:
    """C1."""
    return f"Found conflicting files that can contain records matching {where}: [{path(name)}]"


def deletes_matching(where: str, name: str) -> str:
    """C3a."""
    return f"Found new conflicting delete files that can apply to records matching {where}: [{path(name)}]"


def vector_added(name: str, of: str) -> str:
    """C5."""
    text = f"location=mem://t/data/{name}.puffin, offset=4, length=40, referencedDataFile={path(of)}"
    return f"Found concurrently added DV for {path(of)}: DV{{{text}}}"


# ── Writers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def spark(command: Command, level: Level = SI, format_version: int = 2) -> Flags:
    """Spark's settings for a command."""
    return flags(Engine.SPARK, command, level, format_version)


def cow(level: Level = SI, *, where: Any = ONE, **changes: Any) -> JSON:
    """Spark's copy-on-write UPDATE of id 1, read from snapshot 1."""
    return spark(Command.COPY_ON_WRITE, level).operation(start=1, conflict_filter=where, **changes)


def mor(command: Command, level: Level = SI, *, where: Any = ONE, of: str = "A", **changes: Any) -> JSON:
    """Spark's merge-on-read command on id 1 in one data file, read from snapshot 1."""
    return spark(command, level).operation(start=1, conflict_filter=where, references=[of], **changes)


def compaction(remove: Any, add: str, *, start: int = 1) -> JSON:
    """Spark's rewrite_data_files of one file; the snapshot ids of cases are sequence numbers, too."""
    return spark(Command.COMPACTION).operation(start=start, sequence_number=start, remove=[remove], add=[add])


def upsert(*, add: str, add_deletes: str) -> JSON:
    """Flink's upsert: equality deletes, nothing checked."""
    flink = flags(Engine.FLINK, Command.UPSERT, Level.NONE, 2)
    return flink.operation(add=[add], add_deletes=[add_deletes])


COW_FILES = {name: data(ids=(1, 5)) for name in "ABC"}
V2_FILES = {**COW_FILES, "P": positions(of="A"), "Q": positions(of="A")}
V3_FILES = {**COW_FILES, "V": vector("A"), "W": vector("A")}


# ── Copy-on-write and merge-on-read ──────────────────────────────────────────────────────────────────────────────────


def _mixed() -> Iterator[Listed]:
    files = {**V2_FILES, "D": data(ids=(1, 5))}
    delete = op("delete", remove=["A"])
    for name, command, verdict in (
        ("delete", Command.DELETE, {}),
        ("update", Command.UPDATE, {3: gone("A")}),
    ):
        change = mor(command, add=["D"] if name == "update" else [], add_deletes=["P"])
        life = case(files, append(1, "A"), begin(2, delete), begin(3, change), commit(2), commit(3))
        asked = "does not ask for those" if name == "delete" else "asks for them with validateDeletedFiles"
        title = f"The data file goes in a commit recorded as `delete`; a merge-on-read {name.upper()} {asked}"
        yield listed(f"Fig11-{name}", title, life, verdict, "C4" if verdict else "")


def _updates_and_deletes() -> Iterator[Listed]:
    def undelete(level: Level) -> JSON:
        update = mor(Command.UPDATE, level, add=["B"], add_deletes=["P"])
        delete = mor(Command.DELETE, level, add_deletes=["Q"])
        return case(V2_FILES, append(1, "A"), begin(2, update), begin(3, delete), commit(2), commit(3))

    yield listed(
        "U1", "UPDATE, then DELETE of the same row at snapshot isolation: the row is still there", undelete(SI)
    )
    verdict = {3: data_matching(ONE_TEXT, "B")}
    yield listed(
        "U2-serializable", "The same, serializable: the updated row is new data", undelete(SERIALIZABLE), verdict, "C1"
    )
    update = mor(Command.UPDATE, add=["B"], add_deletes=["V"])
    delete = mor(Command.DELETE, add_deletes=["W"])
    steps = (append(1, "A"), begin(2, update), begin(3, delete), commit(2), commit(3))
    life = case(V3_FILES, *steps, format_version=3)
    yield listed("U2-v3", "The same with deletion vectors: one for each file", life, {3: vector_added("V", "A")}, "C5")
    delete = mor(Command.DELETE, add_deletes=["P"])
    update = mor(Command.UPDATE, add=["B"], add_deletes=["Q"])
    life = case(V2_FILES, append(1, "A"), begin(2, delete), begin(3, update), commit(2), commit(3))
    yield listed(
        "U3",
        "DELETE, then UPDATE: an UPDATE asks for new delete files",
        life,
        {3: deletes_matching(ONE_TEXT, "P")},
        "C3a",
    )


def _vectors() -> Iterator[Listed]:
    def two(name: str, title: str, *steps: JSON, refused: Mapping[int, str], rule: str) -> Listed:
        return listed(name, title, case(V3_FILES, *steps, format_version=3), refused, rule)

    first, second = (mor(Command.DELETE, add_deletes=[name]) for name in "VW")
    both_begin = (append(1, "A"), begin(2, first), begin(3, second))
    refused = {3: vector_added("V", "A")}
    yield two("D1", "Two deletion vectors for one file", *both_begin, commit(2), commit(3), refused=refused, rule="C5")
    unsaid = op("row-delta", add_deletes=["V"])
    refusal = "Cannot determine history between starting snapshot null and the last known ancestor 2"
    title = "A vector from a writer that never said what it read, after the first snapshot has expired"
    yield two(
        "D5", title, append(1, "A"), append(2, "B"), expire(1), write(3, unsaid), refused={3: refusal}, rule="history"
    )
    supersede = op("row-delta", remove_deletes=["V"], add_deletes=["W"])
    title = "A vector replaces an older one, but its writer never said what it read: the old one counts as new"
    yield two("D6", title, append(1, "A"), write(2, unsaid), write(3, supersede), refused=refused, rule="C5")
    rewrite = cow(remove=["A"], add=["B"])
    steps = (append(1, "A"), begin(2, first), begin(3, rewrite))
    title = "A vector, then copy-on-write of its data file"
    yield two("D7-vector-first", title, *steps, commit(2), commit(3), refused={3: struck("A")}, rule="C3b")
    title = "Copy-on-write, then a vector for the file that is gone"
    yield two("D7-rewrite-first", title, *steps, commit(3), commit(2), refused={2: gone("A")}, rule="C4")


# ── Compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _compactions() -> Iterator[Listed]:
    small = {**V2_FILES, "E": equalities(ids=(1, 1))}

    def life(*steps: JSON) -> JSON:
        return case(small, append(1, "A"), *steps)

    first, second = (compaction("A", name) for name in "BC")
    steps = (begin(2, first), begin(3, second), commit(2), commit(3))
    yield listed("K1", "Two compactions of one file", life(*steps), {3: missing("A")}, "C6")
    for name, delete, refused in (
        ("with", mor(Command.DELETE, add_deletes=["P"]), {3: gone("A")}),
        ("without", op("row-delta", start=1, add_deletes=["P"]), {}),
    ):
        steps = (begin(2, first), begin(3, delete), commit(2), commit(3))
        title = f"Compaction, then a position delete {name} validateDataFilesExist" + (
            "" if refused else ": it deletes nothing"
        )
        yield listed(f"K2-{name}", title, life(*steps), refused, "C4" if refused else "")
    delete = mor(Command.DELETE, add_deletes=["P"])
    steps = (begin(2, delete), begin(3, first), commit(2), commit(3))
    title = "A position delete, then compaction of its data file"
    yield listed("K3", title, life(*steps), {3: struck("A", "position delete")}, "C3b")
    late = compaction({"file": "A", "from": "built"}, "B", start=2)
    title = "The same, but the compaction names the head at its commit as its start: the delete is lost"
    yield listed("K3-late-start", title, life(write(2, delete), write(3, late)))
    replaced = upsert(add="C", add_deletes="E")
    steps = (begin(2, replaced), begin(3, first), commit(2), commit(3))
    title = "Equality deletes, then compaction that keeps the old sequence number: they still apply"
    yield listed("K4", title, life(*steps))
    moved = op("rewrite", start=1, remove=["A"], add=["B"])
    steps = (begin(2, replaced), begin(3, moved), commit(2), commit(3))
    title = "The same with a new sequence number: the deletes would no longer apply"
    yield listed("K4-new-number", title, life(*steps), {3: struck("A")}, "C3b")


# ── Partitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _partitions() -> Iterator[Listed]:
    files = {
        "A": data("red"),
        "B": data("red"),
        "C": data("red"),
        "D": data("blue"),
        "P": positions("red"),
    }

    def replace(level: Level, *meanwhile: JSON, add: str = "C") -> JSON:
        operation = spark(Command.OVERWRITE_PARTITIONS, level).operation(start=1, add=[add])
        return case(files, append(1, "A"), begin(3, operation), *meanwhile, commit(3), specs=BY_CATEGORY)

    added = write(2, op("append", add=["B"]))
    title = "Append to a partition, then its replacement"
    yield listed("P1-none", f"{title}, nothing asked: the append is lost", replace(Level.NONE, added))
    yield listed("P1-snapshot", f"{title} at snapshot isolation: the append is lost", replace(SI, added))
    found = {3: data_matching("partitions [category=red]", "B")}
    yield listed("P1-serializable", f"{title}, serializable", replace(SERIALIZABLE, added), found, "C1")
    removed = (
        "Found conflicting deleted files that can apply to records matching [category=red]: [mem://t/data/A.parquet]"
    )
    for name, change, message, rule in (
        ("position-delete", op("row-delta", add_deletes=["P"]), deletes_matching("[category=red]", "P"), "C3a"),
        ("delete", op("delete", remove=["A"]), removed, "C2"),
        ("compaction", op("rewrite", remove=["A"], add=["B"]), removed, "C2"),
    ):
        title = f"A {name.replace('-', ' ')} in a partition, then its replacement at snapshot isolation"
        yield listed(f"P2-{name}", title, replace(SI, write(2, change)), {3: message}, rule)
        title = f"A {name.replace('-', ' ')} in another partition does not matter"
        yield listed(f"P2-{name}-elsewhere", title, replace(SI, write(2, change), add="D"))


# ── Skew, retries, manifests, branches ───────────────────────────────────────────────────────────────────────────────


def _skews() -> Iterator[Listed]:
    files = {**V2_FILES, "D": data(ids=(1, 5)), "Q": positions(of="B")}

    def life(first: JSON, second: JSON) -> JSON:
        return case(files, append(1, "A", "B"), begin(2, first), begin(3, second), commit(2), commit(3))

    def rewrites(level: Level) -> JSON:
        return life(cow(level, remove=["A"], add=["C"]), cow(level, remove=["B"], add=["D"]))

    title = "Two copy-on-write updates have read two files and change one each"
    yield listed("W1-snapshot", f"{title}: write skew", rewrites(SI))
    refused = {3: data_matching(ONE_TEXT, "C")}
    yield listed("W1-serializable", f"{title}; serializable", rewrites(SERIALIZABLE), refused, "C1")
    first = mor(Command.DELETE, SERIALIZABLE, add_deletes=["P"])
    second = mor(Command.DELETE, SERIALIZABLE, add_deletes=["Q"], of="B")
    title = "Two serializable merge-on-read DELETEs that read each other's rows: write skew, as no data is added"
    yield listed("W2", title, life(first, second))


def _retries() -> Iterator[Listed]:
    files = {"A": data("red"), "B": data("red"), "C": data("blue")}
    replace = op("overwrite", filter=RED, add=["B"], start=1, validate=[NO_NEW_DATA])
    delete = op("delete", remove=["A"])
    steps = (append(1, "A", "C"), begin(3, replace), begin(2, delete))
    title = "overwriteByRowFilter; the matching file goes"
    life = case(files, *steps, commit(2), commit(3), specs=BY_CATEGORY)
    yield listed("R1-before", f"{title} before its first attempt: there is nothing left to replace", life)
    life = case(files, *steps, commit(3, [commit(2)]), specs=BY_CATEGORY)
    title = f"{title} between attempt and swap: the retry misses the file that the first attempt had found"
    yield listed("R1-between", title, life, {3: missing("A")}, "C6")


def _manifests() -> Iterator[Listed]:
    def life(rewrite: JSON) -> JSON:
        steps = (append(1, "A"), append(2, "B"), begin(4, rewrite), write(3, op("delete", remove=["A"])), commit(4))
        return case(COW_FILES, *steps)

    title = "RewriteManifests after a concurrent delete"
    yield listed(
        "M1-cluster-by", f"{title}, clusterBy: it clusters again", life(op("rewrite-manifests", cluster_by="all"))
    )
    refused = {4: "Deleted manifest <manifest> could not be found in the latest snapshot 3"}
    by_hand = life(op("rewrite-manifests", merge_manifests=[0, 1]))
    yield listed("M1-delete-manifest", f"{title}, deleteManifest", by_hand, refused, "missing-manifest")


def _branches() -> Iterator[Listed]:
    delta = op("row-delta", start=2, conflict_filter=ONE, references=["A"], add_deletes=["P"])
    rewrite = op("overwrite", start=2, conflict_filter=ONE, validate=[NO_NEW_DELETES], remove=["A"], add=["C"])
    title = "The snapshot that was read is rolled back, then"
    lost = "Cannot determine history between starting snapshot 2 and the last known ancestor 1"
    for name, what, operation, message, rule in (
        ("row-delta", "a row delta", delta, "Snapshot 2 is not an ancestor of 1", "ancestry"),
        ("overwrite", "an overwrite", rewrite, lost, "history"),
    ):
        life = case(V2_FILES, append(1, "A"), append(2, "B"), begin(3, operation), rollback(1), commit(3))
        yield listed(f"B1-{name}", f"{title} {what}", life, {3: message}, rule)
    buffered = mor(Command.DELETE, add_deletes=["P"])
    life = case(V2_FILES, append(1, "A"), begin(2, buffered), upgrade(3), commit(2))
    message = f"Must use DVs for position deletes in V3: {path('P')}"
    yield listed(
        "B2", "A position delete is prepared, then the table becomes version 3", life, {2: message}, "delete-format"
    )


TABLE = by_name(
    _mixed(),
    _updates_and_deletes(),
    _vectors(),
    _compactions(),
    _partitions(),
    _skews(),
    _retries(),
    _manifests(),
    _branches(),
)
"""The table of interleavings by name, without Vanlightly's figures themselves."""
