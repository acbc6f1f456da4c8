"""The clauses of a contract beyond tables and partitions: quotas, places, levels, ways of keys, and shadow mode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.admission import client_settings, locations
from icetower.admission.clauses import check_any_file_operation
from icetower.admission.facts import Facts
from icetower.admission.identity import Identity, ways_of
from icetower.admission.quotas import MINUTE_S, RateLimits, Rates, check_quota
from icetower.admission.reads import scope_of
from icetower.admission.refusals import Misplaced
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import SystemAmbient
from icetower.contracts.check import isolation_of
from icetower.contracts.document import load
from icetower.contracts.model import ADMINISTRATOR, Contract, Isolation, Operation
from icetower.errors import BadRequest, CommitConflict, ContractViolation, IcetowerError
from icetower.iceberg.validation import Level
from icetower.ledger.shadow import Shadowed
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal, administrator
from tests.admission.test_admit import LOCATION, METADATA, TABLE, A, B, ask, change, contract, file, refused, updates_of

OWN = "file:///data/prices/agent-1"
"""Where the files of `agent-1` go in the table of `test_admit`, whose data has a place of its own."""


def agent(rules: str, top: str = "") -> Principal:
    """`rules`: one entry of the contract's tables a line, without its table."""
    entries = "".join(f"  - {{table: {TABLE}, {line.strip()}}}\n" for line in rules.strip().splitlines())
    text = f"version: 1\nagent: agent-1\n{top}\ntables:\n{entries}"
    return Principal("agent-1", load(text, source="test"), 3)


def shadow(principal: Principal) -> Principal:
    return replace(principal, contract=replace(principal.contract, shadow=True))


# ------------------------------------------------------------------------------------------------------------ quotas

TWO_A_MINUTE = agent("operations: [append], partitions: all, quotas: {commits_per_minute: 2}")


def test_quotas_a_commit_beyond_the_minutes_share_takes_the_next_place() -> None:
    rates = Rates()
    waits = [rates.wait_s(TWO_A_MINUTE, TABLE, now_s, 200.0) for now_s in (0, 10, 20, 30, 30)]
    assert waits == [0, 0, 40, 40, 90]  # at 60, 70 and 120
    assert rates.wait_s(TWO_A_MINUTE, TABLE, 129.0, 200.0) == 1  # after those at 70 and 120
    assert rates.wait_s(TWO_A_MINUTE, TABLE, 500.0, 0.0) == 0


def test_quotas_count_a_commit_once_however_often_its_client_sends_it_again() -> None:
    """Trap A9: the tower itself asks for it to be sent again, where its base was stale."""
    rates = Rates()

    def waits(*works: str | None, now_s: float = 0.0) -> list[float]:
        return [rates.wait_s(TWO_A_MINUTE, TABLE, now_s, 0.0, work) for work in works]

    assert waits("a", "a", "b", "a", "b", "c", "b", "c") == [0, 0, 0, 0, 0, 60, 0, 60]  # c has no place to keep
    assert waits("a", "c", now_s=60.0) == [0, 0]  # another minute: each takes a place again


def test_quotas_count_a_commit_again_that_is_sent_more_often_than_its_contract_says() -> None:
    """Otherwise one name would do for a flood."""
    clause = "operations: [append], partitions: all, quotas: {commits_per_minute: 2}"
    for bound, sends in ((agent(clause), 6), (agent(clause, "retries: {attempts: 2}"), 3)):
        rates = Rates()
        waits = [rates.wait_s(bound, TABLE, 0.0, 0.0, "same") for _ in range(2 * sends + 3)]
        assert waits == [0] * (2 * sends) + [60] * 3
        assert len(rates) == 2
        assert [rates.wait_s(bound, TABLE, 60.0, 0.0, "same") for _ in range(3)] == [0, 0, 0]


