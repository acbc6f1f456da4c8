"""The server's own rules, W1 to W15, each met alone; and the page that maps them to the checks of Iceberg's client."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from icetower.admission.read_scope import ReadScope
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.entries import Files
from icetower.iceberg.expressions import TRUE
from icetower.iceberg.partitions import PartitionField, PartitionSpec
from icetower.iceberg.records import ADDED, DELETED, Entry, Manifest, ManifestFile
from icetower.iceberg.validation import Level
from icetower.protocol.snapshots import Snapshot
from icetower.rebase.written import WIRE, Objection, Table, Written, objections
from icetower_client_model.checks import RULES
from tests.commit.iceberg_client import data, equalities, positions, vector
from tools.reference import server_rules
from tools.reference.tests import node_exists
from verify.wire.judge import EXCUSES

A, B, NEW = data("a"), data("b", "b"), data("new")
LOOSE, NAMED, VECTOR, EQUALITY = (
    positions("p", "a"),
    positions("n", "a", target=A),
    vector("v", A),
    equalities("e", "a"),
)
MY_LOOSE, MY_NAMED = positions("mine", "a"), positions("my-n", "a", target=A)
MY_VECTOR, MY_EQUALITY = vector("my-v", A), equalities("my-e", "a")
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "category", "type": "string", "required": False}]}
EVERYTHING = ReadScope(Level.SERIALIZABLE, TRUE, None, "summary")


def _met(
    ours: Sequence[Touched],
    removed: Sequence[Touched],
    theirs: Touched,
    status: int,
    operation: str,
    *,
    scope: ReadScope | None = None,
    rewrites: bool = False,
) -> list[Objection]:
    """A commit that adds and removes files, held against one snapshot that has added or deleted another."""
    row = ManifestFile(
        "m", 1, 0, min(theirs.file.content, 1), 2, 2, 9, 1, 0, int(status == DELETED), 1, 0, 1, None, None, None
    )
    manifest = Manifest((Entry(status, 9, 1, 1, theirs.file),), 0, (), SCHEMA, row.content, 2)
    files = Files({}, {"m": manifest}, own={"list": (row,)})
    step = Snapshot({"snapshot-id": 9, "manifest-list": "list", "summary": {"operation": operation}})
    change = cast(Change, SimpleNamespace(added=tuple(ours), removed=tuple(removed)))
    spec = PartitionSpec(0, (PartitionField(1000, "category", "identity", "category", "string", "string", 1),))
    return list(objections(Written.of(change, rewrites=rewrites), [step], files, Table({0: spec}, SCHEMA), scope))


@pytest.mark.parametrize(
    ("by", "ours", "removed", "theirs", "status", "operation"),
    [
        ("W1", [NEW], [A], A, DELETED, "overwrite"),
        ("W2", [], [NAMED], NAMED, DELETED, "overwrite"),
        ("W3", [NEW], [A], VECTOR, ADDED, "delete"),
        ("W3", [NEW], [A], NAMED, ADDED, "delete"),
        ("W4", [NEW], [A], EQUALITY, ADDED, "delete"),
        ("W5", [NEW], [A], LOOSE, ADDED, "delete"),
        ("W6", [MY_NAMED], [], A, DELETED, "delete"),
        ("W7", [MY_LOOSE], [], A, DELETED, "overwrite"),
        ("W8", [MY_NAMED], [], NAMED, ADDED, "delete"),
        ("W9", [MY_NAMED], [], EQUALITY, ADDED, "delete"),
        ("W10", [MY_NAMED], [], LOOSE, ADDED, "delete"),
        ("W11", [MY_EQUALITY], [], VECTOR, ADDED, "delete"),
        ("W12", [MY_VECTOR], [], VECTOR, ADDED, "delete"),
    ],
)
def test_what_both_have_written(
    by: str, ours: list[Touched], removed: list[Touched], theirs: Touched, status: int, operation: str
) -> None:
    assert [(each.by, each.rule) for each in _met(ours, removed, theirs, status, operation)] == [(by, WIRE[by])]


@pytest.mark.parametrize(
    ("by", "theirs", "status", "operation"),
    [
        ("W13", B, ADDED, "append"),
        ("W13", B, ADDED, "overwrite"),
        ("W14", B, DELETED, "delete"),
        ("W14", B, DELETED, "replace"),
        ("W15", VECTOR, ADDED, "delete"),
    ],
)
def test_what_came_into_what_was_read(by: str, theirs: Touched, status: int, operation: str) -> None:
    found = _met([NEW], [], theirs, status, operation, scope=EVERYTHING)
    assert [(each.by, each.rule) for each in found] == [(by, WIRE[by])]
    assert _met([NEW], [], theirs, status, operation) == []  # nothing is asked where nobody declares reads
    snapshot = ReadScope(Level.SNAPSHOT, TRUE, None, "summary")
    assert _met([NEW], [], theirs, status, operation, scope=snapshot) == []


@pytest.mark.parametrize(
    ("ours", "removed", "theirs", "status", "operation", "rewrites"),
    [
        ([NEW], [A], B, DELETED, "overwrite", False),  # another file goes
        ([NEW], [A], B, ADDED, "append", False),  # data comes
        ([MY_NAMED], [], positions("n", "a", target=data("c")), ADDED, "delete", False),  # deletes for another file
        ([MY_EQUALITY], [], equalities("e", "b"), ADDED, "delete", False),  # another partition
        ([MY_NAMED], [], NAMED, ADDED, "replace", False),  # deletes that a compaction wrote anew
        ([MY_NAMED], [A], B, DELETED, "overwrite", True),  # a rewrite: only what it replaces matters
    ],
)
def test_what_the_two_do_not_share_is_no_objection(
    ours: list[Touched], removed: list[Touched], theirs: Touched, status: int, operation: str, rewrites: bool
) -> None:
    assert _met(ours, removed, theirs, status, operation, rewrites=rewrites) == []


def test_each_rule_stands_for_a_check_of_the_clients_model() -> None:
    assert set(WIRE.values()) <= set(RULES)


def test_the_table_has_the_rules_of_the_code() -> None:
    assert {rule.id: rule.wire for rule in server_rules.read() if rule.module == "written"} == WIRE


def test_the_table_names_tests_and_exceptions_that_exist() -> None:
    for rule in server_rules.read():
        assert rule.stands_for, rule.id
        assert set(rule.stands_for) <= set(RULES)
        assert rule.tests, rule.id
        assert [node for node in rule.tests if not node_exists(node)] == []
        assert set(rule.admits) <= {*server_rules.EXCEPTIONS}
    proved = {exception.__name__ for exception in EXCUSES}
    assert set(server_rules.EXCEPTIONS) == {*proved, "the_writer_declares_its_reads"}
