"""The experiments on false conflicts: their truth, their invariants, and that the page says what the data says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bench.experiments import clustering, path_statistics, run, spark
from bench.experiments.iceberg import disagreements
from bench.experiments.path_statistics import PRECISE, TODAY
from bench.experiments.plots import all_plots
from bench.experiments.records import COUNTS, Point, Record, as_csv, chosen, from_csv, mean_percent, record, run_all
from bench.experiments.single_run import Broken, RunResult, Setup, may_undelete
from bench.experiments.table import Table
from bench.experiments.tables import all_tables, in_page, runs_each
from bench.experiments.work import Command, Work, draw, stream
from bench.experiments.world import Layout, Row, base, bucket
from icetower.iceberg.validation import Level
from icetower_client_model import checks
from verify.differential.oracle import Oracle

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "experiments.md").read_text()
PLOTS = ROOT / "docs" / "plots"

SMALL = Layout("day", partitions=2, files=4, rows=10)
POINTS = [*path_statistics.points(), *clustering.points()]


@pytest.fixture(scope="module")
def records() -> Mapping[str, list[Record]]:
    """What the page was written from."""
    return {name: from_csv(PLOTS / f"{name}.csv") for name in (path_statistics.NAME, clustering.NAME)}


# ── Rows and files ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("partitioning", ["category", "bucket", "day"])
def test_a_new_table_has_equal_files_each_in_one_partition(partitioning: str, clustered: bool) -> None:
    layout = Layout(partitioning, partitions=4, files=3, rows=20, clustered=clustered)  # type: ignore[arg-type]
    files = base(layout, stream("test")).files
    assert len(files) == 12
    assert {len(rows) for rows in files.values()} == {20}
    assert len({row.id for rows in files.values() for row in rows}) == layout.size
    for name, rows in files.items():
        assert len({layout.partition_of(row) for row in rows}) == 1, name
    overlapping = [
        (left, right)
        for left, right in zip(files, list(files)[1:], strict=False)
        if left[:2] == right[:2] and max(row.id for row in files[left]) > min(row.id for row in files[right])
    ]
    assert bool(overlapping) is not clustered


def test_buckets_are_icebergs() -> None:
    """Appendix B of the specification hashes 34 to 2017239379."""
    assert bucket(34, 100) == 2017239379 % 100


def test_a_smaller_herd_is_the_beginning_of_a_larger_one() -> None:
    work = path_statistics.work("day")
    begun = base(work.layout, stream("test"))
    few, many = (draw(replace(work, writers=count), begun, seed=3) for count in (4, 16))
    assert many[:4] == few
    assert draw(replace(work, writers=16), begun, seed=3) == many
    assert draw(replace(work, writers=16), begun, seed=4) != many


@pytest.mark.parametrize("scatter", [0.0, 1.0])
def test_scatter_goes_from_a_block_of_ones_own_to_all_over(scatter: float) -> None:
    work = replace(clustering.work(clustering.LAYOUTS["by key range, sorted"]), scatter=scatter)
    commands = draw(work, base(work.layout, stream("test")), seed=1)
    own = work.layout.size // work.writers
    spans = [max(command.reads) - min(command.reads) for command in commands]
    if scatter == 0:
        assert all(span < work.layout.rows for span in spans)
        assert [min(command.reads) // own for command in commands] == list(range(work.writers))
    else:
        assert min(spans) > work.layout.rows
    assert all(len(command.changes) == 2 and command.changes < command.reads for command in commands)


def command(verb: str, *keys: int, copies: bool = False) -> Command:
    return Command(verb, frozenset(keys), frozenset(keys), (), 5, True, copies)  # type: ignore[arg-type]


ROWS = {"A": tuple(Row(key, "c0", 0, 0) for key in (1, 2, 3)), "B": tuple(Row(key, "c0", 0, 0) for key in (4, 5, 6))}


@pytest.mark.parametrize(
    ("format_version", "granularity", "bounds"),
    [
        (2, "file", [["A", "A"], ["B", "B"]]),
        (2, "partition", [[]]),
        (3, "partition", [[], []]),
    ],
)
def test_spark_writes_delete_files_as_their_granularity_says(
    format_version: int, granularity: spark.Granularity, bounds: list[list[str]]
) -> None:
    table = Table(Layout("day", 1, 2, 3), format_version, ROWS)
    update = command("update", 2, 4, 5)
    op = spark.prepare(table, table.view(), update, 7, level=Level.SNAPSHOT, granularity=granularity)
    assert op is not None
    shapes = [table.case.files[name] for name in op["add_deletes"]]
    assert [shape.path_bounds for shape in shapes] == bounds
    if format_version == 3:
        assert [shape.references for shape in shapes] == ["A", "B"]
    assert set().union(*(table.positions[name] for name in op["add_deletes"])) == {("A", 1), ("B", 0), ("B", 1)}
    assert op["references"] == ["A", "B"]
    assert op["start"] == 1
    assert table.changed(table.view(), op) == {2, 4, 5}


def test_a_second_delete_file_of_a_data_file_takes_the_firsts_place() -> None:
    table = Table(Layout("day", 1, 2, 3), 2, ROWS)
    for writer, key in ((7, 1), (8, 2)):
        view = table.view()
        op = spark.prepare(table, view, command("delete", key), writer, level=Level.SNAPSHOT, granularity="file")
        assert op is not None
        assert table.changed(view, op) == {key}
        assert table.commit(table.begin(writer, op)) is None
    assert op["remove_deletes"] == ["w7x0"]
    assert table.positions["w8x0"] == {("A", 0), ("A", 1)}
    assert {row.id for row in table.view().all_rows()} == {3, 4, 5, 6}


def test_copy_on_write_changes_only_the_rows_that_it_changes() -> None:
    table = Table(Layout("day", 1, 2, 3), 2, ROWS)
    view = table.view()
    update = command("update", 2, copies=True)
    op = spark.prepare(table, view, update, 7, level=Level.SERIALIZABLE, granularity="file")
    assert op is not None
    assert (op["remove"], len(table.rows[op["add"][0]])) == (["A"], 3)
    assert table.changed(view, op) == {2}


# ── Invariants ───────────────────────────────────────────────────────────────────────────────────────────────────────

SETUPS = [
    Setup(Work(layout, writers=8, rows=rows, files=2, verbs=("update", "merge")), level, format_version, granularity)
    for layout in (SMALL, replace(SMALL, partitioning="category"), replace(SMALL, partitioning="bucket"))
    for rows in (2, 8)
    for level, format_version, granularity in (
        (Level.SNAPSHOT, 2, "file"),
        (Level.SNAPSHOT, 2, "partition"),
        (Level.SNAPSHOT, 3, "file"),
        (Level.SERIALIZABLE, 2, "file"),
    )
]


def named(setup: Setup) -> str:
    work = setup.work
    return f"{work.layout.partitioning}-{work.rows}-{setup.level}-v{setup.format}-{setup.granularity}"


@pytest.mark.parametrize("setup", SETUPS, ids=named)
def test_no_commit_is_admitted_wrongly_and_precise_deletes_only_spare_false_conflicts(setup: Setup) -> None:
    """`Course.run` raises `Broken` if either does not hold at any commit of any round."""
    tallies = [RunResult(replace(setup, precise=precise, drains=True), 5).run() for precise in (False, True)]
    usual, precise = tallies
    assert [tally.wrong_rows for tally in tallies] == [0, 0]
    assert [tally.overlaps for tally in tallies] == [0, 0]
    assert usual.writers == precise.writers == usual.committed + usual.true + usual.false == 8
    assert usual.true + usual.false > 0
    assert precise.unneeded <= usual.false + usual.true
    if setup.level is Level.SERIALIZABLE:
        assert usual == precise, "serializable writers mind what they have read"


def test_the_true_conflicts_are_there_to_be_found() -> None:
    true = [RunResult(replace(setup, precise=True), 5).run().true for setup in SETUPS if setup.level is Level.SNAPSHOT]
    assert sum(true) > 20


def test_a_check_that_lets_true_conflicts_pass_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(Work(SMALL, writers=8, rows=8, files=2), precise=True)
    RunResult(setup, 5).run()
    monkeypatch.setattr(checks, "_touched_files", lambda _: frozenset())
    with pytest.raises(Broken, match="precise deletes admit a true conflict"):
        RunResult(setup, 5).run()


def test_a_precise_check_that_refuses_more_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stricter(attempt: checks.Attempt, where: checks.Where) -> checks.Verdict:
        found = real(attempt, where)
        if attempt.operation.precise_deletes and attempt.operation.start != attempt.head.ref("main"):
            return checks.Conflict("C3a", "ValidationException", "everything conflicts")
        return found

    real = checks.no_new_delete_files
    monkeypatch.setattr(checks, "no_new_delete_files", stricter)
    with pytest.raises(Broken, match="precise deletes refuse what is admitted without them"):
        RunResult(Setup(path_statistics.work("category")), 1).run()


def test_wrong_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """C3a dropped: two UPDATEs of one row both commit, and the row is there twice."""
    monkeypatch.setattr(checks, "no_new_delete_files", lambda attempt, where: None)
    with pytest.raises(Broken, match="rows are not as any serial order would leave them"):
        RunResult(Setup(Work(SMALL, writers=8, rows=8, files=2)), 5).run()


def test_icebergs_own_undelete_is_counted_and_nothing_else() -> None:
    work = Work(SMALL, writers=8, rows=8, files=2, verbs=("update", "delete"))
    undelete, vectors, serializable = (
        [RunResult(replace(Setup(work), level=level, format=version), seed).run() for seed in range(1, 6)]
        for level, version in ((Level.SNAPSHOT, 2), (Level.SNAPSHOT, 3), (Level.SERIALIZABLE, 2))
    )
    assert sum(tally.wrong_rows for tally in undelete) > 0
    assert sum(tally.overlaps for tally in undelete) > 0
    assert not any(tally.wrong_rows or tally.overlaps for tally in (*vectors, *serializable))
    assert may_undelete(Setup(work))
    assert not may_undelete(Setup(work, format=3))


def test_precise_merge_on_read_is_refused_where_copy_on_write_is() -> None:
    """At snapshot isolation both then object to the very same thing: somebody touched the data file, too."""
    for layout in clustering.LAYOUTS.values():
        work = replace(clustering.work(layout), scatter=0.7)
        runs = [RunResult(Setup(replace(work, copies=copies), precise=copies == 0), 3) for copies in (0.0, 1.0)]
        for result in runs:
            result.run()
        merged, copied = ([conflict is None for conflict in result.verdicts.values()] for result in runs)
        assert merged == copied


def test_today_it_does_not_matter_how_deletes_are_written() -> None:
    work = path_statistics.work("day")
    found = [
        RunResult(replace(Setup(work), **path_statistics.VARIANTS[variant]), 2).run()  # type: ignore[arg-type]
        for variant in (TODAY, "today, per partition", "today, vectors")
    ]
    assert len({(tally.committed, tally.true, tally.false) for tally in found}) == 1


# ── The same again ───────────────────────────────────────────────────────────────────────────────────────────────────

FEW = [Point({"x": number}, setup) for number, setup in enumerate(SETUPS[:6])]


def test_a_rerun_gives_the_same_in_whatever_processes() -> None:
    one, again, two = (as_csv(list(run_all(FEW, (1, 2), jobs))) for jobs in (1, 1, 2))
    assert one == again == two


def test_records_survive_being_written(tmp_path: Path) -> None:
    found = list(run_all(FEW, (1,), 1))
    path = tmp_path / "found.csv"
    path.write_text(as_csv(found))
    assert from_csv(path) == found


@pytest.mark.parametrize("point", POINTS[::29], ids=lambda point: " ".join(map(str, point.labels.values())))
def test_the_data_beside_the_page_is_what_the_program_finds(point: Point, records: Mapping[str, list[Record]]) -> None:
    name = path_statistics.NAME if "sweep" in point.labels else clustering.NAME
    (kept,) = chosen(records[name], **point.labels, seed=1)
    now = record(point.labels, 1, RunResult(point.setup, 1).run())
    assert {column: kept[column] for column in now} == now


def test_the_data_is_whole(records: Mapping[str, list[Record]]) -> None:
    for experiment in run.EXPERIMENTS:
        found = records[experiment.NAME]
        assert len(found) == len(list(experiment.points())) * experiment.SEEDS
        assert experiment.SEEDS >= 10
        assert all(each["writers"] == each["committed"] + each["true"] + each["false"] for each in found)


def test_plots_come_out_the_same_and_bear_no_date(records: Mapping[str, list[Record]]) -> None:
    once, again = all_plots(records), all_plots(records)
    assert once == again
    for name, svg in once.items():
        assert "<dc:date>" not in svg, name
        assert (PLOTS / name).exists(), f"{name}: run `make experiments`"


# ── The page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_has_every_table_as_it_is_now(records: Mapping[str, list[Record]]) -> None:
    assert in_page(PAGE, all_tables(records)) == PAGE, "run `make experiments`"


def test_the_page_shows_every_plot_and_names_no_other() -> None:
    shown = set(re.findall(r"\]\(plots/([\w-]+\.svg)\)", PAGE))
    assert shown == {path.name for path in PLOTS.glob("*.svg")}


def test_a_page_without_a_place_for_a_table_is_refused(records: Mapping[str, list[Record]]) -> None:
    with pytest.raises(ValueError, match="0 places for the table 'writers'"):
        in_page("nothing", all_tables(records))


def test_the_words_of_the_page_are_what_the_data_says(records: Mapping[str, list[Record]]) -> None:
    first, second = records[path_statistics.NAME], records[clustering.NAME]
    said = " ".join(PAGE.split())

    def false(**labels: object) -> str:
        return f"{mean_percent(chosen(first if 'sweep' in labels else second, **labels), 'false'):.0f}"

    def at_16(partitioning: str) -> str:
        both = (
            false(sweep="writers", x=16, partitioning=partitioning, variant=variant) for variant in (TODAY, PRECISE)
        )
        return " to ".join(both)

    def scattered(mode: str, layout: str, scatter: float, level: str = "snapshot", told: str = "keys") -> str:
        return false(mode=mode, layout=layout, scatter=scatter, level=level, filter=told)

    copied = ("copy-on-write", "serializable")
    total = {kind: sum(each[kind] for each in second) for kind in ("false", "true")}
    runs = [runs_each(first, "day", variant, 32) for variant in (TODAY, PRECISE)]
    facts = [
        (
            f"By category false conflicts fall from {at_16('category')} % of all commits, "
            f"by bucket from {at_16('bucket')} %, by day from {at_16('day')} %"
        ),
        f"each command runs {runs[0]:.1f} times today until everybody is in, and {runs[1]:.1f} times with",
        f"at the price of {false(sweep='commands, snapshot', x='DELETE', variant='today, vectors')} % false conflicts",
        f"Nearly every refusal is false: {total['false']:,} of {sum(total.values()):,}",
        f"in {scattered('copy-on-write', 'by key range, sorted', 1.0)} % of commits at worst",
        (
            f"{scattered('merge-on-read', 'by key range, sorted', 1.0)} and "
            f"{scattered('merge-on-read', 'by key range, unsorted', 1.0)} % at full scatter"
        ),
        f"{scattered(copied[0], 'by key range, sorted', 1.0, copied[1])} % of the most scattered copy-on-write commits",
        f"refused, unsorted {scattered(copied[0], 'by key range, unsorted', 1.0, copied[1])} %",
        (
            f"{scattered(copied[0], 'by day, sorted', 0.0, copied[1])} % of the least scattered if files are sorted, "
            f"and {scattered(copied[0], 'by day, unsorted', 0.0, copied[1])} % if not"
        ),
        f"refused {scattered(copied[0], 'by day, sorted', 0.0, copied[1], 'nothing')} % of the time",
        f"over {path_statistics.SEEDS} seeds (second experiment: {clustering.SEEDS})",
        f"The table has {path_statistics.work('day').layout.size:,} rows",
    ]
    assert [fact for fact in facts if fact not in said] == []


def test_the_findings_hold(records: Mapping[str, list[Record]]) -> None:
    """What the page says in words only."""
    first, second = records[path_statistics.NAME], records[clustering.NAME]
    for partitioning in path_statistics.PARTITIONINGS:
        usual, precise = (
            mean_percent(chosen(first, sweep="writers", x=16, partitioning=partitioning, variant=variant), "false")
            for variant in (TODAY, PRECISE)
        )
        assert 0.24 <= precise / usual <= 0.5
    counts = ("committed", "true", "false")
    both = [chosen(second, mode=mode, level="snapshot") for mode in ("copy-on-write", clustering.PRECISE)]
    copied, merged = ([[each[name] for name in counts] for each in found] for found in both)
    assert copied == merged
    both = [chosen(second, mode="merge-on-read", level=level.value, filter="keys") for level in clustering.LEVELS]
    snapshot, serializable = ([each["committed"] for each in found] for found in both)
    assert snapshot == serializable
    assert all(each["false"] == 0 for each in second if each["scatter"] == 0 and "key range" in each["layout"])
    assert not any(each["wrong_rows"] for each in second)
    wrong = [each for each in first if each["wrong_rows"]]
    assert {(each["sweep"], each["x"]) for each in wrong} == {("commands, snapshot", "UPDATE and DELETE")}


# ── The program ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page and data of their own to be written to."""
    for name in (path_statistics.NAME, clustering.NAME):
        (tmp_path / f"{name}.csv").write_bytes((PLOTS / f"{name}.csv").read_bytes())
    (tmp_path / "experiments.md").write_text(re.sub(r"-->\n\|.*?\n<!--", "-->\n<!--", PAGE, flags=re.DOTALL))
    monkeypatch.setattr(run, "PLOTS", tmp_path)
    monkeypatch.setattr(run, "PAGE", tmp_path / "experiments.md")
    return tmp_path


