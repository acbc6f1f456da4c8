"""Tables that somebody has damaged: each damage is named, with its snapshot and its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from icetower.audit.findings import MEANINGS, Rule
from icetower.audit.list_reading import ListReader
from icetower.iceberg.manifests import read_manifest_list
from icetower.iceberg.records import DATA, Entry
from icetower.table.head import HeadState
from tests.audit.audit_world import audited, said
from verify.histories.memory import Table
from verify.histories.serial import File, World


def fresh(format_version: int = 2) -> World:
    """A table of a few plain commits."""
    world = World(11, format_version, declared=0)
    for _ in range(6):
        world.commit("append", [world.data(range(at := world._row, at + 10), (0, ("red",)))])
        world._row += 10
    return world


def first(world: World) -> File:
    return world.of(DATA)[0]


def last_id(world: World) -> int:
    return world.metadata["snapshots"][-1]["snapshot-id"]


def named(world: World, *positions: int) -> File:
    return world.deletes({first(world).path: frozenset(positions)})


# ── Damage done by commits ───────────────────────────────────────────────────────────────────────────────────────────


def doubled_file(world: World) -> File:
    """A commit adds a file that is there."""
    twin = first(world)
    world.commit("append", [File(replace(twin.entry, sequence_number=None), twin.spec_id, twin.rows)])
    return twin


def lost_file(world: World) -> File:
    """A manifest is written anew, and a file of it is left out."""
    world.commit("replace", relist=True)
    gone = next(manifest for manifest in world.manifests if len(manifest.files) > 1).files.pop()
    del world.files[gone.path]
    world.commit("replace", relist=True)
    return gone


def smuggled_file(world: World) -> File:
    """A manifest is written anew, and an older file is in it that was not."""
    world.commit("replace", relist=True)
    new = world.data()
    new.entry = Entry(0, 1_000, 1, 1, new.entry.file)
    world.manifests[0].files.append(new)
    world.commit("replace", relist=True)
    return new


def altered_entry(world: World) -> File:
    """A file gets another sequence number while it is carried."""
    file = first(world)
    file.entry = replace(file.entry, sequence_number=5)
    world.commit("replace", relist=True)
    return file


def removed_twice(world: World) -> File:
    """A commit says that it removed a file that had gone before."""
    file = first(world)
    world.commit("delete", (), [file])
    manifest = next(m for m in world.manifests if m.files)
    world.files[file.path] = file
    manifest.files.append(file)
    world.commit("delete", (), [file])
    return file


def dropped_vector(world: World) -> File:
    """A deletion vector goes, and its data file stays."""
    file = named(world, 1, 2)
    world.commit("delete", [file])
    world.commit("delete", (), [file])
    return file


def shrunk_vector(world: World) -> File:
    """A vector is replaced by one of fewer rows."""
    file = named(world, 1, 2, 3)
    world.commit("delete", [file])
    world.commit("delete", [named(world, 4)], [file])
    return file


def second_vector(world: World) -> File:
    """A data file gets a second vector."""
    world.commit("delete", [named(world, 1)])
    file = named(world, 2)
    world.commit("delete", [file])
    return file


def dropped_positions(world: World) -> File:
    """Position deletes of a data file go, and the file stays."""
    return dropped_vector(world)


def dropped_equality(world: World) -> File:
    file = world.equality([1, 2], first(world).place)
    world.commit("delete", [file])
    world.commit("delete", (), [file])
    return file


def swollen_compaction(world: World) -> File:
    """A compaction brings back what was deleted."""
    file = first(world)
    world.commit("delete", [named(world, 0, 1, 2)])
    new = world.data(file.rows, file.place)
    world.commit("replace", [new], [file])
    return new


def shrunk_compaction(world: World) -> File:
    """A compaction loses rows."""
    file = first(world)
    new = world.data(file.rows[1:], file.place)
    world.commit("replace", [new], [file])
    return new


COMMITTED: list[tuple[Callable[[World], File], int, str, str]] = [
    (doubled_file, 2, "file-twice", "definite"),
    (lost_file, 2, "lost-file", "definite"),
    (smuggled_file, 2, "smuggled-file", "definite"),
    (altered_entry, 2, "altered-entry", "definite"),
    (dropped_vector, 3, "dropped-delete", "definite"),
    (shrunk_vector, 3, "dropped-delete", "definite"),
    (second_vector, 3, "two-vectors", "definite"),
    (dropped_positions, 2, "dropped-delete", "definite"),
    (dropped_equality, 2, "dropped-delete", "possible"),
    (swollen_compaction, 2, "lost-update", "definite"),
    (swollen_compaction, 3, "lost-update", "definite"),
    (shrunk_compaction, 2, "row-balance", "definite"),
    (shrunk_compaction, 1, "row-balance", "definite"),
]


@pytest.mark.parametrize(
    ("damage", "version", "rule", "verdict"), COMMITTED, ids=lambda it: getattr(it, "__name__", it)
)
def test_a_commit_that_damages_the_table_is_named(
    damage: Callable[[World], File], version: int, rule: str, verdict: str
) -> None:
    world = fresh(version)
    file = damage(world)
    blamed = last_id(world)
    for _ in range(3):  # what comes afterwards is not blamed for it
        world.commit("append", [world.data()])
    report = audited(world.table())
    assert [(found, how, ids[-1]) for found, how, ids in said(report)] == [(rule, verdict, blamed)]
    (violation,) = report.violations
    assert file.path in violation.files
    assert file.path.rpartition("/")[2] in " ".join(violation.witness)


def test_a_file_that_had_gone_and_is_removed_again() -> None:
    world = fresh()
    file = removed_twice(world)
    assert ("not-live", "definite", (last_id(world),)) in said(audited(world.table()))
    assert file.path not in {each.path for each in world.of(DATA)}


# ── Damage done to what lies in storage ──────────────────────────────────────────────────────────────────────────────


def snapshots(table: Table) -> list[dict[str, Any]]:
    return table.head.metadata["snapshots"]


def own_manifest(table: Table, at: int) -> str:
    snapshot = snapshots(table)[at]
    rows = read_manifest_list(table.files.files[snapshot["manifest-list"]])
    return next(row.path for row in rows if row.added_snapshot_id == snapshot["snapshot-id"])


def test_a_missing_manifest_is_named_and_the_rest_is_checked() -> None:
    world = fresh()
    file = first(world)
    world.commit("delete", (), [file])
    world.commit("append", [File(replace(f.entry, sequence_number=None), 0, f.rows) for f in world.of(DATA)[:1]])
    table = world.table()
    path = own_manifest(table, 2)
    del table.files.files[path]
    report = audited(table)
    found = said(report)
    assert found[0] == ("missing-manifest", "definite", (snapshots(table)[2]["snapshot-id"],))
    assert path in report.violations[0].files
    assert [rule for rule, _, _ in found] == ["missing-manifest", "file-twice"]


def test_a_manifest_from_before_that_is_missing_is_named() -> None:
    world = fresh()
    table = world.table()
    path = own_manifest(table, 1)
    del table.files.files[path]
    del snapshots(table)[:4], table.head.metadata["snapshot-log"][:4]
    report = audited(table)
    assert [(each.rule, each.files) for each in report.violations] == [(Rule.MISSING_MANIFEST, (path,))]


def test_a_torn_manifest_is_named() -> None:
    table = fresh().table()
    path = own_manifest(table, 2)
    table.files.files[path] = table.files.files[path][:-20]
    report = audited(table)
    assert [each.rule for each in report.violations] == [Rule.MISSING_MANIFEST]
    assert "cannot be read" in " ".join(report.violations[0].witness)


def test_a_manifest_whose_schema_is_none_is_named() -> None:
    table = fresh().table()
    path = own_manifest(table, 2)
    data = table.files.files[path]
    assert b'"name":"manifest_entry"' in data
    table.files.files[path] = data.replace(b'"name":"manifest_entry"', b'"nome":"manifest_entry"')
    assert [rule for rule, _, _ in said(audited(table))] == ["missing-manifest"]


def test_a_missing_manifest_list_is_named_and_the_walk_goes_on() -> None:
    world = fresh()
    doubled_file(world)
    table = world.table()
    snapshot = snapshots(table)[2]
    del table.files.files[snapshot["manifest-list"]]
    assert [rule for rule, _, _ in said(audited(table))] == ["missing-manifest", "file-twice"]


def test_a_snapshot_that_was_taken_out_of_the_middle() -> None:
    table = fresh().table()
    gone = snapshots(table).pop(3)
    report = audited(table)
    assert said(report) == [("chain", "definite", (snapshots(table)[3]["snapshot-id"],))]
    assert str(gone["snapshot-id"]) in " ".join(report.violations[0].witness)


def test_a_snapshot_that_was_expired_out_of_the_middle_may_be_just_that() -> None:
    table = fresh().table()
    gone = snapshots(table).pop(3)
    log = table.head.metadata["snapshot-log"]
    del log[: next(at + 1 for at, entry in enumerate(log) if entry["snapshot-id"] == gone["snapshot-id"])]
    assert [(rule, verdict) for rule, verdict, _ in said(audited(table))] == [("chain", "possible")]


def rootless(table: Table, expired: int) -> Table:
    """As PyIceberg's expiry leaves it: what has expired is no longer named as a parent, either."""
    gone = {snapshot["snapshot-id"] for snapshot in snapshots(table)[:expired]}
    del snapshots(table)[:expired]
    snapshots(table)[0].pop("parent-snapshot-id")
    log = table.head.metadata["snapshot-log"]
    log[:] = [entry for entry in log if entry["snapshot-id"] not in gone]
    return Table(HeadState("x", table.head.metadata), table.files)


