"""A table that a herd of writers commits to: the conflict model in charge, all rows known, its course a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from bench.experiments.world import JSON, Layout, Place, Row, data_file, delete_file
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.entries import Files
from icetower.iceberg.records import DATA, Manifest, ManifestFile
from icetower.iceberg.validation import Conflict
from icetower.table.head import HeadState
from icetower_client_model import cases
from icetower_client_model.attempt import Attempt
from icetower_client_model.cases import Case, FileOf, OperationOf
from icetower_client_model.checks import judge
from icetower_client_model.history import branch_head
from icetower_client_model.producer import Draft, Producer
from icetower_client_model.replay import operation_of_case

FIRST = 1
"""Id of the snapshot that the table begins with."""
_NOW_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class View:
    """What a writer that begins now reads.

    Attributes:
        snapshot_id: that it reads.
        dead: of each live data file, by name, the positions that are deleted.
        deletes: names of the live delete files that are about one data file, by that data file's name.
        table: that holds the rows.
    """

    snapshot_id: int
    dead: Mapping[str, frozenset[int]]
    deletes: Mapping[str, tuple[str, ...]]
    table: Table

    def rows(self, file: str) -> Iterator[Row]:
        """The rows of a live data file that are not deleted."""
        dead = self.dead[file]
        return (row for at, row in enumerate(self.table.rows[file]) if at not in dead)

    def all_rows(self) -> Counter[Row]:
        """The table's rows, and how often each is there."""
        found: Counter[Row] = Counter()
        for file, dead in self.dead.items():
            found.update(self.rows(file) if dead else self.table.rows[file])
        return found

    def places(self, key: int) -> list[Place]:
        """Where the rows of a key lie: one place, none, or several if something was admitted wrongly."""
        known = self.table.places.get(key, ())
        return [place for place in known if place.position not in self.dead.get(place.file, (place.position,))]


