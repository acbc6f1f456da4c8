"""What nobody owns, of what some contracts divide between them. Pure.

Between the first value and the last that anybody owns, and among buckets, of which there are only so many, a gap is
most likely a mistake: whoever should write there is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from icetower.contracts.axes import Axes, Axis, is_relative, rules_regions
from icetower.contracts.boxes import NOTHING, Box, Spans, TooMany, difference, merged
from icetower.contracts.model import Rule
from icetower.contracts.terms import Layout
from icetower.contracts.values import NotUnderstood
from icetower.iceberg.partitions import PartitionSpec


def gaps(
    rules: Sequence[Rule], *, now_ms: int, layout: Layout | None = None, spec: PartitionSpec | None = None
) -> list[str]:
    """The partitions that no rule owns, in words; none where the rules cannot be compared.

    Args:
        rules: all that own something of one table.
        now_ms: milliseconds since 1970.
        layout, spec: what names mean for the table, and its partition spec; None: it is not at hand.
    """
    regions = rules_regions(rules)
    if not regions:
        return []
    alike = list({tuple(name for name, _ in region.fields): region for region in regions}.values())
    for moment_ms in (None, now_ms) if any(map(is_relative, regions)) else (now_ms,):
        axes = Axes(regions, layout=layout, spec=spec, now_ms=moment_ms)
        if any(axes.why_unsure(one, other) for one, other in itertools.combinations(alike, 2)):
            return []
        try:
            owned = [box for rule in rules for box in axes.boxes(rule)]
            return [axes.words(box) for box in merged(difference([_whole(axes, owned)], owned))]
        except (NotUnderstood, TooMany):
            continue
    return []


def _whole(axes: Axes, owned: Sequence[Box]) -> Box:
    """What is divided: along each axis what lies between the values that are owned, or those alone."""
    whole: dict[Any, Spans] = {}
    for box in owned:
        for axis, spans in box.items():
            assert isinstance(axis, Axis)
            whole[axis] = axes.hull(axis, owned) or whole.get(axis, NOTHING) | Spans(spans.pieces)
    return {axis: spans for axis, spans in whole.items() if spans}
