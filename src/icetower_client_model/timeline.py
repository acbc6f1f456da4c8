"""A replayed case as a timeline for people: each writer's steps, what a reader sees, and why a commit is refused.

Pure data; the command line draws it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.iceberg.validation import Conflict
from icetower_client_model import cases
from icetower_client_model.cases import Begin, Write, path_of
from icetower_client_model.explain import Explanation, Names, explain, removers_of
from icetower_client_model.picture import Figure
from icetower_client_model.replay import Event, Replay

JSON = Mapping[str, Any]

_ACTIONS = {"begin": "reads", "attempt": "checks", "committed": "swaps", "lost": "loses the swap"}


@dataclass(frozen=True, slots=True)
class ReaderView:
    """The state that a reader of `main` finds.

    Attributes:
        data, deletes: names of the live files; a file that is live twice is listed twice.
        rows: the rows in them, if it is known which rows the files hold.
    """

    data: tuple[str, ...]
    deletes: tuple[str, ...]
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """The uninterrupted actions of one writer, or a change of the table itself.

    Attributes:
        writer: None for a change of the table itself.
        did: the actions, in order.
        ended: ``committed``, ``refused``, ``exhausted``; empty while the writer is not done.
        sight: what a reader finds afterwards, if that has changed.
    """

    writer: int | None
    did: tuple[str, ...]
    ended: str = ""
    sight: ReaderView | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """One writer.

    Attributes:
        name: the writer's name.
        kind: of its operation.
        checks: the checks that it has turned on.
        verdict: ``committed``, ``refused``, ``exhausted``; ``unfinished`` if it never committed.
        attempts: how often it validated.
        conflict: why it was refused.
        explanation: the conflict in plain language.
    """

    writer: int
    name: str
    kind: str
    checks: tuple[str, ...]
    verdict: str
    attempts: int
    conflict: Conflict | None
    explanation: Explanation | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """One replay.

    Attributes:
        lanes: the writers in the order in which they began.
        failures: changes of the table that were refused, with Iceberg's text.
        end: what a reader finds in the end.
    """

    lanes: tuple[Lane, ...]
    moments: tuple[Moment, ...]
    failures: tuple[str, ...]
    end: ReaderView


def timeline(document: JSON, *, people: Mapping[int, str] | None = None, figure: Figure | None = None) -> Timeline:
    """Replay a case and return its timeline.

    Args:
        document: the case, as JSON.
        people: names of the writers; a writer without one is called ``writer 7``.
        figure: the figure of the case, which knows the rows of its files.

    Raises:
        BadRequest: the case is not in the format, or contradicts itself.
    """
    case = cases.parse(document)
    run = Replay(case)
    outcome = run.run()
    asked = {step.id: step.op for step in _all_steps(case.steps) if isinstance(step, Begin | Write)}
    known = people or {}
    who = {writer: known.get(writer, f"writer {writer}") for writer in asked}
    names = Names(who, {path_of(case, name): name for name in case.files})
    view = _View(run, names, figure)
    verdicts: Mapping[str, JSON] = outcome["verdicts"]
    lanes: list[Lane] = []
    for writer, op in asked.items():
        verdict = verdicts.get(str(writer), {"verdict": "unfinished", "attempts": 0})
        conflict = view.conflict(writer)
        lanes.append(
            Lane(
                writer,
                who[writer],
                op.kind,
                (*op.validations, *(("data-files-exist",) if op.references else ())),
                verdict["verdict"],
                verdict["attempts"],
                conflict,
                None if conflict is None else explain(conflict, names),
            )
        )
    failures = tuple(f"{failure['step']}: {failure['message']}" for failure in outcome["failures"])
    return Timeline(tuple(lanes), tuple(view.moments()), failures, view.sight(run.head.ref("main")))


def _all_steps(steps: Sequence[cases.Step]) -> Iterator[cases.Step]:
    """All steps, also those between an attempt and its swap."""
    for step in steps:
        yield step
        for inner in getattr(step, "between", ()):
            yield from _all_steps(inner)


class _View:
    """Reads a timeline from a finished replay."""

    def __init__(self, run: Replay, names: Names, figure: Figure | None) -> None:
        self._run = run
        self._names = names
        self._figure = figure

    def conflict(self, writer: int) -> Conflict | None:
        """Why a writer was refused; for a missing file, with the snapshots that removed it."""
        found = self._run.conflicts.get(writer)
        if found is not None and found.rule == "C6":
            snapshots = self._run.head.snapshots.values()
            found = replace(found, snapshots=removers_of(self._run.files, snapshots, found.paths))
        return found

    def moments(self) -> Iterator[Moment]:
        """The events, with consecutive ones of one writer combined."""
        current: Moment | None = None
        for event in self._run.events:
            moment = self._moment(event)
            if current is not None and current.writer == moment.writer is not None and not current.ended:
                current = replace(moment, did=(*current.did, *moment.did))
            else:
                if current is not None:
                    yield current
                current = moment
        if current is not None:
            yield current

    def _moment(self, event: Event) -> Moment:
        if event.writer is None:
            action = f"{event.what} {_detail(event.detail)}".strip()
            return Moment(None, (action,), sight=self._after(event))
        if event.what == "refused" and event.conflict is not None:
            action = f"checks: {event.conflict.rule}"
        elif event.what == "exhausted":
            action = "gives up"
        else:
            action = _ACTIONS.get(event.what, event.what)
        ended = event.what if event.what in ("committed", "refused", "exhausted") else ""
        return Moment(event.writer, (action,), ended, self._after(event))

    def _after(self, event: Event) -> ReaderView | None:
        if event.what == "committed":
            return self.sight(event.writer)
        if event.what == "rollback":
            return self.sight(json.loads(event.detail)["to"])
        return None

    def sight(self, snapshot_id: int | None) -> ReaderView:
        """The live files of a snapshot; none if it has expired since."""
        snapshot = self._run.head.snapshots.get(snapshot_id) if snapshot_id is not None else None
        found: tuple[list[str], list[str]] = ([], [])
        for row in self._run.files.rows(snapshot) if snapshot is not None else ():
            found[row.content].extend(self._names.file(live.path) for live in self._run.files.live(row))
        data, deletes = (tuple(sorted(names)) for names in found)
        return ReaderView(data, deletes, self._rows(data, deletes))

    def _rows(self, data: Sequence[str], deletes: Sequence[str]) -> tuple[str, ...]:
        if self._figure is None:
            return ()
        gone = {self._figure.strikes[name] for name in deletes}
        return tuple(row for name in data for row in self._figure.rows[name] if (name, row) not in gone)


def _detail(text: str) -> str:
    """A step's fields in one line: ``to 3``."""
    fields: JSON = json.loads(text) if text else {}
    return ", ".join(f"{key} {value}" for key, value in fields.items() if value is not None)
