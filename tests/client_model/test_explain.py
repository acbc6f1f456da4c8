"""Conflicts in plain words, replays as people look at them, and two changes held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icetower.errors import BadRequest
from icetower.iceberg.change import Change, change_of, diff_lists
from icetower.iceberg.entries import Files, NeedsFile
from icetower.iceberg.expressions import TRUE, Expression, text
from icetower.iceberg.manifests import read_manifest, read_manifest_list
from icetower.iceberg.validation import Level
from icetower.protocol.snapshots import Snapshot
from icetower.table.head import HeadState
from icetower_client_model import cases
from icetower_client_model.checks import RULES, Conflict
from icetower_client_model.coexist import DEPENDS, comparison_of, operation_of, touched_partitions, verdicts_by_level
from icetower_client_model.explain import DESCRIBED, Names, explain
from icetower_client_model.figures import FIGURES, LISTED
from icetower_client_model.isolation import Command
from icetower_client_model.replay import Replay
from icetower_client_model.sketch import BY_CATEGORY, append, begin, case, commit, data, op, positions, use_spec, write
from icetower_client_model.timeline import timeline
from tests.iceberg.manifest_fixtures import java_table

NONE, SNAPSHOT, SERIALIZABLE = Level
Rules = tuple[str, str, str]


# ── Words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_rule_has_words() -> None:
    assert set(RULES) | {DEPENDS} == DESCRIBED


@pytest.mark.parametrize("rule", sorted(DESCRIBED))
def test_words_are_sentences_without_blanks(rule: str) -> None:
    told = explain(Conflict(rule, "ValidationException", "Iceberg's own", ("x/a.parquet",), (7,)), Names())
    for sentence in (told.what, told.why, told.next):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "{" not in sentence
        assert "  " not in sentence
    assert (told.rule, told.iceberg) == (rule, "Iceberg's own")


def test_words_name_the_file_and_who_did_it() -> None:
    conflict = Conflict("C4", "ValidationException", "", ("s3://b/t/data/a.parquet",), (7,))
    told = explain(conflict, Names({7: "the nightly compaction"}))
    assert told.what == "The nightly compaction removed a.parquet, and the new delete files are for rows in it."
    assert explain(conflict, Names()).what.startswith("Snapshot 7 removed a.parquet")


def test_many_files_are_counted() -> None:
    conflict = Conflict("C6", "ValidationException", "", tuple(f"d/{name}" for name in "abcde"))
    assert (
        explain(conflict, Names()).what == "This commit replaces a, b, c and 2 more, which are no longer in the table."
    )


def test_a_rule_that_nobody_has_described_is_told_in_icebergs_words() -> None:
    told = explain(Conflict("C99", "ValidationException", "Something new."), Names())
    assert told.what == "Iceberg refuses the commit: something new."
    assert "C99" in told.why


@pytest.mark.parametrize("name", [item.name for item in LISTED.values() if item.rule])
def test_every_listed_refusal_is_explained(name: str) -> None:
    refused = [lane for lane in timeline(LISTED[name].case).lanes if lane.explanation is not None]
    assert [lane.explanation.rule for lane in refused if lane.explanation] == [LISTED[name].rule]


# ── Replays ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def course(name: str) -> list[tuple[int | None, str, str, str]]:
    figure = FIGURES[name]
    moments = timeline(figure.case, people=figure.people, figure=figure).moments
    return [(m.writer, " ".join(m.did), m.ended, " ".join(m.sight.data) if m.sight else "") for m in moments]


def test_the_course_of_a_lost_swap() -> None:
    assert course("3") == [
        (1, "reads checks swaps", "committed", "data-1 data-2"),
        (2, "reads", "", ""),
        (3, "reads checks", "", ""),
        (2, "checks swaps", "committed", "data-2 data-3"),
        (3, "loses the swap checks swaps", "committed", "data-3 data-4"),
    ]


def test_a_refusal_says_who_is_in_the_way() -> None:
    figure = FIGURES["5"]
    lane = timeline(figure.case, people=figure.people, figure=figure).lanes[-1]
    assert (lane.name, lane.verdict, lane.attempts) == ("Writer 2", "refused", 2)
    assert lane.explanation is not None
    assert lane.explanation.what == (
        "This commit replaces data-1, which is no longer in the table, removed by Writer 1."
    )


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("7", ("jack, pink", "sarah, blue", "jack, red", "sarah, black")),
        ("11", ("sarah, blue",)),
        ("12", ("sarah, blue", "sarah, black")),
        ("undelete", ("sarah, cherry", "jack, banana")),
    ],
)
def test_the_rows_that_are_left(name: str, rows: tuple[str, ...]) -> None:
    assert timeline(FIGURES[name].case, figure=FIGURES[name]).end.rows == rows


def test_a_rollback_and_a_writer_who_never_commits_are_told() -> None:
    files = {"A": data(), "B": data()}
    steps = (append(1, "A"), append(2, "B"), {"do": "rollback", "to": 1}, begin(3, op("append", add=["B"])))
    told = timeline(case(files, *steps))
    assert [(m.writer, m.did) for m in told.moments[2:]] == [(None, ("rollback to 1",)), (3, ("reads",))]
    assert [lane.verdict for lane in told.lanes] == ["committed", "committed", "unfinished"]
    assert told.end.data == ("A",)


# ── Two changes ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Table:
    """A table whose snapshots can be held against each other."""

    def __init__(self, head: HeadState, files: Files) -> None:
        self.head = head
        self.files = files

    def change(self, snapshot_id: int) -> Change:
        snapshot = self.head.snapshots[snapshot_id]
        parent = self.head.snapshots.get(Snapshot(snapshot).parent_id or 0)
        diff = diff_lists(self.files.rows(parent) if parent else (), self.files.rows(snapshot))
        return change_of(snapshot, diff, self.files.manifests)

    def rules(self, earlier: int, later: int, where: Expression = TRUE) -> Rules:
        """The rule that refuses at each level; empty where both may stand."""
        change = self.change(later)
        comparison = comparison_of(self.head, earlier, later)
        said = verdicts_by_level(self.head, self.files, change, operation_of(change), comparison, Names(), where)
        none, snapshot, serializable = (each.conflict.rule if each.conflict else "" for each in said)
        return none, snapshot, serializable


def replayed(life: dict[str, Any]) -> Table:
    run = Replay(cases.parse(life))
    run.run()
    return Table(run.head, run.files)


def by_java(name: str) -> Table:
    saved = java_table(name)
    lists = {s["manifest-list"]: saved.rows(s) for s in saved.metadata["snapshots"]}
    manifests = {row.path: saved.manifest(row) for rows in lists.values() for row in rows}
    return Table(HeadState("", saved.metadata), Files(lists, manifests))


@pytest.mark.parametrize(
    ("table", "commands"),
    [
        ("cow", ["append"] * 3 + ["copy-on-write"] * 3),
        ("mor", ["append", "merge", "delete", "append", "delete"]),
        ("kinds", ["append", "append"]),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_the_command_is_guessed_from_what_iceberg_has_written(table: str, commands: list[str], version: int) -> None:
    changes = [change for _, change in java_table(f"java_v{version}_{table}").changes()]
    assert [operation_of(change).command for change in changes] == commands


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("table", "earlier", "later", "without_filter", "with_filter"),
    [
        ("cow", 2, 3, ("", "", ""), ("", "", "")),
        ("cow", 2, 4, ("", "", "C1"), ("", "", "")),
        ("cow", 4, 5, ("", "", "C1"), ("", "", "")),
        ("cow", 5, 6, ("", "", ""), ("", "", "")),
        ("cow", 1, 4, (DEPENDS,) * 3, (DEPENDS,) * 3),
        ("mor", 4, 5, ("", "", "C1"), ("", "", "")),
        ("mor", 2, 3, (DEPENDS,) * 3, (DEPENDS,) * 3),
    ],
)
def test_snapshots_that_iceberg_has_written(
    table: str, version: int, earlier: int, later: int, without_filter: Rules, with_filter: Rules
) -> None:
    found = by_java(f"java_v{version}_{table}")
    ids = sorted(found.head.snapshots, key=lambda each: found.head.snapshots[each]["sequence-number"])
    first, second = ids[earlier - 1], ids[later - 1]
    assert found.rules(first, second) == without_filter
    where = touched_partitions(found.change(second), found.head)
    assert found.rules(first, second, where) == with_filter


def test_the_undelete_anomaly_is_found_in_the_table() -> None:
    assert replayed(FIGURES["undelete"].case).rules(2, 3) == ("", "", "C1")


def test_an_update_after_a_delete_brings_a_row_back() -> None:
    files = {"A": data(ids=(1, 5)), "B": data(ids=(1, 5)), "P": positions(of="A"), "Q": positions(of="A")}
    delete, update = op("row-delta", add_deletes=["P"]), op("row-delta", add=["B"], add_deletes=["Q"])
    table = replayed(case(files, append(1, "A"), write(2, delete), write(3, update)))
    assert table.rules(2, 3) == ("", "C3a", "C3a")


def test_two_branches_that_part_from_one_snapshot() -> None:
    files = {"A": data(), "B": data(), "C": data()}
    main = op("overwrite", remove=["A"], add=["B"])
    other = op("overwrite", remove=["A"], add=["C"], branch="b")
    steps = (append(1, "A"), begin(2, main), begin(3, other), commit(3), commit(2))
    table = replayed(case(files, *steps))
    assert table.rules(2, 3) == ("", "C6", "C1")
    change, names = table.change(3), Names()
    said = verdicts_by_level(
        table.head, table.files, change, operation_of(change), comparison_of(table.head, 2, 3), names
    )
    assert said[1].conflict is not None
    assert said[1].conflict.snapshots == (2,)


@pytest.mark.parametrize("earlier", [op("rewrite", remove=["A"], add=["B"]), op("overwrite", remove=["A"], add=["B"])])
@pytest.mark.parametrize("rows", [[], ["C"]])
@pytest.mark.parametrize("place", ["A", "Z"])
def test_deletes_of_a_partition_may_be_about_what_has_gone(
    earlier: dict[str, Any], rows: list[str], place: str
) -> None:
    """They name no data file, but the engine that wrote them did: Iceberg would have refused them by C4."""
    files = {"A": data("A"), "B": data("A"), "C": data("C"), "P": positions(place)}
    deletes = op("row-delta", add=rows, add_deletes=["P"], branch="b")
    steps = (append(1, "A"), begin(2, earlier), begin(3, deletes), commit(3), commit(2))
    table = replayed(case(files, *steps, specs=BY_CATEGORY))
    refused = "C4" if place == "A" else ""
    assert table.rules(2, 3)[:2] == ("", refused)
    assert operation_of(table.change(3)).because.endswith(
        "; its position deletes may be about any file of their partitions"
    )


def test_a_partition_of_a_column_that_is_gone_narrows_nothing() -> None:
    """Another column may have its name by now."""
    files = {"A": data("a"), "B": data("b")}
    steps = (append(1, "A"), append(2, "B"), use_spec(1))
    table = replayed(case(files, *steps, specs=[*BY_CATEGORY, []]))
    assert text(touched_partitions(table.change(2), table.head)) == 'ref(name="category") == "b"'
    (schema,) = table.head.metadata["schemas"]
    dropped = [column for column in schema["fields"] if column["name"] != "category"]
    for now in (dropped, [*dropped, {"id": 9, "name": "category", "type": "string", "required": False}]):
        later = {**schema, "schema-id": 1, "fields": now}
        head = HeadState("", {**table.head.metadata, "schemas": [schema, later], "current-schema-id": 1})
        assert touched_partitions(table.change(2), head) == TRUE


@pytest.mark.parametrize(
    ("life", "command", "words"),
    [
        (op("rewrite", remove=["A"], add=["B"]), Command.COMPACTION, "replaces files"),
        (op("rewrite-manifests", cluster_by="all"), None, "replaces no files"),
        (op("replace-partitions", add=["B"]), Command.COPY_ON_WRITE, "copy-on-write"),
        (op("delete", remove=["A"]), Command.COPY_ON_WRITE, "copy-on-write"),
        (op("row-delta", add=["B"]), Command.APPEND, "only adds"),
        (op("overwrite", remove=["B"], add=["C"]), Command.COPY_ON_WRITE, "was not there"),
    ],
)
def test_what_a_snapshot_looks_like(life: dict[str, Any], command: Command | None, words: str) -> None:
    files = {"A": data(), "B": data(), "C": data()}
    guess = operation_of(replayed(case(files, append(1, "A"), write(2, life))).change(2))
    assert guess.command == command
    assert words in guess.because


def test_a_guess_goes_by_the_summary_where_only_that_can_tell() -> None:
    files = {"A": data(), "B": data(), "E": positions()}
    table = replayed(case(files, append(1, "A"), write(2, op("row-delta", add=["B"], add_deletes=["E"]))))
    snapshot = dict(table.head.snapshots[2])
    change = table.change(2)
    for mark, command in (
        ({}, "merge"),
        ({"flink.job-id": "7"}, "upsert"),
        ({"replace-partitions": "true"}, "overwrite-partitions"),
    ):
        marked = {**snapshot, "summary": {**snapshot["summary"], **mark}}
        moved = Change(**{name: getattr(change, name) for name in Change.__slots__} | {"snapshot": Snapshot(marked)})
        assert operation_of(moved).command == command


def test_a_compaction_that_keeps_the_number_is_known_by_it() -> None:
    files = {"A": data(), "B": data()}
    table = replayed(case(files, append(1, "A"), write(2, op("rewrite", remove=["A"], add=["B"], sequence_number=1))))
    assert operation_of(table.change(2)).operation.data_sequence_number == 1


@pytest.mark.parametrize(
    ("earlier", "later", "words"),
    [
        (2, 9, "the table has no snapshot 9"),
        (2, 2, "is one change, not two"),
        (3, 2, "snapshot 2 came before 3: swap the two"),
        (2, 1, "snapshot 1 came before 2: swap the two"),
        (2, 5, "on two branches, and 5 is not the first snapshot after the fork"),
    ],
)
def test_snapshots_that_do_not_meet(earlier: int, later: int, words: str) -> None:
    files = {name: data() for name in "ABCDE"}
    side = [begin(n, op("append", add=[name], branch="b")) for n, name in ((4, "D"), (5, "E"))]
    steps = (append(1, "A"), side[0], commit(4), append(2, "B"), append(3, "C"), side[1], commit(5))
    with pytest.raises(BadRequest, match=words):
        comparison_of(replayed(case(files, *steps)).head, earlier, later)


def test_a_filter_of_the_partitions_that_are_touched() -> None:
    found = by_java("java_v2_cow")
    ids = sorted(found.head.snapshots, key=lambda each: found.head.snapshots[each]["sequence-number"])
    assert text(touched_partitions(found.change(ids[3]), found.head)) == 'ref(name="day") == 17167'
    kinds = by_java("java_v2_kinds")
    first = min(kinds.head.snapshots.values(), key=lambda each: each["sequence-number"])["snapshot-id"]
    shown = text(touched_partitions(kinds.change(first), kinds.head))
    assert 'is_null(ref(name="d"))' in shown
    assert 'is_nan(ref(name="d"))' in shown


def test_what_is_missing_is_asked_for() -> None:
    saved = java_table("java_v2_cow")
    head = HeadState("", saved.metadata)
    lists: dict[str, Any] = {}
    manifests: dict[str, Any] = {}
    changes = [change for _, change in saved.changes()]
    earlier, later = (changes[at].snapshot["snapshot-id"] for at in (2, 3))
    wanted: list[str] = []
    for _ in range(50):
        try:
            said = verdicts_by_level(
                head,
                Files(lists, manifests),
                changes[3],
                operation_of(changes[3]),
                comparison_of(head, earlier, later),
                Names(),
            )
            break
        except NeedsFile as need:
            wanted.append(need.path)
            raw = saved.files[Path(need.path).name]
            if need.is_list:
                lists[need.path] = read_manifest_list(raw)
            else:
                manifests[need.path] = read_manifest(raw)
    else:
        pytest.fail("it never stops asking")
    assert len(wanted) == len(set(wanted)) >= 2
    assert [each.conflict.rule if each.conflict else "" for each in said] == ["", "", "C1"]
