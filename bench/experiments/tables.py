"""The findings as tables: for the terminal, and for the page in the documentation, which holds the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from bench.experiments import clustering, path_statistics
from bench.experiments.clustering import LAYOUTS, SCATTER
from bench.experiments.path_statistics import PARTITIONINGS, PRECISE, TODAY
from bench.experiments.records import Record, chosen, mean_percent
from bench.experiments.single_run import RULES
from icetower.iceberg.validation import Level

Records = Mapping[str, Sequence[Record]]
"""The records of both experiments, by their names."""
Key = TypeVar("Key")
Column = TypeVar("Column")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. The first column names the row."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def markdown(self) -> str:
        """As the documentation has it."""
        lines = [self.columns, ("---", *("--:" for _ in self.columns[1:])), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def all_tables(records: Records) -> list[Table]:
    """Every table, in the order of the page."""
    first, second = records[path_statistics.NAME], records[clustering.NAME]
    compared = [(f"{by}: {variant}", (by, variant)) for by in PARTITIONINGS for variant in path_statistics.COMPARED]
    by_day = [(variant, ("day", variant)) for variant in path_statistics.COMPARED]
    return [
        _sweep(first, "writers", "False (true) conflicts, % of writers, by writers at once", compared),
        _sweep(first, "files touched", "False (true) conflicts, % of 16 writers, by data files touched", compared),
        _sweep(first, "files in partition", "The same, partitions by day, by data files in a day", by_day),
        _sweep(first, "rows", "The same, partitions by day, by rows changed by each writer in 2 data files", by_day),
        _runs(first),
        _variants(first),
        _commands(first),
        _scatter(second),
        _checks(second),
        _filters(second),
        _invariants(records),
    ]


def in_page(page: str, tables: Sequence[Table]) -> str:
    """The page with its tables, each between its marks, as they are now. Raises `ValueError`: a mark is missing."""
    for table in tables:
        mark = re.compile(rf"(<!-- table: {re.escape(table.name)} -->\n)(?:(?!<!--).)*(<!-- end -->)", re.DOTALL)
        page, found = mark.subn(lambda match, text=table.markdown: f"{match[1]}{text}\n{match[2]}", page)
        if found != 1:
            raise ValueError(f"the page has {found} places for the table {table.name!r}; it needs one")
    return page


def _grid(
    name: str,
    title: str,
    rows: Iterable[tuple[str, Key]],
    columns: Mapping[str, Column],
    cell: Callable[[Key, Column], str],
) -> Table:
    """A table from its rows and columns, each with the label that is shown."""
    filled = tuple((label, *(cell(key, column) for column in columns.values())) for label, key in rows)
    return Table(name, title, ("", *columns), filled)


def _refused(records: Sequence[Record]) -> str:
    return f"{mean_percent(records, 'false'):.0f} ({mean_percent(records, 'true'):.0f})"


# ── Experiment 1 ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _sweep(records: Sequence[Record], sweep: str, title: str, rows: Iterable[tuple[str, tuple[str, str]]]) -> Table:
    found = chosen(records, sweep=sweep)

    def cell(key: tuple[str, str], x: int) -> str:
        return _refused(chosen(found, partitioning=key[0], variant=key[1], x=x))

    return _grid(sweep, title, rows, {str(x): x for x in sorted({each["x"] for each in found})}, cell)


def _runs(records: Sequence[Record]) -> Table:
    rows = [(f"{by}: {variant}", (by, variant)) for by in PARTITIONINGS for variant in path_statistics.DRAINED]

    def cell(key: tuple[str, str], writers: int) -> str:
        return f"{runs_each(records, *key, writers):.1f}"

    title = "Runs of each command until everybody is in, by writers at once"
    return _grid("runs", title, rows, {str(x): x for x in path_statistics.WRITERS}, cell)


def runs_each(records: Sequence[Record], partitioning: str, variant: str, writers: int) -> float:
    """How often a command is run until it is in, on average."""
    found = chosen(records, sweep="writers", partitioning=partitioning, variant=variant, x=writers)
    return fmean(each["runs"] / writers for each in found)


def _variants(records: Sequence[Record]) -> Table:
    found = chosen(records, sweep="writers", x=16)

    def cell(variant: str, by: str) -> str:
        return _refused(chosen(found, partitioning=by, variant=variant))

    title = "False (true) conflicts, % of 16 writers, by how deletes are written and checked"
    rows = [(variant, variant) for variant in path_statistics.VARIANTS]
    return _grid("variants", title, rows, {by: by for by in PARTITIONINGS}, cell)


def _commands(records: Sequence[Record]) -> Table:
    levels = (Level.SNAPSHOT, Level.SERIALIZABLE)
    rows = [(f"{label}, {level.value}", (label, level)) for level in levels for label in path_statistics.COMMANDS]
    columns = {"v2 today": TODAY, "v2 precise": PRECISE, "v3 today": "today, vectors", "v3 precise": "precise, vectors"}

    def cell(key: tuple[str, Level], variant: str) -> str:
        found = chosen(records, sweep=f"commands, {key[1]}", variant=variant, x=key[0])
        undeleted = sum(each["overlaps"] for each in found)
        said = f"{_refused(found)} {', '.join(_rules(found))}".rstrip()
        return f"{said}; {undeleted} undeleted" if undeleted else said

    title = "False (true) conflicts, % of 16 writers by day, and the checks that refused"
    return _grid("commands", title, rows, columns, cell)


def _rules(records: Sequence[Record]) -> list[str]:
    """The rules that refused anything, in their order."""
    return [rule for rule in RULES if any(each[f"{rule}_true"] or each[f"{rule}_false"] for each in records)]


# ── Experiment 2 ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_to(records: Sequence[Record]) -> str:
    low, high = (mean_percent(chosen(records, scatter=x), "false") for x in (min(SCATTER), max(SCATTER)))
    return f"{low:.0f} → {high:.0f}"


def _scatter(records: Sequence[Record]) -> Table:
    settings = [(mode, level.value) for mode in clustering.MODES for level in clustering.LEVELS]
    rows = [(f"{mode}, {level}", (mode, level)) for mode, level in (*settings, (clustering.PRECISE, "snapshot"))]

    def cell(key: tuple[str, str], layout: str) -> str:
        return _from_to(chosen(records, mode=key[0], level=key[1], layout=layout, filter="keys"))

    title = "False conflicts, % of 16 writers, from neighbouring rows to scattered ones"
    return _grid("scatter", title, rows, {layout: layout for layout in LAYOUTS}, cell)


def _checks(records: Sequence[Record]) -> Table:
    usual = chosen(records, filter="keys")
    rules = _rules(usual)
    rows: list[tuple[str, ...]] = []
    for mode in clustering.MODES:
        for level in clustering.LEVELS:
            found = chosen(usual, mode=mode, level=level.value)
            counts = [[sum(each[f"{rule}_{kind}"] for each in found) for kind in ("false", "true")] for rule in rules]
            total = [sum(each[name] for each in found) for name in ("writers", "committed")]
            cells = (f"{false} ({true})" for false, true in counts)
            rows.append((f"{mode}, {level.value}", *map(str, total), *cells))
    title = "Refusals by check, false (true), over all layouts and all scatter"
    return Table("checks", title, ("", "writers", "committed", *rules), tuple(rows))


def _filters(records: Sequence[Record]) -> Table:
    modes = ("copy-on-write", "merge-on-read")
    rows = [(f"{mode}, filter: {label}", (mode, label)) for mode in modes for label in clustering.FILTERS]

    def cell(key: tuple[str, str], layout: str) -> str:
        return _from_to(chosen(records, mode=key[0], level="serializable", layout=layout, filter=key[1]))

    title = "The same for serializable writers, by what their filter says of keys"
    return _grid("filters", title, rows, {layout: layout for layout in LAYOUTS if "day" in layout}, cell)


# ── Both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _invariants(records: Records) -> Table:
    """What came of comparing; an invariant that is broken stops the program before there is a table."""
    rows: list[tuple[str, Sequence[Record]]] = []
    for name, found in records.items():
        undelete = [each for each in found if _may_undelete(each)]
        rows.append((name, [each for each in found if not _may_undelete(each)]))
        rows += [(f"{name}, with DELETE", undelete)] if undelete else []
    columns: dict[str, Callable[[Record], int]] = {
        "runs": lambda each: 1,
        "commands": lambda each: each["runs"],
        "spared": lambda each: each["unneeded"],
        "rows wrong": lambda each: each["wrong_rows"],
    }
    title = "Compared in every run"
    return _grid("invariants", title, rows, columns, lambda found, count: str(sum(count(each) for each in found)))


def _may_undelete(record: Record) -> bool:
    """See `course.may_undelete`."""
    if record.get("sweep") != "commands, snapshot" or "vectors" in record["variant"]:
        return False
    return "DELETE" in record["x"]
