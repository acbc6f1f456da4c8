"""Changes of tables, for the tests of jobs whose tables change between two runs and in the middle of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from icetower.errors import IcetowerError

BEFORE = "before"
"""The step before the run: the tables change between two runs."""


@dataclass(frozen=True)
class Change:
    """What is done to tables, as the rest of `ALTER TABLE`.

    Attributes:
        under_way: done at a step of a run, or before it.
        after: done when runs have been refused, so that the tables fit again.
        refused: the rule that refuses until then; None: nothing is refused.
        names: the columns that are called otherwise in the end.
    """

    under_way: tuple[str, ...]
    after: tuple[str, ...] = ()
    refused: str | None = None
    names: Mapping[str, str] = field(default_factory=dict[str, str])


def alter(spark: SparkSession, statements: tuple[str, ...], tables: Mapping[str, str]) -> None:
    """Run the statements; `{name}` stands for a table."""
    for statement in statements:
        spark.sql("ALTER TABLE " + statement.format_map(tables))


def rule_of(work: Callable[[], Any]) -> str | None:
    """The rule by which it is refused; None if it is done. Errors that are not Icetower's own come out."""
    try:
        work()
    except IcetowerError as error:
        return error.rule
    return None
