"""What a commit does to the head's manifests: files taken out, C6 and C7, merging, and what a writer remembers.

A manifest is shown by its entries: ``+A`` added, ``=A`` existing, ``-A`` deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from icetower.iceberg.entries import Files, NeedsFile
from icetower.iceberg.manifest_writing import row_of
from icetower.iceberg.validation import Conflict
from icetower_client_model import cases
from icetower_client_model.cases import OperationOf
from icetower_client_model.producer import Draft, Producer, bins
from icetower_client_model.replay import Replay, operation_of_case
from icetower_client_model.sketch import (
    BY_CATEGORY,
    FAIL,
    append,
    begin,
    case,
    commit,
    data,
    eq,
    equalities,
    op,
    positions,
    upgrade,
    use_spec,
    vector,
    write,
)
from tests.client_model.rule_world import short

JSON = dict[str, Any]
APART = {"commit.manifest-merge.enabled": "false"}
RED = eq("category", "red")


def low(limit: int) -> JSON:
    return {"type": "lt", "term": "id", "value": limit}


def run(files: JSON, *steps: JSON, **life: Any) -> Replay:
    """A life, lived to its end."""
    found = Replay(cases.parse(case(files, *steps, **{"specs": BY_CATEGORY, "properties": APART, **life})))
    outcome = found.run()
    assert not outcome["failures"]
    return found


def manifests(replay: Replay, branch: str = "main") -> str:
    """The head's manifests, data before deletes, each in brackets."""
    (snapshot,) = (each for each in replay.metadata["snapshots"] if each["snapshot-id"] == replay.head.ref(branch))
    rows = sorted(replay.files.rows(snapshot), key=lambda row: row.content)
    return " ".join(
        f"[{' '.join('=+-'[live.status] + short(live.path) for live in replay.files.entries(row))}]" for row in rows
    )


def said(replay: Replay, writer: int) -> str:
    """What became of a writer: the operation's name, or Iceberg's text."""
    conflict = replay.conflicts.get(writer)
    if conflict is not None:
        return short(conflict.message)
    return next(e.what for e in reversed(replay.events) if e.writer == writer)


# ── Taking out ───────────────────────────────────────────────────────────────────────────────────────────────────────

FILES: JSON = {
    "A": data("red", ids=(1, 2)),
    "B": data("red", ids=(3, 9)),
    "C": data("blue", ids=(3, 9)),
    "N": data("red"),
}
TAKEN = [
    # operation                                        the head's manifests afterwards, [+A +B] [+C] before
    (op("delete", remove=["A"]),                       "[+C] [-A =B]"),
    (op("delete", remove=["A", "B"]),                  "[+C] [-A -B]"),
    (op("delete", remove_paths=["C"]),                 "[-C] [+A +B]"),
    (op("delete", filter=RED),                         "[+C] [-A -B]"),
    (op("delete", filter=low(3)),                      "[+C] [-A =B]"),
    (op("delete", filter=False),                       "[+C] [+A +B]"),
    (op("overwrite", remove=["C"], add=["N"]),         "[+N] [-C] [+A +B]"),
    (op("replace-partitions", add=["N"]),              "[+N] [+C] [-A -B]"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "expected"), TAKEN)
def test_files_are_taken_out_of_the_manifests_that_hold_them(operation: JSON, expected: str) -> None:
    assert manifests(run(FILES, append(1, "A", "B"), append(2, "C"), write(3, operation))) == expected


def test_manifests_without_live_files_go_with_the_next_commit() -> None:
    steps = (append(1, "A", "B"), append(2, "C"), write(3, op("delete", filter=RED)))
    assert manifests(run(FILES, *steps, append(4, "N"))) == "[+N] [+C]"
    assert manifests(run(FILES, *steps, write(4, op("fast-append", add=["N"])))) == "[+N] [+C] [-A -B]"


C6 = [
    # operation                                                                     is asked for a file that is gone
    (op("overwrite", remove=["A"]),                                                 False),
    (op("overwrite", remove=["A"], validate=["no-conflicting-data"]),               True),
    (op("overwrite", remove=["A"], validate=["no-conflicting-deletes"]),            True),
    (op("overwrite", remove=["A"], add=["N"], validate=["added-files-match-filter"], filter=True), False),
    (op("rewrite", remove=["A"], add=["N"]),                                        True),
    (op("row-delta", remove=["A"]),                                                 False),
    (op("row-delta", remove=["A"], validate=["no-conflicting-deletes"]),            False),
    (op("row-delta", remove=["A"], validate=["deleted-files"]),                     True),
    (op("delete", remove=["A"]),                                                    False),
    (op("delete", remove=["A"], validate=["files-exist"]),                          True),
    (op("delete", remove_paths=["A"]),                                              False),
    (op("delete", remove_paths=["A"], validate=["files-exist"]),                    True),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "asked"), C6)