def test_quotas_a_commit_that_waits_for_its_place_waits_for_the_same_when_it_is_sent_again() -> None:
    rates = Rates()
    waits = [rates.wait_s(TWO_A_MINUTE, TABLE, now_s, 90.0, work) for now_s, work in enumerate("abcc")]
    assert waits == [0, 0, 58, 57]


def test_quotas_who_does_not_want_to_wait_so_long_takes_no_place() -> None:
    rates = Rates()
    assert [rates.wait_s(TWO_A_MINUTE, TABLE, now_s, 30.0) for now_s in (0, 0, 10, 20, 40)] == [0, 0, 50, 40, 20]
    assert rates.wait_s(TWO_A_MINUTE, TABLE, 60.0, 30.0) == 0  # the other place of that minute


def test_quotas_count_by_principal_and_table_and_bind_no_administrator() -> None:
    rates = Rates()
    everywhere = replace(TWO_A_MINUTE, contract=load(
        "version: 1\nagent: a\ntables:\n- {table: '**', operations: [append], quotas: {commits_per_minute: 1}}\n",
        source="test",
    ))  # fmt: skip
    other = replace(everywhere, name="agent-2")
    for principal, table in ((everywhere, "a.b"), (everywhere, "a.c"), (other, "a.b")):
        assert rates.wait_s(principal, Identifier.parse(table), 0.0, 99.0) == 0
        assert rates.wait_s(principal, Identifier.parse(table), 0.0, 99.0) == 60
    assert [rates.wait_s(administrator("root"), TABLE, 0.0, 99.0) for _ in range(3)] == [0, 0, 0]


def test_quotas_that_a_contract_changes_hold_from_then_on() -> None:
    rates = Rates()
    four, one = (agent(f"operations: [append], partitions: all, quotas: {{commits_per_minute: {n}}}") for n in (4, 1))
    assert [rates.wait_s(four, TABLE, now_s, 99.0) for now_s in (0, 10, 20, 30)] == [0, 0, 0, 0]
    assert rates.wait_s(one, TABLE, 40.0, 99.0) == 50  # a minute after the last
    assert rates.wait_s(four, TABLE, 50.0, 99.0) == 0


@settings(deadline=None)
@given(
    quota=st.integers(1, 4),
    most_s=st.integers(0, 150),
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=40),
)
def test_quotas_no_minute_has_more_than_its_share(quota: int, most_s: int, steps: Sequence[int]) -> None:
    bound = agent(f"operations: [append], partitions: all, quotas: {{commits_per_minute: {quota}}}")
    rates, now_s, went_s = Rates(), 0, list[float]()
    for step_s in steps:
        now_s += step_s
        wait_s = rates.wait_s(bound, TABLE, now_s, most_s)
        earliest_s = max(now_s, went_s[-quota] + MINUTE_S if len(went_s) >= quota else 0)
        assert now_s + wait_s == earliest_s  # not later than it must be
        if wait_s <= most_s:
            went_s.append(now_s + wait_s)
    assert all(later - first >= MINUTE_S for first, later in zip(went_s, went_s[quota:], strict=False))


def test_quotas_keep_no_more_than_the_last_minute_whatever_they_allow() -> None:
    rates = Rates()
    generous = agent("operations: [append], partitions: all, quotas: {commits_per_minute: 999999999}")
    for now_s in range(1_000):
        assert rates.wait_s(generous, TABLE, now_s, 30.0) == 0
    assert len(rates) == 60


QUOTAS = """\
# files, bytes, what is allowed                                refused by
3  100  {files_per_commit: 3}                                  -
4  100  {files_per_commit: 3}                                  files_per_commit
1  2048 {bytes_per_commit: 2KiB}                               -
1  2049 {bytes_per_commit: 2KiB}                               bytes_per_commit
9  9999 {commits_per_minute: 1}                                -
"""


