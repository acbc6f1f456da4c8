"""Runs a case through the model: each writer's commit or refusal, with Iceberg's text, and the final table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from icetower.errors import BadRequest, IcetowerError
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.change import Touched
from icetower.iceberg.entries import Files
from icetower.iceberg.expressions import Expression, columns_of, from_json, typed
from icetower.iceberg.literals import value_text
from icetower.iceberg.records import DATA, EXISTING, DataFile, Entry, Manifest, ManifestFile, key_of
from icetower.iceberg.validation import Conflict
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState
from icetower_client_model import cases
from icetower_client_model.attempt import Clear
from icetower_client_model.cases import Case, OperationOf, RemovedOf
from icetower_client_model.filtering import Refused, entry_as
from icetower_client_model.history import branch_head
from icetower_client_model.operations import Kind, ManifestRewrite, Operation, Removal
from icetower_client_model.producer import Draft, Producer

_RETRIES = 4


@dataclass
class Trace:
    """The rules and effects of a replay.

    Attributes:
        evaluated: how often each rule was checked.
        fired: how often it refused a commit.
        considered: how often it looked at entries and found them harmless.
        effects: the effects of applying (`producer.EFFECTS`).
    """

    evaluated: Counter[str] = field(default_factory=Counter[str])
    fired: Counter[str] = field(default_factory=Counter[str])
    considered: Counter[str] = field(default_factory=Counter[str])
    effects: Counter[str] = field(default_factory=Counter[str])

    def observe(self, rule: str, verdict: Clear | Conflict) -> None:
        self.evaluated[rule] += 1
        if isinstance(verdict, Conflict):
            self.fired[rule] += 1
        elif verdict.considered:
            self.considered[rule] += 1

    def note(self, effect: str) -> None:
        self.effects[effect] += 1


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a replay.

    Attributes:
        what: ``begin``, ``attempt`` (validated and made), ``refused``, ``lost`` (the swap), ``committed``,
            ``exhausted``, or the name of another step.
        writer: id of the writer; None for other steps.
        attempt: its number, from 1.
        conflict: why it was refused.
        detail: of another step.
    """

    what: str
    writer: int | None = None
    attempt: int = 0
    conflict: Conflict | None = None
    detail: str = ""


def replay(document: Mapping[str, Any] | Case, trace: Trace | None = None) -> dict[str, Any]:
    """The outcome of a case: verdicts, failures of other steps, and the table's snapshots with all their entries.

    Raises:
        BadRequest: the case breaks the format, or contradicts itself.
    """
    return Replay(document if isinstance(document, Case) else cases.parse(document), trace).run()


