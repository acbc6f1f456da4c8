"""Shared by the commands that run on Spark: checks of their requirements, and Spark's errors in one line."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from icetower.errors import ConfigurationError, IcetowerError, UpstreamFailed
from icetower.pipelines.interrupts import ended_by_interrupts

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


@contextmanager
def spark_errors(interrupted: str) -> Generator[None]:
    """Raise exceptions of Spark or its JVM as `UpstreamFailed`, with their first line.

    Args:
        interrupted: the message if Ctrl-C ends the command.
    """
    with ended_by_interrupts(interrupted), _in_one_line():
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