@pytest.mark.parametrize("line", QUOTAS.splitlines()[1:])
def test_quotas_of_one_commit(line: str) -> None:
    files, size, rest = line.split(None, 2)
    quotas, _, name = rest.rpartition(" ")
    bound = agent(f"operations: [append], partitions: all, quotas: {quotas.strip()}")
    given = {"files": int(files), "size_bytes": int(size)}
    check_quota(administrator("root"), TABLE, **given)
    if name == "-":
        check_quota(bound, TABLE, **given)
        return
    with pytest.raises(ContractViolation, match=name) as caught:
        check_quota(bound, TABLE, **given)
    assert (caught.value.rule, caught.value.next_step) == ("contract.quota", "fix_request")


def test_quotas_of_several_rules_that_write_the_strictest_counts() -> None:
    bound = agent(
        """operations: [append], partitions: [{day: 1970-01-01}], quotas: {files_per_commit: 5}
        operations: [delete], partitions: [{day: 1970-01-02}], quotas: {files_per_commit: 2}
        operations: [read], quotas: {files_per_commit: 1}"""
    )
    check_quota(bound, TABLE, files=2, size_bytes=0)
    with pytest.raises(ContractViolation):
        check_quota(bound, TABLE, files=3, size_bytes=0)


def test_quotas_count_what_a_commit_adds_deletes_included() -> None:
    bound = contract("overwrite", extra="  quotas: {files_per_commit: 1, bytes_per_commit: 50}\n")
    assert ask(change([A]), by=bound)
    assert refused(change([A, B]), by=bound).rule == "contract.quota"
    assert refused(change([A, file("p", content=1)]), by=bound).rule == "contract.quota"
    assert ask(change([A], [B], claim="overwrite"), by=bound)
    A.file.record["file_size_in_bytes"] = 51  # as manifests have it
    try:
        assert "51 bytes" in refused(change([A]), by=bound).message
    finally:
        del A.file.record["file_size_in_bytes"]


# ------------------------------------------------------------------------------------- where a principal's files go

WRITER = agent("operations: [append, delete], partitions: all")
PLACES = [
    # the table's properties, the path
    ({}, f"{LOCATION}/data/agent-1"),
    ({"write.data.path": "s3://bucket/x/"}, "s3://bucket/x/agent-1"),
    ({"write.object-storage.path": "s3://o"}, "s3://o/agent-1"),
    ({"write.folder-storage.path": "s3://f"}, "s3://f/agent-1"),
    ({"write.folder-storage.path": "s3://f", "write.object-storage.path": "s3://o"}, "s3://o/agent-1"),
    ({"write.data.path": "s3://d", "write.object-storage.path": "s3://o"}, "s3://d/agent-1"),
    ({"write.data.path": ""}, f"{LOCATION}/data/agent-1"),
]


@pytest.mark.parametrize(("properties", "path"), PLACES)
def test_write_location_is_below_the_tables_own(properties: dict[str, str], path: str) -> None:
    assert locations.own_path(WRITER, TABLE, LOCATION, properties) == path
    assert locations.own_path(WRITER, TABLE, LOCATION + "/", properties) == path
    metadata = {"location": LOCATION, "properties": properties}
    given = client_settings.client_properties(WRITER, TABLE, metadata)
    assert given == {"write.data.path": path, "write.distribution-mode": "hash"}
    assert any(path.startswith(root.rstrip("/") + "/") for root in locations.roots_of(metadata))


def test_write_location_is_told_to_those_who_write_and_are_held_to_it() -> None:
    told = {
        "root": administrator("root"),
        "reader": agent("operations: [read]"),
        "anywhere": agent("operations: [append], write_location: table"),
        "one of two": agent("operations: [append], write_location: table\noperations: [delete]"),
        "shadow": shadow(WRITER),
        "stranger": Principal("s", load("version: 1\nagent: s\nreads: ['**']\n", source="test"), 1),
    }
    found = {name: locations.own_path(who, TABLE, LOCATION, {}) is not None for name, who in told.items()}
    assert found == {
        "root": False, "reader": False, "anywhere": False, "one of two": True, "shadow": True, "stranger": False,
    }  # fmt: skip


