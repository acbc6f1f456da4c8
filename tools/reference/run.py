"""Write the tables of the documentation that are made from data.

run.py              writes them into the pages
run.py --check      writes nothing; exit status 1 where a page is not current
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from icetower import rules as rules_
from tools.reference import invariants, rules, server_rules
from tools.reference.pages import filled

ROOT = Path(__file__).resolve().parent.parent.parent


def pages() -> Mapping[str, Mapping[str, str]]:
    """The tables of each page."""
    return {
        "docs/protocol.md": rules.tables(rules_.table()),
        "docs/conflicts.md": server_rules.tables(),
        "docs/invariants.md": invariants.tables(),
    }


def stale() -> dict[Path, str]:
    """The pages that are not current, as they would be."""
    found: dict[Path, str] = {}
    for name, tables in pages().items():
        text = (ROOT / name).read_text()
        made = filled(text, tables)
        if made != text:
            found[ROOT / name] = made
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args().check
    found = stale()
    for page, text in found.items():
        print(f"{page.relative_to(ROOT)} is {'not current: make reference' if check else 'written'}")
        if not check:
            page.write_text(text)
    return 1 if check and found else 0


if __name__ == "__main__":
    raise SystemExit(main())
