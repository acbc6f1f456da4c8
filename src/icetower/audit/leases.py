"""What a history shows of intents: commits of holders whose lease had ended, and commits into rows that others held.

Pure.

A commit under an intent says so in its summary, with the fence of its grant, and both hold wherever a tower has put it
there. Of two intents on the same rows, one of which changes rows, the one with the higher fence was granted when the
other had ended: whatever its holder commits there after that one is a zombie's. And between two commits of one intent
it was held all the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.audit.commits import Commit
from icetower.audit.findings import Rule, Verdict, Violation
from icetower.audit.integrity import found
from icetower.audit.items import Item
from icetower.audit.wording import called, partition_of, shown
from icetower.contracts.model import REQUIRED
from icetower.iceberg.deletes import Place
from icetower.iceberg.partitions import PartitionSpec
from icetower.protocol.marks import INTENT, INTENT_FENCE, INTENTS
from icetower.table.origins import through_a_tower

JSON = Mapping[str, Any]
HELD_MAX = 64
"""Of each partition, the last intents under which somebody committed there."""


@dataclass(slots=True)
class _Held:
    """An intent that has committed to a partition: its last commit there, and who came after it, if anybody has."""

    snapshot: JSON
    intruder: JSON | None = None


class Leases:
    """One audit's.

    Args:
        properties: of the table, as it is now.
        specs: of its partitions.
    """

    def __init__(self, properties: Mapping[str, str], specs: Mapping[int, PartitionSpec]) -> None:
        self._required = properties.get(INTENTS) == REQUIRED
        self._specs = specs
        # By partition, the highest fence under which somebody has committed there, and has changed rows there.
        self._highest: dict[Place, tuple[int, JSON]] = {}
        self._changed: dict[Place, tuple[int, JSON]] = {}
        self._held: dict[Place, OrderedDict[str, _Held]] = {}

    def take(self, commit: Commit) -> Iterator[Violation]:
        """What the next commit of the line shows."""
        places: dict[Place, Item] = {}
        for item in (*commit.delta.removed, *commit.delta.added):
            places.setdefault(item.place, item)
        appends = not commit.delta.removed and all(item.is_data for item in commit.delta.added)
        intent, fence = commit.summary.get(INTENT), _fence(commit.summary)
        zombie = [] if fence is None else list(self._fenced(commit, places, fence, appends=appends))
        yield from zombie
        if self._required:
            intruders = list(self._held_by_others(commit, places, intent, appends=appends))
            yield from () if zombie else intruders  # what a zombie says that it holds, it does not

    def _fenced(
        self, commit: Commit, places: Mapping[Place, Item], fence: int, *, appends: bool
    ) -> Iterator[Violation]:
        later = self._changed if appends else self._highest
        before = [(*later[place], item) for place, item in places.items() if place in later and later[place][0] > fence]
        if before:
            highest, other, item = before[0]
            sure = through_a_tower(other) and through_a_tower(commit.snapshot)
            yield found(
                Rule.FENCED_HOLDER,
                Verdict.DEFINITE if sure else Verdict.POSSIBLE,
                (other, commit.snapshot),
                f"{called(other)} came under an intent with fence {highest} to {partition_of(item, self._specs)}.",
                f"{called(commit.snapshot)} came there after it, under intent {shown(commit.summary[INTENT])} with "
                f"fence {fence}, which had ended when the later fence was given.",
                files=(item,),
            )
        for place in places:
            known = [self._highest] if appends else [self._highest, self._changed]
            for each in known:
                if place not in each or each[place][0] < fence:
                    each[place] = fence, commit.snapshot

    def _held_by_others(
        self, commit: Commit, places: Mapping[Place, Item], intent: str | None, *, appends: bool
    ) -> Iterator[Violation]:
        told = False
        for place, item in places.items():
            held = self._held.setdefault(place, OrderedDict())
            own = None if intent is None else held.pop(intent, None)
            if own is not None and own.intruder is not None and not told:
                told = True
                yield self._intrusion(own.snapshot, own.intruder, commit, item)
            if not appends:
                for each in held.values():
                    each.intruder = each.intruder or commit.snapshot
            if intent is not None:
                held[intent] = _Held(commit.snapshot)
                while len(held) > HELD_MAX:
                    held.popitem(last=False)

    def _intrusion(self, first: JSON, intruder: JSON, last: Commit, item: Item) -> Violation:
        snapshots: Sequence[JSON] = (first, intruder, last.snapshot)
        return found(
            Rule.HELD_ROWS,
            Verdict.POSSIBLE,
            snapshots,
            f"{called(first)} and {called(last.snapshot)} came under intent {shown(last.summary[INTENT])} to "
            f"{partition_of(item, self._specs)}: it was held from the one to the other.",
            f"{called(intruder)} changed rows there between the two, under another intent or none. The table requires "
            "intents now; it may not have then.",
            files=(item,),
        )


def _fence(summary: Mapping[str, Any]) -> int | None:
    text = str(summary.get(INTENT_FENCE, ""))
    return int(text) if INTENT in summary and text.isascii() and text.isdecimal() and len(text) < 20 else None