FILES = """\
file:///data/prices/agent-1/x.parquet           -
file:/data/prices/agent-1/day=1/x.parquet       -
file:///data/prices/-rows/x.parquet            -
file:///data/prices/agent-10/x.parquet          refresh
file:///data/prices/x.parquet                   refresh
file:///w/pricing/prices/data/x.parquet         refresh
file:///data/prices/agent-1/../x.parquet        fix_request
file:///elsewhere/x.parquet                     fix_request
"""


@pytest.mark.parametrize("line", FILES.splitlines())
def test_write_location_a_file_elsewhere_is_refused(line: str) -> None:
    path, expected = line.split()
    if expected == "-":
        locations.check_files(WRITER, TABLE, METADATA, [path])
        assert ask(change([file(path)]), by=WRITER)
        return
    error = refused(change([file(f"{OWN}/fine.parquet"), file(path)]), by=WRITER)
    assert (error.status, error.rule, error.files, error.next_step) == (403, "contract.location", (path,), expected)
    # What lies outside of the table is nobody's, and what lies in it is a matter of the contract.
    assert isinstance(error, Misplaced) is (expected == "refresh")
    if isinstance(error, Misplaced):
        assert [held.rule for held in ask(change([file(path)]), by=shadow(WRITER)).shadowed] == ["contract.location"]
    else:
        assert refused(change([file(path)]), by=shadow(WRITER)).rule == "contract.location"


def test_write_location_of_delete_files_too() -> None:
    assert refused(change([file(f"{LOCATION}/data/d.parquet", content=1)]), by=WRITER).rule == "contract.location"
    assert ask(change([file(f"{OWN}/d.parquet", content=1)]), by=WRITER)
    assert ask(change([], [file(f"{LOCATION}/data/theirs.parquet")], claim="delete"), by=WRITER)


SENT_BACK: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"updates": {"write.data.path": OWN}}, {"updates": {}}),
    ({"updated": {"write.data.path": OWN, "a": "b"}}, {"updated": {"a": "b"}}),
    ({"updates": {"write.data.path": "file:///w/x"}}, {"updates": {"write.data.path": "file:///w/x"}}),
    ({"updates": {"other": OWN}}, {"updates": {"other": OWN}}),
]


@pytest.mark.parametrize(("sent", "left"), SENT_BACK)
def test_write_location_what_comes_back_of_it_stays_out_of_the_table(
    sent: dict[str, Any], left: dict[str, Any]
) -> None:
    update, snapshot = {"action": "set-properties", **sent}, {"action": "add-snapshot", "snapshot": {}}
    given = Updates([update, snapshot, {"action": "remove-properties", "removals": ["write.data.path"]}])
    done = client_settings.without_client_properties(WRITER, TABLE, METADATA, None, given)
    assert done == ({"action": "set-properties", **left}, snapshot, given[2])
    assert client_settings.without_client_properties(administrator("root"), TABLE, METADATA, None, given) == tuple(
        given
    )
    echo = {**update, "updates": {"write.data.path": f"{LOCATION}/data/agent-1"}}
    assert client_settings.without_client_properties(WRITER, TABLE, None, LOCATION, Updates([echo]))[0]["updates"] == {}
    assert client_settings.without_client_properties(WRITER, TABLE, None, None, given) == tuple(given)


