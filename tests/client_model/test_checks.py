"""The rules, one by one: what others did, what we ask for, what the rule says."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.iceberg.deletes import is_unpartitioned
from icetower.iceberg.validation import Conflict
from icetower_client_model.attempt import PartitionSet
from icetower_client_model.checks import RULES, RULES_OF, judge
from icetower_client_model.sketch import expire, op, rollback
from tests.client_model.rule_world import (
    ADD_BLUE,
    ADD_OTHER_SPEC,
    ADD_RED,
    BLUE,
    COMPACT_RED,
    DELETE_BLUE,
    DELETE_RED,
    OVERWRITE_RED,
    RED,
    asked_for,
    held,
    short,
    specs_of,
    strike,
    told,
    upsert,
    verdicts,
)

JSON = dict[str, Any]
FLAGS = {
    "data": "no-conflicting-data",
    "deletes": "no-conflicting-deletes",
    "deleted": "deleted-files",
    "match": "added-files-match-filter",
}


def ours(kind: str, checks: str = "", where: Any = None, **fields: Any) -> JSON:
    """Our operation, read from snapshot 1. `checks`: words of `FLAGS`; `where`: the conflict filter."""
    flags = [FLAGS[word] for word in checks.split()]
    asked = {"start": 1, "validate": flags, **fields}
    return op(kind, **asked, **({} if where is None else {"conflict_filter": where}))


def delta(checks: str = "", where: Any = None, **fields: Any) -> JSON:
    """A merge-on-read change."""
    return ours("row-delta", checks, where, **fields)


def cow(checks: str = "", where: Any = None, **fields: Any) -> JSON:
    """A copy-on-write change of `red`."""
    return ours("overwrite", checks, where, **{"remove": ["red"], "add": ["red-mine"], **fields})


def rows(row_filter: Any, checks: str = "", where: Any = None, **fields: Any) -> JSON:
    """An overwrite by row filter."""
    return ours("overwrite", checks, where, filter=row_filter, **fields)


def replacement(checks: str = "", add: str = "red-mine") -> JSON:
    """A replacement of the partition of a file: red."""
    return ours("replace-partitions", checks, add=[add])


def compaction(**fields: Any) -> JSON:
    """Of `red`."""
    return ours("rewrite", **{"remove": ["red"], "add": ["red-mine"], **fields})


def data_in(where: str, *names: str) -> str:
    return f"Found conflicting files that can contain records matching {where}: [{', '.join(names)}]"


def removed_in(where: str, name: str, can: str = "contain") -> str:
    return f"Found conflicting deleted files that can {can} records matching {where}: [{name}]"


def deletes_in(where: str, name: str) -> str:
    return f"Found new conflicting delete files that can apply to records matching {where}: [{name}]"


LOW_IDS = {"type": "lt", "term": "id", "value": 6}
IN_RED = 'ref(name="category") == "red"'
REDS = "[category=red]"
STRUCK = "Cannot commit, found new delete for replaced data file: red"
STRUCK_BY_POSITION = "Cannot commit, found new position delete for replaced data file: red"
GONE = "Cannot commit, missing data files: [red]"


def said(rule: str, operation: JSON, *others: JSON, **held_as: Any) -> str:
    return verdicts(held(operation, *others, **held_as))[rule]


C1 = [
    # Data that came under the filter, by an append or an overwrite; what compaction writes is not new.
    (ADD_RED,        delta("data", RED),                data_in(IN_RED, "red-new")),
    (ADD_BLUE,       delta("data", RED),                "clear of 1"),
    (OVERWRITE_RED,  delta("data", RED),                data_in(IN_RED, "red-new")),
    (COMPACT_RED,    delta("data", RED),                "clear of 0"),
    (ADD_RED,        delta("", RED),                    "not asked"),
    # Column statistics exclude it, too.
    (ADD_RED,        delta("data", LOW_IDS),            "clear of 1"),
    # No filter: everything counts. A row filter is one, but not beside files that are named.
    (ADD_BLUE,       delta("data"),                     data_in("true", "blue-new")),
    (ADD_BLUE,       cow("data"),                       data_in("true", "blue-new")),
    (ADD_BLUE,       cow("data", RED),                  "clear of 1"),
    (ADD_RED,        rows(RED, "data"),                 data_in(IN_RED, "red-new")),
    (ADD_BLUE,       rows(RED, "data"),                 "clear of 1"),
    (ADD_BLUE,       rows(RED, "data", remove=["red"]), data_in("true", "blue-new")),
    # Partitions are matched exactly, and never across specs.
    (ADD_RED,        replacement("data"),               data_in(f"partitions {REDS}", "red-new")),
    (ADD_BLUE,       replacement("data"),               "clear of 1"),
    (ADD_OTHER_SPEC, replacement("data"),               "clear of 1"),
    (ADD_RED,        replacement(),                     "not asked"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "operation", "expected"), C1)
def test_c1_no_added_data(others: JSON, operation: JSON, expected: str) -> None:
    assert said("C1", operation, others) == expected


C2 = [
    (DELETE_RED,    rows(RED, "deletes"),       removed_in(IN_RED, "red")),
    (OVERWRITE_RED, rows(RED, "deletes"),       removed_in(IN_RED, "red")),
    (COMPACT_RED,   rows(RED, "deletes"),       removed_in(IN_RED, "red")),
    (DELETE_RED,    rows(BLUE, "deletes"),      "clear of 1"),
    (DELETE_RED,    rows(RED, "deletes", BLUE), "clear of 1"),
    (DELETE_RED,    rows(RED),                  "not asked"),
    # Who names files is told by C6 if one is gone.
    (DELETE_RED,    cow("deletes", RED),        "not asked"),
    (DELETE_RED,    replacement("deletes"),     removed_in(REDS, "red", can="apply to")),
    (COMPACT_RED,   replacement("deletes"),     removed_in(REDS, "red", can="apply to")),
    (DELETE_BLUE,   replacement("deletes"),     "clear of 1"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "operation", "expected"), C2)
def test_c2_no_deleted_data(others: JSON, operation: JSON, expected: str) -> None:
    assert said("C2", operation, others) == expected


C3A = [
    # Coarse: any new delete file of the partition, whatever it is about; recorded as `delete` or as `overwrite`.
    (strike("strike-red"),       delta("deletes", RED),      deletes_in(IN_RED, "strike-red")),
    (strike("strike-any-red"),   delta("deletes", RED),      deletes_in(IN_RED, "strike-any-red")),
    (upsert("strike-red"),       delta("deletes", RED),      deletes_in(IN_RED, "strike-red")),
    (strike("strike-blue"),      delta("deletes", RED),      "clear of 0"),
    (strike("strike-blue"),      delta("deletes"),           deletes_in("true", "strike-blue")),
    (strike("strike-red"),       delta("", RED),             "not asked"),
    # Equality deletes have column statistics, which a filter by id can use.
    (strike("strike-other-ids"), delta("deletes", LOW_IDS),  "clear of 0"),
    (strike("strike-red"),       rows(RED, "deletes"),       deletes_in(IN_RED, "strike-red")),
    (strike("strike-red"),       rows(RED, "deletes", BLUE), "clear of 0"),
    (strike("strike-red"),       cow("deletes", RED),        "not asked"),
    (strike("strike-any-red"),   replacement("deletes"),     deletes_in(REDS, "strike-any-red")),
    (strike("strike-blue"),      replacement("deletes"),     "clear of 0"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "operation", "expected"), C3A)
def test_c3a_no_new_delete_files(others: JSON, operation: JSON, expected: str) -> None:
    assert said("C3a", operation, others) == expected


STRIKES = delta("deletes", add_deletes=["my-strike-red"], references=["red"])
REMOVES = delta("deletes", remove=["red"])
SERIALIZABLE = delta("data deletes", add_deletes=["my-strike-red"], references=["red"])
PRECISE = [
    # A delete file that is about one data file conflicts only with whom it touches: by a delete file of its own …
    (strike("strike-blue"),    STRIKES,              "clear of 1"),
    (strike("strike-red"),     STRIKES,              deletes_in("true", "strike-red")),
    # … or by removing it …
    (strike("strike-blue"),    REMOVES,              "clear of 1"),
    (strike("strike-red"),     REMOVES,              deletes_in("true", "strike-red")),
    # … while one that may be about many files conflicts as ever.
    (strike("strike-any-red"), STRIKES,              deletes_in("true", "strike-any-red")),
    (strike("strike-ids"),     STRIKES,              deletes_in("true", "strike-ids")),
    # So it does for an operation that doesn't name all its targets: by equality deletes, or by not saying at all.
    (strike("strike-red"),     delta("deletes", add_deletes=["strike-ids"]),
                                                     deletes_in("true", "strike-red")),
    (strike("strike-red"),     delta("deletes", add_deletes=["strike-ids"], references=["blue"]),
                                                     deletes_in("true", "strike-red")),
    (strike("strike-red"),     delta("deletes", add_deletes=["strike-any-red"]),
                                                     deletes_in("true", "strike-red")),
    (strike("strike-blue"),    delta("deletes", add_deletes=["my-strike-red"]),
                                                     deletes_in("true", "strike-blue")),
    (strike("strike-blue"),    delta("deletes", add_deletes=["my-strike-red"], references=["blue"]),
                                                     deletes_in("true", "strike-blue")),
    (strike("strike-blue"),    delta("deletes", add_deletes=["strike-any-red"], references=["red"]), "clear of 1"),
    # A serializable writer has read the rows of other files, and hears that some are gone: the option is off.
    (strike("strike-blue"),    SERIALIZABLE,         deletes_in("true", "strike-blue")),
    # It is for row deltas.
    (strike("strike-red"),     rows(RED, "deletes"), deletes_in(IN_RED, "strike-red")),
]  # fmt: skip


@pytest.mark.parametrize(("others", "operation", "expected"), PRECISE)
def test_c3a_with_precise_deletes(others: JSON, operation: JSON, expected: str) -> None:
    assert said("C3a", operation, others, precise=True) == expected
    assert said("C3a", operation, others).startswith("Found new conflicting delete files")


C3B = [
    (strike("strike-red"),       cow("deletes"),                     STRUCK),
    (strike("strike-any-red"),   cow("deletes"),                     STRUCK),
    (strike("strike-blue"),      cow("deletes"),                     "clear of 1"),
    (strike("strike-red"),       cow("deletes", BLUE),               "clear of 0"),
    (strike("strike-red"),       cow(),                              "not asked"),
    (strike("strike-red"),       delta("deletes", remove=["red"]),   STRUCK),
    # Equality deletes: of the file's partition or of an unpartitioned spec, and only where ranges meet.
    (strike("strike-ids"),       cow("deletes"),                     STRUCK),
    (strike("strike-all"),       cow("deletes"),                     STRUCK),
    (strike("strike-other-ids"), cow("deletes"),                     "clear of 1"),
    # Compaction always asks. If its files keep the old number, newer equality deletes still apply to them.
    (strike("strike-red"),       compaction(),                       STRUCK),
    (strike("strike-ids"),       compaction(),                       STRUCK),
    (strike("strike-ids"),       compaction(sequence_number=1),      "clear of 1"),
    (strike("strike-red"),       compaction(sequence_number=1),      STRUCK_BY_POSITION),
]  # fmt: skip


@pytest.mark.parametrize(("others", "operation", "expected"), C3B)
def test_c3b_no_new_deletes_for_removed(others: JSON, operation: JSON, expected: str) -> None:
    assert said("C3b", operation, others) == expected


def test_c3b_keeps_an_index_for_each_snapshot() -> None:
    """One vector may supersede another between the start and the head; in one index the two would be corrupt."""
    anew = op("row-delta", start=2, add_deletes=["vector-red-2"], remove_deletes=["vector-red"])
    attempt = held(cow("deletes", remove=["blue"]), strike("vector-red"), anew, format_version=3)
    indexes = attempt.new_deletes(None)
    assert [[short(live.path) for live in index.files] for index in indexes] == [["vector-red-2"], ["vector-red"]]
    assert verdicts(attempt)["C3b"] == "clear of 2"


C4 = [
    (OVERWRITE_RED, delta(references=["red"]),            GONE),
    (COMPACT_RED,   delta(references=["red"]),            GONE),
    # Spark's DELETE doesn't mind that the rows are gone already; its UPDATE does.
    (DELETE_RED,    delta(references=["red"]),            "clear of 0"),
    (DELETE_RED,    delta("deleted", references=["red"]), GONE),
    (OVERWRITE_RED, delta(references=["blue"]),           "clear of 1"),
    # A manifest that the filter excludes is one thing looked at: that of what was added, and that of what remains.
    (OVERWRITE_RED, delta("", BLUE, references=["red"]),  "clear of 2"),
    (OVERWRITE_RED, delta(),                              "not asked"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "operation", "expected"), C4)
def test_c4_referenced_files_exist(others: JSON, operation: JSON, expected: str) -> None:
    assert said("C4", operation, others) == expected


FOUND = "Found concurrently added DV for red: DV{location=vector-red, offset=4, length=40, referencedDataFile=red}"
C5 = [
    (strike("vector-red"),  delta(add_deletes=["my-vector-red"]),           FOUND),
    (upsert("vector-red"),  delta(add_deletes=["my-vector-red"]),           FOUND),
    (strike("vector-blue"), delta(add_deletes=["my-vector-red"]),           "clear of 1"),
    (strike("vector-red"),  delta("", BLUE, add_deletes=["my-vector-red"]), "clear of 0"),
    (strike("vector-red"),  delta(add=["red-mine"]),                        "not asked"),
]  # fmt: skip


@pytest.mark.parametrize(("others", "operation", "expected"), C5)
def test_c5_no_added_vectors(others: JSON, operation: JSON, expected: str) -> None:
    assert said("C5", operation, others, format_version=3) == expected


BACK = rollback(1)


def no_way(start: object, last: int) -> str:
    return f"Cannot determine history between starting snapshot {start} and the last known ancestor {last}"


HISTORY = [
    # The start has to be an ancestor of the head; only row deltas ask for that by itself.
    ("ancestry", [ADD_RED],                         delta(),                 "clear of 1"),
    ("ancestry", [ADD_RED, BACK, ADD_RED],          delta(start=2),          "Snapshot 2 is not an ancestor of 4"),
    ("ancestry", [ADD_RED],                         delta(start=None),       "not asked"),
    # The walk from the head has to end at the start, or at the root if there is none …
    ("history",  [ADD_RED, BACK, ADD_BLUE],         cow("data", start=2),    no_way(2, 1)),
    ("history",  [ADD_RED, expire(1)],              cow("data", start=None), no_way("null", 2)),
    # … where an expired start is as good as a live one while the snapshot after it is there.
    ("C1",       [ADD_RED, expire(1)],              cow("data", BLUE),       "clear of 1"),
    ("history",  [ADD_RED, ADD_BLUE, expire(1, 2)], cow("data", BLUE),       no_way(1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "others", "operation", "expected"), HISTORY)
def test_ancestry_and_history(rule: str, others: list[JSON], operation: JSON, expected: str) -> None:
    assert said(rule, operation, *others) == expected


MISMATCH = f"Cannot append file with rows that do not match filter: {IN_RED}: blue-new"
TWO_SPECS = "Cannot return a single partition spec: data files with different partition specs have been added"
NO_SPEC = "Cannot determine partition specs: no data files have been added"
EMPTY = "Files to delete cannot be empty"
BOTH = "Cannot delete data files [red] that are referenced by new delete files"
NO_DATA = "Data files to add must be empty because there's no data file to be rewritten"
NO_DELETES = "Delete files to add must be empty because there's no delete file to be rewritten"
IN_ITSELF = [
    ("match-filter",           rows(RED, "match", add=["red-mine"]),                    "clear of 1"),
    ("match-filter",           rows(RED, "", add=["red-mine"]),                         "not asked"),
    ("match-filter",           rows(RED, "match", add=["red-mine", "blue-new"]),        MISMATCH),
    ("mixed-specs",            rows(RED, "match", add=["red-mine", "red-other-spec"]),  TWO_SPECS),
    ("mixed-specs",            rows(RED, "match"),                                      NO_SPEC),
    ("removed-and-referenced", delta(remove=["red"], references=["red"]),               BOTH),
    ("removed-and-referenced", delta(remove=["red"], references=["blue"]),              "clear of 1"),
    ("arguments",              compaction(),                                            "clear of 0"),
    ("arguments",              compaction(remove=[]),                                   EMPTY),
    ("arguments",              compaction(remove=[], remove_deletes=["strike-red"]),    NO_DATA),
    ("arguments",              compaction(add_deletes=["strike-red"]),                  NO_DELETES),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "operation", "expected"), IN_ITSELF)
def test_what_an_operation_must_be_in_itself(rule: str, operation: JSON, expected: str) -> None:
    assert said(rule, operation, ADD_RED) == expected


def test_the_first_rule_that_objects_decides() -> None:
    """Overwritten, a row delta could be refused three times; the order of `RULES_OF` says that it is C4 that speaks."""
    attempt = held(delta("data deletes", references=["red"]), OVERWRITE_RED, upsert("strike-blue"))
    asked: list[str] = []
    conflict = judge(attempt, lambda rule, _: asked.append(rule))
    assert (asked, told(conflict)) == (["ancestry", "C4"], GONE)
    assert [rule for rule, text in verdicts(attempt).items() if text.startswith("Found")] == ["C1", "C3a"]


def test_a_conflict_names_the_files_and_the_snapshots_that_brought_them() -> None:
    conflict = judge(held(delta("data", RED), ADD_BLUE, ADD_RED))
    assert isinstance(conflict, Conflict)
    assert (conflict.rule, conflict.error, conflict.snapshots) == ("C1", "ValidationException", (3,))
    assert [short(path) for path in conflict.paths] == ["red-new"]


def test_every_rule_has_an_id_of_the_list_and_stands_once() -> None:
    used = [rule for rules in RULES_OF.values() for rule, _ in rules]
    assert set(used) <= set(RULES)
    assert len(set(RULES)) == len(RULES)
    assert all(len(dict(rules)) == len(rules) for rules in RULES_OF.values())


# ── What a rule asks for ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rule_asks_only_for_what_can_matter() -> None:
    """C1 wants the lists of snapshots that add data, then manifests that the filter may match: no deletes, no blue."""
    others = (ADD_BLUE, strike("strike-red"), COMPACT_RED | {"remove": ["blue"], "add": ["blue-new"]}, ADD_RED)
    attempt = held(delta("data deletes", RED), *others)
    assert asked_for(attempt, "C1") == (data_in(IN_RED, "red-new"), ["snap-5-1", "snap-2-1", "w5-m0"])
    assert asked_for(attempt, "C3a") == (deletes_in(IN_RED, "strike-red"), ["snap-3-1", "w3-m0"])
    assert asked_for(attempt, "ancestry") == ("clear of 1", [])


# ── Partitions ───────────────────────────────────────────────────────────────────────────────────────────────────────

SPECS = specs_of(
    [{"column": "category", "transform": "identity"}, {"column": "amount", "transform": "identity"}],
    [{"column": "category", "transform": "identity"}],
    [{"column": "category", "transform": "void"}],
    [],
)


@pytest.mark.parametrize(
    ("partitions", "text"),
    [
        ([], "[]"),
        ([(1, ("x",))], "[category=x]"),
        ([(1, (None,))], "[category=null]"),
        ([(0, ("x", 5))], "[category=x, amount=5]"),
        ([(1, ("x",)), (1, ("y",)), (1, ("x",))], "[category=x, category=y]"),
        ([(1, ("z",)), (0, ("x", 5))], "[category=x, amount=5, category=z]"),
    ],
)
def test_partition_sets_read_as_in_icebergs_messages(partitions: list[Any], text: str) -> None:
    assert PartitionSet(partitions, SPECS).text == text


def test_a_partition_belongs_to_its_spec() -> None:
    partitions = PartitionSet([(1, ("x",))], SPECS)
    assert partitions.has(1, ("x",))
    assert not partitions.has(2, ("x",))
    assert not partitions.has(1, ("y",))


def test_void_fields_do_not_partition() -> None:
    assert [is_unpartitioned(SPECS[each]) for each in SPECS] == [False, False, True, True]


def test_replacing_an_unpartitioned_table_replaces_everything() -> None:
    assert said("C1", replacement("data", add="anything"), ADD_BLUE) == data_in("true", "blue-new")
