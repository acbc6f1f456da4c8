"""Tables and promises of `make bench-rewriters`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bench.commits.operations import Spread
from bench.commits.pages import Shown, number, spread_text
from bench.rewriters.work import BRANCHES, INTENTS, SIDES

Record = Mapping[str, Any]
WASTED_MAX = 0.05

COLUMNS = (
    "side", "agents", "storage", "rewrites", "failed %", "attempts a rewrite", "work wasted %", "time to done p50 s",
    "longest s", "appends failed", "append p50 s", "longest s", "wrong rows",
)  # fmt: skip


def figure_table(records: Sequence[Record]) -> Shown:
    """A row for each number of agents and side, over the rounds."""
    groups: defaultdict[tuple[int, str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record["agents"], record["profile"], record["side"]].append(record)
    order = sorted(groups, key=lambda group: (group[0], group[1], SIDES.index(group[2])))
    return Shown("Rewrites while others append", COLUMNS, tuple(_figures(groups[each]) for each in order), left=3)


def _figures(records: Sequence[Record]) -> tuple[str, ...]:
    first, single = records[0], len(records) == 1

    def spread(value: str, scale: float = 1.0) -> str:
        known = [record[value] * scale for record in records if record[value] is not None]
        return spread_text(Spread.of(known), single=single) if known else "–"

    due = sum(record["due"] for record in records)
    failed = [100 * record["failed"] / record["due"] for record in records]
    tries = sum(record["attempts"] for record in records)
    return (
        first["side"],
        str(first["agents"]),
        first["profile"],
        str(due),
        spread_text(Spread.of(failed), single=single),
        number(tries / due),
        spread("wasted", 100),
        spread("done_p50_s"),
        spread("done_max_s"),
        f"{sum(r['appends_failed'] for r in records)} of {sum(r['append_tries'] for r in records)}",
        spread("append_p50_s"),
        spread("append_max_s"),
        str(sum(record["wrong"] for record in records)),
    )


def broken(records: Sequence[Record]) -> list[str]:
    """The promises that runs break, a sentence each.

    No table may have a wrong row, but on the plain catalog. With intents or branches no rewrite fails, and less than a
    twentieth of the work is wasted.
    """
    found: list[str] = []
    for record in records:
        what = f"{record['side']}, {record['agents']} agents"
        if record["wrong"] and record["side"] != "plain":
            found.append(f"{what}: {record['wrong']} rows are missing, there twice, or in the wrong version")
        if record["side"] in (INTENTS, BRANCHES):
            if record["failed"]:
                found.append(f"{what}: {record['failed']} of {record['due']} rewrites failed")
            if record["wasted"] >= WASTED_MAX:
                found.append(f"{what}: {100 * record['wasted']:.1f} % of the work was wasted")
    return found