RETRIES = {"commit.retry.num-retries": "7", "commit.retry.min-wait-ms": "50", "commit.retry.max-wait-ms": "2000"}
HASH = {"write.distribution-mode": "hash"}
PATIENT = "retries: {attempts: 7, min_wait: 50ms, max_wait: 2s}\n"
SETTINGS: list[tuple[str, str, dict[str, Any], dict[str, str] | None]] = [
    # the clauses after the entry, the entry, what the table says, what its principal is given
    (PATIENT, "operations: [append], write_location: table", {}, RETRIES | HASH),
    ("", "operations: [append], write_location: table", {}, HASH),
    (PATIENT, "operations: [append]", {}, RETRIES | HASH | {"write.data.path": f"{LOCATION}/data/agent-1"}),
    (PATIENT, "operations: [append], write_location: table", {"commit.retry.num-retries": "99"}, RETRIES | HASH),
    (PATIENT, "operations: [append], write_location: table", {"write.distribution-mode": "none"}, RETRIES),
    (PATIENT, "operations: [read]", {}, None),
]


@pytest.mark.parametrize(("clauses", "entry", "properties", "given"), SETTINGS)
def test_a_principal_retries_as_its_contract_says_and_writes_by_partition(
    clauses: str, entry: str, properties: dict[str, Any], given: dict[str, str] | None
) -> None:
    text = f"version: 1\nagent: a\ntables:\n  - {{table: '{TABLE}', {entry}, partitions: all}}\n{clauses}"
    who = Principal("agent-1", load(text, source="test"), 1)
    metadata = {"location": LOCATION, "properties": properties}
    assert client_settings.client_properties(who, TABLE, metadata) == given
    # What it sends back with a replaced table stays out of the table; what it sets otherwise does not.
    echo = {"action": "set-properties", "updates": {**(given or {}), "own": "1", "commit.retry.num-retries": "8"}}
    sent = Updates([echo])
    done = client_settings.without_client_properties(who, TABLE, metadata, None, sent)[0]["updates"]
    assert done == {"own": "1", "commit.retry.num-retries": "8"}
    # A table that is being created has the properties that its creator chooses.
    created = client_settings.without_client_properties(who, TABLE, None, LOCATION, sent)[0]["updates"]
    assert created == {name: text for name, text in echo["updates"].items() if name != "write.data.path"}


def test_a_table_with_a_sort_order_is_distributed_by_it() -> None:
    metadata = {**METADATA, "default-sort-order-id": 1}
    assert HASH.items() & (client_settings.client_properties(WRITER, TABLE, metadata) or {}).items() == set()


# --------------------------------------------------------------------------------------------------------- isolation

LEVELS = """\
# rules of the contract                                                      append         delete
append, isolation: snapshot                                                | snapshot     | -
append                                                                     | -            | -
append, isolation: serializable                                            | serializable | -
delete, isolation: snapshot / append                                       | -            | snapshot
append, isolation: snapshot / append                                       | -            | -
append, isolation: snapshot / append, delete, isolation: serializable      | serializable | serializable
append, isolation: snapshot / append, delete, isolation: snapshot          | snapshot     | snapshot
read, isolation: serializable / append                                     | -            | -
"""


@pytest.mark.parametrize("line", LEVELS.splitlines()[1:])
def test_isolation_of_several_rules_is_the_strictest(line: str) -> None:
    rules, appends, deletes = (part.strip() for part in line.split("|"))
    entries: list[str] = []
    for rule in rules.split(" / "):
        operations, _, level = rule.partition(", isolation: ")
        entries.append(f"operations: [{operations}], partitions: all" + (f", isolation: {level}" if level else ""))
    bound = agent("\n".join(entries)).contract
    for operation, expected in ((Operation.APPEND, appends), (Operation.DELETE, deletes)):
        found = isolation_of(bound, TABLE, frozenset({operation}))
        assert found == (None if expected == "-" else Isolation(expected))
    assert isolation_of(bound, TABLE, frozenset({Operation.ALTER})) is None
    assert isolation_of(ADMINISTRATOR, TABLE, frozenset({Operation.APPEND})) is None