def test_c6_missing_files(operation: JSON, asked: bool) -> None:
    def verdict(start: int, *before: JSON) -> str:
        mine = operation if operation["kind"] == "delete" else {**operation, "start": start}
        return said(run(FILES, append(1, "A", "B"), *before, write(3, mine)), 3)

    gone = verdict(2, write(2, op("delete", remove=["A"])))
    assert gone == ("Missing required files to delete: A" if asked else "committed")
    assert verdict(1) == "committed"


PARTLY = 'Cannot delete file where some, but not all, rows match filter ref(name="id") < {}: B'
C7 = [
    # filter                     what becomes of A (ids 1 to 2), B (3 to 9), and E, equality deletes of ids 1 to 9
    (low(1),                     "[+A +B] [+E]"),
    (low(3),                     "[-A =B] [+E]"),
    (low(5),                     PARTLY.format(5)),
    (low(10),                    "[-A -B] [-E]"),
    (RED,                        "[-A -B] [-E]"),
    (eq("category", "blue"),     "[+A +B] [+E]"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["delete", "overwrite"])
@pytest.mark.parametrize(("where", "expected"), C7)
def test_c7_all_rows_of_a_file_or_none(kind: str, where: Any, expected: str) -> None:
    """Delete files of which some rows match just stay. C7 is always on."""
    files = {**FILES, "E": equalities("red", ids=(1, 9))}
    steps = (append(1, "A", "B"), write(2, op("row-delta", add_deletes=["E"])), write(3, op(kind, filter=where)))
    found = run(files, *steps)
    assert expected == (said(found, 3) if found.conflicts else manifests(found))


def test_a_replacement_that_may_only_append_finds_the_partition_in_use() -> None:
    mine = op("replace-partitions", add=["N"], validate=["append-only"])
    conflict = "Cannot commit file that conflicts with existing partition: category=red"
    assert said(run(FILES, append(1, "A"), write(2, mine)), 2) == conflict
    assert said(run(FILES, append(1, "C"), write(2, mine)), 2) == "committed"


# ── Delete files that nobody needs any more ──────────────────────────────────────────────────────────────────────────


def test_deletion_vectors_go_with_their_data_files() -> None:
    files = {**FILES, "V": vector("A", "red"), "W": vector("B", "red")}
    steps = (append(1, "A", "B"), write(2, op("row-delta", add_deletes=["V", "W"])))
    assert manifests(run(files, *steps, write(3, op("delete", remove=["A"])), format_version=3)) == "[-A =B] [-V =W]"


def test_position_deletes_stay_behind_until_they_are_too_old() -> None:
    """Old: with a smaller sequence number than all live data. And then only out of manifests that are opened anyway."""
    files = {**FILES, "P": positions("red", of="A"), "Q": positions("red", of="N"), "R": positions("blue")}
    steps = [append(1, "A"), write(2, op("row-delta", add_deletes=["P", "R"]))]
    steps += [write(3, op("overwrite", remove=["A"], add=["N"])), write(4, op("row-delta", add_deletes=["Q"]))]
    assert manifests(run(files, *steps)) == "[+N] [+Q] [+P +R]"
    anew = write(5, op("row-delta", remove_deletes=["Q"]))
    assert manifests(run(files, *steps, anew)) == "[+N] [-Q] [+P +R]", "the other manifest was not opened"
    merged = {"commit.manifest.min-count-to-merge": "2"}
    assert manifests(run(files, *steps, anew, properties=merged)) == "[+N -A] [-Q -P -R]"


# ── What is read ─────────────────────────────────────────────────────────────────────────────────────────────────────


def opened(operation: JSON, *steps: JSON) -> list[str]:
    """The data files whose manifests are read for a first attempt, if each is given only when asked for."""
    before = run(FILES, *steps)
    asked = operation_of_case(before.case, OperationOf.model_validate(operation), before.head, before.files)
    lists = before.files.lists
    given: JSON = {}
    found: list[str] = []
    while True:
        paths = (f"m{n}" for n in count())
        producer = Producer(asked, 9, before.head, lambda paths=paths: next(paths))
        try:
            producer.attempt(before.head, Files(lists, given), list_path="list", now_ms=0)
        except NeedsFile as needs:
            given[needs.path] = before.files.manifests[needs.path]
            found += (short(entry.file.path) for entry in given[needs.path].entries)
        else:
            return found


OPENED = [
    # The file says in which manifest it was read: no other is looked at, and this one is written anew.
    (op("delete", remove=["A"]),                              ["A"]),
    (op("delete", remove=["A", "C"]),                         ["C", "A"]),
    # A file that a writer describes by itself may be in any manifest of its partition, a path anywhere.
    (op("delete", remove=[{"file": "A", "from": "built"}]),   ["B", "A"]),
    (op("delete", remove_paths=["A"]),                        ["B", "C", "A"]),
    (op("delete", filter=RED),                                ["B", "A"]),
    (op("replace-partitions", add=["N"]),                     ["B", "A"]),
    (op("append", add=["N"]),                                 []),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "expected"), OPENED)
