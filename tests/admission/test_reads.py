"""What a commit declares to have read (trap R2): by its summary, or by its owner's contract."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from icetower.admission.read_scope import ReadScope, carried_over
from icetower.admission.reads import FILTER_CHARACTERS_MAX
from icetower.errors import BadRequest, ContractViolation
from icetower.iceberg.expressions import Always, Predicate
from icetower.iceberg.validation import Level
from icetower.protocol.snapshots import Snapshot
from icetower.registry.principals import administrator
from tests.admission.test_admit import FOREIGN, METADATA, A, B, ask, change, contract, file, refused, updates_of

DAY_0 = json.dumps({"type": "eq", "term": "day", "value": "1970-01-01"})
FREE = contract("overwrite")
PROMISING = contract("overwrite", extra="  read_scope: owned\n")


def words(level: str | None = None, filter_: str | None = None) -> dict[str, str]:
    given = {"icetower.isolation-level": level, "icetower.filter": filter_}
    return {name: text for name, text in given.items() if text is not None}


def scope(*summaries: dict[str, str], by: Any = FREE, **arguments: Any) -> ReadScope | None:
    changes = [change([A], [B], snapshot_id=8 + at, parent=7 + at, **said) for at, said in enumerate(summaries)]
    return ask(*changes, by=by, **arguments).read_scope


def test_r2_a_summary_gives_filter_and_level() -> None:
    filtered = Predicate("eq", "day", ("1970-01-01",))
    assert scope(words("serializable", DAY_0)) == ReadScope(Level.SERIALIZABLE, filtered, None, "summary")
    assert scope(words("SNAPSHOT", DAY_0)) == ReadScope(Level.SNAPSHOT, filtered, None, "summary")
    assert scope(words("snapshot")) == ReadScope(Level.SNAPSHOT, None, None, "summary")
    assert scope(words("serializable", "true")) == ReadScope(Level.SERIALIZABLE, Always(True), None, "summary")
    assert scope(words("snapshot"), by=administrator("root")) is not None
    assert scope({}) is None
    assert scope(words(None, DAY_0)) is None  # what was read, but not what isolation is owed


def test_r2_several_snapshots_of_a_commit_say_the_same_or_nothing_is_known() -> None:
    assert scope(words("snapshot"), words("snapshot")) is not None
    assert scope(words("snapshot"), {}) is None
    for other in (words("serializable", "true"), words("snapshot", DAY_0)):
        error = refused(change([A], [B], **words("snapshot")), change([A], snapshot_id=9, parent=8, **other), by=FREE)
        assert isinstance(error, BadRequest)
        assert (error.rule, error.status) == ("summary.reads", 400)


@pytest.mark.parametrize("said", ["", "x", "-1", "None", "1.5", "9" * 20])
def test_a_version_that_is_none_is_refused(said: str) -> None:
    """An auditor goes by what stands there for good."""
    error = refused(change([A], [B], **{"icetower.read-snapshot": said}), by=FREE)
    assert (error.rule, error.status) == ("summary.reads", 400)
    assert "the id of the snapshot that was read" in error.message
    for known in ("7", "none"):
        assert scope({"icetower.read-snapshot": known}) is None


NONSENSE = [
    # level, filter, rule, words of the message
    ("none", None, "summary.reads", "it takes snapshot or serializable"),
    ("repeatable-read", DAY_0, "summary.reads", "'repeatable-read'"),
    ("serializable", None, "summary.reads", "nothing says of which rows"),
    ("snapshot", "day = 1", "filter.json", "icetower.filter cannot be read"),
    ("snapshot", "", "filter.json", "cannot be read"),
    ("snapshot", '"day"', "filter.json", "is 'day'"),
    ("snapshot", '{"type": "eq", "term": "day"}', "filter.json", "has no 'value'"),
    ("snapshot", '{"type": "eq", "term": "day", "value": NaN}', "filter.json", "NaN is no value"),
    ("snapshot", '{"type": "eq", "term": "id", "value": 1e999}', "filter.literal", "Invalid value"),
    ("snapshot", '{"type": "eq", "term": "id", "value": ' + "9" * 40 + "}", "filter.json", "64 bits"),
    ("snapshot", '{"type": "eq", "term": "salary", "value": 1}', "filter.column", "Cannot find field 'salary'"),
    ("snapshot", '{"type": "eq", "term": "day", "value": "soon"}', "filter.literal", "soon"),
    ("snapshot", "[" * 100_000, "filter.json", "at most 65536 characters"),
    ("snapshot", '{"type":"not","child":' * 2_500 + "true" + "}" * 2_500, "filter.json", ""),
    (None, "nonsense", "filter.json", "cannot be read"),
]


@pytest.mark.parametrize(("level", "filter_", "rule", "shown"), NONSENSE, ids=[row[3] or "deep" for row in NONSENSE])
def test_r2_a_declaration_that_makes_no_sense_is_refused(
    level: str | None, filter_: str | None, rule: str, shown: str
) -> None:
    error = refused(change([A], [B], **words(level, filter_)), by=FREE)
    assert isinstance(error, BadRequest)
    assert (error.rule, error.status, error.next_step) == (rule, 400, "fix_request")
    assert shown in error.message
    assert len(error.message) < 1_000


def test_r2_a_filter_is_read_by_the_schema_that_its_snapshot_was_written_with() -> None:
    older = {"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "key", "type": "long", "required": False}]}
    metadata = {**METADATA, "schemas": [older, *METADATA["schemas"]]}
    by_key = json.dumps({"type": "lt", "term": "key", "value": 5})
    stale = change([A], [B], **words("snapshot", by_key))
    assert refused(stale, by=FREE, metadata=metadata).rule == "filter.column"
    stale = replace(stale, snapshot=Snapshot({**stale.snapshot, "schema-id": 1}))
    admitted = ask(stale, by=FREE, metadata=metadata)
    assert admitted.read_scope is not None
    assert admitted.read_scope.filter is not None
    # The column was renamed since; another one has taken its name.
    now = {
        "schema-id": 2,
        "fields": [{"id": 1, "name": "id", "type": "long"}, {"id": 9, "name": "key", "type": "string"}],
    }
    fields: list[dict[str, Any]] = [dict(field, required=False) for field in now["fields"]]  # type: ignore[attr-defined]
    now["fields"] = fields
    assert carried_over(admitted.read_scope.filter, older, now) == Predicate("lt", "id", (5,))
    gone = {"schema-id": 3, "fields": fields[1:]}
    assert carried_over(admitted.read_scope.filter, older, gone) == Always(True)
    assert carried_over(admitted.read_scope.filter, older, older) == Predicate("lt", "key", (5,))


def test_r2_a_contract_promises_that_its_writes_read_only_what_it_owns() -> None:
    promised = scope({}, by=PROMISING)
    assert promised is not None
    assert (promised.level, promised.filter, promised.source) == (Level.SERIALIZABLE, None, "contract")
    assert promised.owned is not None
    assert [promised.owned(0, (day,)) for day in (0, 1, 2)] == [True, True, False]
    assert promised.owned(1, ())  # the unpartitioned spec: nobody can tell
    assert promised.owned(7, (2,))  # a spec that somebody adds meanwhile: likewise
    assert ask(change([A]), by=FREE).read_scope is None


def test_r2_a_contract_in_shadow_mode_is_not_believed_about_what_it_would_have_refused() -> None:
    """Who writes where it owns nothing may have read there, too: the contract does not describe that commit."""
    clauses = "  read_scope: owned\n  blind_appends: true\n"
    shadow = replace(contract("overwrite", extra=clauses), shadow=True)
    inside, outside = ask(change([A]), by=shadow), ask(change([FOREIGN]), by=shadow)
    assert (inside.shadowed, inside.blind_appends) == ((), True)
    assert inside.read_scope is not None
    assert [refusal.rule for refusal in outside.shadowed] == ["contract.partitions"]
    assert (outside.read_scope, outside.blind_appends) == (None, False)
    both = ask(change([A, FOREIGN], [B], claim="overwrite"), by=shadow)
    assert (both.read_scope, both.blind_appends) == (None, False)
    content = replace(contract("overwrite", extra="  isolation: snapshot\n"), shadow=True)
    assert ask(change([A]), by=content).read_scope is not None
    assert ask(change([FOREIGN]), by=content).read_scope is None
    # What its own writer says counts, as it does without a contract.
    said = ask(change([FOREIGN], **words("serializable", DAY_0)), by=shadow).read_scope
    assert said is not None
    assert said.source == "summary"


def test_r2_the_summarys_word_goes_before_the_contracts() -> None:
    said = scope(words("snapshot"), by=PROMISING)
    assert said is not None
    assert (said.level, said.owned, said.source) == (Level.SNAPSHOT, None, "summary")
    both = scope(words(None, DAY_0), by=PROMISING)
    assert both is not None
    assert both.source == "contract"  # a filter without a level declares nothing


def test_r2_a_declaration_opens_no_partition() -> None:
    """A lie about what was read can cost its writer isolation; it cannot make anything owned that is not."""
    for lie in ("false", DAY_0, "true"):
        for by in (FREE, PROMISING):
            for touched in (
                change([A, FOREIGN], **words("snapshot", lie)),
                change([A], [FOREIGN], claim="overwrite", **words("serializable", lie)),
                change([file("d", 2, content=1)], claim="delete", **words("serializable", lie)),
            ):
                error = refused(touched, by=by)
                assert isinstance(error, ContractViolation)
                assert error.rule == "contract.partitions"


def test_r2_a_declaration_changes_nothing_that_is_committed() -> None:
    """What the engine checks objects by is the true change of the manifests, whatever the filter says."""
    honest, lying = (change([A], [B], **said) for said in ({}, words("serializable", "false")))
    admitted = ask(lying, by=FREE)
    assert admitted.changes == (lying,)
    assert (admitted.changes[0].added, admitted.changes[0].removed) == (honest.added, honest.removed)
    assert admitted.operations == ask(honest, by=FREE).operations


def test_a_long_filter_within_bounds_is_taken() -> None:
    many = json.dumps({"type": "in", "term": "id", "values": list(range(8_000))})
    assert len(many) < FILTER_CHARACTERS_MAX
    assert scope(words("serializable", many)) is not None


def test_a_commit_without_snapshots_or_on_no_table_reads_nothing() -> None:
    alter = [{"action": "set-properties", "updates": {"a": "b"}}]
    assert ask(by=administrator("root"), updates=alter).read_scope is None
    written = change([A], parent=None, **words("snapshot"))
    created = [{"action": "assign-uuid", "uuid": METADATA["table-uuid"]}, *updates_of(written)]
    creating = {"metadata": None, "requirements": [{"type": "assert-create"}], "updates": created}
    assert ask(written, by=administrator("root"), **creating).read_scope is None
