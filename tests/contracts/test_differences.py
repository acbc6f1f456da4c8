"""What a new version of a contract gives and takes, in words; and that nothing is passed over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from icetower.contracts.differences import Kind, changes
from icetower.contracts.document import load
from icetower.contracts.model import FILE_OPERATIONS, Contract, Operation, Rule
from icetower.contracts.regions import Range, Region, Values
from tests.contracts.small_table import RULES, TABLE, dense, rows_of


def contract(*rules: str, more: str = "") -> Contract:
    tables = "tables:\n" + "".join(f"- {rule}\n" for rule in rules) if rules else ""
    return load(f"version: 1\nagent: pricing_agent\n{tables}{more}\n", source="test")


def said(old: Contract | None, new: Contract | None) -> list[str]:
    return [change.words for change in changes(old, new)]


def rule(partitions: str, operations: str = "overwrite", table: str = "a.b", but: str = "", more: str = "") -> str:
    given = f", partitions: {partitions}" if partitions else ""
    given += f", except: [{but}]" if but else ""
    return f"{{table: {table}, operations: [{operations}]{given}{more}}}"


JANUARY = "{day(ts): {from: 2017-01-01, to: 2017-02-01}}"
TWO_MONTHS = "{day(ts): {from: 2017-01-01, to: 2017-03-01}}"

GRANTED = [
    # before, after, what is said
    (rule(f"[{JANUARY}]"), rule(f"[{JANUARY}]"), []),
    (
        rule(f"[{JANUARY}]"),
        rule(f"[{TWO_MONTHS}]"),
        ["gains overwrite on a.b where day(ts) is from 2017-02-01 to 2017-03-01"],
    ),
    (
        rule(f"[{TWO_MONTHS}]"),
        rule(f"[{JANUARY}]"),
        ["loses overwrite on a.b where day(ts) is from 2017-02-01 to 2017-03-01"],
    ),
    # Written otherwise, and the same.
    (rule(f"[{JANUARY}]"), rule("[{month(ts): 2017-01}]"), []),
    (rule('[{"bucket(4, id)": [0, 1, 2, 3]}]'), rule('[{"bucket(4, id)": {from: 0}}]'), []),
    (rule('[{"bucket(2, id)": 1}]'), rule('[{"bucket(4, id)": [1, 3]}]'), []),
    (rule("all", "overwrite"), rule("all", "overwrite, append, delete, replace, read"), []),
    (rule(f"[{JANUARY}]"), rule(f"[{TWO_MONTHS}]", but="{month(ts): 2017-02}"), []),
    # Of a part of a table these allow less than of all of it.
    (rule(f"[{JANUARY}]", "refs"), rule(f"[{JANUARY}]", "refs"), []),
    (
        rule(f"[{JANUARY}]", "refs, alter"),
        rule("all", "refs, alter"),
        [
            ("gains alter and refs on all partitions of a.b, "
            "no longer only where day(ts) is from 2017-01-01 to 2017-02-01"),
        ],
    ),
    (
        rule("all", "refs"),
        rule(f"[{JANUARY}]", "refs"),
        ["loses refs on all partitions of a.b but where day(ts) is from 2017-01-01 to 2017-02-01"],
    ),
    (
        "{table: a.b, operations: [read]}",
        rule(f"[{JANUARY}]", "refs"),
        ["gains refs on a.b where day(ts) is from 2017-01-01 to 2017-02-01"],
    ),
    (rule("[]", "refs"), rule("all", "refs"), ["gains refs on a.b"]),
    ("{table: a.b, operations: [read]}", rule("[]", "refs"), ["gains refs on a.b"]),
    # All, and not all.
    ("{table: a.b, operations: [read]}", rule("all"), ["gains overwrite on a.b"]),
    (
        rule(f"[{JANUARY}]"),
        rule("all"),
        [
            "gains overwrite on all partitions of a.b, no longer only where day(ts) is from 2017-01-01 to 2017-02-01",
        ],
    ),
    (
        rule("all"),
        rule(f"[{JANUARY}]", "append"),
        [
            "loses append on all partitions of a.b but where day(ts) is from 2017-01-01 to 2017-02-01",
            "loses overwrite on a.b",
        ],
    ),
    (rule("all"), rule("all", but=JANUARY),
     ["loses overwrite on a.b where day(ts) is from 2017-01-01 to 2017-02-01"]),
    (rule("all", but=JANUARY), rule("all"), ["gains overwrite on a.b where day(ts) is from 2017-01-01 to 2017-02-01"]),
    (rule("all"), rule('[{"bucket(4, id)": [0, 1, 2, 3, null]}]'), []),
    (rule("", "overwrite"), rule("all"), ["gains overwrite on a.b"]),
    # One more term is less.
    (
        rule(f"[{JANUARY}]"),
        rule('[{day(ts): {from: 2017-01-01, to: 2017-02-01}, "bucket(16, id)": [0, 1, 2, 3]}]'),
        [
            "loses overwrite on a.b where day(ts) is from 2017-01-01 to 2017-02-01 and bucket(16, id) is 4–15 or null",
        ],
    ),
    (
        rule('[{day(ts): 2017-01-01, "bucket(16, id)": [0, 1]}]', "append"),
        rule('[{day(ts): 2017-01-01, "bucket(16, id)": [1, 2]}, {region: eu}]', "append, delete"),
        [
            "gains append on a.b where bucket(16, id) is 2 and day(ts) is 2017-01-01, or region is eu",
            "gains delete on a.b where bucket(16, id) is 1 or 2 and day(ts) is 2017-01-01, or region is eu",
            "loses append on a.b where bucket(16, id) is 0 and day(ts) is 2017-01-01",
        ],
    ),
    # Slots.
    (
        rule("[{hour(ts): {from: now, to: now+2h}}]"),
        rule("[{hour(ts): {from: now, to: now+90m}}]"),
        ["loses overwrite on a.b where hour(ts) is from now+90m to now+2h"],
    ),
    (
        rule("[{hour(ts): {from: now, to: now+2h}}]"),
        rule("[{hour(ts): {from: 2017-01-01, to: now+2h}}]"),
        [
            "gains overwrite on a.b where hour(ts) is from 2017-01-01 to now+2h",
            "loses overwrite on a.b where hour(ts) is from now to now+2h",
        ],
    ),
    # What cannot be compared is named as it is written.
    (
        rule("[{ts_day: 2017-01-01}]"),
        rule("[{day(ts): 2017-01-01}]"),
        ["gains overwrite on a.b where day(ts) is 2017-01-01", "loses overwrite on a.b where ts_day is 2017-01-01"],
    ),
    # Other operations, other tables, wider patterns.
    ("{table: a.b, operations: [read]}", "{table: a.b, operations: [alter, refs]}", ["gains alter and refs on a.b"]),
    (
        rule("all", "append", "a.*"),
        rule("all", "append", "a.b"),
        ["loses append on a.*, but for what it is granted on a.b"],
    ),
    (rule("all", "append", "a.b"), rule("all", "append", "a.**"), ["gains append on a.**"]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "words"), GRANTED, ids=[f"{a} {b}" for a, b, _ in GRANTED])
def test_what_is_gained_and_lost(before: str, after: str, words: list[str]) -> None:
    assert said(contract(before), contract(after)) == words


def test_reads_are_granted_too() -> None:
    wider = contract(more="reads: [a.*, b.**]")
    assert said(contract(more="reads: [a.x]"), wider) == ["gains read on a.*", "gains read on b.**"]
    assert said(wider, contract(more="reads: [b.**]")) == ["loses read on a.*"]


HELD_TO = [
    # more in the rule: before, after, what is said
    ("", ", blind_appends: true", "gains rebasing of its appends to a.b unchecked (blind_appends)"),
    (", strict: true", "", "gains rebasing on a.b again (strict no more)"),
    ("", ", require_key: true", "needs an idempotency key for each commit to a.b (require_key)"),
    (", prove_partitions: true", "", "need not prove the partitions of its files on a.b any more (prove_partitions)"),
    (
        "",
        ", read_scope: owned",
        "promises that its writes to a.b depend on owned partitions only (read_scope: owned)",
    ),
    (
        ", isolation: snapshot",
        ", isolation: serializable",
        "is held to serializable isolation on a.b, before: snapshot",
    ),
    (", isolation: snapshot", "", "is held to snapshot isolation on a.b no more"),
    ("", ", pattern: mediator", "writes to a.b by the pattern mediator, before: direct"),
    ("", ", pattern: collector", "writes to a.b by the pattern collector, before: direct"),
    ("", ", write_location: table", "gains writing files anywhere under a.b (write_location: table)"),
    ("", ", quotas: {commits_per_minute: 60}", "is limited to 60 commits a minute on a.b"),
    (
        ", quotas: {bytes_per_commit: 1GiB}",
        ", quotas: {bytes_per_commit: 1MiB}",
        "is limited to 1MiB a commit on a.b, before: 1GiB a commit",
    ),
    (", quotas: {files_per_commit: 5}", "", "gains writes to a.b without a limit of 5 files a commit"),
]


@pytest.mark.parametrize(("before", "after", "words"), HELD_TO, ids=[words for *_, words in HELD_TO])
def test_what_writes_are_held_to(before: str, after: str, words: str) -> None:
    found = changes(contract(rule("all", more=before)), contract(rule("all", more=after)))
    assert [change.words for change in found] == [words]
    assert found[0].tables == TABLE or str(found[0].tables) == "a.b"
    back = changes(contract(rule("all", more=after)), contract(rule("all", more=before)))
    opposite = {Kind.GAINS: Kind.LOSES, Kind.LOSES: Kind.GAINS, Kind.CHANGES: Kind.CHANGES}
    assert [change.kind for change in back] == [opposite[found[0].kind]]


OF_G = "to g@h.i after 3 failures in a row within 10m"
OF_D = "to D <d@e.f> and the webhook x after 5 failures in a row within 10m"
CLAUSES = [
    # clause, before, after, what is said
    ("mode", "mode: shadow", "", "is enforced from now on (mode: enforce)"),
    ("mode", "", "mode: shadow", "is evaluated and logged only, and admits everything (mode: shadow)"),
    ("owner", "owner: a@b.c", "owner: d@e.f", "has owner: d@e.f; before: a@b.c"),
    ("retries", "", "retries: {attempts: 3}", "has retries: up to 3 retries, 100ms to 5s apart"),
    (
        "escalation",
        "escalation: {after_failures: 5, within: 10m, to: D <d@e.f>, webhook: x}",
        "escalation: {after_failures: 3, within: 10m, to: g@h.i}",
        f"has escalation: {OF_G}; before: {OF_D}",
    ),
    (
        "idempotency",
        "idempotency: {required: true, how: [header, summary], window: 24h}",
        "",
        "has no idempotency any more; before: a key is required by header or summary, remembered for 1d",
    ),
    ("orphans", "", "orphans: {action: delete}", "has orphans: looked for every 1d; what is older than 3d is deleted"),
    (
        "branches",
        "",
        "branches: {retain: 7d, checks: [a], checked_by: [ci]}",
        "has branches: removed when nobody has written to them for 7d; published after check a, which ci reports",
    ),
    ("revocation", "", "revocation: {by: [ann, bob]}", "has revocation: by administrators and by ann and bob"),
    ("quotas", "", "quotas: {requests_at_once: 1}", "has quotas: 1 request at once"),
]


@pytest.mark.parametrize(("clause", "before", "after", "words"), CLAUSES, ids=[words for *_, words in CLAUSES])
def test_what_the_clauses_say(clause: str, before: str, after: str, words: str) -> None:
    found = changes(contract(more=before), contract(more=after))
    assert [(change.words, change.clause) for change in found] == [(words, clause)]


def test_a_new_contract_gains_and_a_revoked_one_loses_everything() -> None:
    whole = contract(rule(f"[{JANUARY}]"), more="mode: shadow\nreads: [c.*]")
    granted = ["overwrite on a.b where day(ts) is from 2017-01-01 to 2017-02-01", "read on c.*"]
    assert said(None, whole) == [
        *(f"gains {words}" for words in granted),
        "is evaluated and logged only, and admits everything (mode: shadow)",
    ]
    assert said(whole, None) == [f"loses {words}" for words in granted]
    assert said(None, None) == said(whole, whole) == []


def test_a_change_says_where_it_comes_from() -> None:
    old = contract(rule("all", table="x.y"), rule(f"[{JANUARY}]"))
    files, alter, lost = changes(old, contract(rule(f"[{TWO_MONTHS}]", "overwrite, alter")))
    assert (str(files.tables), files.rule, files.partitions) == ("a.b", 0, "day(ts) is from 2017-02-01 to 2017-03-01")
    assert files.operations == FILE_OPERATIONS
    assert (str(alter.tables), alter.rule, alter.operations) == ("a.b", 0, {Operation.ALTER})
    assert alter.partitions == "day(ts) is from 2017-01-01 to 2017-03-01"
    assert (lost.kind, str(lost.tables), lost.rule) == (Kind.LOSES, "x.y", None)


def test_many_regions_are_named_in_part() -> None:
    def owning(*names: str) -> Contract:
        regions = tuple(Region((("region", Values((name,))), (name, Range("a", "b")))) for name in names)
        return Contract("x", tables=(Rule(TABLE, frozenset({Operation.APPEND}), regions),))

    words = said(owning("r0"), owning(*(f"r{number}" for number in range(9))))[0]
    assert words.startswith("gains append on a.t where region is r1 and r1 is from a to b, or ")
    assert words.endswith(", or in 4 regions more")


@settings(deadline=None, max_examples=100)
@given(RULES, RULES)
def test_what_is_said_to_be_gained_and_lost_is_what_rows_are(before: Rule, after: Rule) -> None:
    found = {change.kind for change in changes(Contract("c", tables=(before,)), Contract("c", tables=(after,)))}
    was, now = rows_of(before), rows_of(after)
    # Nothing is passed over, and where everything can be told apart nothing is said in vain.
    assert (Kind.GAINS in found) >= bool(now - was)
    assert (Kind.LOSES in found) >= bool(was - now)
    if dense(before, after, with_layout=False):
        assert (Kind.GAINS in found) == bool(now - was)
        assert (Kind.LOSES in found) == bool(was - now)


def test_numbers_that_are_listed_are_not_shown_as_if_one_more_were_granted() -> None:
    rule = "{table: a.b, operations: [append], partitions: [{n: [0, 1, 2, 3]}]}"
    text = f"version: 1\nagent: a\nowner: a@example.com\ntables:\n  - {rule}\n"
    assert changes(None, load(text, source="x"))[0].words == "gains append on a.b where n is from 0 to below 4"