class Table:
    """A table and its catalog in memory.

    Attributes:
        case: the table's whole course so far, as a case. It can be replayed by the model and by Iceberg itself, as long
            as no operation was `precise`.
        rows: of each data file that was ever written, by name.
        places: of each row that was ever written, by key.
        positions: of each delete file, by name: (data file, position).
    """

    def __init__(self, layout: Layout, format_version: int, base: Mapping[str, tuple[Row, ...]]) -> None:
        self.layout = layout
        self.rows: dict[str, tuple[Row, ...]] = {}
        self.places: dict[int, tuple[Place, ...]] = {}
        self.positions: dict[str, frozenset[tuple[str, int]]] = {}
        self._target: dict[str, str] = {}
        self.case = cases.parse({"format": format_version, "specs": [layout.spec], "steps": []})
        self._lists: dict[str, tuple[ManifestFile, ...]] = {}
        self._manifests: dict[str, Manifest] = {}
        self._files = Files(self._lists, self._manifests)
        self._metadata: Mapping[str, Any] = table_metadata.new_table(
            uuid="00000000-0000-0000-0000-000000000000",
            location=cases.LOCATION,
            schema=cases.SCHEMA,
            spec={"fields": cases.spec_fields(self.case, 0)},
            sort_order=None,
            properties={"format-version": str(format_version)},
            now_ms=_NOW_MS,
        )
        for file, rows in base.items():
            self.add_data(file, rows)
        refused = self.commit(self.begin(FIRST, {"kind": "append", "add": list(base)}))
        assert refused is None

    def fork(self) -> Table:
        """The same table, to go another way."""
        fork = copy(self)
        fork.rows, fork.places, fork.positions = dict(self.rows), dict(self.places), dict(self.positions)
        fork._target, fork._lists, fork._manifests = dict(self._target), dict(self._lists), dict(self._manifests)
        fork._files = Files(fork._lists, fork._manifests)
        fork.case = self.case.model_copy(update={"files": dict(self.case.files), "steps": list(self.case.steps)})
        return fork

    @property
    def format_version(self) -> int:
        return self.case.format

    @property
    def head(self) -> HeadState:
        """The table as it stands."""
        return HeadState("", self._metadata)

    # ── Files ──

    def add_data(self, name: str, rows: tuple[Row, ...]) -> None:
        """Write a data file of one partition's rows."""
        self.rows[name] = rows
        for at, row in enumerate(rows):
            self.places[row.id] = (*self.places.get(row.id, ()), Place(name, at, row))
        self._describe(name, data_file(self.layout, rows))

    def add_deletes(self, name: str, positions: frozenset[tuple[str, int]]) -> None:
        """Write a delete file (format 3: a deletion vector) of positions in one partition."""
        self.positions[name] = positions
        targets = sorted({file for file, _ in positions})
        if len(targets) == 1:
            self._target[name] = targets[0]
        partition = self.layout.partition_of(self.rows[targets[0]][0])
        vector = self.format_version >= 3
        self._describe(name, delete_file(partition, targets, len(positions), vector=vector))

    def _describe(self, name: str, shape: JSON) -> None:
        assert name not in self.case.files
        self.case.files[name] = FileOf.model_validate(shape)

    # ── Writers ──

    def begin(self, writer: int, op: JSON, *, precise: bool = False) -> Producer:
        """A writer that reads the table now and prepares an operation, with `Operation.precise_deletes` or not."""
        asked = OperationOf.model_validate(op)
        self.case.steps.append(cases.Begin(do="begin", id=writer, op=asked))
        head = self.head
        operation = replace(operation_of_case(self.case, asked, head, self._files), precise_deletes=precise)
        paths = (f"{cases.LOCATION}/metadata/w{writer}-m{number}.avro" for number in count())
        return Producer(operation, writer, head, partial(next, paths))

    def commit(self, producer: Producer) -> Conflict | None:
        """One attempt, which nobody disturbs: the conflict, or None and the table is changed."""
        writer = producer.snapshot_id
        self.case.steps.append(cases.Commit(do="commit", id=writer))
        draft = producer.attempt(
            self.head,
            self._files,
            list_path=f"{cases.LOCATION}/metadata/snap-{writer}.avro",
            now_ms=_NOW_MS,
        )
        if isinstance(draft, Conflict):
            return draft
        self._land(draft)
        return None

    def would_refuse(self, producer: Producer, head: HeadState, *, precise: bool) -> Conflict | None:
        """What validation would have said to the operation at `head`, with or without `precise_deletes`."""
        operation = replace(producer.operation, precise_deletes=precise)
        return judge(Attempt(operation, head, self._files, branch_head(head, operation.branch)))

    def _land(self, draft: Draft) -> None:
        snapshot = dict(draft.snapshot)
        self._lists[snapshot["manifest-list"]] = draft.rows
        self._manifests.update(draft.manifests)
        updates = (
            {"action": "add-snapshot", "snapshot": snapshot},
            {
                "action": "set-snapshot-ref",
                "ref-name": draft.branch,
                "type": "branch",
                "snapshot-id": snapshot["snapshot-id"],
            },
        )
        self._metadata = table_metadata.apply(self._metadata, updates, now_ms=_NOW_MS)

    # ── Reading ──

    def view(self) -> View:
        """Read every row: the live data files less what the live delete files name."""
        snapshot = branch_head(self.head, "main")
        assert snapshot is not None
        data: list[str] = []
        dead: dict[str, set[int]] = {}
        deletes: dict[str, list[str]] = {}
        for row in self._files.rows(snapshot):
            for live in self._files.live(row):
                name = _name_of(live.path)
                if row.content == DATA:
                    data.append(name)
                    continue
                for file, at in self.positions[name]:
                    dead.setdefault(file, set()).add(at)
                if name in self._target:
                    deletes.setdefault(self._target[name], []).append(name)
        return View(
            snapshot["snapshot-id"],
            {name: frozenset(dead.get(name, ())) for name in data},
            {name: tuple(found) for name, found in deletes.items()},
            self,
        )

    def changed(self, view: View, op: JSON) -> frozenset[int]:
        """Keys of the rows that an operation really changes, from the contents of its files; its writer read `view`."""
        change: Counter[Row] = Counter()
        for name in op.get("add", ()):
            change.update(self.rows[name])
        for name in op.get("remove", ()):
            change.subtract(view.rows(name))
        for file, at in {position for name in op.get("add_deletes", ()) for position in self.positions[name]}:
            if at not in view.dead[file]:  # a delete file that takes another's place names the rows that are gone, too
                change[self.rows[file][at]] -= 1
        return frozenset(row.id for row, times in change.items() if times != 0)


def _name_of(path: str) -> str:
    return path[path.rindex("/") + 1 : path.rindex(".")]


def as_json(case: Case) -> JSON:
    """A case as the oracle reads it."""
    return case.model_dump(mode="json", by_alias=True, exclude_unset=True)
