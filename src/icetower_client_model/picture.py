"""Figures: cases whose files hold rows about people, so that the result can be shown as rows. Pure.

A person's id in the table is the number in `PEOPLE`; the column ``category`` holds the row's second value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from icetower.iceberg.validation import Level
from icetower_client_model.isolation import Command, Engine, flags
from icetower_client_model.sketch import BY_CATEGORY, JSON, UNPARTITIONED, case, eq

PEOPLE = MappingProxyType({"jack": 1, "sarah": 2, "anna": 3, "tom": 4, "emma": 5})


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        name: the name on the command line: ``7``, ``undelete``.
        title: one line.
        source: the picture that it retells.
        story: the description, step by step.
        case: in the case format; the snapshot ids are the writers'.
        people: the name of each snapshot's writer.
        rows: the rows of each data file, as ``person, value``.
        strikes: for each delete file, the data file and the row that it removes.
        expected: each writer's outcome: ``committed``, or Iceberg's exception text.
        rule: the rule that refuses; empty if no commit is refused.
        wrong: the fault in the final table, in a few words; empty if there is none.
    """

    name: str
    title: str
    source: str
    story: tuple[str, ...]
    case: JSON
    people: Mapping[int, str]
    rows: Mapping[str, tuple[str, ...]]
    expected: Mapping[int, str]
    strikes: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    rule: str = ""
    wrong: str = ""


def story_steps(story: str) -> tuple[str, ...]:
    """The steps of a story, each of which begins with a dash."""
    return tuple(" ".join(step.split()) for step in story.split("- ")[1:])


def life(
    rows: Mapping[str, tuple[str, ...]],
    *steps: JSON,
    strikes: Mapping[str, tuple[str, str]] | None = None,
    by_category: bool = False,
) -> JSON:
    """A case whose files and statistics follow from the rows.

    Args:
        rows: as in `Figure`.
        steps: the steps, in order.
        strikes: as in `Figure`; each is a position delete file that names its data file.
        by_category: whether the table is partitioned by ``category``.
    """
    files = {name: _data_file(held, by_category=by_category) for name, held in rows.items()}
    for name, (target, _) in (strikes or {}).items():
        files[name] = {"content": "position-deletes", "spec": 0, "partition": [], "records": 1, "references": target}
    return case(files, *steps, specs=BY_CATEGORY if by_category else UNPARTITIONED)


def _data_file(rows: tuple[str, ...], *, by_category: bool) -> JSON:
    people, words = zip(*(row.split(", ") for row in rows), strict=True)
    ids = [PEOPLE[person] for person in people]
    count = len(rows)
    metrics = {
        "values": {"1": count, "2": count},
        "nulls": {"1": 0, "2": 0},
        "lower": {"1": min(ids), "2": min(words)},
        "upper": {"1": max(ids), "2": max(words)},
    }
    return {
        "content": "data",
        "spec": 0,
        "partition": [words[0]] if by_category else [],
        "records": count,
        "metrics": metrics,
    }


def person(who: str) -> JSON:
    """The filter of a command on one person's row."""
    return eq("id", PEOPLE[who])


def rewrite(where: Any, level: Level, remove: str, add: str) -> JSON:
    """Spark's copy-on-write UPDATE or DELETE, read from snapshot 1.

    Args:
        where: the filter pushed into the scan, in Iceberg's JSON.
    """
    spark = flags(Engine.SPARK, Command.COPY_ON_WRITE, level, 2)
    return spark.operation(start=1, conflict_filter=where, remove=[remove], add=[add])


def delta(
    where: Any, level: Level, command: Command, add_deletes: str, *, add: tuple[str, ...] = (), of: str = "data-1"
) -> JSON:
    """Spark's merge-on-read UPDATE or DELETE of rows in one data file, read from snapshot 1.

    Args:
        where: the filter pushed into the scan, in Iceberg's JSON.
        of: the data file.
    """
    spark = flags(Engine.SPARK, command, level, 2)
    return spark.operation(start=1, conflict_filter=where, references=[of], add=list(add), add_deletes=[add_deletes])
