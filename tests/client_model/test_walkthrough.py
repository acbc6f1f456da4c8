"""The page that walks through the figures: its drawings, its tables, and that it is what Iceberg says today."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import pytest

from icetower.iceberg.validation import Level
from icetower_client_model.checks import RULES
from icetower_client_model.figures import FIGURES
from icetower_client_model.isolation import Command, known
from icetower_client_model.operations import Flag
from icetower_client_model.replay import replay
from icetower_client_model.sketch import rollback
from verify.differential.oracle import Oracle
from verify.walkthrough import run
from verify.walkthrough.draw import ASKED, WIDTH, draw, legend
from verify.walkthrough.levels import CHANGES, METHODS, Line, stopped_by, tried
from verify.walkthrough.observation import APPENDS, Did, Disagreement, Observation, observe
from verify.walkthrough.page import page

DOCS = Path(__file__).parent.parent.parent / "docs"
SVG = "{http://www.w3.org/2000/svg}"


class Model:
    """Stands for Iceberg where its answers are not the question: they are the model's, which other tests compare."""

    def run(self, case: Mapping[str, Any]) -> dict[str, Any]:
        return replay(case)


class Liar(Model):
    """Says that every table ends empty."""

    def run(self, case: Mapping[str, Any]) -> dict[str, Any]:
        return super().run(case) | {"main": None}


def observation(name: str) -> Observation:
    return observe(FIGURES[name], Model(), until=run.MOMENTS.get(name))


def drawn(name: str) -> ElementTree.Element:
    return ElementTree.fromstring(draw(observation(name)))


def classed(root: ElementTree.Element, word: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if word in element.get("class", "").split()]


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(text.itertext()) for text in element.iter(f"{SVG}text"))


@pytest.fixture(scope="module")
def lines() -> tuple[Line, ...]:
    return tried(Model())


# ── Is it true? ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program writes today, on Iceberg itself."""
    into = tmp_path_factory.mktemp("docs")
    assert run.main(["--into", str(into)]) == 0
    return into


@pytest.mark.java
def test_the_page_is_what_iceberg_says_today(written: Path) -> None:
    """After a change of a figure or of the page's text: `make walkthrough`."""
    assert (DOCS / "isolation.md").read_bytes() == (written / "isolation.md").read_bytes()


@pytest.mark.java
def test_the_drawings_are_what_iceberg_says_today(written: Path) -> None:
    ours = {path.name: path.read_bytes() for path in (DOCS / "figures").iterdir()}
    todays = {path.name: path.read_bytes() for path in (written / "figures").iterdir()}
    assert ours.keys() == todays.keys()
    assert [name for name in ours if ours[name] != todays[name]] == []


@pytest.mark.java
def test_the_page_quotes_iceberg_word_for_word(written: Path) -> None:
    text = (written / "isolation.md").read_text()
    with Oracle() as iceberg:
        for name, figure in FIGURES.items():
            for verdict in iceberg.run(figure.case)["verdicts"].values():
                if verdict["verdict"] == "refused":
                    assert f"`{verdict['error']}`:\n\n    {verdict['message']}\n" in text, name


def test_there_is_no_page_where_model_and_iceberg_differ() -> None:
    with pytest.raises(Disagreement, match="figure 5: main: None != 2"):
        observe(FIGURES["5"], Liar())
    with pytest.raises(Disagreement, match="Spark append at none, format 2, when somebody adds rows"):
        tried(Liar())


def test_the_program_says_why_it_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run, "Oracle", lambda: _Entered(Liar()))
    assert run.main([]) == 1
    assert "figure introduction-rebase: main: None != 3" in capsys.readouterr().err


class _Entered:
    def __init__(self, iceberg: Model) -> None:
        self._iceberg = iceberg

    def __enter__(self) -> Model:
        return self._iceberg

    def __exit__(self, *_: object) -> None:
        pass


def test_the_program_writes_and_tidies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "Oracle", lambda: _Entered(Model()))
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "gone.svg").write_text("")
    assert run.main(["--into", str(tmp_path)]) == 0
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {*FIGURES, "legend"}


# ── Courses ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_course_in_order() -> None:
    assert [(mark.column, mark.writer, mark.did, mark.blamed) for mark in observation("5").marks] == [
        (0, 1, Did.WON, ()),
        (1, 2, Did.READS, ()),
        (1, 3, Did.READS, ()),
        (2, 3, Did.CHECKS, ()),
        (3, 3, Did.MAKES, ()),
        (4, 2, Did.CHECKS, ()),
        (5, 2, Did.MAKES, ()),
        (6, 2, Did.WON, ()),
        (7, 3, Did.LOST, (2,)),
        (8, 3, Did.CHECKS, ()),
        (9, 3, Did.REFUSED, (2,)),
    ]