def test_only_manifests_that_can_hold_what_goes_are_opened(operation: JSON, expected: list[str]) -> None:
    assert opened(operation, append(1, "A"), append(2, "C"), append(3, "B")) == expected


# ── Retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_an_attempt_found_has_to_be_there_in_the_next() -> None:
    """Gone before the first attempt, the filter never finds it, and nothing is missing."""
    mine = op("overwrite", filter=RED, add=["N"], start=1, validate=["no-conflicting-data"])
    steps = (append(1, "A", "C"), begin(3, mine), begin(2, op("delete", remove=["A"])))
    assert said(run(FILES, *steps, commit(2), commit(3)), 3) == "committed"
    assert said(run(FILES, *steps, commit(3, [commit(2)])), 3) == "Missing required files to delete: A"


def test_filtered_manifests_are_kept_for_the_next_attempt() -> None:
    steps = (append(1, "A", "B"), begin(3, op("delete", filter=low(3))))
    effects = run(FILES, *steps, commit(3, [FAIL])).trace.effects
    assert (effects["filtered"], effects["filter-cache-hit"], effects["retry"]) == (1, 1, 1)
    meanwhile = run(FILES, *steps, commit(3, [append(2, "C")]))
    assert manifests(meanwhile) == "[+C] [-A =B]"
    assert meanwhile.trace.effects["filtered"] == 1, "the new manifest holds nothing to take out"


def test_a_filter_does_not_learn_of_new_specs() -> None:
    """A manifest of a spec that came after the writer began makes its removals fail, as in Iceberg."""
    files = {**FILES, "T": data("red", spec=1)}
    specs = (*BY_CATEGORY, [{"column": "category", "transform": "truncate[1]"}])
    steps = (append(1, "A"), begin(3, op("delete", filter=RED)), use_spec(1), write(2, op("fast-append", add=["T"])))
    found = run(files, *steps, commit(3), specs=specs)
    assert found.conflicts[3].rule == "unknown-spec"
    assert found.conflicts[3].error == "NullPointerException"


def test_the_format_is_looked_at_again_at_each_attempt() -> None:
    mine = op("row-delta", add_deletes=["P"])
    steps = (append(1, "A"), begin(2, mine), commit(2, [upgrade(3)]))
    found = run({**FILES, "P": positions("red", of="A")}, *steps)
    assert [event.what for event in found.events if event.writer == 2] == ["begin", "attempt", "lost", "refused"]
    assert said(found, 2) == "Must use DVs for position deletes in V3: P"


# ── Merging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def grouped(lengths: Sequence[int], target_bytes: int) -> str:
    """Manifests of these lengths in groups, as text."""
    row = row_of("m", 1, (), kinds=(), spec_id=0, content=0, snapshot_id=1, sequence_number=-1)
    rows = [replace(row, length_bytes=length) for length in lengths]
    return " | ".join(" ".join(str(each.length_bytes) for each in group) for group in bins(rows, target_bytes))


BINS = [
    # lengths          target  groups: filled from the end, so that the newest manifest is in the one with room left
    ([],               9,      ""),
    ([3],              9,      "3"),
    ([3, 3, 3],        9,      "3 3 3"),
    ([3, 3, 3, 3],     9,      "3 | 3 3 3"),
    ([1, 5, 5, 5],     9,      "1 5 | 5 | 5"),
    ([5, 5, 1],        9,      "5 | 5 1"),
    ([20, 1],          9,      "20 | 1"),
    ([1, 20],          9,      "1 | 20"),
    ([1, 1],           1,      "1 | 1"),
]  # fmt: skip


@pytest.mark.parametrize(("lengths", "target_bytes", "expected"), BINS)
def test_bins(lengths: list[int], target_bytes: int, expected: str) -> None:
    assert grouped(lengths, target_bytes) == expected


MERGED = [
    # min-count  the head's manifests after one, two, three, four appends
    ("2",        ["[+A]", "[+B =A]", "[+C =B =A]", "[+N =C =B =A]"]),
    ("3",        ["[+A]", "[+B] [+A]", "[+C =B =A]", "[+N] [+C =B =A]"]),
    ("4",        ["[+A]", "[+B] [+A]", "[+C] [+B] [+A]", "[+N =C =B =A]"]),
]  # fmt: skip


