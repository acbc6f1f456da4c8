"""`icetower send` against a tower: rows of each format, once, under an agent's contract."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType

from verify.kit.tower_process import TowerProcess

SCHEMA = Schema(
    NestedField(1, "sku", LongType(), required=True),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "price", DecimalType(9, 2), required=False),
    identifier_field_ids=[1],
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
CONTRACT = """tables:
  - table: shop.prices
    operations: [append, overwrite, delete]
    partitions: [{region: [eu]}]
"""
ARROW = pa.schema([("sku", pa.int64()), ("region", pa.string()), ("price", pa.decimal128(9, 2))])
ROWS = [{"sku": 1, "region": "eu", "price": Decimal("9.99")}, {"sku": 2, "region": "eu", "price": None}]
SPELLED = [{"sku": 1, "region": "eu", "price": "9.99"}, {"sku": 2, "region": "eu", "price": None}]


class Shop:
    """A tower with a table, and an agent that runs the command."""

    def __init__(self, folder: Path) -> None:
        self.tower = TowerProcess(folder / "data")
        self.folder = folder
        self.catalog = self.tower.catalog()
        self.catalog.create_namespace("shop")
        self.catalog.create_table("shop.prices", SCHEMA, partition_spec=BY_REGION)
        self.secret = self.tower.principal("eu", CONTRACT)

    def send(self, *words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("icetower")), "send", "shop.prices", *words, "--uri", self.tower.uri],
            cwd=self.folder,
            env={**os.environ, "ICETOWER_TOKEN": self.secret},
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def rows(self) -> list[dict[str, Any]]:
        found = self.catalog.load_table("shop.prices").scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["sku"])


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    assert shop.tower.stop() == 0


def _files(folder: Path) -> dict[str, Path]:
    """The same rows in each format."""
    made = {name: folder / f"rows.{name}" for name in ("json", "ndjson", "parquet", "arrow", "arrows")}
    table = pa.Table.from_pylist(ROWS, ARROW)
    made["json"].write_text(json.dumps({"rows": SPELLED}))
    made["ndjson"].write_text("\n".join(map(json.dumps, SPELLED)) + "\n\n")
    pyarrow.parquet.write_table(table, made["parquet"])
    pyarrow.feather.write_feather(table, str(made["arrow"]), compression="uncompressed")
    with pa.ipc.new_stream(str(made["arrows"]), ARROW) as writer:
        writer.write_table(table)
    return made


def test_the_same_rows_of_each_format_are_there_once_under_a_key(shop: Shop) -> None:
    for at, (name, file) in enumerate(_files(shop.folder).items()):
        status, out, err = shop.send(file.name, "--key", "the work", "--json")
        assert (status, err) == (0, ""), name
        done = json.loads(out)
        assert done["outcome"] == ("appended" if at == 0 else "replayed"), name
        assert (done["rows"], done["written_to"], done["key"]) == (2, "shop.prices", "the work")
    assert shop.rows() == ROWS


def test_rows_of_standard_input_upserts_and_deletes(shop: Shop) -> None:
    lines = b"\n".join(json.dumps(row).encode() for row in SPELLED)
    status, out, _ = shop.send("-", "--form", "ndjson", stdin=lines)
    assert status == 0
    assert out.startswith("2 rows in shop.prices as snapshot ")
    upsert = b'[{"sku": 2, "region": "eu", "price": "1.00"}]'
    assert shop.send("-", "--form", "json", "--operation", "upsert", stdin=upsert)[0] == 0
    assert shop.send("-", "--form", "json", "--operation", "delete", "--keys", "sku", stdin=b'{"sku": 1}')[0] == 0
    assert shop.rows() == [{"sku": 2, "region": "eu", "price": Decimal("1.00")}]


def test_what_the_contract_forbids_names_the_rule_and_the_partition(shop: Shop) -> None:
    foreign = b'{"sku": 3, "region": "asia", "price": "1.00"}'
    status, _, err = shop.send("-", "--form", "ndjson", "--json", stdin=foreign)
    refusal = json.loads(err.splitlines()[-1])["error"]
    assert (status, refusal["rule"], refusal["partitions"]) == (1, "contract.partitions", ["region=asia"])
    assert shop.rows() == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", b"a,b", "the format of rows.csv is unknown"),
        ("rows.json", b"{", "rows.json is not JSON"),
        ("rows.json", b'"text"', "must be a list of objects"),
        ("rows.ndjson", b'{"sku": 1}\n[]', "line 2: a row must be an object"),
        ("rows.ndjson", b'{"sku": 1}\n{', "line 2: not JSON"),
        ("rows.ndjson", b"\xff", "not in UTF-8"),
        ("rows.json", b"[" * 100_000, "rows.json is not JSON"),
        ("rows.parquet", b"PAR1", "cannot be read as parquet"),
        ("rows.arrow", b"ARROW1", "cannot be read as arrow"),
        ("rows.arrows", b"\x00" * 64, "cannot be read as arrow"),
    ],
)
def test_what_is_no_rows_is_named(shop: Shop, name: str, content: bytes, said: str) -> None:
    (shop.folder / name).write_bytes(content)
    status, _, err = shop.send(name)
    assert status == 2, err
    assert said in err
    assert "Traceback" not in err
