"""Table properties by which Iceberg's clients load code, or go to another place. Pure.

A table's properties reach every client that opens the table. Some clients load a class by the name that a property
gives, or copy all properties into the configuration of a library that does. One who may set such a property runs code
of their choice with the credentials of everybody else (trap S8). Other properties say where storage, signers and key
services are.

`KNOWN` lists them by client, each with its source. Clients of the future are covered by the form of the name: what ends
like `….impl` or `….class` counts as a class (`_CLASS`).

Sources: Apache Iceberg 1.12 (Java, Spark, Flink, Hive), PyIceberg 0.12, parquet-java, Hadoop; iceberg-go, iceberg-rust
and duckdb-iceberg as of August 2026; Trino. The last four load no class by a table's property: Go chooses among
reporters that the program has registered, Rust and DuckDB read paths and settings of the storage, and Trino refuses to
write to a table that has `write.location-provider.impl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from icetower.errors import ValidationFailed

Allowed = Mapping[str, tuple[str, ...]]
"""Property → the values of it that the operator vouches for."""

NO_CODE: Allowed = {}


class Effect(Enum):
    """What setting a property does to those who open the table."""

    CODE = "loads code"
    PLACE = "leads elsewhere"


@dataclass(frozen=True, slots=True)
class Known:
    """Properties of one client. A name that ends with a dot stands for all that begin like it.

    Attributes:
        source: the file of the client's source that reads them.
    """

    client: str
    effect: Effect
    names: tuple[str, ...]
    source: str


KNOWN: tuple[Known, ...] = (
    # ── Code ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    Known("PyIceberg", Effect.CODE, ("write.py-location-provider.impl",), "table/locations.py, load_location_provider"),
    Known("PyIceberg", Effect.CODE, ("py-io-impl",), "io/__init__.py, load_file_io: over the catalog's own settings"),
    Known("PyIceberg", Effect.CODE, ("s3.retry-strategy-impl",), "io/pyarrow.py, _import_retry_strategy"),
    Known("PyIceberg", Effect.CODE, ("py-catalog-impl",), "catalog/__init__.py, load_catalog"),
    Known("PyIceberg", Effect.CODE, ("auth.impl",), "catalog/rest/auth.py, AuthManagerFactory"),
    Known("Java", Effect.CODE, ("write.location-provider.impl",), "core, LocationProviders.java"),
    Known("Java", Effect.CODE, ("io-impl", "catalog-impl", "metrics-reporter-impl"), "core, CatalogUtil.java"),
    Known("Java", Effect.CODE, ("encryption.kms-impl",), "core, EncryptionUtil.java, createKmsClient"),
    Known("Java", Effect.CODE, ("lock-impl",), "core, LockManagers.java"),
    Known("Java", Effect.CODE, ("rest.auth.type",), "core, AuthManagers.java: an unknown type is the name of a class"),
    Known("Java", Effect.CODE, ("rest.client.tls.configurer-impl",), "core, HTTPClient.java"),
    Known("Java", Effect.CODE, ("client.factory", "client.factory-impl"), "aws, aliyun, dell: …ClientFactories.java"),
    Known("Java", Effect.CODE, ("client.credentials-provider", "client.credentials-provider."), "AwsProperties.java"),
    Known("Java", Effect.CODE, ("s3.client-factory-impl",), "aws, S3FileIOAwsClientFactories.java"),
    Known(
        "Java",
        Effect.CODE,
        ("adls.token-credential-provider", "adls.token-credential-provider."),
        "azure, AdlsTokenCredentialProviders.java",
    ),
    # Writers of Parquet and ORC copy all of a table's properties into Hadoop's configuration, for every JVM engine.
    Known(
        "Java",
        Effect.CODE,
        ("dfs.", "fs.", "ha.", "hadoop.", "ipc.", "rpc.engine."),
        "Parquet.java and ORC.java, conf.set; Hadoop, FileSystem.java",
    ),
    Known(
        "Java",
        Effect.CODE,
        ("parquet.crypto.", "parquet.encryption.", "parquet.private."),
        "Parquet.java, conf.set; parquet-java, EncryptionPropertiesFactory.java",
    ),
    Known("Java", Effect.CODE, ("orc.key.provider",), "ORC.java, conf.set; ORC, OrcConf.java"),
    Known("Java", Effect.CODE, ("io.compression.codecs", "io.serializations"), "Parquet.java and ORC.java, conf.set"),
    Known("Flink", Effect.CODE, ("dynamic-record-generator-impl",), "flink, IcebergTableSink.java"),
    Known("Flink", Effect.CODE, ("connector",), "flink, FlinkDynamicTableFactory.java: the factory of the table"),
    Known("Hive", Effect.CODE, ("storage_handler", "serialization.lib"), "hive-metastore, HMSTablePropertyHelper.java"),
    Known("Hive", Effect.CODE, ("iceberg.mr.", "iceberg.catalog."), "mr, InputFormatConfig.java and Catalogs.java"),
    # ── Another place ────────────────────────────────────────────────────────────────────────────────────────────────
    # PyIceberg and iceberg-go lay a table's properties over the settings of their catalog.
    Known(
        "PyIceberg",
        Effect.PLACE,
        ("adls.", "client.", "gcs.", "hdfs.", "hf.", "oss.", "s3.", "header.", "auth."),
        "catalog/rest/__init__.py, _load_file_io; io/__init__.py, io/pyarrow.py, io/fsspec.py",
    ),
    Known(
        "PyIceberg",
        Effect.PLACE,
        ("credential", "default_netloc", "default_scheme", "token", "uri", "warehouse"),
        "catalog/rest/__init__.py, _load_file_io; io/pyarrow.py",
    ),
    Known("iceberg-go", Effect.PLACE, ("s3.", "gcs.", "adls.", "client."), "io/config.go; catalog/rest/rest.go"),
    Known("iceberg-rust", Effect.PLACE, ("s3.", "gcs.", "adls.", "oss.", "hf.", "client."), "io/storage/config/"),
    Known(
        "Java",
        Effect.PLACE,
        ("aliyun.", "dynamodb.", "ecs.", "gcp.", "glue.", "http-client.", "nessie.", "rest.", "signer.", "jdbc."),
        "AwsProperties.java, GCPProperties.java, EcsFileIO.java, HttpClientProperties.java, HTTPClient.java",
    ),
    Known("Java", Effect.PLACE, ("encryption.",), "core, EncryptionUtil.java: which key, of which key service"),
    Known("Java", Effect.PLACE, ("oauth2-server-uri", "catalog-type"), "core, OAuth2Properties.java, CatalogUtil.java"),
    Known("Java", Effect.PLACE, ("location",), "spark, SparkCatalog.java; flink, IcebergTableSink.java"),
    Known("Flink", Effect.PLACE, ("hadoop-conf-dir", "hive-conf-dir"), "flink, FlinkCatalogFactory.java"),
    Known("Hive", Effect.PLACE, ("metadata_location", "previous_metadata_location"), "hive-metastore"),
    Known(
        "all",
        Effect.PLACE,
        ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"),
        "Java, LocationProviders.java; PyIceberg, table/locations.py; iceberg-go, table/properties.go; iceberg-rust, "
        "spec/table_properties.rs; duckdb-iceberg, iceberg_table_metadata.cpp; Trino, IcebergUtil.java",
    ),
)
"""What begins or is called like this has the effect; where both do, it loads code."""

_CLASS = re.compile(r"(^|[._-])impl$|(^|\.)class(es|name|-name)?$")
_COLUMNS = re.compile(r"write\.(metadata\.metrics|parquet\.[a-z-]+)\.column\.")
"""Then the name of a column follows, which may be anything."""


def _names(effect: Effect, *, prefixes: bool) -> Iterator[str]:
    for known in KNOWN:
        if known.effect is effect:
            yield from (name for name in known.names if name.endswith(".") is prefixes)


_EXACT = {effect: frozenset(_names(effect, prefixes=False)) for effect in Effect}
_PREFIXES = {effect: tuple(dict.fromkeys(_names(effect, prefixes=True))) for effect in Effect}


def effect_of(name: str) -> Effect | None:
    """What a table property of this name does; None: nothing that is known here.

    However it is written: some clients take names in any case.
    """
    name = name.strip().lower()
    if _COLUMNS.match(name):
        return None
    if _CLASS.search(name):
        return Effect.CODE
    for effect in (Effect.CODE, Effect.PLACE):
        if name in _EXACT[effect] or name.startswith(_PREFIXES[effect]):
            return effect
    return None


def is_code(name: str) -> bool:
    """Whether clients load code by a property of this name."""
    return effect_of(name) is Effect.CODE


def loads_code(properties: Mapping[str, Any], allowed: Allowed) -> list[str]:
    """The properties by which clients load code that the operator does not vouch for, sorted."""
    return sorted(
        name for name, value in properties.items() if is_code(name) and str(value) not in allowed.get(name, ())
    )


def check_code(
    given: Mapping[str, Any], allowed: Allowed, before: Mapping[str, Any] | None = None, *, of: str = "table"
) -> None:
    """Raises `ValidationFailed` (``property.code``) for a property by which clients would load code.

    Args:
        given: the properties to be set.
        before: those that the table has. What it has already may be sent again as it is.
    """
    new = {name: value for name, value in given.items() if name not in (before or {}) or (before or {})[name] != value}
    refused = loads_code(new, allowed)
    if refused:
        raise ValidationFailed(
            f"the {of} property {', '.join(refused)} makes the clients of others load code, so nobody may set it; "
            "leave it out, or have the operator allow its value in the tower's configuration, under [client-code]",
            rule="property.code",
        )


def withheld(properties: Mapping[str, Any], allowed: Allowed) -> dict[str, None]:
    """The properties that no client is given with a table, whoever has set them: by name, without a value."""
    return dict.fromkeys(loads_code(properties, allowed))
