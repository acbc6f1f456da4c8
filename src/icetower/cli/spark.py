"""Shared by the commands that run on Spark: their options, checks of what they need, and Spark's errors in one line."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icetower.cli.own_tower import token_for
from icetower.cli.progress import waiting
from icetower.cli.terminal import interrupted_line
from icetower.errors import ConfigurationError, IcetowerError, UpstreamFailed, UsageError
from icetower.pipelines.interrupts import ended_by_interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CREDENTIAL_VARIABLE",
    "Conf",
    "Master",
    "job_session",
    "need_spark",
    "settings_of",
    "spark_errors",
    "waiting",
]

Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master: local[4], spark://…, yarn, k8s://…; by default what spark-submit or spark-defaults.conf "
        "says, else local[*].",
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="A setting of Spark, NAME=VALUE; may be repeated. No secrets.")
]

# Secrets come from the environment: every user of the machine can see arguments.
CREDENTIAL_VARIABLE = "ICETOWER_CREDENTIAL"
_PREFIX = re.compile(r"^(?:\w+\.)+(\w+(?:Exception|Error)): ")
MESSAGE_CHARACTERS_MAX = 500


def need_spark() -> None:
    """Raises `ConfigurationError` if Spark or Java is missing, before Spark reports it in fifty lines."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError("this command needs Spark: install icetower[spark]", rule="configuration.spark")
    home = os.environ.get("JAVA_HOME")
    if home is not None and not (Path(home) / "bin" / "java").is_file():
        raise ConfigurationError(
            f"this command needs Java, and JAVA_HOME names {home}, which has no bin/java; "
            "let it name a Java of version 17 or later, or unset it",
            rule="configuration.java",
        )
    if home is None and shutil.which("java") is None:
        raise ConfigurationError(
            "this command needs Java, which is not on the PATH; install Java 17 or later, or set JAVA_HOME",
            rule="configuration.java",
        )


def job_session(app_name: str, uri: str, master: str | None, conf: list[str] | None) -> SparkSession:
    """The session of a job on the catalog at `uri`, with the token of `token_for` or ICETOWER_CREDENTIAL."""
    from icetower.pipelines.session import spark_session

    settings = settings_of(conf)
    token = token_for(uri)
    credential = None if token else os.environ.get(CREDENTIAL_VARIABLE)
    return spark_session(
        app_name, catalog_uri=uri, token=token, credential=credential, master=master, settings=settings
    )


def settings_of(conf: list[str] | None) -> dict[str, str]:
    """The settings of `--conf`. Raises `UsageError`, which doesn't show the text: it may be a secret."""
    pairs = [each.partition("=") for each in conf or ()]
    if any(not name.startswith("spark.") or not equals for name, equals, _ in pairs):
        raise UsageError("--conf takes a setting of Spark, such as --conf spark.executor.memory=4g")
    return {name: value for name, _, value in pairs}


@contextmanager
def spark_errors(interrupted: str) -> Generator[None]:
    """Raise exceptions of Spark or its JVM as `UpstreamFailed`, with their first line.

    Args:
        interrupted: the message if Ctrl-C ends the command.
    """
    with ended_by_interrupts(interrupted, interrupted_line), _in_one_line():
        yield


@contextmanager
def _in_one_line() -> Generator[None]:
    try:
        yield
    except IcetowerError:
        raise
    except Exception as error:
        kind = type(error)
        if not kind.__module__.startswith(("pyspark.", "py4j.")):
            raise
        java = getattr(error, "java_exception", None)
        text = str(error) if java is None else str(java.toString())
        first = next((line.strip() for line in text.splitlines() if line.strip()), kind.__name__)
        said = _PREFIX.sub(r"\1: ", first)[:MESSAGE_CHARACTERS_MAX]
        raise UpstreamFailed(f"Spark failed: {said}; its log is above", rule="spark") from error
