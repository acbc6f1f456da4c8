"""What the tests of intents share: a small table of cells, in which who conflicts with whom is plain to see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from icetower.admission.admitted import AdmittedAppend, UnderIntent
from icetower.admission.identity import Identity
from icetower.ambient import SystemAmbient
from icetower.contracts.boxes import Box, Spans, before, span
from icetower.iceberg.change import Touched
from icetower.iceberg.records import DataFile
from icetower.intents.book import Book
from icetower.intents.model import Claim, Intent, State, Wanted
from icetower.protocol.marks import INTENTS, INTENTS_FENCE
from icetower.protocol.names import Identifier

DAY, BUCKET = (1, "identity", "int"), (2, "identity", "int")
DAYS, BUCKETS = 4, 2
TABLE = Identifier(("ns",), "t")

Cells = frozenset[tuple[str, int, int]]
"""Table, day, bucket."""


class Clock(SystemAmbient):
    """A clock that the tests set; nothing sleeps."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        super().__init__()
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    async def sleep(self, seconds: float) -> None:
        return None


def numbers(some: Iterable[int]) -> Spans:
    union = Spans(())
    for each in some:
        union = union | span(before(each), before(each + 1))
    return union


def box(days: Iterable[int] | None = None, buckets: Iterable[int] | None = None) -> Box:
    """The rows of some days and buckets; None: of all."""
    found: dict[Any, Spans] = {}
    if days is not None:
        found[DAY] = numbers(days)
    if buckets is not None:
        found[BUCKET] = numbers(buckets)
    return found


def claim(*boxes: Box, uuid: str = "t", operations: str = "overwrite", exclusive: bool = False) -> Claim:
    return Claim(f"ns.{uuid}", uuid, boxes or ({},), frozenset({operations}), repr(boxes), exclusive)


def wanted(id_: str, *claims: Claim, principal: str = "ann", ttl_ms: int = 10_000, queue: bool = True) -> Wanted:
    return Wanted(id_, principal, f"of {principal}", claims or (claim(),), ttl_ms, queue)


def cells(claims: Sequence[Claim]) -> Cells:
    """The cells of some claims, found by asking of each cell whether it is inside."""
    return frozenset[tuple[str, int, int]]().union(*map(_cells, claims))


def _cells(each: Claim) -> Cells:
    name = each.uuid, each.said
    if name not in _KNOWN:
        _KNOWN[name] = frozenset(
            (each.uuid, day, bucket)
            for day, bucket in product(range(DAYS), range(BUCKETS))
            if any(_inside(one, day, bucket) for one in each.boxes)
        )
    return _KNOWN[name]


_KNOWN: dict[tuple[str, str], Cells] = {}


def _inside(one: Box, day: int, bucket: int) -> bool:
    return all(
        any(start <= before(value) < end for start, end in spans.pieces)
        for axis, spans in one.items()
        for value in [day if axis == DAY else bucket]
    )


def conflict(one: Sequence[Claim], other: Sequence[Claim]) -> bool:
    """The rule itself, cell by cell: the same cell, unless both only append to it, and neither wants it for itself."""
    return any(
        not (_shares(left) and _shares(right)) and not _cells(left).isdisjoint(_cells(right))
        for left in one
        for right in other
    )


def _shares(each: Claim) -> bool:
    return each.operations == {"append"} and not each.exclusive


def require_fair(intents: Iterable[Intent]) -> None:
    """What holds of a book at any moment.

    - No two that conflict are held.
    - Who waits, waits for somebody: no wake-up was lost.
    - Nobody who came later has been let in before one that waits.
    - Fences were given once each.
    """
    live = [each for each in intents if each.live]
    held = [each for each in live if each.state is State.HELD]
    for position, one in enumerate(held):
        for other in held[position + 1 :]:
            assert not conflict(one.claims, other.claims), f"{one.id} and {other.id} are held, and conflict"
    for waiter in live:
        if waiter.state is not State.QUEUED:
            continue
        before_it = [each for each in live if each.number < waiter.number and conflict(each.claims, waiter.claims)]
        assert before_it, f"{waiter.id} waits for nobody"
        overtaking = [each.id for each in held if each.number > waiter.number and conflict(each.claims, waiter.claims)]
        assert not overtaking, f"{overtaking} came after {waiter.id}, and hold what it waits for"
    fences = [each.fence for each in held]
    assert len(set(fences)) == len(fences)
    assert None not in fences


@dataclass
class Table:
    """A table with one partition for each cell: its properties, and what has landed, in order.

    Attributes:
        fields: of its spec; 1: it is partitioned by day alone.
        stands: the snapshot at which ``main`` stands.
    """

    required: bool = False
    uuid: str = "t"
    fence: int = 0
    fields: int = 2
    stands: int | None = None
    landed: list[tuple[str, int, Cells]] = field(default_factory=list[tuple[str, int, Cells]])

    @property
    def metadata(self) -> dict[str, Any]:
        properties = {INTENTS: "required" if self.required else "advisory"}
        if self.fence:
            properties[INTENTS_FENCE] = str(self.fence)
        return {
            "table-uuid": self.uuid,
            "properties": properties,
            "refs": {} if self.stands is None else {"main": {"type": "branch", "snapshot-id": self.stands}},
            "default-spec-id": 0,
            "current-schema-id": 0,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [
                        {"id": 1, "name": "day", "type": "int", "required": False},
                        {"id": 2, "name": "bucket", "type": "int", "required": False},
                    ],
                }
            ],
            "partition-specs": [
                {
                    "spec-id": 0,
                    "fields": [
                        {"name": "day", "transform": "identity", "source-id": 1, "field-id": 1000},
                        {"name": "bucket", "transform": "identity", "source-id": 2, "field-id": 1001},
                    ][: self.fields],
                }
            ],
        }


def append(*places: tuple[int, int], principal: str = "ann", under: UnderIntent | None = None) -> AdmittedAppend:
    """An append by the fast path to some partitions."""
    files = tuple(
        Touched(DataFile(0, f"f-{day}-{bucket}", "PARQUET", (day, bucket), 1, 1, None, None, {}), 0, None)
        for day, bucket in places
    )
    identity = Identity(principal, "main", None, None, is_append=True)
    return AdmittedAppend(identity, TABLE, files, f"of {principal}", 1, "fingerprint", "t", under=under)


def held_in(book: Book) -> list[Intent]:
    return [each for each in book.live() if each.state is State.HELD]