DAY_0 = json.dumps({"type": "eq", "term": "day", "value": "1970-01-01"})
SCOPES = [
    # of the contract, of the summary: level, whether with a filter → the scope's level, its source
    ("snapshot", None, False, Level.SNAPSHOT, "contract"),
    ("snapshot", "serializable", True, Level.SERIALIZABLE, "summary"),
    ("snapshot", "snapshot", False, Level.SNAPSHOT, "summary"),
    ("serializable", None, False, None, None),
    ("serializable", "snapshot", False, None, None),
    ("serializable", "snapshot", True, Level.SERIALIZABLE, "summary"),
    ("serializable", "serializable", True, Level.SERIALIZABLE, "summary"),
    (None, "snapshot", False, Level.SNAPSHOT, "summary"),
]


@pytest.mark.parametrize(("clause", "said", "filtered", "level", "source"), SCOPES)
def test_isolation_a_contracts_level_is_the_least_that_holds(
    clause: str | None, said: str | None, filtered: bool, level: Level | None, source: str | None
) -> None:
    words = {"icetower.isolation-level": said, "icetower.filter": DAY_0 if filtered else None}
    written = change([A], [B], **{name: text for name, text in words.items() if text is not None})
    bound = contract("overwrite", extra="" if clause is None else f"  isolation: {clause}\n")
    admitted = ask(written, by=bound)
    found = admitted.read_scope
    assert (found and found.level, found and found.source) == (level, source)
    assert admitted.serializable is (clause == "serializable")
    assert found == scope_of(bound, TABLE, METADATA, [written], admitted.operations, 0)


def test_isolation_read_scope_is_a_word_beside_it() -> None:
    owning = contract("overwrite", extra="  isolation: snapshot\n  read_scope: owned\n")
    found = ask(change([A], [B]), by=owning).read_scope
    assert found is not None
    assert (found.level, found.owned is not None) == (Level.SERIALIZABLE, True)


# -------------------------------------------------------------------------------------------------------- idempotency

KEY, NUMBER = {"icetower.idempotency-key": "k"}, {"icetower.application": "a", "icetower.sequence": "1"}
WAYS = """\
# how            header   summary  sequence
any            | yes    | yes    | yes
header         | yes    | yes    | no
summary        | no     | yes    | no
sequence       | no     | no     | yes
header summary | yes    | yes    | no
"""


@pytest.mark.parametrize("line", WAYS.splitlines()[1:])
def test_idempotency_a_key_comes_in_one_of_the_ways_that_the_contract_names(line: str) -> None:
    how, *expected = (part.strip() for part in line.split("|"))
    clause = "" if how == "any" else f", how: [{', '.join(how.split())}]"
    bound = agent(
        "operations: [append], partitions: all, write_location: table",
        top=f"idempotency: {{required: true{clause}}}",
    )
    sent: list[tuple[dict[str, str], str | None]] = [({}, "h"), (KEY, None), (NUMBER, None)]
    for (summary, header), verdict in zip(sent, expected, strict=True):
        if verdict == "yes":
            assert ask(change([A], **summary), by=bound, key=header)
        else:
            error = refused(change([A], **summary), by=bound, key=header)
            assert (error.status, error.rule) == (403, "contract.key")
    none = refused(change([A]), by=bound)
    assert none.next_step == ("fix_request" if how == "sequence" else "new_key")
    for way in ("Idempotency-Key", "icetower.idempotency-key", "icetower.sequence"):
        named = {"Idempotency-Key": "header", "icetower.idempotency-key": "summary", "icetower.sequence": "sequence"}
        assert (way in none.message) is (how == "any" or named[way] in how.split())


def test_idempotency_a_commit_without_a_snapshot_has_no_summary_for_its_key() -> None:
    bound = agent("operations: [alter], partitions: all", top="idempotency: {required: true, how: [summary]}")
    alter = [{"action": "set-properties", "updates": {"a": "b"}}]
    assert ask(by=bound, updates=alter, key="h")
    assert refused(by=bound, updates=alter).rule == "contract.key"


