"""The Spark session of a job: matching versions and one catalog, wherever Spark runs.

Settings that PySpark gets before the JVM starts become its command line, which every user of the machine can read. So
catalogs, with their addresses and secrets, are set on the running session.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from icetower.errors import ConfigurationError
from icetower.pipelines import jvm
from icetower.pipelines.placement import MASTER, Placement, Start, find

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_RUNTIME_NAME = "iceberg-spark-runtime"
CATALOG = "tower"
_CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_CATALOGS = "spark.sql.catalog."
_SECRETS = "(?i)secret|passw|token|credential|access[._-]?key|account[._-]?key|sas[._-]|connection[._-]?string|//[^/]*@"
"""Settings with such names are secrets: they are on no command line, and Spark shows them neither in logs nor on its
pages."""

_HIDDEN = "set-after-start"
"""The value in place of a secret with which Spark is started."""

DEFAULT_MASTER = "local[*]"

_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.extensions": _EXTENSIONS,
    "spark.redaction.regex": _SECRETS,
    # Shuffles and files are as large as the data asks for: a few rows become one partition and one file, not one for
    # each core.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}
"""What a job wants of Spark, unless `spark-submit` or `spark-defaults.conf` says otherwise."""

_EMBEDDED: Mapping[str, str] = {
    "spark.jars.packages": ICEBERG_RUNTIME,
    "spark.ui.showConsoleProgress": "false",
}
"""Likewise, if this program starts Spark."""

_LOCAL: Mapping[str, str] = {
    # Spark's 200 are for a cluster: with a batch of some thousand rows they take longer than the work itself.
    "spark.sql.shuffle.partitions": str(16 * (os.cpu_count() or 1)),
    "spark.ui.enabled": "false",
    # Spark keeps what its pages would show: a thousand statements, of which one of ours takes 200 KB. A job that runs
    # on for hours would fill the heap with them.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Likewise, if it starts Spark on this machine alone."""

_OTHER_PYTHON = "PYSPARK_PYTHON"
"""The variable that names a Python for workers. It may lack this package."""

_OUR_WORKERS: Mapping[str, str] = {"spark.python.daemon.module": "icetower.pipelines.python_workers"}
"""Likewise, if it starts Spark on this machine alone, and workers run in this program's Python."""


