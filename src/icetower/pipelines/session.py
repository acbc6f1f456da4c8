"""The Spark session of a job: versions that were started together, one catalog, small settings for one machine.

What PySpark is given before there is a JVM becomes its command line, which every user of the machine can read. So
catalogs, with their addresses and secrets, are told to the session once it is there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from icetower.errors import ConfigurationError
from icetower.pipelines import jvm

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
CATALOG = "tower"
# Secrets come from the environment: arguments can be seen by every user of the machine.
TOKEN_VARIABLE = "ICETOWER_TOKEN"  # noqa: S105 - the name of a variable
CREDENTIAL_VARIABLE = "ICETOWER_CREDENTIAL"
_CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_CATALOGS = "spark.sql.catalog."
_SECRETS = "(?i)secret|passw|token|credential|access[._-]?key|account[._-]?key|sas[._-]|connection[._-]?string|//[^/]*@"
"""Settings called like this are secrets: on no command line, and shown by Spark neither in logs nor on its pages."""

_HIDDEN = "told-when-started"
"""What Spark is started with in place of a secret."""

LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
}


def catalog_settings(catalog_name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark settings of an Iceberg catalog. `properties` are Iceberg's own: ``type``, ``uri``, ``token``, …"""
    prefix = f"spark.sql.catalog.{catalog_name}"
    # A cached table is a stale base: every statement of ours looks at the head.
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
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session whose catalog `catalog_name` is the REST catalog at `catalog_uri`.

    Args:
        app_name: told to the catalog in every snapshot (``app-name``).
        catalog_uri: of the tower; None where `catalog` says it all.
        catalog_name: the first part of table names in SQL.
        token: a bearer token, where the catalog wants one; or
        credential: ``id:secret`` for the token endpoint.
        catalog: further properties of the catalog, Iceberg's names; they win.
        settings: further settings of Spark; they win, over ``local[2]`` too.

    Executors on other machines need this package in the Python that ``PYSPARK_PYTHON`` names.

    Under ``spark-submit`` the session that it started is taken, with these settings on top.

    Raises `ConfigurationError` for a secret among `settings`, but for those of catalogs.
    """
    properties: dict[str, str] = {}
    if catalog_uri is not None:
        properties |= {"type": "rest", "uri": catalog_uri}
    if token is not None:
        properties["token"] = token
    if credential is not None:
        properties["credential"] = credential
    properties |= catalog or {}
    chosen = {
        **LOCAL_SETTINGS,
        "spark.jars.packages": ICEBERG_RUNTIME,
        "spark.sql.extensions": _EXTENSIONS,
        "spark.redaction.regex": _SECRETS,
        **catalog_settings(catalog_name, properties),
        **(settings or {}),
    }
    catalogs = {name: value for name, value in chosen.items() if name.startswith(_CATALOGS)}
    first = {name: value for name, value in chosen.items() if name not in catalogs}
    if seen := sorted(name for name in first if re.search(_SECRETS, name) and name != "spark.redaction.regex"):
        raise ConfigurationError(
            f"{', '.join(seen)} would stand on Spark's command line, which all users of this machine can read; put it "
            "into spark-defaults.conf, or set it as a property of the catalog"
        )
    # A job's log names its session's settings, and redacts those that Spark was started with.
    hidden = {name: _HIDDEN for name, value in catalogs.items() if re.search(_SECRETS, f"{name}\n{value}")}
    with jvm.starting():
        session = SparkSession.builder.appName(app_name).config(map={**first, **hidden}).getOrCreate()
    for name, value in catalogs.items():
        session.conf.set(name, value)
    session.sparkContext.setLogLevel("ERROR")
    if (session.sparkContext.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Workers on this machine; else they run whatever is called python3, which may not have this package.
        session.sparkContext.pythonExec = sys.executable
    return session