class Replay:
    """One run of a case; afterwards `events` lists its events, and `head` is its table."""

    def __init__(self, case: Case, trace: Trace | None = None) -> None:
        self.case = case
        self.trace = trace or Trace()
        self.events: list[Event] = []
        self.conflicts: dict[int, Conflict] = {}
        self._verdicts: dict[int, dict[str, Any]] = {}
        self._failures: list[dict[str, str]] = []
        self._writers: dict[int, Producer | None] = {}
        self._retries: dict[int, int] = {}
        self._now_ms = count(1_700_000_000_000)
        self._lists: dict[str, tuple[ManifestFile, ...]] = {}
        self._manifests: dict[str, Manifest] = {}
        self.files = Files(self._lists, self._manifests)
        self.metadata = table_metadata.new_table(
            uuid="00000000-0000-0000-0000-000000000000",
            location=cases.LOCATION,
            schema=cases.SCHEMA,
            spec={"fields": cases.spec_fields(case, 0)},
            sort_order=None,
            properties={**case.properties, "format-version": str(case.format)},
            now_ms=next(self._now_ms),
        )

    def run(self) -> dict[str, Any]:
        """The outcome. Raises `BadRequest`."""
        for step in self.case.steps:
            if self._step(step):
                raise BadRequest("the case has a step `fail` outside of `between`", rule="case.steps")
        return self._outcome()

    @property
    def head(self) -> HeadState:
        """The table's current state."""
        return HeadState("", self.metadata)

    # ── Steps ──

    def _step(self, step: cases.Step) -> bool:
        """Take a step; returns true if the swap around it is to be lost."""
        match step:
            case cases.Begin():
                self._begin(step.id, step.op)
            case cases.Commit():
                self._commit(step.id, step.between)
            case cases.Write():
                self._begin(step.id, step.op)
                self._commit(step.id, step.between)
            case cases.Fail():
                return True
            case _:
                self._change(step)
        return False

    def _begin(self, writer: int, op: OperationOf) -> None:
        if writer in self._writers or writer <= 0:
            raise BadRequest(f"writer {writer}: ids are positive, and each writer begins once", rule="case.steps")
        head = self.head
        self._retries[writer] = int(head.metadata["properties"].get("commit.retry.num-retries", _RETRIES))
        paths = (f"{cases.LOCATION}/metadata/w{writer}-m{n}.avro" for n in count())
        self.events.append(Event("begin", writer))
        try:
            operation = operation_of_case(self.case, op, head, self.files)
            self._writers[writer] = Producer(operation, writer, head, partial(next, paths))
        except Refused as refused:
            self._writers[writer] = None
            self._refuse(writer, refused.conflict, "begin", 0)
            self.trace.observe(refused.conflict.rule, refused.conflict)

    def _refuse(self, writer: int, conflict: Conflict, at: str, attempts: int) -> None:
        self.conflicts[writer] = conflict
        self.events.append(Event("refused", writer, attempts, conflict))
        self._verdicts[writer] = {
            "verdict": "refused",
            "error": conflict.error,
            "message": conflict.message,
            "at": at,
            "attempts": attempts,
        }

    def _commit(self, writer: int, between: Sequence[Sequence[cases.Step]]) -> None:
        if writer not in self._writers or (self._writers[writer] is not None and writer in self._verdicts):
            raise BadRequest(f"writer {writer} must begin, and then commit once", rule="case.steps")
        producer = self._writers[writer]
        if producer is None:
            return
        self._verdicts[writer] = {}
        attempts = self._retries[writer] + 1
        for attempt in range(1, attempts + 1):
            base = self.head
            draft = producer.attempt(
                base,
                self.files,
                list_path=f"{cases.LOCATION}/metadata/snap-{writer}-{attempt}.avro",
                now_ms=next(self._now_ms),
                observe=self.trace.observe,
                note=self.trace.note,
            )
            if isinstance(draft, Conflict):
                self._refuse(writer, draft, "commit", attempt)
                return
            self.events.append(Event("attempt", writer, attempt))
            steps = between[attempt - 1] if attempt <= len(between) else ()
            lost = False
            for step in steps:
                lost |= self._step(step)
            if not lost and self.metadata is base.metadata:
                self._swap_in(draft)
                operation = draft.snapshot["summary"]["operation"]
                self.events.append(Event("committed", writer, attempt))
                self._verdicts[writer] = {"verdict": "committed", "operation": operation, "attempts": attempt}
                return
            self.events.append(Event("lost", writer, attempt))
        self.events.append(Event("exhausted", writer, attempts))
        self._verdicts[writer] = {"verdict": "exhausted", "attempts": attempts}

    def _swap_in(self, draft: Draft) -> None:
        snapshot = dict(draft.snapshot)
        self._lists[snapshot["manifest-list"]] = draft.rows
        self._manifests.update(draft.manifests)
        ref = {"ref-name": draft.branch, "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
        self._apply({"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **ref})

    def _apply(self, *updates: Mapping[str, Any]) -> None:
        self.metadata = table_metadata.apply(self.metadata, updates, now_ms=next(self._now_ms))

    def _change(self, step: cases.Step) -> None:
        """Change the metadata alone. An error is recorded as a failure of the step."""
        if isinstance(step, cases.SetSpec) and not 0 <= step.spec < len(self.case.specs):
            raise BadRequest(f"the case has no spec {step.spec}, only {len(self.case.specs)}", rule="case.steps")
        self.events.append(Event(step.do, detail=step.model_dump_json(exclude={"do"})))
        try:
            match step:
                case cases.SetSpec():
                    self._set_spec(step.spec)
                case cases.Upgrade():
                    if step.format < self.metadata["format-version"]:
                        said = f"Cannot downgrade v{self.metadata['format-version']} table to v{step.format}"
                        self._failures.append({"step": "upgrade", "error": "IllegalArgumentException", "message": said})
                    elif step.format > self.metadata["format-version"]:
                        self._apply({"action": "upgrade-format-version", "format-version": step.format})
                case cases.SetProperties():
                    self._apply({"action": "set-properties", "updates": step.properties})
                case cases.Rollback():
                    if self.head.ref("main") != step.to:
                        ref = {"ref-name": "main", "type": "branch", "snapshot-id": step.to}
                        self._apply({"action": "set-snapshot-ref", **ref})
                case cases.Expire():
                    self._expire(step.ids)
                case _:
                    raise BadRequest(f"the case has a step {step.do!r} where it is not allowed", rule="case.steps")
        except IcetowerError as error:
            self._failures.append({"step": step.do, "error": error.kind, "message": error.message})

    def _set_spec(self, index: int) -> None:
        if self.metadata["default-spec-id"] == index:
            return
        spec = {"spec-id": index, "fields": cases.spec_fields(self.case, index)}
        self._apply({"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": index})

    def _expire(self, ids: Sequence[int]) -> None:
        if not self.head.snapshots:
            return
        for name, ref in self.metadata["refs"].items():
            if ref["snapshot-id"] in ids:
                said = f"Cannot expire {ref['snapshot-id']}. Still referenced by refs: [{name}]"
                self._failures.append({"step": "expire", "error": "IllegalArgumentException", "message": said})
                return
        if len(set(ids)) > len(self.head.snapshots):  # Iceberg sizes a list by the difference
            said = f"arraySize cannot be negative but was: {len(self.head.snapshots) - len(set(ids))}"
            self._failures.append({"step": "expire", "error": "IllegalArgumentException", "message": said})
            return
        known = [snapshot_id for snapshot_id in ids if snapshot_id in self.head.snapshots]
        if known:
            self._apply({"action": "remove-snapshots", "snapshot-ids": known})

    # ── The outcome ──

    def _outcome(self) -> dict[str, Any]:
        refs: Mapping[str, Any] = self.metadata["refs"]
        branches = {name: refs[name]["snapshot-id"] for name in sorted(refs)}
        return {
            "verdicts": {str(writer): self._verdicts[writer] for writer in sorted(self._verdicts)},
            "failures": self._failures,
            "snapshots": [self._shown(snapshot) for snapshot in self.metadata["snapshots"]],
            "main": branches.get("main"),
            "branches": branches,
            "format": self.metadata["format-version"],
            "last_sequence_number": self.metadata.get("last-sequence-number") or 0,
            "next_row_id": self.metadata.get("next-row-id") or 0,
        }

    def _shown(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": snapshot["snapshot-id"],
            "parent": Snapshot(snapshot).parent_id,
            "sequence_number": Snapshot(snapshot).sequence_number,
            "operation": snapshot["summary"]["operation"],
            "manifests": [self._manifest(row) for row in self.files.rows(snapshot)],
        }

    def _manifest(self, row: ManifestFile) -> dict[str, Any]:
        entries = self.files.entries(row)
        return {
            "content": row.content,
            "spec": row.spec_id,
            "sequence_number": row.sequence_number,
            "min_sequence_number": row.min_sequence_number,
            "added_snapshot_id": row.added_snapshot_id,
            "counts": [row.added_files, row.existing_files, row.deleted_files],
            "first_row_id": row.first_row_id,
            "rows": [row.added_rows, row.existing_rows, row.deleted_rows],
            "bounds": [
                [part.contains_null, part.contains_nan, _hex(part.lower), _hex(part.upper)]
                for part in row.partitions or ()
            ],
            "entries": [
                [
                    live.status,
                    live.snapshot_id,
                    live.sequence_number,
                    live.file_sequence_number,
                    live.path,
                    live.entry.file.first_row_id,
                    live.entry.file.referenced_data_file,
                ]
                for live in entries
            ],
            "files": [_shown_file(live.entry.file) for live in entries],
        }


def _shown_file(file: DataFile) -> list[Any]:
    """The other facts of an entry's file: content, rows, bytes, partition, equality ids, statistics."""

    def pairs(name: str) -> dict[str, Any]:
        return {str(pair["key"]): pair["value"] for pair in file.record.get(name) or ()}

    return [
        file.content,
        file.record_count,
        file.size_bytes,
        [None if value is None else value_text(value) for value in file.partition],
        list(file.record.get("equality_ids") or ()),
        *(pairs(name) for name in ("value_counts", "null_value_counts", "nan_value_counts")),
        *({key: _hex(value) for key, value in pairs(name).items()} for name in ("lower_bounds", "upper_bounds")),
    ]


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


# ── From a case to an operation ──────────────────────────────────────────────────────────────────────────────────────


def operation_of_case(case: Case, op: OperationOf, head: HeadState, files: Files) -> Operation:
    """The operation of a writer that begins at `head`. Raises `BadRequest`."""
    parent = branch_head(head, op.branch)
    rows = files.rows(parent) if parent is not None else ()
    seen: dict[Any, Removal] = {}
    if op.remove or op.remove_deletes:
        for row in rows:
            for live in files.live(row):
                file = live.entry.file
                touched = Touched(file, row.spec_id, live.sequence_number)
                seen.setdefault((file.path, file.referenced_data_file), Removal(touched, row.path))

    def removal(named: RemovedOf | str) -> Removal:
        name, origin = (named, "scan") if isinstance(named, str) else (named.file, named.origin)
        file = cases.data_file(case, name)
        read = seen.get((file.path, file.referenced_data_file)) if origin == "scan" else None
        return read or Removal(Touched(file, case.files[name].spec, None))

    def added(name: str) -> Touched:
        file = case.files.get(name)
        number = file.sequence_number if file is not None and op.kind is Kind.REWRITE else None
        return Touched(cases.data_file(case, name), file.spec if file is not None else 0, number)

    removed_deletes = [removal(named) for named in op.remove_deletes]
    if op.kind is Kind.OVERWRITE:  # it takes them as a set; the others take a list
        by_key: dict[Any, Removal] = {}
        for each in removed_deletes:
            by_key.setdefault(key_of(each.touched.file), each)
        removed_deletes = list(by_key.values())
    return Operation(
        kind=op.kind,
        added=tuple(added(name) for name in op.add),
        added_deletes=tuple(added(name) for name in op.add_deletes),
        removed=tuple(removal(name) for name in op.remove),
        removed_deletes=tuple(removed_deletes),
        removed_paths=tuple(cases.path_of(case, name) for name in op.remove_paths),
        row_filter=_filter(op.filter),
        start=op.start,
        conflict_filter=_filter(op.conflict_filter),
        flags=frozenset(op.validations),
        references=tuple(cases.path_of(case, name) for name in op.references),
        data_sequence_number=op.sequence_number,
        manifests=_layout(op, rows, files),
        branch=op.branch,
    )


def _filter(document: Any) -> Expression | None:
    return None if document is None else typed(from_json(document), columns_of(cases.SCHEMA))


def _layout(op: OperationOf, rows: Sequence[ManifestFile], files: Files) -> ManifestRewrite:
    data = [row for row in rows if row.content == DATA]
    if any(not 0 <= index < len(data) for index in op.merge_manifests):
        raise BadRequest(f"merge_manifests: the head has {len(data)} data manifests", rule="case.steps")
    deleted = tuple(data[index] for index in op.merge_manifests)
    entries: tuple[Entry, ...] = tuple(entry_as(live, EXISTING) for row in deleted for live in files.live(row))
    return ManifestRewrite(op.cluster_by, op.rewrite_if_spec, deleted, entries)