def test_idempotency_keys_and_numbers_are_ways_by_themselves() -> None:
    assert ways_of(None, None, in_summary=False) == frozenset()
    assert {way.value for way in ways_of("k", None, in_summary=False)} == {"header"}
    assert {way.value for way in ways_of("k", ("a", 1), in_summary=True)} == {"header", "summary", "sequence"}


# ------------------------------------------------------------------------------------------------------- shadow mode


def raised(rule: str) -> ContractViolation:
    return ContractViolation("no", rule=rule)


def test_shadow_mode_lets_by_what_the_contract_refuses_and_nothing_else() -> None:
    recorded: list[Shadowed] = []
    recorder, by = ShadowRecorder(Clock(), recorded.append), shadow(WRITER)
    for error in (raised("contract.table"), raised("contract.quota"), Misplaced("no", rule="contract.location")):
        with recorder.recording(by, TABLE, "append"):
            raise error
    assert [each.rule for each in recorded] == ["contract.table", "contract.quota", "contract.location"]
    strangers: list[Exception] = [
        raised("contract.summary"),
        raised("contract.location"),
        raised("contract.manifest"),
        BadRequest("no"),
        CommitConflict("no"),
        ValueError("no"),
    ]
    for error in strangers:
        with pytest.raises(type(error)), recorder.recording(by, TABLE, "append"):
            raise error
    assert len(recorded) == 3


def test_shadow_mode_off_everything_is_raised() -> None:
    recorded: list[Shadowed] = []
    with pytest.raises(ContractViolation), ShadowRecorder(Clock(), recorded.append).recording(WRITER, TABLE, "append"):
        raise raised("contract.table")
    assert recorded == []


def test_shadow_mode_counts_every_clause_that_a_commit_breaks() -> None:
    strict = agent(
        "operations: [append], partitions: [{day: 1970-01-02}], quotas: {files_per_commit: 1}",
        top="idempotency: {required: true}",
    )
    done = ask(change([A, B]), by=shadow(strict))
    rules = ["contract.partitions", "contract.quota", "contract.location", "contract.key"]
    assert [refusal.rule for refusal in done.shadowed] == rules
    assert done.shadowed[0].partitions == ("day=1970-01-01",)
    assert refused(change([A, B]), by=strict).rule == rules[0]
    assert ask(change([A, B]), by=replace(contract("overwrite"), shadow=True)).shadowed == ()


def test_shadow_mode_hears_the_contracts_words_and_is_not_restrained_by_it() -> None:
    clauses = "strict: true, blind_appends: true, isolation: serializable, read_scope: owned"
    words = "icetower.isolation-level"
    for mode in (WRITER, shadow(WRITER)):
        bound = agent(f"operations: [append], partitions: all, write_location: table, {clauses}").contract
        bound = replace(bound, shadow=mode.contract.shadow)
        done = ask(change([A], **{words: "snapshot"}), by=bound)
        enforced = not bound.shadow
        assert done.blind_appends
        assert (done.strict, done.serializable) == (enforced, enforced)
        assert done.read_scope is not None
        assert done.read_scope.level is (Level.SERIALIZABLE if enforced else Level.SNAPSHOT)


class Clock(SystemAmbient):
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        super().__init__()
        self.s = 1_000.0

    def now_ms(self) -> int:
        return int(self.s * 1000)

    def monotonic_s(self) -> float:
        return self.s

    async def sleep(self, seconds: float) -> None:
        self.s += seconds


def rate_limits(notes: list[Shadowed]) -> tuple[RateLimits, Clock]:
    clock = Clock()
    return RateLimits(clock, ShadowRecorder(clock, notes.append), deadline_s=30), clock


