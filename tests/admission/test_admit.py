"""May a commit go on? Every rule with a case that it refuses and one beside it that passes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from icetower.admission import contents
from icetower.admission.admitted import Admitted, fingerprint
from icetower.admission.clauses import ORIGINS
from icetower.admission.facts import Facts
from icetower.admission.gate import judge
from icetower.admission.identity import Identity
from icetower.admission.operations import operation_of, operations_of
from icetower.admission.sizes import check_commit_sizes
from icetower.admission.targets import Places, locate, targets_of
from icetower.contracts.document import load
from icetower.contracts.model import Contract, Operation
from icetower.errors import BadRequest, CommitConflict, ContractViolation, IcetowerError, KeyMisused, ValidationFailed
from icetower.iceberg.change import Change, Header, ListDiff, Touched
from icetower.iceberg.manifests import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    DataFile,
    Entry,
    Manifest,
    ManifestFile,
)
from icetower.iceberg.record_sizes import ADDED_MAX_BYTES, PARTITION_VALUE_MAX_BYTES
from icetower.iceberg.records import FieldSummary, referenced_file
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal, administrator

TABLE = Identifier(("pricing",), "prices")
LOCATION = "file:///w/pricing/prices"
METADATA: Mapping[str, Any] = {
    "format-version": 2,
    "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "location": LOCATION,
    "last-sequence-number": 3,
    "last-updated-ms": 1_500_000_000_000,
    "last-column-id": 2,
    "current-schema-id": 0,
    "schemas": [
        {
            "type": "struct",
            "schema-id": 0,
            "fields": [
                {"id": 1, "name": "id", "type": "long", "required": False},
                {"id": 2, "name": "day", "type": "date", "required": False},
            ],
        }
    ],
    "default-spec-id": 0,
    "partition-specs": [
        {"spec-id": 0, "fields": [{"name": "day", "transform": "identity", "source-id": 2, "field-id": 1000}]},
        {"spec-id": 1, "fields": []},
    ],
    "last-partition-id": 1000,
    "default-sort-order-id": 0,
    "sort-orders": [{"order-id": 0, "fields": []}],
    "properties": {"write.data.path": "file:///data/prices"},
    "current-snapshot-id": 7,
    "snapshots": [
        {"snapshot-id": 6, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": f"{LOCATION}/metadata/6.avro"},
        {
            "snapshot-id": 7,
            "parent-snapshot-id": 6,
            "sequence-number": 3,
            "timestamp-ms": 2,
            "manifest-list": f"{LOCATION}/metadata/7.avro",
        },
    ],
    "refs": {
        "main": {"type": "branch", "snapshot-id": 7},
        "v1": {"type": "tag", "snapshot-id": 6},
        "wap": {"type": "branch", "snapshot-id": 7, "max-ref-age-ms": 5},
    },
    "snapshot-log": [],
    "metadata-log": [],
}


def file(
    name: str,
    day: int | None = 0,
    *,
    content: int = DATA,
    rows: int = 10,
    target: str | None = None,
    bounds: tuple[bytes, bytes] | None = None,
    spec_id: int = 0,
) -> Touched:
    record: dict[str, Any] = {}
    if bounds is not None:
        sides = zip(("lower_bounds", "upper_bounds"), bounds, strict=True)
        record = {side: [{"key": 2147483546, "value": bound}] for side, bound in sides}
    path = name if ":" in name else f"{LOCATION}/data/{name}.parquet"
    partition = (day,) if spec_id == 0 else ()
    return Touched(DataFile(content, path, "PARQUET", partition, rows, 100, None, target, record), spec_id, None)


def dv(name: str, target: Touched, day: int = 0, rows: int = 2) -> Touched:
    return file(name, day, content=POSITION_DELETES, rows=rows, target=target.file.path)


def change(
    added: Sequence[Touched] = (),
    removed: Sequence[Touched] = (),
    *,
    claim: str = "append",
    snapshot_id: int = 8,
    parent: int | None = 7,
    problems: tuple[str, ...] = (),
    **summary: str,
) -> Change:
    snapshot = {
        "snapshot-id": snapshot_id,
        "sequence-number": 4,
        "timestamp-ms": 3,
        "manifest-list": f"{LOCATION}/metadata/{snapshot_id}.avro",
        "summary": {"operation": claim} | summary,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    return Change(
        snapshot=Snapshot(snapshot),
        diff=ListDiff((), (), (), ()),
        added=tuple(added),
        removed=tuple(removed),
        entries_added={},
        entries_removed={},
        problems=problems,
        names_sibling=False,
    )


def updates_of(*changes: Change, ref: str | None = "main", to: int | None = None) -> list[dict[str, Any]]:
    updates: list[dict[str, Any]] = [{"action": "add-snapshot", "snapshot": dict(c.snapshot)} for c in changes]
    if ref is not None:
        target = to if to is not None else changes[-1].snapshot["snapshot-id"]
        updates.append({"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": target})
    return updates


def asserts(snapshot_id: int | None = 7, ref: str = "main") -> list[dict[str, Any]]:
    return [{"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": snapshot_id}]


def contract(
    operations: str = "append", partitions: str = "[{day: [1970-01-01, 1970-01-02]}]", extra: str = ""
) -> Contract:
    text = f"version: 1\nagent: pricing\ntables:\n- table: pricing.*\n  operations: [{operations}]\n"
    return load(text + f"  write_location: table\n  partitions: {partitions}\n{extra}", source="test")


def ask(
    *changes: Change,
    by: Contract | Principal | None = None,
    requirements: list[dict[str, Any]] | None = None,
    updates: list[dict[str, Any]] | None = None,
    metadata: Mapping[str, Any] | None = METADATA,
    key: str | None = None,
    places: Places | None = None,
    location: str | None = None,
) -> Admitted:
    bound = by if isinstance(by, Principal) else Principal("agent-1", by or contract(), 3)
    updates = updates_of(*changes) if updates is None else updates
    requirements = asserts() if requirements is None else requirements
    identity = Identity.of_commit(bound.name, Updates(updates), key, None)
    facts = Facts(bound, TABLE, metadata, requirements, Updates(updates), identity, now_ms=0, location=location)
    return judge(facts.with_files(changes, places or {}))


def refused(*changes: Change, **arguments: Any) -> IcetowerError:
    with pytest.raises(IcetowerError) as caught:
        ask(*changes, **arguments)
    return caught.value


A, B = file("a"), file("b", 1)
FOREIGN = file("f", 2)


# --------------------------------------------------------------------------------------------- what a snapshot does

POSITIONS = file("p", content=POSITION_DELETES, rows=2)
OPERATIONS = [
    # what, claim, added, removed, operation
    ("adds data", "append", [A], [], "append"),
    ("says overwrite and only adds", "overwrite", [A], [], "append"),
    ("says append and removes", "append", [A], [B], "overwrite"),
    ("removes data", "delete", [], [A], "delete"),
    ("says append and removes data only", "append", [], [A], "delete"),
    ("adds positions", "delete", [POSITIONS], [], "delete"),
    ("adds equality deletes", "overwrite", [file("e", content=EQUALITY_DELETES)], [], "delete"),
    ("adds rows and deletes", "overwrite", [A, POSITIONS], [], "overwrite"),
    ("grows a deletion vector", "delete", [dv("d2", A, rows=3)], [dv("d1", A)], "delete"),
    ("drops a deletion vector", "delete", [], [dv("d1", A)], "overwrite"),
    ("drops position deletes", "replace", [], [POSITIONS], "overwrite"),
    ("removes a file with its deletion vector", "delete", [], [A, dv("d1", A)], "delete"),
    ("compacts", "replace", [file("ab", rows=20)], [A, B], "replace"),
    ("compacts and applies deletes", "replace", [file("a2", rows=8)], [A, dv("d1", A)], "replace"),
    ("rewrites manifests", "replace", [], [], "replace"),
    ("says compaction and loses rows", "replace", [file("ab", rows=19)], [A, B], "overwrite"),
    ("says compaction and removes", "replace", [], [A], "delete"),
    ("says compaction of equality deletes", "replace", [A], [A, file("e", content=EQUALITY_DELETES)], "overwrite"),
    ("is empty", "append", [], [], "append"),
    ("is an empty delete", "delete", [], [], "delete"),
    ("says nothing known", "merge", [A], [], "append"),
]


@pytest.mark.parametrize(("what", "claim", "added", "removed", "expected"), OPERATIONS, ids=[o[0] for o in OPERATIONS])
def test_what_a_snapshot_does(
    what: str, claim: str, added: list[Touched], removed: list[Touched], expected: str
) -> None:
    assert operation_of(change(added, removed, claim=claim)).value == expected, what


def ref_update(name: str, to: int, kind: str = "branch", **settings: int) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": to} | settings


ADD = {"action": "add-snapshot", "snapshot": {}}
UPDATES = [
    # updates, operations of a commit that adds snapshot 8 with data
    ([ADD, ref_update("main", 8)], "append"),
    ([ADD], "append"),
    ([ADD, ref_update("wap", 8, **{"max-ref-age-ms": 5})], "append"),
    ([ADD, ref_update("wap", 8, **{"max-ref-age-ms": 6})], "append refs"),
    ([ADD, ref_update("new", 8)], "append refs"),
    ([ADD, ref_update("v1", 8, "tag")], "append refs"),
    ([ADD, ref_update("main", 8), ref_update("v2", 8, "tag")], "append refs"),
    ([ADD, ref_update("main", 6)], "append refs"),
    ([ADD, {"action": "remove-snapshot-ref", "ref-name": "v1"}], "append refs"),
    ([ADD, {"action": "remove-snapshots", "snapshot-ids": [6]}], "append refs"),
    ([ADD, {"action": "set-properties", "updates": {"a": "b"}}, ref_update("main", 8)], "append alter"),
    ([ADD, {"action": "upgrade-format-version", "format-version": 3}], "append alter"),
    ([ADD, {"action": "something-new"}], "append alter"),
]


@pytest.mark.parametrize(("updates", "expected"), UPDATES)
def test_what_updates_ask_for(updates: list[dict[str, Any]], expected: str) -> None:
    assert operations_of(METADATA, asserts(), Updates(updates), [change([A])]) == {
        Operation(o) for o in expected.split()
    }


def test_creating_a_table_is_create_and_what_its_snapshots_do() -> None:
    created = [{"action": "add-schema"}, {"action": "set-location", "location": "x"}]
    assert operations_of(None, [{"type": "assert-create"}], Updates(created), []) == {Operation.CREATE}
    assert operations_of(None, [], Updates(created), [change([A])]) == {Operation.CREATE, Operation.APPEND}


# ------------------------------------------------------------------------------------------------- the contract's rules


def test_an_owned_append_is_admitted_with_all_that_the_engine_needs() -> None:
    flags = contract(extra="  blind_appends: true\n  strict: true\n")
    written = change([A, B], **{"spark.app.id": "app-1", "icetower.blind": "true"})
    admitted = ask(written, by=flags, key="k-1")
    assert admitted == Admitted(
        identity=Identity.of_commit("agent-1", Updates(updates_of(written)), "k-1", None),
        identifier=TABLE,
        requirements=tuple(asserts()),
        updates=Updates(updates_of(written)),
        changes=(written,),
        contract="pricing",
        contract_version=3,
        blind_appends=True,
        strict=True,
        operations=frozenset({Operation.APPEND}),
        fingerprint=fingerprint(updates_of(written), [written]),
        application_id="app-1",
        table_uuid=METADATA["table-uuid"],
    )


def test_a_foreign_partition_is_refused_by_name_whatever_is_done_there() -> None:
    free = contract("overwrite")
    for touched in (
        change([A, FOREIGN]),
        change([A], [FOREIGN], claim="overwrite"),
        change([file("d", 2, content=POSITION_DELETES)], claim="delete"),
        change([file("e", 2, content=EQUALITY_DELETES)], claim="delete"),
    ):
        error = refused(touched, by=free)
        assert isinstance(error, ContractViolation)
        assert (error.rule, error.partitions, error.next_step) == (
            "contract.partitions",
            ("day=1970-01-03",),
            "request_partition",
        )
        assert "day=1970-01-03" in error.message
    assert ask(change([A], [B], claim="overwrite"), by=free).operations == {Operation.OVERWRITE}


def test_every_snapshot_of_a_commit_counts() -> None:
    first, second = change([A]), change([FOREIGN], snapshot_id=9, parent=8)
    assert refused(first, second).rule == "contract.partitions"
    assert len(ask(first, change([B], snapshot_id=9, parent=8)).changes) == 2


def test_tables_and_operations_are_denied_by_default() -> None:
    elsewhere = load("version: 1\nagent: x\nreads: [other.*]", source="test")
    assert refused(change([A]), by=elsewhere).rule == "contract.table"
    assert refused(change([A], [B]), by=contract("append")).rule == "contract.operation"
    properties = [{"action": "set-properties", "updates": {"a": "b"}}]
    assert refused(updates=properties, by=contract("append")).rule == "contract.operation"
    assert ask(updates=properties, by=contract("alter")).operations == {Operation.ALTER}


def test_r5_unpartitioned_files_of_a_partitioned_owner_are_undecided() -> None:
    """R5: a new spec may be unpartitioned; a global equality delete reaches every partition."""
    everything = contract("overwrite", "all")
    for content in (DATA, EQUALITY_DELETES):
        touched = change([file("u", spec_id=1, content=content)])
        error = refused(touched, by=contract("overwrite"))
        assert (error.status, error.rule, error.partitions) == (403, "contract.undecided", ("(unpartitioned)",))
        assert ask(touched, by=everything)


def test_r5_manifests_that_lie_are_refused_to_administrators_too() -> None:
    lie = change([A], problems=("EXISTING entry x was not live",))
    for by in (contract(), administrator("chief")):
        error = refused(lie, by=by)
        assert isinstance(error, ValidationFailed)
        assert error.rule == "contract.manifest"
        assert "EXISTING entry x" in error.message


LONG = "x" * (PARTITION_VALUE_MAX_BYTES + 1)


def named(name: str, partition: Any, **record: Any) -> Touched:
    plain = file(name)
    return replace(plain, file=replace(plain.file, partition=(partition,), record=record))


@pytest.mark.parametrize("by", [contract(partitions="all"), administrator("chief")], ids=["agent", "chief"])
def test_what_a_commit_adds_makes_no_record_that_is_too_long(by: Contract | Principal) -> None:
    bounds = [{"key": at, "value": b"b" * 1_000} for at in range(800)]
    for added, said in (
        (named("a", LONG), "the partition field day of the file"),
        (named("a", LONG.encode()), "the partition field day of the file"),
        (named("a", "x", lower_bounds=bounds), "write shorter bounds"),
        (named("a", "x", key_metadata=b"k" * ADDED_MAX_BYTES), "takes"),
    ):
        error = refused(change([added]), by=by)
        assert (error.status, error.rule, error.next_step) == (400, "limit.record", "fix_request")
        assert error.files == (added.file.path,)
        assert said in error.message
        assert "xxxx" not in error.message


def test_what_a_table_has_already_may_be_replaced_and_removed() -> None:
    chief = administrator("chief")
    assert ask(change([named("ab", LONG)], [named("a", LONG), named("b", LONG)], claim="replace"), by=chief)
    assert ask(change([], [named("a", LONG)], claim="delete"), by=chief)
    assert refused(change([named("b", LONG + "y")], [named("a", LONG)]), by=chief).rule == "limit.record"


@pytest.mark.parametrize(
    ("key", "length", "partition", "fits"),
    [
        (0, 1_000, "a", True),
        (0, 20_000, "a", False),
        (0, 20_000, "a" * 20_000, True),
        (60_000, 1_000, "a", True),
        (70_000, 1_000, "a", False),
    ],
)
def test_a_manifest_list_says_no_more_of_a_manifest_than_its_partitions_need(
    key: int, length: int, partition: str, fits: bool
) -> None:
    summary = FieldSummary(False, None, b"a" * length, b"b" * length)
    row, _ = manifest("m.avro", (0, A))
    row = replace(row, partitions=(summary,), key_metadata=b"k" * key)
    rewritten = replace(
        change([], [], claim="replace"), headers=(Header(row, (1000,), ("string",), frozenset({(partition,)})),)
    )
    facts: Any = SimpleNamespace(changes=(rewritten,), after=METADATA)
    if fits:
        check_commit_sizes(facts)
        return
    with pytest.raises(ValidationFailed) as caught:
        check_commit_sizes(facts)
    assert caught.value.rule == "limit.record"
    assert len(caught.value.message) < 1_000


def test_r5_a_deletion_vector_labelled_as_mine_may_reach_into_yours() -> None:
    mine = contract("overwrite")
    theirs = f"{LOCATION}/data/theirs.parquet"
    by_reference = file("d", 0, content=POSITION_DELETES, target=theirs)
    by_bounds = file("d", 0, content=POSITION_DELETES, bounds=(theirs.encode(), theirs.encode()))
    many = file("d", 0, content=POSITION_DELETES, bounds=(b"a", b"b"))
    for deletes in (by_reference, by_bounds):
        written = change([deletes], claim="delete")
        assert targets_of([written]) == {theirs}
        assert refused(written, by=mine, places={theirs: ((0, (2,)),)}).partitions == ("day=1970-01-03",)
        assert refused(written, by=mine).rule == "contract.undecided"
        assert ask(written, by=mine, places={theirs: ((0, (1,)),)})
        assert ask(written, by=contract("overwrite", "all"))
    assert (referenced_file(many.file), referenced_file(A.file)) == (None, None)
    # Files that the commit itself names are looked up too: they may be somebody else's already.
    assert targets_of([change([A, dv("d", A)])]) == {A.file.path}


def test_r5_a_reference_and_bounds_that_differ_reach_into_two_files() -> None:
    """Iceberg goes by the reference, PyIceberg by the bounds."""
    theirs = f"{LOCATION}/data/theirs.parquet"
    bounds = (theirs.encode(), theirs.encode())
    both = change([file("d", 0, content=POSITION_DELETES, target=A.file.path, bounds=bounds)], claim="delete")
    assert targets_of([both]) == {A.file.path, theirs}
    places = {A.file.path: ((0, (0,)),), theirs: ((0, (2,)),)}
    assert refused(both, by=contract("overwrite"), places=places).partitions == ("day=1970-01-03",)
    assert ask(both, by=contract("overwrite"), places=places | {theirs: ((0, (1,)),)})


def test_r5_rows_come_back_where_a_delete_file_goes_whatever_its_label() -> None:
    """It was let in when both partitions were somebody's; now they are two owners'."""
    mine = contract("overwrite")
    labelled = file("d", 0, content=POSITION_DELETES, target=FOREIGN.file.path)
    gone = change([], [labelled], claim="overwrite")
    assert refused(gone, by=mine, places={FOREIGN.file.path: ((0, (2,)),)}).partitions == ("day=1970-01-03",)
    assert refused(gone, by=mine).rule == "contract.undecided"
    assert ask(gone, by=mine, places={FOREIGN.file.path: ((0, (1,)),)})
    assert ask(gone, by=mine, places={FOREIGN.file.path: ()})  # it is not in the table any more


class Stored:
    """Manifests of a parent snapshot, by path; remembers which were read."""

    def __init__(self, *manifests: tuple[ManifestFile, Manifest]) -> None:
        self.rows = tuple(row for row, _ in manifests)
        self.manifests = {row.path: manifest for row, manifest in manifests}
        self.read: list[str] = []

    async def list_at(self, path: str) -> tuple[ManifestFile, ...]:
        assert path == f"{LOCATION}/metadata/7.avro"
        return self.rows

    async def manifest_at(self, path: str) -> Manifest:
        self.read.append(path)
        return self.manifests[path]


def manifest(path: str, *entries: tuple[int, Touched], content: int = DATA) -> tuple[ManifestFile, Manifest]:
    row = ManifestFile(path, 1, 0, content, 1, 1, 6, 1, 0, 0, 1, 0, 0, None, None, None)
    rows = tuple(Entry(status, 6, 1, 1, touched.file) for status, touched in entries)
    return row, Manifest(rows, 0, (), {}, content, 2)


def test_r5_targets_are_found_in_the_parents_live_data() -> None:
    stored = Stored(
        manifest("deletes", content=1),
        manifest("m1", (ADDED, A), (DELETED, FOREIGN)),
        manifest("m2", (EXISTING, B)),
        manifest("m3"),
    )
    written = change([dv("d1", A), dv("d2", B)], claim="delete")
    found = asyncio.run(locate(stored, METADATA, [written]))
    assert found == {A.file.path: ((0, (0,)),), B.file.path: ((0, (1,)),)}
    assert stored.read == [
        "m1",
        "m2",
        "m3",
    ]  # deletes are not looked at; data to the end, since a file may have two places
    dead = change([dv("d3", FOREIGN)], claim="delete")
    assert asyncio.run(locate(stored, METADATA, [dead])) == {FOREIGN.file.path: ()}
    assert asyncio.run(locate(stored, METADATA, [change([], [dv("d1", A)])])) == {A.file.path: ((0, (0,)),)}
    assert asyncio.run(locate(stored, METADATA, [change([A])])) == {}


def test_a_key_may_be_required() -> None:
    strict = contract(extra="  require_key: true\n")
    error = refused(change([A]), by=strict)
    assert (error.rule, error.next_step) == ("contract.key", "new_key")
    assert ask(change([A]), by=strict, key="k").key == "k"
    assert ask(change([A], **{"icetower.idempotency-key": "s"}), by=strict, key="k").key == "s"


def test_one_commit_has_one_key() -> None:
    keyed = {"icetower.idempotency-key": "one"}
    other = {"icetower.idempotency-key": "two"}
    two = change([A], **keyed), change([B], snapshot_id=9, parent=8, **other)
    assert isinstance(refused(*two), KeyMisused)
    assert ask(change([A], **keyed), change([B], snapshot_id=9, parent=8, **keyed)).key == "one"
    for bad in ("", "x" * 256, "a\nb"):
        assert isinstance(refused(change([A]), key=bad), BadRequest)


REFS = [
    # what, requirements, updates, rule where refs are not granted on all partitions
    ("asserted", asserts(7), updates_of(change([A])), None),
    ("not asserted", [], updates_of(change([A])), "contract.ref"),
    ("another ref asserted", asserts(7, "wap"), updates_of(change([A])), "contract.ref"),
    ("another snapshot asserted than its parent", asserts(6), updates_of(change([A])), "contract.ref"),
    ("staged only", [], updates_of(change([A]), ref=None), None),
]


@pytest.mark.parametrize(("what", "requirements", "updates", "rule"), REFS, ids=[r[0] for r in REFS])
def test_a_branch_moves_only_from_where_it_is_asserted_to_stand(
    what: str, requirements: list[dict[str, Any]], updates: list[dict[str, Any]], rule: str | None
) -> None:
    arguments: dict[str, Any] = {"requirements": requirements, "updates": updates}
    if rule is None:
        assert ask(change([A]), **arguments)
    else:
        assert refused(change([A]), **arguments).rule == rule, what
        assert refused(change([A]), by=contract("append, refs"), **arguments).rule == rule
    assert ask(change([A]), by=contract("append, refs", "all"), **arguments)
    assert ask(change([A]), by=administrator("chief"), **arguments)


def test_a_parent_older_than_the_asserted_head_would_drop_what_came_between() -> None:
    """The head is asserted truthfully, but the snapshot is written on its grandparent: snapshot 7 would be gone."""
    assert refused(change([A], parent=6), requirements=asserts(7)).rule == "contract.ref"
    assert refused(change([A], parent=None), requirements=asserts(7)).rule == "contract.ref"


def test_the_first_snapshot_of_a_table_asserts_that_there_is_none() -> None:
    empty = {key: value for key, value in METADATA.items() if key != "current-snapshot-id"} | {
        "refs": {},
        "snapshots": [],
    }
    for parent in (None, -1):
        assert ask(change([A], parent=parent), requirements=asserts(None), metadata=empty)
    assert refused(change([A], parent=None), requirements=[], metadata=empty).rule == "contract.ref"


def test_rolling_back_and_removing_a_branch_need_refs_on_everything() -> None:
    rollback = updates_of(to=6)
    remove: list[dict[str, Any]] = [{"action": "remove-snapshot-ref", "ref-name": "wap"}]
    for updates in (rollback, remove):
        assert refused(updates=updates).rule == "contract.operation"
        assert refused(updates=updates, by=contract("refs")).rule == "contract.ref"
        assert ask(updates=updates, by=contract("refs", "all")).operations == {Operation.REFS}
    for harmless in ([ref_update("v2", 7, "tag")], [{"action": "remove-snapshot-ref", "ref-name": "v1"}]):
        assert ask(updates=harmless, by=contract("refs"))


HISTORY: list[tuple[str, dict[str, Any]]] = [
    ("refs", {"action": "remove-snapshots", "snapshot-ids": [6]}),
    (
        "refs",
        {"action": "set-snapshot-ref", "ref-name": "wap", "type": "branch", "snapshot-id": 7, "max-ref-age-ms": 1},
    ),
    ("alter", {"action": "set-properties", "updates": {"icetower.retention.snapshots-max": "1"}}),
    ("alter", {"action": "set-properties", "updated": {"icetower.retention.age-max-ms": "1"}}),
    ("alter", {"action": "set-properties", "updates": {"history.expire.max-snapshot-age-ms": "1"}}),
    ("alter", {"action": "remove-properties", "removals": ["history.expire.min-snapshots-to-keep"]}),
    ("alter", {"action": "set-properties", "updates": {"gc.enabled": "true"}}),
    ("alter", {"action": "remove-properties", "removed": ["icetower.retention.sinks-max-ms"]}),
]


@pytest.mark.parametrize(("operation", "update"), HISTORY)
def test_who_owns_a_part_lets_no_history_go(operation: str, update: dict[str, Any]) -> None:
    by = contract(f"append, overwrite, delete, refs, {operation}")
    error = refused(updates=[update], by=by)
    expected = "contract.ref" if update["action"] == "set-snapshot-ref" else "contract.history"
    assert (error.status, error.rule) == (403, expected)
    assert "'partitions: all'" in error.message
    other = {"refs": "alter", "alter": "refs"}[operation]
    assert ask(updates=[update], by=contract(operation, "all"))
    assert refused(updates=[update], by=contract(other, "all")).rule == "contract.operation"
    assert ask(updates=[update], by=administrator("chief"))


def test_a_commit_with_files_changes_nothing_of_what_its_branch_keeps() -> None:
    updates = updates_of(change([A]))
    updates[-1] |= {"min-snapshots-to-keep": 1, "max-snapshot-age-ms": 1}
    by = contract("append, refs")
    assert refused(change([A]), updates=updates, by=by).rule == "contract.history"
    assert ask(change([A]), updates=updates, by=contract("append, refs", "all"))


def test_what_lets_no_history_go_that_was_kept_is_no_change() -> None:
    keep: dict[str, Any] = {"action": "set-properties", "updates": {"icetower.retention.snapshots-max": "100"}}
    had = {**METADATA, "properties": {"icetower.retention.snapshots-max": "100"}}
    assert ask(updates=[keep], by=contract("alter"), metadata=had)  # as it is
    created = [{"action": "set-location", "location": LOCATION}, keep]
    arguments: dict[str, Any] = {"metadata": None, "requirements": [{"type": "assert-create"}], "location": LOCATION}
    assert ask(updates=created, by=contract("create"), **arguments).operations == {Operation.CREATE}


PROPERTIES = """\
icetower.retention.snapshots-max   100          fine
icetower.retention.snapshots-max   0            property.value
icetower.retention.age-max-ms      600000       fine
icetower.retention.age-max-ms      -1           property.value
icetower.retention.age-max-ms      10min        property.value
icetower.retention.sinks-max-ms    1e6          property.value
icetower.retention.sinks-max-ms    ٣            property.value
icetower.blind-appends             True         fine
icetower.blind-appends             yes          property.value
icetower.strict                    false        fine
icetower.strict                    1            property.value
icetower.retention.max-age-ms      600000       property.unknown
icetower.blind_appends             true         property.unknown
icetower.Strict                    true         property.unknown
icetower.                          true         property.unknown
icetower                           true         fine
ours.icetower.anything             true         fine
write.merge.isolation-level        snapshots    fine
"""


@pytest.mark.parametrize("line", PROPERTIES.splitlines())
@pytest.mark.parametrize("spelled", ["updates", "updated"])
def test_a_property_of_the_tower_is_known_and_says_something(line: str, spelled: str) -> None:
    """Passed over, it would be relied on: retention that nobody asked for, appends that nobody calls blind."""
    name, value, rule = line.split()
    update: dict[str, Any] = {"action": "set-properties", spelled: {"owner": "us", name: value}}
    created = [{"action": "set-location", "location": LOCATION}, update]
    creation: dict[str, Any] = {"metadata": None, "requirements": [{"type": "assert-create"}], "location": LOCATION}
    for by in (administrator("chief"), contract("alter, create", "all")):
        if rule == "fine":
            assert ask(updates=[update], by=by)
            assert ask(updates=created, by=by, **creation)
            continue
        for error in (refused(updates=[update], by=by), refused(updates=created, by=by, **creation)):
            assert (error.status, error.rule, name in error.message) == (400, rule, True)
        if rule == "property.unknown":
            assert "icetower.retention.age-max-ms" in error.message
    # As it is already, from a registration or another release, it may be sent again, and go.
    had = {**METADATA, "properties": {name: value}}
    assert ask(updates=[update], by=administrator("chief"), metadata=had)
    gone = {"action": "remove-properties", "removals": [name]}
    assert ask(updates=[gone], by=administrator("chief"), metadata=had)


TOWERS_OWN = ("icetower.intents.fence", "icetower.published.0123")
"""Properties in which the tower remembers."""


@pytest.mark.parametrize("name", TOWERS_OWN)
@pytest.mark.parametrize("spelled", ["removals", "removed"])
def test_what_the_tower_remembers_in_properties_no_client_removes_or_changes(name: str, spelled: str) -> None:
    had = {**METADATA, "properties": {name: "7", "owner": "us"}}
    gone: dict[str, Any] = {"action": "remove-properties", spelled: ["owner", name]}
    same, lower = ({"action": "set-properties", "updates": {name: value}} for value in ("7", "6"))
    for by in (administrator("chief"), contract("alter", "all")):
        error = refused(updates=[gone], by=by, metadata=had)
        assert (error.status, error.rule, name in error.message) == (400, "property.tower", True)
        assert refused(updates=[same, gone], by=by, metadata=had).rule == "property.tower"
        assert refused(updates=[lower], by=by, metadata=had).rule == "property.unknown"
        assert ask(updates=[same], by=by, metadata=had)  # Java repeats what a table has
        early = ask(updates=[gone], by=by)  # before the table has it
        assert early.judge_again is not None
        with pytest.raises(CommitConflict):
            early.judge_again(had)


def test_a_fence_of_a_key_is_lifted_by_whoever_may_alter_the_table() -> None:
    had = {**METADATA, "properties": {"icetower.fence.0123": "{}"}}
    gone = {"action": "remove-properties", "removals": ["icetower.fence.0123"]}
    assert ask(updates=[gone], by=contract("alter", "all"), metadata=had)


PATHS = """\
file:///w/pricing/prices/data/x.parquet              yes
file:/w/pricing/prices/data/x.parquet                yes
file:///data/prices/x.parquet                        yes
file:///w/pricing/prices2/x.parquet                  no
file:///w/pricing/other/x.parquet                    no
file:///w/pricing/prices/../other/x.parquet          no
file:///w/pricing/prices/%2e%2e/other/x.parquet      no
s3://w/pricing/prices/data/x.parquet                 no
"""


@pytest.mark.parametrize("line", PATHS.splitlines())
def test_files_lie_under_the_tables_locations(line: str) -> None:
    path, fine = line.split()
    if fine == "yes":
        assert ask(change([file(path)]))
    else:
        assert refused(change([file(path)])).rule == "contract.location"
        assert path in refused(change([file(path)])).message


def test_only_administrators_move_a_table() -> None:
    alter = contract("alter")
    moves: list[dict[str, Any]] = [
        {"action": "set-location", "location": "file:///elsewhere"},
        {"action": "set-properties", "updates": {"write.data.path": "file:///elsewhere"}},
        {"action": "remove-properties", "removals": ["write.metadata.path"]},
    ]
    for move in moves:
        assert refused(updates=[move], by=alter).rule == "contract.location"
        assert ask(updates=[move], by=administrator("chief"))
    assert ask(updates=[{"action": "set-location", "location": LOCATION + "/"}], by=alter)


def test_a_new_table_lies_where_the_catalog_puts_it() -> None:
    creator = contract("create")
    created = [{"action": "set-location", "location": LOCATION}]
    arguments: dict[str, Any] = {"metadata": None, "requirements": [{"type": "assert-create"}], "by": creator}
    assert ask(updates=created, location=LOCATION, **arguments).operations == {Operation.CREATE}
    assert refused(updates=created, location="file:///w/elsewhere", **arguments).rule == "contract.location"
    assert refused(updates=created, **(arguments | {"by": contract("append")})).rule == "contract.operation"


def test_a_table_created_with_data_is_judged_by_its_own_spec_and_location() -> None:
    created: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": METADATA["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": METADATA["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": METADATA["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": LOCATION},
    ]
    creator = contract("create, append")
    arguments: dict[str, Any] = {"metadata": None, "requirements": [{"type": "assert-create"}], "by": creator}
    mine, foreign, outside = (change([f], parent=None) for f in (A, FOREIGN, file("file:///w/other/x.parquet")))
    admitted = ask(mine, updates=[*created, *updates_of(mine)], **arguments)
    assert admitted.operations == {Operation.CREATE, Operation.APPEND}
    assert refused(foreign, updates=[*created, *updates_of(foreign)], **arguments).rule == "contract.partitions"
    assert refused(outside, updates=[*created, *updates_of(outside)], **arguments).rule == "contract.location"
    only = arguments | {"by": contract("create")}
    assert refused(mine, updates=[*created, *updates_of(mine)], **only).rule == "contract.operation"


SUMMARY = """\
added-records                   fine
icetower.blind                  fine
icetower.decided-at             fine
icetower.filter                 fine
icetower.isolation-level        fine
icetower.read-snapshot          fine
icetower.reverts                contract.summary
icetower.idempotency-key        fine
icetower.principal              contract.summary
icetower.client-manifest-list   contract.summary
icetower.group-file             contract.summary
icetower.group-size             contract.summary
icetower.ref                    contract.summary
icetower.base-snapshot          contract.summary
icetower.published-branch       contract.summary
icetower.published-of           contract.summary
icetower.author                 contract.summary
icetower.anything               summary.unknown
icetower.filters                summary.unknown
icetower.isolation              summary.unknown
icetower.isolation_level        summary.unknown
icetower.Blind                  summary.unknown
icetower.blind-appends          summary.unknown
icetower.                       summary.unknown
"""


@pytest.mark.parametrize("line", SUMMARY.splitlines())
def test_summary_keys_of_the_tower_are_the_towers_and_misspelt_ones_nobodys(line: str) -> None:
    name, rule = line.split()
    meaningful = {"icetower.filter": "true", "icetower.isolation-level": "snapshot", "icetower.read-snapshot": "7"}
    written = change([A], **{name: meaningful.get(name, "x")})
    if rule == "fine":
        assert ask(written)
        return
    error = refused(written)
    assert (error.rule, name in error.message) == (rule, True)
    if name in ORIGINS:
        assert refused(written, by=administrator("chief")).rule == rule
    elif rule == "contract.summary":
        assert ask(written, by=administrator("chief"))
    else:
        assert "icetower.application, icetower.blind, icetower.decided-at, icetower.fence" in error.message
        assert refused(written, by=administrator("chief")).rule == rule


def test_only_who_may_delete_everywhere_takes_back_commits() -> None:
    """What a commit says to take back, audits excuse: who owns a part could have others' deletes dropped unseen."""
    written = change([A], **{"icetower.reverts": "1,2"})
    assert refused(written).rule == "contract.summary"
    assert ask(written, by=contract("append, delete", "all"))
    assert refused(written, by=contract("append", "all")).rule == "contract.summary"


