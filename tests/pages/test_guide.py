"""docs/guide.md names nothing that is not there, and no command that no test runs."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from tests.pages.page_blocks import PAGES, ROOT, blocks_of

PAGE = (ROOT / "docs/guide.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| the guide |", "| --- "))
]
RUN = "\n".join(
    chain(
        (
            text
            for page in PAGES
            for block in blocks_of(page)
            if block.kind != "needs"
            for text in (block.text, block.more)
        ),
        (
            path.read_text()
            for folder in ("cli", "pipelines", "demo")
            for path in (ROOT / "tests" / folder).glob("*.py")
        ),
        ((ROOT / "tests/test_bench_isolation.py").read_text(),),
    )
)
"""Whatever is run: blocks of the pages, and the tests of commands."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_item_is_shown_or_not_yet_there(row: list[str]) -> None:
    _, where, *shown = row
    names = re.findall(r"`([^`]+)`", shown[0]) if shown else []
    assert names or where == "not yet"
    for name in names:
        if name.startswith("tests/"):
            path, _, test = name.partition("::")
            assert f"def {test}" in (ROOT / path).read_text()
        elif name.startswith("icetower "):
            words = name.split()[1:]
            assert name in RUN or ", ".join(f'"{word}"' for word in words) in RUN, name
        else:
            assert re.search(rf"^{name.removeprefix('make ')}:", (ROOT / "Makefile").read_text(), re.MULTILINE), name
            assert name in RUN or name in (ROOT / ".ci/run").read_text() or "bench" in name, name


def test_the_page_goes_through_the_guide() -> None:
    assert len(ROWS) > 40
