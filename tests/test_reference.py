"""The tables of the documentation that are made from data are current."""

from __future__ import annotations

from tools.reference.pages import code, filled, names, table
from tools.reference.run import ROOT, pages, stale


def test_every_page_is_as_it_is_made() -> None:
    assert [str(page) for page in stale()] == []


def test_every_table_that_is_made_stands_in_its_page() -> None:
    for page, tables in pages().items():
        assert sorted(names((ROOT / page).read_text())) == sorted(tables), page


def test_a_table_is_replaced_and_nothing_else() -> None:
    start, end = "before\n\n<!-- table: a (make reference) -->\n", "\n<!-- end of table -->\n\nafter\n"
    made = table(("x", "y"), [("1", code(["b", "c"]))])
    assert made == "| x | y |\n| --- | --- |\n| 1 | `b`, `c` |"
    assert filled(f"{start}old{end}", {"a": made}) == f"{start}{made}{end}"
    assert filled(f"{start}{made}{end}", {"a": "| z |"}) == f"{start}| z |{end}"