def test_only_who_may_write_everywhere_tells_a_mediators_progress() -> None:
    written = change([A], **{"icetower.wal.through-snapshot": "1"})
    assert refused(written).rule == "contract.summary"
    assert ask(written, by=contract("append", "all"))


def test_a_commit_may_use_the_spec_that_it_adds() -> None:
    spec = {"action": "add-spec", "spec": {"spec-id": 2, "fields": [
        {"name": "day_2", "transform": "day", "source-id": 2, "field-id": 1001}]}}  # fmt: skip
    written = change([Touched(file("n", 0).file, 2, None)])
    updates = [spec, *updates_of(written)]
    assert refused(written, updates=updates).rule == "contract.operation"
    both = {Operation.APPEND, Operation.ALTER}
    assert refused(written, updates=updates, by=contract("append, alter")).rule == "contract.shared"
    alters = "- {table: pricing.*, operations: [alter], partitions: all}\n"
    owner = contract("append", "[{day_2: [1970-01-01]}]", alters)
    assert ask(written, updates=updates, by=owner).operations == both
    # A contract that names another field means its column and transform, wherever they are.
    assert ask(written, updates=updates, by=contract("append", extra=alters)).operations == both
    spec["spec"]["fields"][0]["transform"] = "year"
    assert refused(written, updates=updates, by=contract("append", extra=alters)).rule == "contract.undecided"
    assert isinstance(refused(written), ValidationFailed)  # without it the spec is unknown


