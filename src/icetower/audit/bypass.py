"""Commits that did not come through the tower. Pure.

The tower writes into each snapshot whose commit it was, and refuses clients that write such words themselves. A table
that it has committed to once, it commits to from then on. Whoever has the catalog's own credentials can go around it,
and then no contract, check or key has stood in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from icetower.audit.findings import Rule, Verdict, Violation
from icetower.audit.integrity import found
from icetower.audit.items import Item
from icetower.audit.wording import called, listed, partition_of, shown
from icetower.iceberg.partitions import PartitionSpec
from icetower.table.origins import origin_of

JSON = Mapping[str, Any]
PARTITIONS_SHOWN = 20


def partitions_touched(items: Iterable[Item], specs: Mapping[int, PartitionSpec]) -> list[str]:
    """The partitions of files, by name, each once."""
    return list(dict.fromkeys(partition_of(item, specs) for item in items))[:PARTITIONS_SHOWN]


def bypass(snapshot: JSON, before: JSON | None, items: Iterable[Item], specs: Mapping[int, PartitionSpec]) -> Violation:
    """A snapshot without the tower's mark.

    Args:
        before: an earlier one that has it; None where it is said that all must have it.
        items: the files that it added and removed.
    """
    origin = origin_of(snapshot)
    wrote = (
        ", ".join(f"{name} {shown(word)}" for name, word in origin.items())
        or "nobody says who: no engine, no application"
    )
    partitions = partitions_touched(items, specs)
    since = "" if before is None else f" {called(before)} before it has one: the table is a tower's."
    return found(
        Rule.BYPASS,
        Verdict.DEFINITE,
        (snapshot,),
        f"{called(snapshot)} carries no mark of a tower (icetower.principal).{since}",
        f"It was written by {wrote}." if origin else f"Of who wrote it {wrote}.",
        f"It touches {listed(partitions)}." if partitions else "It touches no file.",
        files=items,
    )
