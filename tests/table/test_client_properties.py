"""Trap S8: which table properties have clients load code, or lead them elsewhere."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from icetower.errors import ValidationFailed
from icetower.table.client_properties import KNOWN, NO_CODE, Effect, check_code, effect_of, withheld

CODE = (
    "write.py-location-provider.impl",
    "write.location-provider.impl",
    " Write.Location-Provider.IMPL",
    "py-io-impl",
    "io-impl",
    "metrics-reporter-impl",
    "encryption.kms-impl",
    "s3.retry-strategy-impl",
    "client.credentials-provider.role",
    "rest.auth.type",
    "dynamic-record-generator-impl",
    "fs.s3a.impl",
    "fs.defaultFS",
    "dfs.client.failover.proxy.provider.lake",
    "rpc.engine.org.example.Protocol",
    "ipc.client.rpc-timeout",
    "parquet.crypto.factory.class",
    "parquet.encryption.kms.client.class",
    "write.some-future-thing.impl",
    "some_future_impl",
    "some.future.class",
)
PLACE = (
    "s3.endpoint",
    "encryption.key-id",
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
    "DEFAULT_SCHEME",
    "warehouse",
    "rest.client.proxy.hostname",
    "location",
)
HARMLESS = (
    "write.object-storage.enabled",
    "write.object-storage.partitioned-paths",
    "write.metadata.metrics.default",
    "write.metadata.metrics.column.impl",
    "write.metadata.metrics.column.a.class",
    "write.parquet.bloom-filter-enabled.column.impl",
    "write.parquet.compression-codec",
    "write.orc.compression-codec",
    "write.format.default",
    "read.split.target-size",
    "commit.retry.num-retries",
    "history.expire.max-snapshot-age-ms",
    "icetower.strict",
    "comment",
    "owner",
    "data-class",
    "implementation-status",
)


def test_what_each_property_does() -> None:
    assert {name: effect_of(name) for name in CODE} == dict.fromkeys(CODE, Effect.CODE)
    assert {name: effect_of(name) for name in PLACE} == dict.fromkeys(PLACE, Effect.PLACE)
    assert {name: effect_of(name) for name in HARMLESS} == dict.fromkeys(HARMLESS, None)


def test_every_known_property_names_its_source_and_has_its_effect() -> None:
    for known in KNOWN:
        assert known.client, known
        assert known.source, known
        for name in known.names:
            assert name == name.lower(), name
            assert effect_of(f"{name}x" if name.endswith(".") else name) in (known.effect, Effect.CODE), name


def _pyiceberg() -> dict[Path, str]:
    spec = find_spec("pyiceberg")
    assert spec is not None
    assert spec.origin is not None
    return {path: path.read_text() for path in Path(spec.origin).parent.rglob("*.py")}


def test_nothing_that_pyiceberg_imports_by_a_property_is_missing() -> None:
    sources = _pyiceberg()
    named = {name for text in sources.values() for name in re.findall(r'"([a-z0-9.-]*[.-]impl)"', text)}
    assert {"write.py-location-provider.impl", "py-io-impl", "s3.retry-strategy-impl"} <= named
    assert [name for name in sorted(named) if effect_of(name) is not Effect.CODE] == []
    # A release that imports by a name in one more module is to be looked at before it is listed here.
    importing = {path.name for path, text in sources.items() if "import_module(" in text}
    assert importing == {"auth.py", "__init__.py", "transforms.py", "pyarrow.py", "locations.py"}


def test_nothing_is_missing_by_which_pyiceberg_finds_its_storage() -> None:
    text = next(text for path, text in _pyiceberg().items() if path.parts[-2:] == ("io", "__init__.py"))
    named = re.findall(r'^(?!SCHEMA)[A-Z0-9_]+ = "([a-z0-9]+[.-][a-z0-9._-]+)"', text, re.MULTILINE)
    assert len(named) > 40
    assert [name for name in named if effect_of(name) is None] == []


def test_what_is_set_is_refused_unless_it_is_allowed_or_there_already() -> None:
    name = "write.location-provider.impl"
    allowed = {name: ("com.example.Hashed",)}
    with pytest.raises(ValidationFailed, match=r"write\.location-provider\.impl makes the clients of others load code"):
        check_code({name: "com.example.Evil"}, allowed)
    with pytest.raises(ValidationFailed):
        check_code({name: "com.example.Hashed"}, NO_CODE)
    with pytest.raises(ValidationFailed):
        check_code({name: "com.example.Evil"}, allowed, {name: "com.example.Other"})
    with pytest.raises(ValidationFailed):
        check_code({name.upper(): "com.example.Hashed"}, allowed)
    check_code({name: "com.example.Hashed", "comment": "x"}, allowed)
    check_code({name: "com.example.Old"}, NO_CODE, {name: "com.example.Old"})
    assert withheld({name: "com.example.Evil", "s3.endpoint": "x", "comment": "x"}, allowed) == {name: None}
    assert withheld({name: "com.example.Hashed"}, allowed) == {}
