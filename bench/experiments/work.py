"""What the writers of an experiment are told to do: commands on rows, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.experiments.world import Base, Layout, Row, day_text

ROOT_SEED = 20261121
"""Everything random in the experiments comes from here."""

FIRST_NEW_KEY = 1_000_000
"""Inserted rows have keys from here on; base rows have smaller ones."""

Verb = Literal["update", "delete", "merge"]
Filter = Literal["keys", "range", "nothing"]


def stream(*names: object) -> random.Random:
    """A stream of random numbers of its own for whatever is named, the same on every machine."""
    return random.Random("/".join(map(str, (ROOT_SEED, *names))))


@dataclass(frozen=True, slots=True)
class Command:
    """An UPDATE, DELETE or MERGE.

    Attributes:
        verb: which of them.
        reads: keys of the rows that its WHERE or ON covers, whether the table has them or not.
        changes: of these, the keys of the rows that it changes: all of them, but for a MERGE whose WHEN MATCHED has a
            condition of its own.
        inserts: rows that a MERGE adds.
        amount: what an UPDATE or MERGE adds to a row's amount.
        where: the filter that Spark pushes into the scan, in Iceberg's JSON.
        copies: whether it writes whole files anew (copy-on-write) or delete files (merge-on-read).
    """

    verb: Verb
    reads: frozenset[int]
    changes: frozenset[int]
    inserts: tuple[Row, ...]
    amount: int
    where: Any
    copies: bool

    def on(self, row: Row) -> Row | None:
        """What becomes of a row; None if it is deleted."""
        if row.id not in self.changes:
            return row
        return None if self.verb == "delete" else row._replace(amount=row.amount + self.amount)


@dataclass(frozen=True, slots=True)
class Work:
    """Which commands a herd of writers gives.

    Attributes:
        layout: of the table.
        writers: how many begin at once.
        verbs: each writer takes one of these.
        rows: how many rows a command covers.
        changed: the share of them that it changes; below 1 for a MERGE only.
        files: how many data files of the first table its rows lie in; None: `scatter` says where they lie.
        scatter: 0: all rows from a block of keys of the writer's own, as long as a data file and in the writer's own
            range of keys; 1: from all over the table; between: each row from all over with this probability. Not for
            tables by bucket, whose keys have gaps.
        inserts: how many rows a MERGE inserts.
        filter: what the pushed filter says of keys: all of them (`keys`), from which to which (`range`), or nothing.
        names_partitions: whether it names the rows' categories or days besides, if the table is partitioned so.
        copies: the share of writers that write copy-on-write.
    """

    layout: Layout
    writers: int = 16
    verbs: tuple[Verb, ...] = ("update",)
    rows: int = 4
    changed: float = 1.0
    files: int | None = 2
    scatter: float = 0.0
    inserts: int = 2
    filter: Filter = "keys"
    names_partitions: bool = True
    copies: float = 0.0


def draw(work: Work, base: Base, seed: int) -> list[Command]:
    """The commands of a herd, in the order in which they will commit.

    Where `files` says where the rows lie, a smaller herd is the beginning of a larger one. What a command covers does
    not depend on how it is written, filtered or checked, so that runs that differ in these can be compared.
    """
    return [_command(work, base, seed, number) for number in range(work.writers)]


def _command(work: Work, base: Base, seed: int, number: int) -> Command:
    rng = stream(seed, "rows", work.layout, work.rows, work.files, work.scatter, number)
    covered = _in_files(work, base, rng) if work.files is not None else _scattered(work, base, number, rng)
    verb = stream(seed, "verb", number).choice(work.verbs)
    keys = sorted(row.id for row in covered)
    changed = stream(seed, "changed", number).sample(keys, max(1, round(work.changed * len(keys))))
    first = FIRST_NEW_KEY + number * 1000
    inserts = () if verb != "merge" else tuple(covered[0]._replace(id=first + at) for at in range(work.inserts))
    return Command(
        verb=verb,
        reads=frozenset((*keys, *(row.id for row in inserts))),
        changes=frozenset(changed),
        inserts=inserts,
        amount=number + 1,
        where=_where(work, covered),
        copies=stream(seed, "copies", number).random() < work.copies,
    )


def _in_files(work: Work, base: Base, rng: random.Random) -> list[Row]:
    """Rows of a number of data files: by category or day of one partition, by bucket from anywhere."""
    assert work.files is not None
    at = _partition(work.layout, rng)
    names = [name for name in base.files if at is None or name.startswith(f"p{at}f")]
    files = rng.sample(names, work.files)
    covered: list[Row] = []
    for number, name in enumerate(files):
        share = (work.rows * (number + 1)) // work.files - (work.rows * number) // work.files
        covered += rng.sample(base.files[name], share)
    return covered


def _partition(layout: Layout, rng: random.Random) -> int | None:
    """The partition that a writer works in; None for all of them, as keys that belong together share no bucket."""
    match layout.partitioning:
        case "category":
            return rng.randrange(layout.partitions)
        case "day":  # half of the writers in the newest, a quarter in the one before …
            at = layout.partitions - 1
            while at > 0 and rng.random() < 0.5:
                at -= 1
            return at
        case "bucket":
            return None


def _scattered(work: Work, base: Base, number: int, rng: random.Random) -> list[Row]:
    length, own = work.layout.rows, len(base.rows) // work.writers
    start = number % work.writers * own + rng.randrange(max(1, own // length)) * length
    chosen: set[int] = set()
    while len(chosen) < work.rows:
        chosen.add(
            rng.randrange(len(base.rows)) if rng.random() < work.scatter else rng.randrange(start, start + length)
        )
    return [base.rows[key] for key in sorted(chosen)]


def _where(work: Work, covered: Sequence[Row]) -> Any:
    """What Spark can push of the condition."""
    keys = sorted(row.id for row in covered)
    parts: list[Any] = []
    if work.names_partitions and work.layout.partitioning == "category":
        parts.append(_one_of("category", sorted({row.category for row in covered})))
    elif work.names_partitions and work.layout.partitioning == "day":
        parts.append(_one_of("day", [day_text(day) for day in sorted({row.day for row in covered})]))
    if work.filter == "keys":
        parts.append(_one_of("id", keys))
    elif work.filter == "range":
        parts += [
            {"type": "gt-eq", "term": "id", "value": keys[0]},
            {"type": "lt-eq", "term": "id", "value": keys[-1]},
        ]
    if not parts:
        return True
    where = parts[0]
    for part in parts[1:]:
        where = {"type": "and", "left": where, "right": part}
    return where


def _one_of(column: str, values: list[Any]) -> Any:
    if len(values) == 1:
        return {"type": "eq", "term": column, "value": values[0]}
    return {"type": "in", "term": column, "values": values}
