"""A table's metadata under construction: one method an update.

Follows Iceberg's `TableMetadata.Builder`, its messages included, since clients' own test suites compare them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

from icetower.errors import BadRequest, CommitConflict, ValidationFailed
from icetower.iceberg import specs
from icetower.iceberg.shapes import JSON, integer, optional_integer, text, without_nulls
from icetower.iceberg.statistics_files import check_statistics
from icetower.iceberg.structure import Structure, by_id
from icetower.protocol.sizes import check_properties

Metadata = Mapping[str, Any]

MAIN = "main"
LATEST_FORMAT_VERSION = 3
ONE_MINUTE_MS = 60_000
_CHOICES = ("current-schema-id", "default-spec-id", "default-sort-order-id")
_GROWING = ("snapshots", "snapshot-log")


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def is_uuid(value: str) -> bool:
    """Whether a text is a UUID as every writer of Iceberg spells it; others name no table, and no table's directory."""
    return _UUID.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What a `Builder` goes back to. The lists and the index may have grown since: they are cut again."""

    state: JSON
    lengths: Mapping[str, int]
    added: int
    index: Mapping[int, JSON]
    log_is_whole: bool
    changed_ever: bool


class Builder(Structure):
    """Metadata under construction. Nothing of the base is changed.

    A builder may take one commit after another: each between `begin` and `finish`. Adding snapshots costs nothing that
    grows with the history: the lists of the base and its index are copied once, and grow from then on.

    Args:
        base: None builds a table from nothing.
        now_ms: wall clock.
        index: the base's snapshots by id, where somebody has them.
    """

    def __init__(
        self, base: Metadata | None, now_ms: int, format_version: int, *, index: Mapping[int, Metadata] | None = None
    ) -> None:
        super().__init__(dict(base) if base is not None else _nothing(format_version))
        self.base = base
        self._wall_ms = now_ms
        self._changed_ever = False
        self._log_is_whole = False  # whether a commit has seen to it that every entry of the log names a snapshot
        self._index = cast("Mapping[int, JSON] | None", index)
        self._own: set[str] = set()
        """What was copied from the base and may grow in place: `snapshots`, `snapshot-log`, `index`."""
        self._own_maps: set[str] = set()
        """What was copied in this commit and may be changed in place until it ends: `refs`, `properties`."""
        self._added: list[int] = []
        self.begin()

    def begin(self) -> None:
        """From here on it is another commit."""
        self.changed = False
        self._own_maps.clear()
        self.now_ms = max(self._wall_ms, int(self.state.get("last-updated-ms", 0)))
        self._last_added = {}
        self._added_snapshots: set[int] = set()
        self._main_moves: list[int] = []
        self._removed_snapshots = False
        self._begun_with = tuple(self.state.get(key) for key in _CHOICES)
        self._logged_before = len(self.state.get("snapshot-log", ()))

    @property
    def index(self) -> Mapping[int, JSON]:
        """All snapshots by id. Whoever takes it may keep it: it is not changed after that."""
        self._own.discard("index")
        return self._snapshots_by_id()

    def snapshot(self, snapshot_id: int) -> JSON | None:
        """A snapshot by id. The index is made once: histories hold thousands."""
        return self._snapshots_by_id().get(snapshot_id)

    def _snapshots_by_id(self) -> Mapping[int, JSON]:
        if self._index is None:
            self._index = {snapshot["snapshot-id"]: snapshot for snapshot in self.state.get("snapshots", ())}
            self._own.add("index")
        return self._index

    def _own_index(self) -> dict[int, JSON]:
        index = self._snapshots_by_id()
        if "index" not in self._own:
            index = self._index = dict(index)
            self._own.add("index")
        return cast("dict[int, JSON]", index)

    def _grow(self, key: str, entry: JSON) -> None:
        """Append to a list that may be long: it is copied before the first time only."""
        if key not in self._own:
            self.state[key] = list(self.state.get(key, ()))
            self._own.add(key)
        self.state[key].append(entry)
        self.changed = True

    def _own_map(self, key: str) -> JSON:
        """A map to change in place: it is copied before the first time in a commit only."""
        if key not in self._own_maps:
            self.state[key] = dict(self.state[key])
            self._own_maps.add(key)
        self.changed = True
        return self.state[key]

    def _replace(self, key: str, entries: list[JSON]) -> None:
        self.put(key, entries)
        self._own.add(key)

    def savepoint(self) -> Savepoint:
        """The state between two commits, to go back to."""
        self._own_maps.clear()
        return Savepoint(
            dict(self.state),
            {key: len(self.state.get(key, ())) for key in _GROWING},
            len(self._added),
            self._own_index(),
            self._log_is_whole,
            self._changed_ever,
        )

    def roll_back(self, to: Savepoint) -> None:
        """Forget everything since a savepoint; it takes as long as what is forgotten took."""
        current, self.state = self.state, dict(to.state)
        for key, length in to.lengths.items():
            entries = to.state.get(key, [])
            is_own = key in self._own and entries is current.get(key)
            if not is_own:
                self._own.discard(key)
            if len(entries) > length and is_own:
                del entries[length:]
            elif len(entries) > length:
                self.state[key] = entries[:length]
        if self._index is to.index and "index" in self._own:
            index = self._own_index()
            for snapshot_id in self._added[to.added :]:
                index.pop(snapshot_id, None)
        else:
            self._index = None
        del self._added[to.added :]
        self._log_is_whole, self._changed_ever = to.log_is_whole, to.changed_ever
        self.begin()

    def add_snapshot(self, sent: Mapping[str, Any]) -> None:
        """Add a snapshot; no ref points at it yet."""
        snapshot = without_nulls(sent)
        snapshot_id = integer(snapshot, "snapshot-id", "snapshot")
        integer(snapshot, "timestamp-ms", "snapshot")
        for part, noun in (("schemas", "schema"), ("partition-specs", "partition spec"), ("sort-orders", "sort order")):
            if not self.state[part]:
                raise ValidationFailed(f"Attempting to add a snapshot before a {noun} is added", rule="snapshot.early")
        if "manifest-list" not in snapshot and (self.format_version > 1 or "manifests" not in snapshot):
            raise BadRequest("Cannot parse snapshot: missing field manifest-list (a string)", rule="shape")
        if self.snapshot(snapshot_id) is not None:
            raise ValidationFailed(
                f"Snapshot already exists for id: {snapshot_id}", rule="snapshot.known", snapshot=snapshot_id
            )
        self._take_sequence_number(snapshot)
        if self.format_version >= 3:
            self._take_row_ids(snapshot)
        self._grow("snapshots", snapshot)
        self._own_index()[snapshot_id] = snapshot
        self._added_snapshots.add(snapshot_id)
        self._added.append(snapshot_id)

    def _take_sequence_number(self, snapshot: JSON) -> None:
        number = optional_integer(snapshot, "sequence-number", "snapshot") or 0
        if self.format_version == 1:
            if number:
                raise ValidationFailed(f"Sequence number must be 0 in v1: {number}", rule="snapshot.sequence-number")
            snapshot.pop("sequence-number", None)
            return
        last = self.state["last-sequence-number"]
        # A snapshot without parent replaces the table; Iceberg lets concurrent replacements carry one number.
        if number <= last and "parent-snapshot-id" in snapshot:
            raise CommitConflict(
                "Validation failed, please retry: Cannot add snapshot with sequence number"
                f" {number} older than last sequence number {last}",
                rule="snapshot.sequence-number",
            )
        # Iceberg would go back to a lower number and then refuse its own metadata.
        self.state["last-sequence-number"] = max(last, number)

    def _take_row_ids(self, snapshot: JSON) -> None:
        first = optional_integer(snapshot, "first-row-id", "snapshot")
        added = optional_integer(snapshot, "added-rows", "snapshot")
        if first is None:
            raise ValidationFailed("Cannot add a snapshot: first-row-id is null", rule="snapshot.row-ids")
        if added is None or added < 0:
            raise ValidationFailed(
                f"Cannot add a snapshot: added-rows must be set with first-row-id, not {added}", rule="snapshot.row-ids"
            )
        next_row_id = self.state["next-row-id"]
        if first < next_row_id:
            raise CommitConflict(
                "Validation failed, please retry: Cannot add a snapshot, first-row-id is behind table next-row-id:"
                f" {first} < {next_row_id}",
                rule="snapshot.row-ids",
            )
        # Iceberg adds the rows to its own next-row-id, which would hand ids out twice after a gap.
        self.state["next-row-id"] = first + added

    def set_ref(self, name: str, ref: JSON) -> None:
        """Point a branch or tag at a snapshot; `main` is also the current snapshot and is logged."""
        if self.state["refs"].get(name) == ref:
            return
        snapshot_id = ref["snapshot-id"]
        snapshot = self.snapshot(snapshot_id)
        if snapshot is None:
            raise ValidationFailed(f"Cannot set {name} to unknown snapshot: {snapshot_id}", rule="ref.snapshot")
        if name == MAIN:
            if ref["type"] != "branch":
                raise ValidationFailed(f"Cannot set {MAIN} to a tag, it must be a branch", rule="ref.main")
            self.state["current-snapshot-id"] = snapshot_id
            # Going back to an older snapshot happens now, not when that snapshot was made.
            time_ms = snapshot["timestamp-ms"] if snapshot_id in self._added_snapshots else self.now_ms
            self._grow("snapshot-log", {"timestamp-ms": time_ms, "snapshot-id": snapshot_id})
            self._main_moves.append(snapshot_id)
        self._own_map("refs")[name] = ref

    def remove_ref(self, name: str) -> None:
        """Drop a ref, if it is there. Without `main` the table has no current snapshot; its log stays."""
        if name == MAIN:
            self.state["current-snapshot-id"] = no_snapshot(self.format_version)
        if name in self.state["refs"]:
            del self._own_map("refs")[name]

    def remove_snapshots(self, ids: Sequence[int]) -> None:
        """Drop snapshots, with their statistics and the refs that point at them."""
        gone = {snapshot_id for snapshot_id in ids if self.snapshot(snapshot_id) is not None}
        if not gone:
            return
        # A new index: a savepoint may hold the one that there was.
        self._index = {key: snapshot for key, snapshot in self._snapshots_by_id().items() if key not in gone}
        self._own.add("index")
        self._removed_snapshots = True
        self._replace("snapshots", [s for s in self.state["snapshots"] if s["snapshot-id"] not in gone])
        for part in ("statistics", "partition-statistics"):
            self.remove_statistics(part, gone)
        for name in [name for name, ref in self.state["refs"].items() if self.snapshot(ref["snapshot-id"]) is None]:
            self.remove_ref(name)

    def set_statistics(self, part: str, files: Sequence[Mapping[str, Any]]) -> None:
        """Put each statistics file in the place of those of its snapshot."""
        new: dict[int, JSON] = {}
        for file in files:
            snapshot_id = check_statistics(part, file)
            new.pop(snapshot_id, None)  # the last one counts, in its place
            new[snapshot_id] = dict(file)
        kept = [entry for entry in self.state.get(part, ()) if entry["snapshot-id"] not in new]
        self.put(part, [*kept, *new.values()])

    def remove_statistics(self, part: str, snapshot_ids: set[int]) -> None:
        """Drop the statistics files of snapshots."""
        files = self.state.get(part) or []
        kept = [file for file in files if file["snapshot-id"] not in snapshot_ids]
        if len(kept) != len(files):
            self.put(part, kept)

    def assign_uuid(self, uuid: str) -> None:
        """Give a new table its UUID. That of a table that exists never changes: keys and clients count on it."""
        had = self.state.get("table-uuid")
        if had is not None and had.lower() == uuid.lower():
            return
        if had is not None:
            raise ValidationFailed(f"Cannot assign uuid {uuid}: the table has {had}", rule="uuid")
        if not is_uuid(uuid):
            raise BadRequest(f"Cannot assign uuid {uuid}: it is no UUID in lower case, with its hyphens", rule="uuid")
        self.put("table-uuid", uuid)

    def upgrade(self, version: int) -> None:
        """Go to a later format version."""
        had = self.format_version
        if version > LATEST_FORMAT_VERSION:
            raise BadRequest(
                f"Cannot upgrade table to unsupported format version: v{version} (supported: v{LATEST_FORMAT_VERSION})",
                rule="format-version",
            )
        if version < had:
            raise BadRequest(f"Cannot downgrade v{had} table to v{version}", rule="format-version")
        if version == had:
            return
        if had == 1:
            self.state["last-sequence-number"] = 0
        if version >= 3:
            self.state["next-row-id"] = self.state.get("next-row-id", 0)
        if not _has_current(self.state):
            self.state["current-snapshot-id"] = no_snapshot(version)
        self.put("format-version", version)

    def set_properties(self, updates: Mapping[str, str]) -> None:
        """Set table properties."""
        if updates:
            properties = self._own_map("properties")
            before = len(properties)
            properties.update(updates)
            if len(properties) > before:
                check_properties(len(properties), "the table would have")

    def remove_properties(self, removals: Sequence[str]) -> None:
        """Drop table properties, whether or not they are there."""
        if removals:
            properties = self._own_map("properties")
            for key in removals:
                properties.pop(key, None)

    def set_location(self, location: str) -> None:
        """Move the place of new files."""
        location = location.rstrip("/")
        if not location:
            raise BadRequest("Cannot set location: it is empty", rule="location")
        if location != self.state.get("location"):
            self.put("location", location)

    def add_keys(self, keys: Sequence[Mapping[str, Any]]) -> None:
        """Add encryption keys whose ids are not there."""
        known = self.state.get("encryption-keys", ())
        ids = {key["key-id"] for key in known}
        new: list[JSON] = []
        for key in keys:
            key_id = text(key, "key-id", "encryption-key")
            text(key, "encrypted-key-metadata", "encryption-key")
            if key_id not in ids:
                ids.add(key_id)
                new.append(dict(key))
        if new:
            self.put("encryption-keys", [*known, *new])

    def remove_keys(self, key_ids: set[str]) -> None:
        """Drop encryption keys that are there."""
        known = self.state.get("encryption-keys", ())
        kept = [key for key in known if key["key-id"] not in key_ids]
        if len(kept) != len(known):
            self.put("encryption-keys", kept)

    def check_row_lineage(self) -> None:
        """Early v3 clients switch row lineage on; it always is."""
        if self.format_version < 3:
            raise ValidationFailed(f"Cannot use row lineage with format version {self.format_version}: it came with v3")

    def build(self) -> Metadata:
        """The finished metadata; the base itself where nothing changed."""
        self.finish()
        if self.base is not None and not self._changed_ever:
            return self.base
        self._own.difference_update(_GROWING)  # the lists are the caller's now
        return dict(self.state)

    def finish(self) -> None:
        """End a commit: check the table that it leaves, and correct its log.

        Raises:
            BadRequest: something that a table must have is missing.
            ValidationFailed: the table cannot be as it was left.
        """
        if self.base is not None and not self.changed:
            return
        self._check_complete()
        self._correct_log()
        log = self.state["snapshot-log"]
        last_log_ms = log[-1]["timestamp-ms"] if log else 0
        # Iceberg refuses to read a table whose log runs more than a minute ahead of it.
        self.state["last-updated-ms"] = max(self.now_ms, last_log_ms)
        if self._main_moves:
            _check_log_order(log[-len(self._main_moves) - 1 :])
        self.state = with_legacy_fields(self.state)
        self._changed_ever = True

    def _check_complete(self) -> None:
        state = self.state
        if state.get("table-uuid") is None and self.format_version > 1:
            raise BadRequest(f"UUID is required in format v{self.format_version}: send assign-uuid", rule="uuid")
        if state.get("location") is None:
            raise BadRequest("Table location is required: send set-location", rule="location")
        schema = self.schema_for("table")
        spec = by_id(state["partition-specs"], "spec-id", state["default-spec-id"])
        if spec is None:
            raise BadRequest("Partition specs cannot be null or empty: send add-spec", rule="spec.missing")
        order = by_id(state["sort-orders"], "order-id", state["default-sort-order-id"])
        if order is None:
            raise BadRequest("Sort orders cannot be null or empty: send add-sort-order", rule="order.missing")
        if self.base is None or self._begun_with != tuple(state[key] for key in _CHOICES):
            specs.check_spec(spec, self.columns_of(schema))
            specs.check_order(order, self.columns_of(schema))

    @cached_property
    def _base_log_is_whole(self) -> bool:
        known = {snapshot["snapshot-id"] for snapshot in (self.base or {}).get("snapshots", ())}
        return all(entry["snapshot-id"] in known for entry in (self.base or {}).get("snapshot-log", ()))

    def _correct_log(self) -> None:
        """Take snapshots out of the log that were `main` only within this commit, and cut it where history has a hole.

        Only this commit's entries are looked at, unless there may be holes before them.
        """
        current = self.state["current-snapshot-id"]
        passing = {i for i in self._main_moves if i in self._added_snapshots and i != current}
        if not passing and not self._removed_snapshots:
            return
        log: list[JSON] = self.state["snapshot-log"]
        is_whole = not self._removed_snapshots and (self._log_is_whole or self._base_log_is_whole)
        begin = self._logged_before if is_whole else 0
        kept: list[JSON] = []
        for entry in log[begin:]:
            if self.snapshot(entry["snapshot-id"]) is not None:
                if entry["snapshot-id"] not in passing:
                    kept.append(entry)
            elif self._removed_snapshots:
                # Else the snapshot before the hole would seem to have been current all through it.
                kept = []
        last = kept[-1] if kept else log[begin - 1] if begin else None
        if log and _has_current(self.state) and (last is None or last["snapshot-id"] != current):
            raise ValidationFailed(
                "Cannot set invalid snapshot log: latest entry is not the current snapshot", rule="snapshot-log"
            )
        if begin:
            log[begin:] = kept  # its own: the passing snapshots were appended
        else:
            self._replace("snapshot-log", kept)
        self._log_is_whole = True


def checked_version(version: int) -> int:
    """A format version that is written here.

    Raises:
        BadRequest: it isn't 1, 2 or 3.
    """
    if not 1 <= version <= LATEST_FORMAT_VERSION:
        raise BadRequest(
            f"Unsupported format version: v{version} (supported: v{LATEST_FORMAT_VERSION})", rule="format-version"
        )
    return version


def with_legacy_fields(metadata: JSON) -> JSON:
    """The metadata with `schema` and `partition-spec` as readers of v1 want them, and without them after v1."""
    if metadata["format-version"] > 1:
        metadata.pop("schema", None)
        metadata.pop("partition-spec", None)
        return metadata
    schema = by_id(metadata["schemas"], "schema-id", metadata["current-schema-id"])
    spec = by_id(metadata["partition-specs"], "spec-id", metadata["default-spec-id"])
    assert schema is not None
    assert spec is not None
    return {**metadata, "schema": schema, "partition-spec": spec["fields"]}


def no_snapshot(format_version: int) -> int | None:
    """What `current-snapshot-id` holds for an empty table: null since v3, -1 before."""
    return None if format_version >= 3 else -1


def _nothing(format_version: int) -> JSON:
    return {
        "format-version": format_version,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [],
        "last-partition-id": 0,
        "default-sort-order-id": 0,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": no_snapshot(format_version),
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
        **({"last-sequence-number": 0} if format_version > 1 else {}),
        **({"next-row-id": 0} if format_version > 2 else {}),
    }


def _has_current(state: Mapping[str, Any]) -> bool:
    return state.get("current-snapshot-id") not in (None, -1)


def _check_log_order(log: Sequence[JSON]) -> None:
    for before, after in pairwise(log):
        if after["timestamp-ms"] < before["timestamp-ms"] - ONE_MINUTE_MS:
            raise ValidationFailed(
                f"Invalid snapshot timestamp {after['timestamp-ms']}: more than a minute before the log's entry"
                f" at {before['timestamp-ms']}; check the writer's clock",
                rule="snapshot.timestamp",
            )