def catalog_settings(catalog_name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark settings of an Iceberg catalog. `properties` are Iceberg's own: ``type``, ``uri``, ``token``, …"""
    prefix = f"spark.sql.catalog.{catalog_name}"
    # A cached table is a stale base: every statement must read the head.
    settings = {prefix: _CATALOG_CLASS, f"{prefix}.cache-enabled": "false"}
    return settings | {f"{prefix}.{name}": value for name, value in properties.items()}


def spark_session(
    app_name: str,
    *,
    catalog_uri: str | None = None,
    catalog_name: str = CATALOG,
    token: str | None = None,
    credential: str | None = None,
    catalog: Mapping[str, str] | None = None,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session whose catalog `catalog_name` is the REST catalog at `catalog_uri`.

    A running session is used as it is, unless it has another catalog of that name: then the session is a new one of
    the same Spark. So is the Spark of `spark-submit`: its settings, those of `spark-defaults.conf` among them, are only
    completed. Otherwise Spark is started here.

    Args:
        app_name: recorded in every snapshot (``app-name``).
        catalog_uri: of the tower; None if `catalog` has all properties.
        catalog_name: the first part of table names in SQL.
        token: a bearer token, if the catalog needs one; or
        credential: ``id:secret`` for the token endpoint.
        catalog: further properties of the catalog, by Iceberg's names; they take precedence.
        master: Spark's master; by default the one that is configured, else `DEFAULT_MASTER`.
        settings: further settings of Spark; they take precedence over all others.

    Executors on other machines need the packages that a job's Python code imports, in the Python that
    ``PYSPARK_PYTHON`` names.

    Raises `ConfigurationError` for a secret among `settings`, except for those of catalogs; for a master that Spark
    does not have; for Spark Connect; and if Spark was started without Iceberg's classes.
    """
    properties: dict[str, str] = {}
    if catalog_uri is not None:
        properties |= {"type": "rest", "uri": catalog_uri}
    if token is not None:
        properties["token"] = token
    if credential is not None:
        properties["credential"] = credential
    properties |= catalog or {}
    asked = {**(settings or {}), **({} if master is None else {MASTER: master})}
    placement = find(asked)
    chosen = {**_wanted_of(placement, asked), **catalog_settings(catalog_name, properties), **asked}
    catalogs = {name: value for name, value in chosen.items() if name.startswith(_CATALOGS)}
    first = {name: value for name, value in chosen.items() if name not in catalogs}
    if seen := sorted(name for name in first if re.search(_SECRETS, name) and name != "spark.redaction.regex"):
        raise ConfigurationError(
            f"{', '.join(seen)} would be on Spark's command line, which all users of this machine can read; put it "
            "into spark-defaults.conf, or set it as a property of the catalog"
        )
    # A job's log names its session's settings, and redacts those that Spark was started with.
    hidden = {name: _HIDDEN for name, value in catalogs.items() if re.search(_SECRETS, f"{name}\n{value}")}
    taken = _other_catalog(catalogs)
    with jvm.starting():
        session = SparkSession.builder.appName(app_name).config(map={**first, **hidden}).getOrCreate()
    if taken:
        # A session loads a catalog once: it would read and write in the one that it has under this name.
        for name, value in taken.items():
            session.conf.set(name, value)
        session = session.newSession()
    for name, value in catalogs.items():
        session.conf.set(name, value)
    if placement.start is Start.EMBEDDED:
        session.sparkContext.setLogLevel("ERROR")
    if (session.sparkContext.master or "").startswith("local") and _OTHER_PYTHON not in os.environ:
        # For workers on this machine; else they run the python3 on the path, which may lack this package.
        session.sparkContext.pythonExec = sys.executable
    if placement.start is not Start.RUNNING:
        _off_pythons_path(session)
    _require_iceberg(session)
    return session


def _other_catalog(wanted: Mapping[str, str]) -> dict[str, str]:
    """The settings of the running session for another catalog of the same name; none if there is none."""
    running = SparkSession.getActiveSession()
    if running is None:
        return {}
    there = {name: str(running.conf.get(name)) for name in wanted if running.conf.get(name, None) is not None}
    return there if any(value not in (wanted[name], _HIDDEN) for name, value in there.items()) else {}


def _wanted_of(placement: Placement, asked: Mapping[str, str]) -> dict[str, str]:
    """The settings that the job adds to those that others have chosen."""
    if placement.start is Start.RUNNING:  # its settings are its owner's
        return {}
    wanted = dict(_SETTINGS)
    if placement.start is Start.EMBEDDED:
        master = asked.get(MASTER) or placement.master or DEFAULT_MASTER
        wanted |= {MASTER: master, **_EMBEDDED}
        if master.startswith("local"):
            wanted |= _LOCAL if _OTHER_PYTHON in os.environ else {**_LOCAL, **_OUR_WORKERS}
    return {name: value for name, value in wanted.items() if name not in placement.settings}


def _off_pythons_path(session: SparkSession) -> None:
    """Take Iceberg's jar off the path of Python's modules in workers, where Spark puts the jars of all packages.

    It has no Python code. Each worker would read the list of its 25,000 classes, which takes 0.1 s.
    """
    context: Any = session.sparkContext
    context._python_includes = [name for name in context._python_includes if _RUNTIME_NAME not in name]


def _require_iceberg(session: SparkSession) -> None:
    """Raises `ConfigurationError` if Spark lacks Iceberg's classes: the first statement would fail with less to say."""
    loader = session.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    try:
        loader.loadClass(_CATALOG_CLASS)
    except Py4JJavaError as error:
        raise ConfigurationError(
            f"Spark was started without Iceberg: give spark-submit --packages {ICEBERG_RUNTIME}, or a session that is "
            f"started before this one the setting spark.jars.packages={ICEBERG_RUNTIME}",
            rule="configuration.spark",
        ) from error
