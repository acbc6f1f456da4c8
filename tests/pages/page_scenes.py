"""What stands before a page begins: a tower over the user's catalog, a contract, a principal; and its placeholders."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.pages.page_blocks import PAGES, Block, blocks_of
from tests.pages.page_world import World

CONTRACT = """\
version: 1
agent: pricing_agent
owner: pricing-team@example.com
tables:
  - table: pricing.product_prices
    operations: [append, overwrite]
    partitions:
      - ts_day: {from: 2017-01-01, to: 2017-02-01}
        product_id_bucket: [0, 1, 2, 3]
    blind_appends: true
    read_scope: owned
reads: [shop.**]
"""


def start(world: World) -> None:
    """The shared tower of all pages but the README."""
    (world.here / "pricing_agent.yaml").write_text(CONTRACT)
    world.shell("icetower init; icetower serve; icetower contracts apply pricing_agent.yaml", "page_scenes.py")
    world.shell("icetower principals create pricing-1 --contract pricing_agent", "page_scenes.py")


def beside(shared: World, folder: Path, page: str) -> World:
    """A folder of its own for a page, beside the shared tower."""
    world = World(folder, port=shared.port)
    world.secret = shared.secret
    shutil.copy(shared.home / ".pyiceberg.yaml", world.home)
    shutil.copy(shared.here / "icetower.toml", world.here)
    (world.here / "contracts").mkdir()
    for place in ("pricing_agent.yaml", "contracts/pricing_agent.yaml"):
        (world.here / place).write_text(CONTRACT)
    fill(world, shared.folder / "data/catalog.db")
    _BEFORE.get(page, lambda _: None)(world)
    return world


def fill(world: World, catalog: Path) -> None:
    """The placeholders of pages, and the files of the reader's own."""
    metadata, snapshots = _sales(catalog)
    copy = world.folder / "copy.db"
    shutil.copy(catalog, copy)
    world.replaced = {
        "EARLIER LATER": f"{snapshots[0]} {snapshots[1]}",
        "/data/catalog.db": str(copy),
        "s3://bucket/t/metadata/v7.metadata.json": metadata,
        "s3://lake/sales/metadata/00042-….metadata.json": metadata,
    }
    blocks = {(page, block.more): block.text for page in PAGES for block in blocks_of(page) if block.kind == "check"}
    (world.here / "mine.json").write_text(blocks["docs/conflicts.md", "case"])
    (world.here / "mine.toml").write_text(blocks["docs/simulator.md", "experiment"])


def _sales(file: Path) -> tuple[str, list[int]]:
    """The metadata file of shop.sales, and its snapshots."""
    catalog = sqlite3.connect(file)
    try:
        found = catalog.execute("SELECT metadata_location FROM iceberg_tables WHERE table_name = 'sales'").fetchone()[0]
    finally:
        catalog.close()
    document = json.loads(Path(found.removeprefix("file://")).read_text())
    return found, [snapshot["snapshot-id"] for snapshot in document["snapshots"]]


def _audit(world: World) -> None:
    shutil.rmtree(world.here / "contracts")
    _sales_table(world)


def _sales_table(world: World) -> None:
    """`table` is shop.sales as an administrator has loaded it from `tower`, and `rows` are some for it."""
    world.python(
        Block(
            "page_scenes.py",
            1,
            "python",
            "import pyarrow as pa\n"
            "from icetower.agent import Tower\n"
            "from icetower.cli.own_tower import own_tower, token_for\n"
            "from pyiceberg.catalog import load_catalog\n"
            "uri = own_tower().uri\n"
            "tower = Tower(uri, token_for(uri))\n"
            "catalog = load_catalog('tower', **tower.pyiceberg_properties())\n"
            "table = catalog.load_table('shop.sales')\n"
            "rows = pa.table({'id': [7], 'region': ['eu'], 'day': [7]})\n",
        )
    )


_BEFORE: Mapping[str, Callable[[World], None]] = {"docs/audit.md": _audit, "docs/protocol.md": _sales_table}
