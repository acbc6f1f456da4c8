"""docs/clients.md shows how the first table of an empty catalog is created: taken from the page, and done."""

from __future__ import annotations

from pathlib import Path

from tests.pages.page_blocks import blocks_of
from tests.pages.page_world import World


def test_the_first_table_of_an_empty_catalog(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    try:
        world.shell("icetower init --new; icetower serve", "test_first_table.py")
        (block,) = [block for block in blocks_of("docs/clients.md") if block.kind == "in"]
        world.python(block)
        assert "pricing.product_prices" in world.shell("icetower commits", "test_first_table.py")
    finally:
        world.stop()
