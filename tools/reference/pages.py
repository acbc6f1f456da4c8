"""Tables of a page, each between a comment that names it and one that ends it.

<!-- table: next_steps (make reference) -->
| … |
<!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_TABLE = re.compile(r"(<!-- table: (\S+) \(make reference\) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def names(page: str) -> list[str]:
    """The tables that a page has, in its order."""
    return [match[2] for match in _TABLE.finditer(page)]


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with each of its tables as it is made now."""
    return _TABLE.sub(lambda match: f"{match[1]}{tables[match[2]]}\n{match[3]}", page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Its cells are Markdown as they stand."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(names: Iterable[str]) -> str:
    """Names as code, in one cell."""
    return ", ".join(f"`{name}`" for name in names)