@pytest.mark.parametrize(("min_count", "expected"), MERGED)
def test_the_newest_manifests_wait_for_company(min_count: str, expected: list[str]) -> None:
    properties = {"commit.manifest.min-count-to-merge": min_count}
    steps = [append(number, name) for number, name in enumerate("ABCN", 1)]
    assert [manifests(run(FILES, *steps[:many], properties=properties)) for many in range(1, 5)] == expected


def test_merging_forgets_what_others_deleted() -> None:
    properties = {"commit.manifest.min-count-to-merge": "3"}
    steps = (append(1, "A", "B"), write(2, op("delete", remove=["A"])), append(3, "C"))
    assert manifests(run(FILES, *steps, properties=properties)) == "[+C] [-A =B]"
    assert manifests(run(FILES, *steps, append(4, "N"), properties=properties)) == "[+N =C =B]"


def test_each_spec_merges_by_itself_the_newest_first() -> None:
    specs = (*BY_CATEGORY, [])
    files = {"A": data("red"), "B": data("red"), "X": data(spec=1), "Y": data(spec=1)}
    steps = (append(1, "A"), append(2, "B"), use_spec(1), append(3, "X"), append(4, "Y"))
    properties = {"commit.manifest.min-count-to-merge": "2"}
    assert manifests(run(files, *steps, specs=specs, properties=properties)) == "[+Y =X] [+B =A]"


# ── Rewriting manifests ──────────────────────────────────────────────────────────────────────────────────────────────

SPREAD = (append(1, "A", "C"), append(2, "B"))
LAYOUTS = [
    ("all", "[=B =A =C]"),
    ("partition", "[=B =A] [=C]"),
    ("file", "[=B] [=A] [=C]"),
]


@pytest.mark.parametrize(("cluster_by", "expected"), LAYOUTS)
def test_manifests_are_laid_out_by_cluster(cluster_by: str, expected: str) -> None:
    assert manifests(run(FILES, *SPREAD, write(3, op("rewrite-manifests", cluster_by=cluster_by)))) == expected


RELAID = [
    # what comes between                        effect                 the head's manifests
    (append(4, "N"),                            "rewrite-reused",      "[=B =A] [=C] [+N]"),
    (write(4, op("delete", remove=["B"])),      "manifests-rewritten", "[=A] [=C]"),
]  # fmt: skip


@pytest.mark.parametrize(("between", "effect", "expected"), RELAID)
def test_a_rewrite_starts_again_only_if_what_it_read_is_gone(between: JSON, effect: str, expected: str) -> None:
    found = run(FILES, *SPREAD, begin(3, op("rewrite-manifests", cluster_by="partition")), commit(3, [between]))
    assert manifests(found) == expected
    assert found.trace.effects[effect] == (2 if effect == "manifests-rewritten" else 1)


def test_a_manifest_that_was_to_be_replaced_must_be_there() -> None:
    mine = op("rewrite-manifests", merge_manifests=[0, 1])
    assert manifests(run(FILES, *SPREAD, write(3, mine))) == "[=B =A =C]"
    found = run(FILES, *SPREAD, begin(3, mine), write(4, op("delete", remove=["B"])), commit(3))
    assert said(found, 3) == "Deleted manifest w2-m0 could not be found in the latest snapshot 4"


# ── What a draft holds ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_attempt_gives_all_that_a_commit_needs() -> None:
    before = run(FILES, append(1, "A"))
    asked = operation_of_case(before.case, OperationOf(kind="append", add=["C"]), before.head, before.files)
    paths = (f"m{n}" for n in count())
    draft = Producer(asked, 9, before.head, lambda: next(paths)).attempt(
        before.head, before.files, list_path="list", now_ms=5
    )
    assert isinstance(draft, Draft)
    assert draft.snapshot == {
        "snapshot-id": 9,
        "parent-snapshot-id": 1,
        "sequence-number": 2,
        "timestamp-ms": 5,
        "manifest-list": "list",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    assert [row.path for row in draft.rows] == ["m0", "mem://t/metadata/w1-m0.avro"]
    assert [row.sequence_number for row in draft.rows] == [2, 1]
    assert set(draft.manifests) == {"m0"}
    assert draft.branch == "main"


def test_a_conflict_makes_no_draft() -> None:
    before = run(FILES, append(1, "A"))
    mine = OperationOf(kind="delete", filter=eq("id", 1))
    asked = operation_of_case(before.case, mine, before.head, before.files)
    found = Producer(asked, 9, before.head, lambda: "m").attempt(before.head, before.files, list_path="l", now_ms=0)
    assert isinstance(found, Conflict)
    assert found.rule == "C7"