def test_quotas_a_commit_waits_for_its_place_as_long_as_its_deadline_has_left() -> None:
    limits, clock = rate_limits([])

    async def send(since_s: float) -> float:
        await limits.wait(TWO_A_MINUTE, TABLE, since_s=since_s, work=None)
        return clock.s

    assert [asyncio.run(send(1_000)), asyncio.run(send(1_000))] == [1_000, 1_000]
    clock.s = 1_040
    assert asyncio.run(send(1_040)) == 1_060
    clock.s = 1_045
    with pytest.raises(CommitConflict) as caught:  # the next place is at 1,060, and the request came at 1,020
        asyncio.run(send(1_020))
    error = caught.value
    assert (error.status, error.rule, error.next_step) == (409, "contract.quota", "wait_until")
    assert error.wait_until_ms == 1_060_001
    clock.s = 1_060.001
    assert asyncio.run(send(1_060)) == 1_060.001


def test_quotas_in_shadow_mode_nobody_waits_and_what_would_be_refused_is_counted() -> None:
    notes: list[Shadowed] = []
    limits, clock = rate_limits(notes)
    for _ in range(5):
        asyncio.run(limits.wait(shadow(TWO_A_MINUTE), TABLE, since_s=clock.s, work=None))
    assert clock.s == 1_000
    assert [(note.rule, note.operation, note.about) for note in notes] == [("contract.quota", "commit", str(TABLE))] * 3


def test_shadow_mode_notes_who_asked_for_what() -> None:
    notes: list[Shadowed] = []
    recorder = ShadowRecorder(Clock(), notes.append)

    def no(_principal: Principal, *_arguments: Any) -> None:
        raise raised("contract.table")

    recorder.allow(shadow(WRITER), no, Operation.DROP, TABLE)
    recorder.allow(shadow(WRITER), no, ("a", "b"))
    assert [(note.about, note.operation) for note in notes] == [("pricing.prices", "drop"), ("a.b", "namespace")]
    assert {(note.principal, note.contract, note.contract_version) for note in notes} == {("agent-1", "agent-1", 3)}
    with pytest.raises(IcetowerError):
        recorder.allow(WRITER, no, Operation.DROP, TABLE)
    assert len(notes) == 2


def test_a_contract_that_is_created_with_its_table_is_judged_by_what_it_creates() -> None:
    """A table's first commit brings its own specs: its files are placed and counted by them."""
    creating = agent("operations: [create, append], partitions: all, quotas: {files_per_commit: 1}")
    own = {"action": "set-location", "location": LOCATION}
    first = change([file(f"{LOCATION}/data/agent-1/x.parquet")], parent=None)
    shape = [
        {"action": "assign-uuid", "uuid": METADATA["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": METADATA["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": METADATA["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        own,
    ]
    asserted = [{"type": "assert-create"}]

    def make(*files: Any, by: Principal | Contract) -> Any:
        made = change(files, parent=None)
        return ask(
            made, by=by, metadata=None, requirements=asserted, updates=[*shape, *updates_of(made)], location=LOCATION
        )

    assert make(*first.added, by=creating).operations == {Operation.CREATE, Operation.APPEND}
    for files, rule in (([file("x")], "contract.location"), ([*first.added, file("y")], "contract.quota")):
        with pytest.raises(ContractViolation) as caught:
            make(*files, by=creating)
        assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("claim", "words"), [("replace", "rewrite files of"), ("delete", "delete from"), ("append", "append to")]
)
def test_a_refusal_names_the_operation_that_was_meant(claim: str, words: str) -> None:
    """Whoever reads `append` grants a compaction job that, and it is refused again."""
    reader, written = agent("operations: [read]"), Updates(updates_of(change([A], claim=claim)))
    identity = Identity.of_commit(reader.name, written, None, None)
    facts = Facts(reader, TABLE, METADATA, [], written, identity, now_ms=0)
    with pytest.raises(ContractViolation, match=f"may not {words} {TABLE}: contract .* doesn't grant {claim} on it"):
        check_any_file_operation(facts.unread())
