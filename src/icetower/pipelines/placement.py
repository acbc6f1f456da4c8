"""Where a job runs: what `spark-submit`, a running session or `spark-defaults.conf` has already chosen.

A job sets its own master only if nobody else has. Spark gives a program's settings precedence over all others, so the
settings of others have to be looked for first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext

from icetower.errors import ConfigurationError

MASTER = "spark.master"
_REMOTE = "spark.remote"
_LINE = re.compile(r"(?P<name>[^\s=:#!]+)[\s=:]+(?P<value>.*\S)")


class Start(StrEnum):
    """Who starts Spark."""

    EMBEDDED = "embedded"
    """This program, in a JVM of its own."""
    SUBMITTED = "submitted"
    """`spark-submit`, which started this program."""
    RUNNING = "running"
    """This program did before, as in a notebook."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who starts Spark, and the settings that others have chosen for it."""

    start: Start
    settings: Mapping[str, str]

    @property
    def master(self) -> str | None:
        return self.settings.get(MASTER)


def find(wanted: Mapping[str, str]) -> Placement:
    """Where the job is to run.

    Args:
        wanted: Spark settings that the job's user asked for.

    Raises:
        ConfigurationError: the user asked for another master than `spark-submit` has, or for Spark Connect, through
            which no job reaches Iceberg's Java classes. (A running session stays as it is, whatever is asked for.)
    """
    _refuse_connect(wanted)
    spark: Any = SparkContext
    context = spark._active_spark_context
    if context is not None and context._jsc is not None:
        return Placement(Start.RUNNING, dict(context.getConf().getAll()))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return Placement(Start.EMBEDDED, defaults())
    spark._ensure_initialized()  # connects to the JVM, whose system properties are the settings
    placement = Placement(Start.SUBMITTED, dict(SparkConf().getAll()))
    asked = wanted.get(MASTER)
    if asked is not None and placement.master is not None and asked != placement.master:
        raise ConfigurationError(
            f"the job asks for the master {asked}, but spark-submit has {placement.master}: leave out --master, or "
            "give it to spark-submit alone",
            rule="configuration.spark",
        )
    return placement


def _refuse_connect(wanted: Mapping[str, str]) -> None:
    asked = wanted.get(MASTER, "")
    if (
        asked.startswith("sc://")
        or _REMOTE in wanted
        or {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & os.environ.keys()
    ):
        raise ConfigurationError(
            "the job would run through Spark Connect, which gives no access to Iceberg's Java classes, and the job "
            "commits through them: run it with --master or spark-submit, and unset SPARK_REMOTE",
            rule="configuration.spark",
        )


def defaults() -> dict[str, str]:
    """The settings in `spark-defaults.conf`, in the folder that Spark itself would read; none without such a file."""
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    if folder is None and home is not None:
        folder = str(Path(home) / "conf")
    if folder is None:
        return {}
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (_LINE.fullmatch(line.strip()) for line in text.splitlines() if not line.lstrip().startswith(("#", "!")))
    return {line["name"]: line["value"] for line in lines if line is not None}