def test_k3_a_fingerprint_is_of_content_not_of_a_try() -> None:
    """K3: a retry on a newer base writes other manifests and another snapshot for the same files."""
    first, again = change([A, B]), change([B, A], snapshot_id=99, parent=98)
    assert fingerprint(updates_of(first), [first]) == fingerprint(updates_of(again), [again])
    for other in (change([A]), change([A], [B]), change([A, FOREIGN])):
        assert fingerprint(updates_of(other), [other]) != fingerprint(updates_of(first), [first])
    alters = [{"action": "set-properties", "updates": {"a": value}} for value in "bc"]
    assert fingerprint(alters[:1], []) != fingerprint(alters[1:], [])
    assert fingerprint(updates_of(to=6), []) != fingerprint(updates_of(to=7), [])


# -- what delete files name inside


def test_what_is_named_inside_of_delete_files_is_touched() -> None:
    deletes, foreign = file("d", content=POSITION_DELETES), FOREIGN.file.path
    asked = ask(change([deletes], claim="delete"), by=contract("overwrite"))
    bound = Principal("agent-1", contract("overwrite"), 3)

    def look(named: frozenset[str] | None, places: Places, admitted: Admitted = asked) -> str | None:
        try:
            contents.check_contents(bound, admitted, METADATA, {deletes.file.path: named}, places, now_ms=0)
        except ContractViolation as error:
            return error.rule if deletes.file.path in error.message else error.message
        return None

    one = frozenset({foreign})
    assert contents.unlisted_targets(asked.changes, {deletes.file.path: one}) == one
    assert look(one, {foreign: ((0, (2,)),)}) == "contract.partitions"
    assert look(one, {foreign: ((0, (0,)), (0, (2,)))}) == "contract.partitions"
    assert look(one, {foreign: ((0, (1,)),)}) is None
    assert look(one, {foreign: ()}) == "contract.undecided"  # looked for, and nowhere: whoever adds it would lose rows
    assert look(one, {}) == "contract.contents"  # not looked for
    assert look(None, {}) == "contract.contents"
    assert look(frozenset(), {}) is None

    # That the commit names the file in a partition of its own, too, makes nothing of it its own.
    claimed = ask(change([deletes, file("f", 0)], claim="overwrite"), by=contract("overwrite"))
    assert look(one, {foreign: ()}, claimed) is None
    assert look(one, {}, claimed) == "contract.contents"
    assert look(one, {foreign: ((0, (2,)),)}, claimed) == "contract.partitions"


def test_only_who_owns_a_part_of_the_table_is_looked_at_so_closely() -> None:
    for by, wanted in (
        (contract("delete"), True),
        (contract("delete", "all"), False),
        (contract("append", "all"), True),
    ):
        assert contents.must_look_inside(Principal("a", by, 1), TABLE, frozenset({Operation.DELETE})) is wanted
    assert not contents.must_look_inside(administrator("root"), TABLE, frozenset({Operation.DELETE}))