def test_a_parent_that_expiry_has_taken_out_is_no_damage() -> None:
    report = audited(rootless(fresh().table(), 3))
    assert said(report) == []
    assert (report.checked.expired, report.checked.snapshots) == (True, 3)
    assert "has expired" in report.checked.undeterminable[0]


def test_a_parent_that_nobody_names_any_more_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the manifest list does not say for which parent it was written."""
    step = ListReader.step
    monkeypatch.setattr(ListReader, "step", lambda self, data: replace(step(self, data), header={}))
    report = audited(rootless(fresh().table(), 3))
    assert (said(report), report.checked.expired) == ([], True)


def test_a_parent_that_was_taken_out_and_is_there_is_named() -> None:
    table = fresh().table()
    snapshots(table)[4].pop("parent-snapshot-id")
    found = said(audited(Table(HeadState("x", table.head.metadata), table.files)))
    assert ("chain", "definite", (snapshots(table)[4]["snapshot-id"],)) in found


def test_a_parent_that_was_changed() -> None:
    table = fresh().table()
    snapshot = snapshots(table)[4]
    snapshot["parent-snapshot-id"] = snapshots(table)[2]["snapshot-id"]
    found = said(audited(table))
    assert ("chain", "definite", (snapshot["snapshot-id"],)) in found


def test_sequence_numbers_that_fall() -> None:
    table = fresh().table()
    snapshots(table)[3]["sequence-number"] = 1
    found = {(rule, ids[-1]) for rule, _, ids in said(audited(table))}
    assert ("sequence", snapshots(table)[3]["snapshot-id"]) in found
    assert {rule for rule, _ in found} == {"sequence"}


def test_a_list_that_counts_wrongly() -> None:
    world = fresh()
    newest = world.manifests[0]
    newest.row = replace(newest.row, added_rows=3)
    world._number += 1
    table = world.table()
    from icetower.iceberg.manifest_writing import write_manifest_list

    snapshot = snapshots(table)[-1]
    table.files.files[snapshot["manifest-list"]] = write_manifest_list(
        [manifest.row for manifest in world.manifests],
        format_version=2,
        snapshot_id=snapshot["snapshot-id"],
        parent_id=snapshot["parent-snapshot-id"],
        sequence_number=snapshot["sequence-number"],
        first_row_id=None,
    )
    assert said(audited(table)) == [("counts", "definite", (snapshot["snapshot-id"],))]


def test_every_rule_has_words() -> None:
    assert set(MEANINGS) == set(Rule)
