"""The write settings of the guide, set on the tables of a real catalog: a tower, behind the Polaris on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from typer.testing import CliRunner

from icetower.cli import lake
from icetower.cli.app import app
from icetower.cli.polaris import Polaris
from icetower.cli.write_settings import Setting, Tables
from icetower.contracts.document import load
from icetower.errors import Conflict, IcetowerError, UpstreamFailed
from icetower.protocol.names import Identifier
from tests.grants.polaris_server import PolarisServer
from verify.kit.tower_process import TowerProcess

SCHEMA = pa.schema([("id", pa.int64())])
THE_GUIDE = {
    "commit.retry.num-retries": "5",
    "commit.retry.min-wait-ms": "100",
    "commit.retry.max-wait-ms": "5000",
    "write.distribution-mode": "hash",
}
WRITES = "operations: [append], partitions: all"


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    process = TowerProcess(tmp_path_factory.mktemp("grants") / "data")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def catalog(tower: TowerProcess) -> Catalog:
    """Five tables; two of them under nested namespaces, and one that has settings of its own."""
    catalog = tower.catalog()
    for namespace in ("pricing", "pricing.eu", "shop"):
        catalog.create_namespace(namespace)
    own = {"commit.retry.num-retries": "50", "write.distribution-mode": "hash", "comment": "prices"}
    catalog.create_table("pricing.product_prices", SCHEMA, properties=own)
    for name in ("pricing.other", "pricing.eu.prices", "shop.sales", "shop.log"):
        catalog.create_table(name, SCHEMA)
    return catalog


@pytest.fixture
def polaris(tower: TowerProcess, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Iterator[PolarisServer]:
    del catalog
    server = PolarisServer(tower.secret, tower.uri)
    monkeypatch.setenv("ICETOWER_POLARIS_TOKEN", tower.secret)
    server.state.securables = {
        ("pricing",),
        ("pricing", "product_prices"),
        ("shop",),
        ("shop", "sales"),
        ("shop", "log"),
    }
    yield server
    server.close()


def run(folder: Path, polaris: PolarisServer, clauses: str, *words: str) -> tuple[int, dict[str, Any]]:
    file = folder / "x.yaml"
    file.write_text(f"version: 1\nagent: x\n{clauses}\n")
    options = ["--catalog", "prod", "--polaris", polaris.uri, "--credentials", str(folder / "credentials"), "--json"]
    done = CliRunner().invoke(app, ["contracts", "grants", str(file), *options, *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.output)


def test_only_what_differs_is_set_and_only_once(tmp_path: Path, polaris: PolarisServer, catalog: Catalog) -> None:
    clauses = f"tables: [{{table: pricing.product_prices, {WRITES}}}]"
    difference = {
        "commit.retry.num-retries": "5",
        "commit.retry.min-wait-ms": "100",
        "commit.retry.max-wait-ms": "5000",
    }
    planned = [{
        "table": "pricing.product_prices",
        "set": difference,
        "now": {"commit.retry.num-retries": "50", "commit.retry.min-wait-ms": None, "commit.retry.max-wait-ms": None},
    }]  # fmt: skip
    assert run(tmp_path, polaris, clauses, "--dry-run")[1]["tables"] == planned
    before = dict(catalog.load_table("pricing.product_prices").properties)
    assert before["commit.retry.num-retries"] == "50"

    status, done = run(tmp_path, polaris, clauses)
    assert (status, done["tables"]) == (0, planned)
    assert dict(catalog.load_table("pricing.product_prices").properties) == before | THE_GUIDE

    location = catalog.load_table("pricing.product_prices").metadata_location
    status, done = run(tmp_path, polaris, clauses)
    assert (status, done["tables"], done["requests"]) == (0, [], [])
    assert catalog.load_table("pricing.product_prices").metadata_location == location


MATCHED = [
    # pattern       tables
    ("pricing.*",   ["pricing.other", "pricing.product_prices"]),
    ("pricing.**",  ["pricing.eu.prices", "pricing.other", "pricing.product_prices"]),
    ("shop.sales",  ["shop.sales"]),
    ("'**'",        ["pricing.eu.prices", "pricing.other", "pricing.product_prices", "shop.log", "shop.sales"]),
    ("nowhere.**",  []),
    ("nowhere.*",   []),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "tables"), MATCHED)
def test_a_pattern_reaches_the_tables_that_are_there(
    tower: TowerProcess, catalog: Catalog, pattern: str, tables: list[str]
) -> None:
    del catalog
    retries = "retries: {attempts: 7}"
    text = f"version: 1\nagent: x\ntables: [{{table: {pattern}, {WRITES}}}]\n{retries}"
    with Polaris(tower.uri, tower.secret) as http:
        settings, missing = Tables(http, "prod").settings([load(text, source="x")])
    assert sorted(str(setting.table) for setting in settings) == tables
    assert all(setting.wanted["commit.retry.num-retries"] == "7" for setting in settings)
    assert missing == ()


def test_a_table_that_is_not_there_waits(tmp_path: Path, polaris: PolarisServer) -> None:
    status, done = run(tmp_path, polaris, f"tables: [{{table: shop.none, {WRITES}}}]", "--by-namespace")
    assert (status, done["tables_missing"], done["error"]) == (1, ["shop.none"], None)
    assert run(tmp_path, polaris, f"tables: [{{table: shop.none, {WRITES}}}]", "--dry-run")[0] == 0


def test_readers_change_no_table(tmp_path: Path, polaris: PolarisServer) -> None:
    mediated = f"{{table: shop.sales, {WRITES}, pattern: mediator}}"
    _, done = run(tmp_path, polaris, f"tables: [{mediated}]\nreads: ['**']")
    assert done["tables"] == []


def test_a_table_made_anew_under_the_name_is_left_alone(tower: TowerProcess, catalog: Catalog) -> None:
    del catalog
    setting = Setting(Identifier(("shop",), "log"), "00000000-0000-0000-0000-000000000000", THE_GUIDE, {})
    with Polaris(tower.uri, tower.secret) as http, pytest.raises(Conflict):
        Tables(http, "prod").commit(setting)


def test_the_catalog_may_be_elsewhere(tmp_path: Path, polaris: PolarisServer, tower: TowerProcess) -> None:
    polaris._catalog = None
    clauses = f"tables: [{{table: shop.log, {WRITES}}}]"
    with pytest.raises(IcetowerError, match="404"):
        run(tmp_path, polaris, clauses, "--dry-run")
    _, done = run(tmp_path, polaris, clauses, "--dry-run", "--catalog-uri", tower.uri)
    assert [table["table"] for table in done["tables"]] == ["shop.log"]


def test_lists_may_come_in_pages_but_must_end(monkeypatch: pytest.MonkeyPatch) -> None:
    server = PolarisServer()
    asked: list[str] = []

    def answer(method: str, target: str, *_: object) -> tuple[int, bytes]:
        asked.append(f"{method} {target}")
        parts = urlsplit(target)
        if parts.path == "/v1/config":
            return 200, b'{"defaults": {"prefix": "unused"}, "overrides": {"prefix": "p/q r"}}'
        if parts.path == "/v1/p/q%20r/namespaces/a/tables":
            page = int(parse_qs(parts.query).get("pageToken", ["0"])[0])
            found = {"identifiers": [{"namespace": ["a"], "name": f"t{page}"}]}
            return 200, json.dumps(found | ({"next-page-token": str(page + 1)} if page < pages else {})).encode()
        name = parts.path.rpartition("/")[2]
        return 200, json.dumps({"metadata": {"table-uuid": f"uuid of {name}", "properties": {}}}).encode()

    monkeypatch.setattr(server, "_answered", answer)
    contract = load(f"version: 1\nagent: x\ntables: [{{table: a.*, {WRITES}}}]", source="x")
    pages = 2
    with Polaris(server.uri, "token") as http:
        settings, _ = Tables(http, "prod").settings([contract])
    assert [(str(setting.table), setting.uuid) for setting in settings] == [
        (f"a.t{n}", f"uuid of t{n}") for n in range(3)
    ]
    assert asked[0] == "GET /v1/config?warehouse=prod"
    monkeypatch.setattr(lake, "LISTED_MAX", 10)
    pages = 1_000_000
    with Polaris(server.uri, "token") as http, pytest.raises(UpstreamFailed, match="the list seems endless"):
        Tables(http, "prod").settings([contract])
    server.close()
