"""Every command and every block of code of the README and of docs/ is run, in its shortest form, as a new user would.

Trap H3: what runs only when asked rots. page_blocks.py says how a block that is not run as it stands says why. `make
verify-docs` (ICETOWER_VERIFY_DOCS=1) also runs those that take longer than 20 s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import page_scenes
from tests.pages.page_blocks import LANGUAGES, NEEDS, PAGES, ROOT, Block, blocks_in, blocks_of, indented_in
from tests.pages.page_world import CHECKS, World

GENERATED = ("docs/isolation.md", "docs/experiments.md")
"""Written by programs, whose own tests hold their texts; what is indented there is what Iceberg has said."""

IN_TESTS = {"demo": "tests/demo/test_demo_end_to_end.py"}
"""Targets that a test runs on less data, in place of .ci/run."""

SLOW = bool(os.environ.get("ICETOWER_VERIFY_DOCS"))
RUN = [page for page in PAGES if any(block.kind not in ("needs", "in") for block in blocks_of(page))]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One tower for all pages but the README, which sets up its own."""
    world = World(tmp_path_factory.mktemp("pages") / "shared")
    world.settle()
    page_scenes.start(world)
    yield world
    world.stop()


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_run_or_says_why_not(page: str) -> None:
    text = (ROOT / page).read_text()
    assert page in GENERATED or not indented_in(text), "a block of code needs a fence, and a language"
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.place}: name the language (`text` for what is printed)"
        match block.kind:
            case "needs":
                assert block.more in NEEDS, block.place
            case "check":
                assert block.more in CHECKS, block.place
            case "in" if block.more.startswith("tests/"):
                assert page in (ROOT / block.more).read_text(), f"{block.place}: that test takes nothing from the page"
            case "in":
                assert block.more == "CI", block.place
                targets = re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE)
                assert targets, f"{block.place}: only `make` targets are run in CI itself"
                for target in targets:
                    assert _in_ci(target), f"{block.place}: {target}"
            case "as":
                assert block.more, block.place
            case _:
                pass


@pytest.mark.sharp
@pytest.mark.parametrize("page", RUN)
def test_a_page_runs(page: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if _is_run(block)]
    if not blocks:
        return
    if page == "README.md":
        world = World(tmp_path / "world")
        world.settle()
        page_scenes.fill(world, world.folder / "data/catalog.db")
    else:
        prepared: World = request.getfixturevalue("prepared")
        world = page_scenes.beside(prepared, tmp_path / "world", page)
    try:
        for block in blocks:
            world.run(block)
    finally:
        world.stop()


def _in_ci(target: str) -> bool:
    if target in IN_TESTS:
        return (ROOT / IN_TESTS[target]).exists()
    return re.search(rf"^make {target}$", (ROOT / ".ci/run").read_text(), re.MULTILINE) is not None


def _is_run(block: Block) -> bool:
    return block.language != "text" and block.kind not in ("needs", "in") and (SLOW or block.kind != "slow")


def test_the_pages_are_all_there() -> None:
    """A reader finds every page from the README."""
    readme = (ROOT / "README.md").read_text()
    for page in PAGES[1:]:
        assert f"]({page})" in readme, page


def test_blocks_and_their_notes_are_read() -> None:
    page = "a\n\n<!-- run: slow make x N=1 -->\n```sh\nmake x\n```\n\n```python\nx = 1\n```\n"
    page += "\n    loose\n- item\n\n    its code\n"
    assert blocks_in(page, "p") == [
        Block("p", 4, "sh", "make x\n", "slow", "make x N=1"),
        Block("p", 8, "python", "x = 1\n"),
    ]
    assert indented_in(page) == [12]
    with pytest.raises(ValueError, match="no such note: never"):
        blocks_in("<!-- run: never -->\n```sh\nx\n```\n", "p")
