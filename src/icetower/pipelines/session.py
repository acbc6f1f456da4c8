"""The Spark session of a job: matching versions, one catalog, settings for one small machine.

Settings that PySpark gets before the JVM starts become its command line, which every user of the machine can read. So
catalogs, with their addresses and secrets, are set on the running session.
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
# Secrets come from the environment: every user of the machine can see arguments.
TOKEN_VARIABLE = "ICETOWER_TOKEN"  # noqa: S105 - the name of a variable
CREDENTIAL_VARIABLE = "ICETOWER_CREDENTIAL"
_CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_CATALOGS = "spark.sql.catalog."
_SECRETS = "(?i)secret|passw|token|credential|access[._-]?key|account[._-]?key|sas[._-]|connection[._-]?string|//[^/]*@"
"""Settings with such names are secrets: they are on no command line, and Spark shows them neither in logs nor on its
pages."""

_HIDDEN = "set-after-start"
"""The value in place of a secret with which Spark is started."""

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
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session whose catalog `catalog_name` is the REST catalog at `catalog_uri`.

    Args:
        app_name: recorded in every snapshot (``app-name``).
        catalog_uri: of the tower; None if `catalog` has all properties.
        catalog_name: the first part of table names in SQL.
        token: a bearer token, if the catalog needs one; or
        credential: ``id:secret`` for the token endpoint.
        catalog: further properties of the catalog, by Iceberg's names; they take precedence.
        settings: further settings of Spark; they take precedence, also over ``local[2]``.

    Executors on other machines need this package in the Python that ``PYSPARK_PYTHON`` names.

    Under ``spark-submit`` its session is used, with these settings added.

    Raises `ConfigurationError` for a secret among `settings`, except for those of catalogs.
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
            f"{', '.join(seen)} would be on Spark's command line, which all users of this machine can read; put it "
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
        # For workers on this machine; else they run the python3 on the path, which may lack this package.
        session.sparkContext.pythonExec = sys.executable
    return session