def test_what_nobody_asked_for_is_no_check() -> None:
    unchecked = [mark.writer for mark in observation("12").marks if mark.did is Did.UNCHECKED]
    assert unchecked == [3]
    assert {mark.did for mark in observation("8").marks} >= {Did.UNCHECKED}
    assert Did.CHECKS not in {mark.did for mark in observation("8").marks}


def test_a_moment_leaves_out_what_comes_later() -> None:
    frozen, whole = observation("7"), observe(FIGURES["7"], Model())
    assert [writer.done for writer in frozen.writers] == [True, True, False]
    assert [row.text for row in frozen.found] == ["jack, pink", "sarah, blue"]
    assert len(whole.found) == 4
    assert frozen.marks == whole.marks[: len(frozen.marks)]


def test_a_snapshot_shows_what_came_and_what_went() -> None:
    last = observation("12").snapshots[-1]
    assert [(file.name, file.deletes, file.state) for file in last.files] == [
        ("data-2", False, "live"),
        ("data-3", False, "added"),
        ("delete-1", True, "added"),
    ]
    removed = observation("9").snapshots[-1].files[-1]
    assert (removed.name, removed.state) == ("data-2", "removed")


def test_rows_that_are_struck_twice_or_stand_twice() -> None:
    undelete, twice = observation("undelete"), observation("8")
    assert undelete.held[0].rows[0].struck_by == ("delete-1", "delete-2")
    assert [row.text for row in undelete.found] == ["sarah, cherry", "jack, banana"]
    assert all(row.twice for row in twice.found)
    assert observation("12").held[-1].dangling
    assert not any(held.dangling for held in undelete.held)


def test_what_is_wrong_in_the_end_is_said_where_people_are_twice() -> None:
    for name in FIGURES:
        whole = observe(FIGURES[name], Model())
        assert bool(whole.figure.wrong) >= any(row.twice for row in whole.found), name


def test_a_change_without_a_writer_cannot_be_drawn() -> None:
    figure = FIGURES["9"]
    case = {**figure.case, "steps": [*figure.case["steps"], rollback(1)]}
    with pytest.raises(ValueError, match="a step 'rollback' has no writer"):
        observe(replace(figure, case=case), Model())


# ── Drawings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", FIGURES)
def test_every_writer_has_a_lane_with_all_that_it_did(name: str) -> None:
    root, told = drawn(name), observation(name)
    lanes = classed(root, "lane")
    assert [lane.get("id") for lane in lanes] == [f"writer-{writer.id}" for writer in told.writers]
    assert [writer.id for writer in told.writers] == sorted(FIGURES[name].people)
    for lane, writer in zip(lanes, told.writers, strict=True):
        did = [mark.did for mark in told.marks if mark.writer == writer.id]
        assert [mark.get("class") for mark in classed(lane, "mark")] == [f"mark {each}" for each in did]
        assert all(file in words(lane) for file in (*writer.adds, *writer.removes))
        assert writer.name in words(lane)


@pytest.mark.parametrize("name", FIGURES)
def test_every_refusal_and_every_lost_swap_is_drawn_with_its_cause(name: str) -> None:
    root, told = drawn(name), observation(name)
    refused = [writer for writer in told.writers if writer.message]
    assert bool(refused) == bool(FIGURES[name].rule)
    assert len(classed(root, "refused")) == 2 * len(refused)
    drawn_refusals = [mark for mark in classed(root, "mark") if mark.get("class") == "mark refused"]
    assert all(FIGURES[name].rule in words(mark) for mark in drawn_refusals)
    lost = [mark for mark in told.marks if mark.did is Did.LOST]
    assert len(classed(root, "lost")) == 2 * len(lost)
    assert len(classed(root, "retry")) == len(lost)


@pytest.mark.parametrize("name", FIGURES)
def test_every_snapshot_is_drawn_with_its_files(name: str) -> None:
    root, told = drawn(name), observation(name)
    shown = classed(root, "snapshot")
    assert [each.get("id") for each in shown] == [f"snapshot-{snapshot.id}" for snapshot in told.snapshots]
    for each, snapshot in zip(shown, told.snapshots, strict=True):
        assert [name for name in words(each).split() if "-" in name] == [file.name for file in snapshot.files]


@pytest.mark.parametrize("name", FIGURES)
def test_the_end_is_drawn_row_by_row(name: str) -> None:
    root, told = drawn(name), observation(name)
    rows = [row for held in told.held if not held.of for row in held.rows]
    for row, held in zip(classed(root, "row"), rows, strict=True):
        assert words(row).startswith(held.text)
    assert len(classed(root, "twice")) == sum(row.twice for row in rows)
    assert len(classed(root, "struck")) == sum(bool(row.struck_by) for row in rows)
    if FIGURES[name].wrong:
        assert (FIGURES[name].wrong in words(root)) == (not told.frozen)