def test_the_program_writes_plots_and_tables_and_reports(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--plots", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["writers"]["columns"] == ["", "2", "4", "8", "16", "32"]
    assert (elsewhere / "experiments.md").read_text() == PAGE
    assert {path.name for path in elsewhere.glob("*.svg")} == {path.name for path in PLOTS.glob("*.svg")}
    assert run.main(["--plots"]) == 0
    assert "Refusals by check" in capsys.readouterr().out


def test_a_quick_look_writes_nothing(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    whole = {experiment.NAME: from_csv(PLOTS / f"{experiment.NAME}.csv") for experiment in run.EXPERIMENTS}
    asked: list[tuple[int, int]] = []

    def known(points: list[Point], seeds: range, jobs: int) -> Iterator[Record]:
        asked.append((len(seeds), jobs))
        yield from whole[path_statistics.NAME if "sweep" in points[0].labels else clustering.NAME]

    monkeypatch.setattr(run, "run_all", known)
    assert run.main(["--seeds", "2", "--jobs", "1", "--quiet"]) == 0
    assert asked == [(2, 1), (2, 1)]
    assert capsys.readouterr().err == ""
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_a_broken_invariant_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Iterator[Record]:
        raise Broken("rows went missing")
        yield

    monkeypatch.setattr(run, "run_all", broken)
    assert run.main(["--seeds", "1", "--quiet"]) == 1
    assert "rows went missing" in capsys.readouterr().err


def test_the_counts_are_those_of_a_tally() -> None:
    tally = RunResult(Setup(Work(SMALL, writers=4, rows=2, files=1)), 1).run()
    assert {name: getattr(tally, name) for name in COUNTS}["writers"] == 4


# ── Iceberg itself ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.java
def test_iceberg_gives_every_writer_the_same_verdict() -> None:
    """All kinds of setups that Iceberg knows, with the seeds after those of the page; rounds, too."""
    usual = [point.setup for point in POINTS if not point.setup.precise]
    small = [
        replace(setup, drains=False, work=replace(setup.work, writers=8))
        for setup in (*usual[::17], *(setup for setup in usual if may_undelete(setup)))
    ]
    drained = [replace(setup, drains=True) for setup in SETUPS]
    runs = [(setup, 101 + number) for number, setup in enumerate((*small, *drained))]
    with Oracle() as oracle:
        answers = list(disagreements(oracle, runs))
    assert [problem for _, problem in answers if problem is not None] == []
    assert sum(writers for writers, _ in answers) > 400
