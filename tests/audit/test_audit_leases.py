"""What histories show of intents: zombies and intruders in a table, and histories of a book that lets neither in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pytest

from icetower.audit.commits import Commit, Reads
from icetower.audit.findings import Violation
from icetower.audit.items import Item
from icetower.audit.leases import HELD_MAX, Leases
from icetower.audit.live_files import Delta
from icetower.iceberg.records import ADDED, DATA, DELETED, POSITION_DELETES
from icetower.intents.book import Book
from icetower.intents.model import End, State
from icetower.protocol.marks import INTENT, INTENT_FENCE, INTENTS, PRINCIPAL
from tests.intents.world import DAYS, box, claim, wanted

REQUIRED = {INTENTS: "required"}


@dataclass(frozen=True)
class Did:
    """One commit: to which days, under which intent and fence, and whether it changes rows there."""

    days: str
    intent: str | None = None
    fence: int | None = None
    how: str = "overwrite"
    tower: bool = True


def item(day: str, content: int, status: int) -> Item:
    path = f"{day}-{content}"
    place = (0, (int(day),))
    return Item(
        path, status, content, path, "PARQUET", 0, (int(day),), place, 1, 1, 1, 1, 1, None, None, None, None, (), "m"
    )


def commit(position: int, did: Did) -> Commit:
    content = POSITION_DELETES if did.how == "delete by position" else DATA
    added = () if did.how == "delete" else tuple(item(day, content, ADDED) for day in did.days)
    removes = did.how in ("overwrite", "delete")
    removed = tuple(item(day, DATA, DELETED) for day in did.days) if removes else ()
    summary = {PRINCIPAL: "ann"} if did.tower else {}
    summary |= {} if did.intent is None else {INTENT: did.intent}
    summary |= {} if did.fence is None else {INTENT_FENCE: str(did.fence)}
    snapshot = {"snapshot-id": position + 1, "summary": {"operation": "overwrite", **summary}}
    return Commit(position, snapshot, Reads(), Delta(added, removed, (), (), blind=False))


def found(history: Sequence[Did], *, required: bool = True) -> list[Violation]:
    leases = Leases(REQUIRED if required else {}, {})
    return [violation for at, did in enumerate(history) for violation in leases.take(commit(at, did))]


ZOMBIE = [("fenced-holder", "definite", (1, 2))]
HISTORIES = [
    # a history, and what is wrong with it: rule, verdict, snapshots
    ("holders in turn", [Did("1", "a", 1), Did("1", "b", 2), Did("1", "b", 2)], []),
    ("one intent, several days", [Did("12", "a", 1), Did("3", "b", 2), Did("1", "a", 1)], []),
    ("a zombie", [Did("1", "a", 1), Did("1", "b", 2), Did("1", "a", 1)], [("fenced-holder", "definite", (2, 3))]),
    ("a zombie that deletes", [Did("1", "b", 2), Did("1", "a", 1, "delete")], ZOMBIE),
    ("by position", [Did("1", "b", 2), Did("1", "a", 1, "delete by position")], ZOMBIE),
    ("a zombie appends", [Did("1", "b", 2), Did("1", "a", 1, "append")], ZOMBIE),
    ("after an append", [Did("1", "b", 2, "append"), Did("1", "a", 1)], ZOMBIE),
    ("both append: they share", [Did("1", "b", 2, "append"), Did("1", "a", 1, "append")], []),
    ("elsewhere", [Did("1", "b", 2), Did("2", "a", 1)], []),
    ("past a tower", [Did("1", "b", 2, tower=False), Did("1", "a", 1)], [("fenced-holder", "possible", (1, 2))]),
    ("an intruder", [Did("1", "a", 1), Did("1"), Did("1", "a", 1)], [("held-rows", "possible", (1, 2, 3))]),
    ("two", [Did("1", "a", 1), Did("1"), Did("1"), Did("1", "a", 1)], [("held-rows", "possible", (1, 2, 4))]),
    ("blind appends are let in", [Did("1", "a", 1), Did("1", how="append"), Did("1", "a", 1)], []),
    ("after the last of the holder", [Did("1", "a", 1), Did("1")], []),
    ("beside it", [Did("1", "a", 1), Did("2"), Did("1", "a", 1)], []),
    ("no intents", [Did("1"), Did("1", how="append"), Did("1")], []),
]  # fmt: skip


@pytest.mark.parametrize(("what", "history", "wrong"), HISTORIES, ids=[each[0] for each in HISTORIES])
def test_what_a_history_shows(what: str, history: list[Did], wrong: list[tuple[str, str, tuple[int, ...]]]) -> None:
    assert [(each.rule.value, each.verdict.value, each.snapshots) for each in found(history)] == wrong, what
    advisory = [each for each in wrong if each[0] != "held-rows"]
    assert len(found(history, required=False)) == len(advisory), what


def test_what_is_remembered_is_bounded() -> None:
    history = [Did("1", "first", 1), Did("1")]
    others = [Did("1", str(fence), fence, "append") for fence in range(2, HELD_MAX + 3)]
    assert found([*history, Did("1", "first", 1)])
    assert not [each for each in found([*history, *others, Did("1", "first", 1)]) if each.rule == "held-rows"]


@pytest.mark.parametrize("seed", range(20))
def test_what_a_book_lets_in_is_never_blamed_and_a_zombie_is_found(seed: int) -> None:
    """Holders overwrite what they hold, over releases, expiry and breaks; then somebody whose lease has ended does."""
    dice, book, now_ms = random.Random(seed), Book(), 1_000_000
    book.begin()
    history: list[Did] = []
    spans = {str(number): frozenset(dice.sample(range(DAYS), dice.randint(1, 2))) for number in range(40)}
    for turn, step in product(range(40), range(6)):
        if step == 0:
            mine = claim(box(sorted(spans[str(turn)])))
            book.declare(wanted(str(turn), mine, principal=str(turn), ttl_ms=dice.choice([500, 5_000])), now_ms)
        held = [each for each in book.live() if each.state is State.HELD]
        if not held:
            continue
        each = dice.choice(held)
        history.append(Did(str(dice.choice(sorted(spans[each.id]))), each.id, each.fence))
        if dice.random() < 0.2:
            book.end(each.id, dice.choice([End.RELEASED, End.BROKEN]), now_ms, "x")
        now_ms += dice.choice([1, 300])
        book.settle(now_ms)
    assert found(history) == []
    zombies = [
        (earlier, later)
        for at, earlier in enumerate(history)
        for later in history[at + 1 :]
        if earlier.days == later.days and (earlier.fence or 0) < (later.fence or 0)
    ]
    assert zombies
    zombie, _ = dice.choice(zombies)
    [violation] = [each for each in found([*history, zombie]) if each.rule == "fenced-holder"]
    assert violation.snapshots[-1] == len(history) + 1