@pytest.mark.parametrize("svg", [*(draw(observation(name)) for name in FIGURES), legend()], ids=[*FIGURES, "legend"])
def test_a_drawing_stands_alone(svg: str) -> None:
    """Told in words for those who cannot see it, on a background of its own, nothing fetched, nothing outside."""
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert [(child.tag, bool(child.text)) for child in root][:2] == [(f"{SVG}title", True), (f"{SVG}desc", True)]
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert width == WIDTH
    background = next(root.iter(f"{SVG}rect"))
    assert (float(background.get("width", 0)), float(background.get("height", 0))) == (width - 1, height - 1)
    assert not re.search(r"href|<script|<style|@import|url\((?!#)", svg)
    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.get("x", -1)) < width
        assert 0 < float(text.get("y", -1)) < height
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", FIGURES)
def test_labels_in_a_lane_keep_apart(name: str) -> None:
    """At six tenths of the font's height a letter, which is more than fonts of interfaces take."""
    for lane in classed(drawn(name), "lane"):
        places: list[tuple[float, float, float]] = []
        for text in (text for mark in classed(lane, "mark") for text in mark.iter(f"{SVG}text")):
            x, y, size = (float(text.get(key, 0)) for key in ("x", "y", "font-size"))
            places.append((y, x, 0.6 * size * len(text.text or "")))
        for (y1, x1, wide1), (y2, x2, wide2) in pairwise(sorted(places)):
            assert y1 != y2 or x2 - x1 >= (wide1 + wide2) / 2, name


def test_every_check_that_a_figure_asks_for_has_a_name() -> None:
    assert set(ASKED) == {*Flag, "data-files-exist"}
    asked = {(writer.kind, check) for name in FIGURES for writer in observation(name).writers for check in writer.asks}
    assert asked
    assert all(check in METHODS[kind] for kind, check in asked)
    assert all(writer.asks == () for name in FIGURES for writer in observation(name).writers if writer.kind in APPENDS)


def test_a_drawing_is_the_same_every_time() -> None:
    assert draw(observation("6")) == draw(observation("6"))


# ── The page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_command_and_level_is_tried_against_every_change(lines: tuple[Line, ...]) -> None:
    covered = {(*who, line.level) for line in lines for who in line.who}
    assert covered == set(known(2))
    assert all(tuple(line.verdicts) == tuple(CHANGES) for line in lines)
    assert {rule for line in lines for verdict in line.verdicts.values() for rule in verdict} - {""} <= set(RULES)


def test_what_the_page_says_of_the_trials(lines: tuple[Line, ...]) -> None:
    """Sentences of `page.md` that the tables must bear out."""
    verdicts = {(command, line.level): dict(line.verdicts) for line in lines for _, command in line.who}
    assert all(cells["updates another partition"] == ("", "") for cells in verdicts.values())
    for command in (Command.COPY_ON_WRITE, Command.DELETE, Command.UPDATE, Command.OVERWRITE_PARTITIONS):
        added = "adds rows that it could have read"
        assert verdicts[command, Level.SNAPSHOT][added] == ("", "")
        assert verdicts[command, Level.SERIALIZABLE][added] == ("C1", "C1")
    for line in lines:
        if line.level is Level.NONE:
            assert set(line.verdicts.values()) == {("", "")}, line.name


def test_serializable_adds_one_rule(lines: tuple[Line, ...]) -> None:
    levels: dict[str, set[Level]] = {}
    for rule in RULES:
        for _, found in stopped_by(lines, rule):
            levels.setdefault(rule, set()).update(found)
    assert {rule for rule, found in levels.items() if found == {Level.SERIALIZABLE}} == {"C1"}


def test_a_page_wants_every_figure_and_knows_its_places(lines: tuple[Line, ...]) -> None:
    told = MappingProxyType({name: observation(name) for name in ("5", "8")})
    assert "### Figure 5" in page("{figure 5}\n\n{figure 8}", told, lines, "1.12.0")
    with pytest.raises(ValueError, match="no place for 8"):
        page("{figure 5}", told, lines, "1.12.0")
    with pytest.raises(ValueError, match=r"a place \{poem\}"):
        page("{poem}", told, lines, "1.12.0")
    with pytest.raises(KeyError):
        page("{figure 6}", told, lines, "1.12.0")


def test_every_link_of_the_page_leads_somewhere() -> None:
    text = (DOCS / "isolation.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = (DOCS / path).resolve() if path else DOCS / "isolation.md"
        assert target.is_file(), link
        if anchor:
            assert anchor in _anchors(target.read_text()), link


def test_every_replay_that_the_page_names_is_there() -> None:
    text = (DOCS / "isolation.md").read_text()
    assert set(re.findall(r"explain --figure ([\w-]+)", text)) == set(FIGURES)


def _anchors(markdown: str) -> set[str]:
    """Of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
