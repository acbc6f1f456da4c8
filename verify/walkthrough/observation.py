"""What became of a figure on Iceberg itself, laid out along one axis of time, ready to be drawn.

Iceberg tells the verdicts, its own words, and every entry of every manifest; when each attempt was made and each swap
was tried is the model's to tell, which must have found exactly what Iceberg found, or there is no course at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from icetower_client_model import cases
from icetower_client_model.cases import Case
from icetower_client_model.picture import Figure
from icetower_client_model.replay import Event, Replay
from icetower_client_model.timeline import Lane, timeline
from verify.differential.compare import difference

_ADDED, _DELETED = 1, 2
APPENDS = frozenset({"append", "fast-append"})
CHECKED_ALWAYS = frozenset({"rewrite", "rewrite-manifests"})


class Asked(Protocol):
    """Who answers cases: Iceberg, behind `verify.differential.oracle.Oracle`."""

    def run(self, case: Mapping[str, Any]) -> dict[str, Any]: ...


class Disagreement(Exception):
    """The model and Iceberg do not say the same of a figure; the message says where they differ."""


class Did(StrEnum):
    """What a writer does at one moment.

    UNCHECKED stands where CHECKS would, if nothing is asked. WON and LOST are about the swap.
    """

    READS = "reads"
    CHECKS = "checks"
    UNCHECKED = "unchecked"
    MAKES = "makes"
    WON = "won"
    LOST = "lost"
    REFUSED = "refused"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing that a writer did.

    Attributes:
        column: when, counted from 0; what has one column happened at the same time.
        label: a few words, a line each.
        blamed: the writers whose commits made this happen.
    """

    column: int
    writer: int
    did: Did
    label: tuple[str, ...]
    blamed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Writer:
    """One writer's lane.

    Attributes:
        id: of the snapshot that it makes.
        kind: of its operation, as the case format has it.
        adds, removes: names of files.
        deletes: which of the added ones are delete files.
        asks: the checks that it turned on, as the case format names them.
        at_once: whether it read and committed in one go, before anything else happened.
        done: whether its commit has ended, one way or the other.
        error, message: Iceberg's exception and its words; empty unless it was refused.
    """

    id: int
    name: str
    kind: str
    adds: tuple[str, ...]
    removes: tuple[str, ...]
    deletes: frozenset[str]
    asks: tuple[str, ...]
    at_once: bool
    done: bool
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """A file in a snapshot. `state`: ``live`` as before, ``added`` or ``removed`` by this snapshot."""

    name: str
    deletes: bool
    state: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A snapshot of the table, and when it came."""

    id: int
    column: int
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a live data file.

    Attributes:
        text: ``who, what``.
        struck_by: the delete files that remove it; empty if a reader finds it.
        twice: whether a reader finds the same person in another row, too.
    """

    text: str
    struck_by: tuple[str, ...] = ()
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """What a live file holds: rows, or, for a delete file, the row that it strikes out of another file.

    Attributes:
        of: the data file that a delete file is about; empty for a data file.
        dangling: whether that data file is gone.
    """

    name: str
    rows: tuple[Row, ...]
    of: str = ""
    dangling: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What happened.

    Attributes:
        figure: which is told.
        after: the snapshot at which it is looked at.
        frozen: whether writers are still under way then.
        columns: how many moments there are.
        writers: by id.
        held: what the live files hold then, data files first.
        outcome: all that Iceberg told.
        lanes: the model's view, with explanations, by writer.
    """

    figure: Figure
    after: int
    frozen: bool
    columns: int
    writers: tuple[Writer, ...]
    marks: tuple[Mark, ...]
    snapshots: tuple[Shown, ...]
    held: tuple[Held, ...]
    outcome: Mapping[str, Any] = field(repr=False)
    lanes: Mapping[int, Lane] = field(repr=False)

    @property
    def found(self) -> tuple[Row, ...]:
        """The rows that a reader finds."""
        return tuple(row for held in self.held if not held.of for row in held.rows if not row.struck_by)


def observe(figure: Figure, iceberg: Asked, *, until: int | None = None) -> Observation:
    """Run a figure on Iceberg and on the model.

    Args:
        until: look at it right after this writer has committed; None for its end.

    Raises:
        Disagreement: they do not say the same.
        ValueError: the figure changes the table by other means than writers, which cannot be drawn.
    """
    case = cases.parse(figure.case)
    run = Replay(case)
    ours = run.run()
    outcome = iceberg.run(figure.case)
    problem = outcome["error"] if "error" in outcome else difference(outcome, ours)
    if problem is not None:
        raise Disagreement(f"figure {figure.name}: {problem}")
    timeline_shown = timeline(figure.case, people=figure.people, figure=figure)
    lanes = {lane.writer: lane for lane in timeline_shown.lanes}
    events = tuple(_up_to(run.events, until))
    marks = tuple(_marks(events, lanes, _at_once(case)))
    after = outcome["main"] if until is None else until
    return Observation(
        figure=figure,
        after=after,
        frozen=until is not None,
        columns=marks[-1].column + 1,
        writers=tuple(_writers(case, outcome, events, lanes)),
        marks=marks,
        snapshots=tuple(_snapshots(case, outcome, marks)),
        held=_held(figure, *_live(case, outcome, after)),
        outcome=outcome,
        lanes=lanes,
    )


def _up_to(events: Sequence[Event], until: int | None) -> Iterator[Event]:
    for event in events:
        if event.writer is None:
            raise ValueError(f"a step {event.what!r} has no writer, and cannot be drawn")
        yield event
        if until is not None and event.writer == until and event.what == "committed":
            return


def _at_once(case: Case) -> frozenset[int]:
    return frozenset(step.id for step in case.steps if isinstance(step, cases.Write) and not step.between)


# ── Time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _marks(events: Sequence[Event], lanes: Mapping[int, Lane], at_once: frozenset[int]) -> Iterator[Mark]:
    """Each event in a column of its own; but what is read between two commits is read at the same time."""
    column, reading, head = -1, False, 0
    tried: dict[int, list[int]] = {}
    for event in events:
        writer, lane = event.writer or 0, lanes[event.writer or 0]
        if event.what == "begin":
            if writer not in at_once:
                column, reading = (column if reading else column + 1), True
                yield Mark(column, writer, Did.READS, ("reads", str(head)) if head else ("reads",))
            continue
        reading = False
        match event.what:
            case "attempt":
                tried[writer] = []
                marks = () if writer in at_once else (*_checking(lane), (Did.MAKES, ("makes", str(writer)), ()))
            case "committed":
                for others in tried.values():
                    others.append(writer)
                head = writer
                marks = ((Did.WON, ("commits",) if writer in at_once else ("swap", "won"), ()),)
            case "lost":
                marks = ((Did.LOST, ("swap", "lost"), tuple(tried[writer])),)
            case "refused" if event.conflict is not None:
                blamed = lane.conflict.snapshots if lane.conflict is not None else ()
                refused = (Did.REFUSED, ("refused:", event.conflict.rule), blamed)
                marks = (*_checking(lane), refused) if event.attempt else (refused,)
            case _:
                marks = ((Did.EXHAUSTED, ("gives", "up"), ()),)
        for did, label, blamed in marks:
            column += 1
            yield Mark(column, writer, did, label, blamed)


def _checking(lane: Lane) -> Iterator[tuple[Did, tuple[str, ...], tuple[int, ...]]]:
    """What comes first in an attempt. Appends have nothing to check, and compaction is checked unasked."""
    if lane.kind not in APPENDS:
        asked = bool(lane.checks) or lane.kind in CHECKED_ALWAYS
        yield (Did.CHECKS, ("checks",), ()) if asked else (Did.UNCHECKED, ("no", "check"), ())


# ── Writers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _writers(
    case: Case, outcome: Mapping[str, Any], events: Sequence[Event], lanes: Mapping[int, Lane]
) -> Iterator[Writer]:
    at_once = _at_once(case)
    ended = {event.writer for event in events if event.what in ("committed", "refused", "exhausted")}
    operations = {step.id: step.op for step in case.steps if isinstance(step, cases.Begin | cases.Write)}
    for writer in sorted({event.writer for event in events if event.writer is not None}):
        op, lane = operations[writer], lanes[writer]
        verdict = outcome["verdicts"][str(writer)]
        refused = verdict["verdict"] == "refused" and writer in ended
        removed = [named if isinstance(named, str) else named.file for named in (*op.remove, *op.remove_deletes)]
        yield Writer(
            id=writer,
            name=lane.name,
            kind=lane.kind,
            adds=(*op.add, *op.add_deletes),
            removes=(*removed, *op.remove_paths),
            deletes=frozenset(op.add_deletes),
            asks=lane.checks,
            at_once=writer in at_once,
            done=writer in ended,
            error=verdict["error"] if refused else "",
            message=verdict["message"] if refused else "",
        )


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _snapshots(case: Case, outcome: Mapping[str, Any], marks: Sequence[Mark]) -> Iterator[Shown]:
    names = _names(case)
    shown = {snapshot["id"]: snapshot for snapshot in outcome["snapshots"]}
    for mark in marks:
        if mark.did is not Did.WON:
            continue
        files: list[File] = []
        for manifest in shown[mark.writer]["manifests"]:
            for status, snapshot_id, _, _, path, *_ in manifest["entries"]:
                own = snapshot_id == mark.writer
                if status == _DELETED and not own:
                    continue
                state = "removed" if status == _DELETED else "added" if status == _ADDED and own else "live"
                files.append(File(names[path], manifest["content"] == 1, state))
        yield Shown(mark.writer, mark.column, tuple(sorted(files, key=_order)))


def _order(file: File) -> tuple[bool, bool, str]:
    """Live ones first, data before deletes."""
    return file.state == "removed", file.deletes, file.name


def _live(case: Case, outcome: Mapping[str, Any], after: int) -> tuple[list[str], list[str]]:
    """Names of the data files and delete files that are live in a snapshot; what is live twice stands twice."""
    names = _names(case)
    found: tuple[list[str], list[str]] = ([], [])
    for snapshot in outcome["snapshots"]:
        if snapshot["id"] == after:
            for manifest in snapshot["manifests"]:
                live = (entry[4] for entry in manifest["entries"] if entry[0] != _DELETED)
                found[manifest["content"]].extend(names[path] for path in live)
    return sorted(found[0]), sorted(found[1])


def _names(case: Case) -> dict[str, str]:
    return {cases.path_of(case, name): name for name in case.files}


def _held(figure: Figure, data: Sequence[str], deletes: Sequence[str]) -> tuple[Held, ...]:
    def struck_by(name: str, row: str) -> tuple[str, ...]:
        return tuple(each for each in deletes if figure.strikes[each] == (name, row))

    rows = [(name, row, struck_by(name, row)) for name in data for row in figure.rows[name]]
    found = [row.partition(",")[0] for _, row, struck in rows if not struck]

    def of(name: str) -> tuple[Row, ...]:
        return tuple(
            Row(row, struck, not struck and found.count(row.partition(",")[0]) > 1)
            for at, row, struck in rows
            if at == name
        )

    files = [Held(name, of(name)) for name in data]
    for name in deletes:
        target, row = figure.strikes[name]
        files.append(Held(name, (Row(row),), target, target not in data))
    return tuple(files)
