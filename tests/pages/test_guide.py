"""docs/guide.md: each sentence of the guide has its row, and each row's command is run and shows what the row says.

Commands of the program run in one world of the pages, in the order of the page, each once. Tests run in two processes:
the light ones, and in `make verify` the others, which share one Spark. `make test` runs each of them by itself, too.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pages import page_scenes
from tests.pages.page_blocks import ROOT, Block
from tests.pages.page_world import Failed, World

PAGE = ROOT / "docs/guide.md"

SENTENCES = {
    "Introduction": 7,
    "How Iceberg optimistic concurrency control actually works": 22,
    "The agent concurrency problem: three distinct failure modes": 23,
    "Partition-level isolation": 15,
    "Idempotency keys": 17,
    "Orchestration patterns": 25,
    "Iceberg v3 deletion vectors": 13,
    "A multi-agent write pipeline": 33,
    "Isolation contracts": 12,
    "Five metrics": 22,
    "Iceberg v4 and intents": 8,
    "Summary of the guide": 12,
}
"""How many each section of the guide has, counted as its page says."""

WITHOUT = ("nothing to run: about others", "nothing to run: announces what follows", "not yet")
"""Why a row may have no command."""

LONG = tuple(f"icetower plan examples/workloads/{each}.toml" for each in ("read_heavy", "write_heavy", "alerting"))
"""Commands that simulate for many seconds."""

HEAVY = (
    "tests/pipelines/",
    "tests/test_bench_isolation.py::test_a_short_run_of_a_claim_finds_all_rows_as_they_should_be",
    "tests/test_bench_isolation.py::test_killed_writers_leave_files_and_double_rows_where_nobody_knows_their_key",
    "tests/wire/test_wire_pyiceberg.py::test_eight_processes_append_without_a_retry",
)
"""Tests with Spark, or with many processes, by how their names begin."""

WITHIN_S = 1200

Failure = Failed | subprocess.TimeoutExpired

Outcomes = dict[str, str]
"""By the name of each test: passed, or what it said."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table of the page.

    Attributes:
        first, last: its sentences.
        command: as it stands; empty if there is none.
        without: why there is none.
    """

    section: str
    first: int
    last: int
    where: str
    differs: str
    command: str
    without: str
    shows: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.section}, {self.first}"


def rows_of(text: str) -> list[Row]:
    """The rows of a page in order. Raises `ValueError` for a line of a table that is no row."""
    found: list[Row] = []
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if not line.startswith("| ") or line.startswith(("| sentence |", "| --- ")):
            continue
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        numbers = re.fullmatch(r"(\d+)(?:–(\d+))?", cells[0])
        if len(cells) != 6 or numbers is None:
            raise ValueError(f"{section}: no row: {line}")
        command = re.fullmatch(r"`([^`]+)`", cells[4])
        found.append(
            Row(
                section,
                int(numbers[1]),
                int(numbers[2] or numbers[1]),
                cells[2],
                cells[3],
                command[1] if command else "",
                "" if command else cells[4],
                tuple(re.findall(r"`([^`]+)`", cells[5])),
            )
        )
    return found


ROWS = rows_of(PAGE.read_text())
COMMANDS = list(dict.fromkeys(row.command for row in ROWS if row.command))
PROGRAM = [command for command in COMMANDS if "pytest " not in command]
TESTS = [command for command in COMMANDS if "pytest " in command]


def is_long(command: str) -> bool:
    return command in LONG or ("pytest " in command and any(name.startswith(HEAVY) for name in names_in(command)))


def names_in(command: str) -> list[str]:
    """The tests that a command names."""
    program, *names = shlex.split(command)
    assert program == ".venv/bin/pytest"
    return names


def layered(commands: list[str]) -> list[object]:
    return [
        pytest.param(each, marks=pytest.mark.sharp if is_long(each) else (), id=each[-70:].strip()) for each in commands
    ]


# -- the page ---------------------------------------------------------------------------------------------------------


def test_every_sentence_has_its_row() -> None:
    assert list(dict.fromkeys(row.section for row in ROWS)) == list(SENTENCES)
    for section, count in SENTENCES.items():
        rows = [row for row in ROWS if row.section == section]
        assert [number for row in rows for number in range(row.first, row.last + 1)] == list(range(1, count + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.place)
def test_a_row_has_a_command_that_shows_something_or_says_why_not(row: Row) -> None:
    if row.without:
        assert row.without in WITHOUT
        assert not row.shows
        assert row.without != "not yet" or "not yet: " in row.differs.lower(), "say what there is"
    else:
        assert row.shows
        assert row.where or row.differs, "say where it is, or what is wrong with it"
        assert all(len(each) >= 3 for each in row.shows)


def test_what_the_page_names_is_there() -> None:
    for row in ROWS:
        for path, fragment in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", f"{row.where} {row.differs}"):
            target = (PAGE.parent / path).resolve()
            assert target.exists(), f"{row.place}: {path}"
            assert not fragment or fragment in _fragments(target), f"{row.place}: {path}#{fragment}"
        for name in names_in(row.command) if "pytest " in row.command else ():
            path, *inner = name.split("[")[0].split("::")
            assert inner, f"{row.place}: name a test, and not all of {path}"
            assert re.search(rf"def {inner[-1]}\b", _tests_of(path)), f"{row.place}: {name}"
        for path in re.findall(r"`((?:src|bench|tests|examples)/[^`]+)`", f"{row.where} {row.differs}"):
            assert (ROOT / path).exists(), f"{row.place}: {path}"


def test_rows_are_read() -> None:
    text = "## A\n| sentence | b |\n| --- | --- |\n| 1–2 | says | where |  | `icetower x` | `a`, `b c` |\n"
    assert rows_of(text) == [Row("A", 1, 2, "where", "", "icetower x", "", ("a", "b c"))]
    assert rows_of("| 3 | says |  | Not yet: x | not yet |  |\n")[0].without == "not yet"
    with pytest.raises(ValueError, match="no row"):
        rows_of("| 1 | says | where | `icetower x` |\n")


def _tests_of(path: str) -> str:
    """The text of a module of tests, and of those that it has its tests from."""
    folder = (ROOT / path).parent
    return "\n".join(each.read_text() for each in (ROOT / path, *folder.glob("behaviour_*.py")))


def _fragments(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


# -- commands of the program ------------------------------------------------------------------------------------------

APPENDS = """\
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError

catalog = load_catalog("tower", type="rest", uri="http://127.0.0.1:8181", credential="pricing-1:SECRET")
table = catalog.load_table("pricing.product_prices")
for day, key in (("2017-01-02", "first"), ("2017-01-02", "first"), ("2017-02-02", "second")):
    rows = pa.table({"ts": [datetime.fromisoformat(day)], "product_id": [7], "price": [9.99]})
    try:
        table.append(rows, snapshot_properties={"icetower.idempotency-key": key})
    except ForbiddenError:
        assert key == "second"
    else:
        assert key == "first"
    table.refresh()
assert table.scan().to_arrow().num_rows == 1
"""
"""What the page's quick start has done: a commit, the same once more, and one that is refused."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str | Failure]]:
    """What each command printed, run in the order of the page. A long one is run when it is asked for."""
    world = World(tmp_path_factory.mktemp("guide") / "world")
    try:
        world.settle()
        page_scenes.start(world)
        world.python(Block("test_guide.py", 1, "python", APPENDS))
        yield _Printed(world)
    finally:
        world.stop()


class _Printed(dict[str, "str | Failure"]):
    def __init__(self, world: World) -> None:
        self.world = world
        for command in PROGRAM:
            if not is_long(command):
                self[command] = self._run(command)

    def __missing__(self, command: str) -> str | Failure:
        self[command] = self._run(command)
        return self[command]

    def _run(self, command: str) -> str | Failure:
        try:
            return self.world.shell(f"{command} 2>&1", "docs/guide.md")
        except (Failed, subprocess.TimeoutExpired) as error:
            return error


@pytest.mark.parametrize("command", layered(PROGRAM))
def test_a_command_shows_what_its_rows_say(command: str, printed: Mapping[str, str | Failure]) -> None:
    said = printed[command]
    if isinstance(said, Failure):
        raise said
    for row in ROWS:
        if row.command == command:
            for words in row.shows:
                assert words in said, f"{row.place}: {words} is not in\n{said}"


# -- tests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[bool, Outcomes | AssertionError]:
    """What became of the tests, by whether they are long. Each of both is one process, run when it is asked for."""
    return _Outcomes(tmp_path_factory.mktemp("outcomes"))


class _Outcomes(dict[bool, "Outcomes | AssertionError"]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, long: bool) -> Outcomes | AssertionError:
        asked = sorted({name for command in TESTS if is_long(command) is long for name in names_in(command)})
        try:
            self[long] = run_tests(asked, self.folder / f"{long}.xml")
        except AssertionError as error:
            self[long] = error
        return self[long]


def run_tests(names: list[str], report: Path) -> Outcomes:
    """Each test that ran, and what became of it. Raises `AssertionError` where one of the names is none."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--junitxml={report}", *names],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode in (0, 1), f"{done.stdout}\n{done.stderr}"
    return {_name_of(case): _became(case) for case in ElementTree.parse(report).iter("testcase")}


def _name_of(case: ElementTree.Element) -> str:
    """As pytest takes it: a test that is inherited is one of the class that inherits it."""
    parts = case.get("classname", "").split(".")
    length = next(number for number in range(1, len(parts) + 1) if (ROOT / f"{'/'.join(parts[:number])}.py").is_file())
    return "::".join([f"{'/'.join(parts[:length])}.py", *parts[length:], case.get("name", "")])


def _became(case: ElementTree.Element) -> str:
    wrong = [each for each in case if each.tag in {"failure", "error", "skipped"}]
    return "".join(f"{each.tag}: {each.get('message')}\n{each.text}" for each in wrong) or "passed"


@pytest.mark.parametrize("command", layered(TESTS))
def test_a_test_of_the_page_passes(command: str, outcomes: Mapping[bool, Outcomes | AssertionError]) -> None:
    found = outcomes[is_long(command)]
    if isinstance(found, AssertionError):
        raise found
    for name in names_in(command):
        became = {
            each: how for each, how in found.items() if each == name or each.startswith((f"{name}[", f"{name}::"))
        }
        assert became, f"{name} is none of {sorted(found)}"
        assert set(became.values()) == {"passed"}, became
    assert all(row.shows == ("passed",) for row in ROWS if row.command == command)
