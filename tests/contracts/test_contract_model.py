"""Reading and writing contracts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.contracts.document import dump, from_json, load, to_json
from icetower.contracts.model import (
    ADMINISTRATOR,
    Contract,
    Escalation,
    Idempotency,
    Isolation,
    KeyWay,
    Operation,
    Orchestration,
    Quota,
    Retries,
    Revocation,
    Role,
    Rule,
)
from icetower.contracts.regions import Pattern, Range, Region, Values, parse_pattern
from icetower.contracts.terms import Term, parse_term
from icetower.contracts.upkeep import Branches, Orphans
from icetower.errors import BadRequest
from icetower.protocol.names import Identifier

FULL = """\
version: 1
agent: pricing_agent
description: hourly prices
owner: pricing-team@example.com
tables:
  - table: pricing.product_prices
    operations: [read, append, overwrite, delete]
    partitions:
      - date_day: {from: 2017-01-01, to: 2017-02-01}
        product_id_bucket: [0, 010, null, "null"]
    blind_appends: false
    strict: true
    require_key: true
    read_scope: owned
  - {table: wal.*, operations: [append], partitions: all}
  - table: pricing.product_prices
    operations: [append]
    partitions:
      - hour(written_at): {from: now, to: now+2h}
        bucket(16, product_id): 3
    except: [{hour(written_at): now}]
    isolation: serializable
    pattern: scheduler
    write_location: table
    quotas: {commits_per_minute: 60, files_per_commit: 500, bytes_per_commit: 1GiB}
reads: [inventory.*]
role: pipeline
mode: shadow
retries: {attempts: 7, min_wait: 250ms, max_wait: 1m}
escalation: {after_failures: 5, within: 10m, to: Dana Ito <dana.ito@example.com>, webhook: pricing-oncall}
idempotency: {required: true, how: [header, sequence], window: 48h}
orphans: {detect_every: 12h, older_than: 7d, action: delete}
branches: {retain: 7d, checks: [row-counts], checked_by: [ci]}
revocation: {by: [oncall]}
quotas: {requests_at_once: 32}
"""


def test_everything_a_contract_can_say() -> None:
    contract = load(FULL, source="pricing.yaml")
    region = Region(
        (
            ("date_day", Range("2017-01-01", "2017-02-01")),
            # Text as its author saw it: no dates, no octal numbers; a quoted null is a word.
            ("product_id_bucket", Values(("0", "010", None, "null"))),
        )
    )
    read, append, overwrite, delete = Operation.READ, Operation.APPEND, Operation.OVERWRITE, Operation.DELETE
    assert contract == Contract(
        name="pricing_agent",
        description="hourly prices",
        owner="pricing-team@example.com",
        tables=(
            Rule(
                Pattern(("pricing",), "product_prices"),
                frozenset({read, append, overwrite, delete}),
                (region,),
                strict=True,
                require_key=True,
                reads_owned=True,
            ),
            Rule(Pattern(("wal",), "*"), frozenset({append}), None),
            Rule(
                Pattern(("pricing",), "product_prices"),
                frozenset({append}),
                (Region((("bucket(16, product_id)", Values(("3",))), ("hour(written_at)", Range("now", "now+2h")))),),
                excluded=(Region((("hour(written_at)", Values(("now",))),)),),
                isolation=Isolation.SERIALIZABLE,
                orchestration=Orchestration.SCHEDULER,
                own_location=False,
                quota=Quota(60, 500, 1024**3),
            ),
        ),
        reads=(Pattern(("inventory",), "*"),),
        role=Role.PIPELINE,
        shadow=True,
        retries=Retries(7, 250, 60_000),
        escalation=Escalation(5, 600, "Dana Ito <dana.ito@example.com>", "pricing-oncall"),
        idempotency=Idempotency(True, frozenset({KeyWay.HEADER, KeyWay.SEQUENCE}), 48 * 3600),
        orphans=Orphans(12 * 3600, 7 * 86_400, delete=True),
        branches=Branches(7 * 86_400, ("row-counts",), ("ci",)),
        revocation=Revocation(("oncall",)),
        requests_at_once=32,
    )
    assert load(dump(contract), source="again") == contract


HEAD = "version: 1\nagent: a\n"
REFUSED = [
    # text, line, words of the message
    ("", 1, "is empty"),
    ("- 1", 1, "mapping"),
    ("version: 2\nagent: a", 1, "reads version 1"),
    ("version: 1", 1, "lacks the field 'agent'"),
    ("version: 1\nagent: administrator", 2, "other than 'administrator'"),
    ("version: 1\nagent: 'a b'", 2, "letters"),
    ("version: 1\nagent:", 2, "is empty"),
    (HEAD + "agent: b", 3, "'agent' twice"),
    (
        HEAD + "quota: 3",
        3,
        "unknown field 'quota'; allowed are: version, agent, description, owner, role, mode",
    ),
    (HEAD + "reads: inventory.*", 3, "reads must be a list"),
    (HEAD + "reads: ['*']", 3, "reads[0] is '*'"),
    (HEAD + "reads: [a.*.b]", 3, "reads[0] is 'a.*.b'"),
    (HEAD + "reads: [orders]", 3, "with its namespace"),
    (HEAD + "tables:\n- table: a.b", 4, "tables[0] lacks the field 'operations'"),
    (HEAD + "tables:\n- {table: a.b, operations: []}", 4, "grant nothing"),
    (HEAD + "tables:\n- {table: a.b, operations: [write]}", 4, "tables[0].operations[0] is 'write'; allowed are: read"),
    (HEAD + "tables:\n- {table: a.b, operations: [read], strict: yes}", 4, "tables[0].strict is 'yes'; allowed"),
    (HEAD + "tables:\n- {table: a.b, operations: [read], partitions: everything}", 4, "must be a list"),
    (
        HEAD + "tables:\n- {table: a.b, operations: [read], read_scope: all}",
        4,
        "read_scope is 'all'; allowed",
    ),
    (HEAD + "tables:\n- table: a.b\n  operations: [append]\n  partitions:\n  - {}", 7, "names no partition field"),
    (HEAD + "tables:\n- table: a.b\n  operations: [append]\n  partitions:\n  - {d: {}}", 7, "empty range"),
    (HEAD + "tables:\n- table: a.b\n  operations: [append]\n  partitions:\n  - {d: []}", 7, "empty list"),
    (HEAD + "tables:\n- table: a.b\n  operations: [append]\n  partitions:\n  - {d: {until: 3}}", 7, "from, to"),
    (
        HEAD
        + "tables:\n- table: a.b\n  operations: [append]\n  partitions:\n  - {d: {from: 2017-02-01, to: 2017-02-01}}",
        7,
        "holds nothing",
    ),
    (
        HEAD + "tables:\n- table: a.b\n  operations: [append]\n  partitions:\n  - {d: {from: 10, to: 9}}",
        7,
        "holds nothing",
    ),
    (HEAD + "tables:\n- {table: a.b, operations: [append], except: [{d: 1}]}", 4, "add 'partitions'"),
    (HEAD + "tables:\n- {table: a.b, operations: [append], pattern: scheduler, partitions: [{d: 1}]}", 4, "slots"),
    (HEAD + "tables:\n- {table: a.b, operations: [append], quotas: {files_per_commit: 0}}", 4, "1 or more"),
    (HEAD + "tables:\n- {table: a.b, operations: [append], quotas: {bytes_per_commit: 1GB}}", 4, "512MiB"),
    (HEAD + "retries: {min_wait: 5s, max_wait: 1s}", 3, "raise 'max_wait'"),
    (HEAD + "retries: {min_wait: 5}", 3, "such as 100ms"),
    (HEAD + "escalation: {after_failures: 3, within: 10m, to: the team}", 3, "name a person"),
    (HEAD + "escalation: {after_failures: 3, within: 10m, to: a@b.c, webhook: 'https://x/y'}", 3, "secrets"),
    (HEAD + "escalation: {after_failures: 3, within: 0s, to: a@b.c}", 3, "duration"),
    (HEAD + "idempotency: {required: true, how: []}", 3, "every way"),
    (HEAD + "revocation: {by: ['a b']}", 3, "no principal's name"),
    (HEAD + "branches: {checks: ['a b']}", 3, "no name of a check"),
    (HEAD + "branches: {checked_by: [ci]}", 3, "add 'checks'"),
    (HEAD + "quotas: {requests_at_once: 0}", 3, "1 or more"),
    (HEAD + "quotas: {commits_per_minute: 5}", 3, "requests_at_once"),
    (HEAD + "mode: silent", 3, "allowed are: enforce, shadow"),
    (HEAD + "owner: &x y\ndescription: *x", 3, "anchor"),
    (HEAD + "owner: !!python/name:os.system x", 3, "tag"),
    (HEAD + "<<: {owner: x}", 3, "<<"),
    (HEAD + "---\nversion: 1", 3, "second document"),
    (HEAD + "owner: [", 3, "not YAML"),
    (HEAD + "owner: \x00", 1, "not YAML"),
    (HEAD + "owner: \ud800", 1, "not YAML"),
    (HEAD + "owner: " + "[" * 100_000, 3, "nested deeper"),
    (HEAD + "owner: " + "x" * 1_000_001, 1, "longer"),
]


@pytest.mark.parametrize(("text", "line", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_a_mistake_is_refused_with_its_line_and_field(text: str, line: int, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        load(text, source="agent.yaml")
    assert caught.value.rule == "contract.syntax"
    assert caught.value.message.startswith(f"agent.yaml, line {line}: ")
    assert words in caught.value.message


PATTERNS = """\
a.b     a.b     yes
a.b     a.c     no
a.b     a.b.b   no
a.*     a.b     yes
a.*     a.x.b   no
a.**    a.b     yes
a.**    a.x.b   yes
a.**    ab.c    no
**      a.b.c   yes
a.b.*   a.b     no
"""


@pytest.mark.parametrize("line", PATTERNS.splitlines())
def test_patterns(line: str) -> None:
    text, table, expected = line.split()
    pattern = parse_pattern(text)
    assert pattern is not None
    assert pattern.matches(Identifier.parse(table)) is (expected == "yes")
    assert str(pattern) == text


def test_what_is_not_granted_is_refused_and_what_a_grant_implies() -> None:
    rule = Rule(Pattern(("a",), "b"), frozenset({Operation.OVERWRITE}))
    granted = {operation.value for operation in Operation if rule.grants(operation)}
    assert granted == {"read", "append", "overwrite", "delete", "replace"}
    creator = Rule(Pattern(("a",), "b"), frozenset({Operation.CREATE}))
    assert [operation for operation in Operation if creator.grants(operation)] == [Operation.CREATE]
    assert all(ADMINISTRATOR.grants(operation, Identifier(("x",), "y")) for operation in Operation)
    assert not any(Contract("nobody").grants(operation, Identifier(("x",), "y")) for operation in Operation)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Cn")), min_size=1, max_size=8)
NAMES = st.text("abcxyz_019", min_size=1, max_size=6)
PATTERN = st.builds(
    Pattern, st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.one_of(NAMES, st.just("*"), st.just("**"))
)
EXTENT = st.one_of(
    st.builds(Range, st.none(), WORDS),
    st.builds(Range, WORDS, st.none()),
    st.builds(Range, st.just("2017-01-01"), st.just("2017-01-02")),
    st.builds(Values, st.lists(st.none() | WORDS, min_size=1, max_size=4).map(tuple)),
)
TERMS = st.sampled_from(("day(ts)", "bucket(16, a.b)", "truncate(3, word)"))
FIELDS = WORDS.filter(lambda word: word != "<<" and not {*"()"} & {*word})
REGION = st.dictionaries(TERMS | FIELDS, EXTENT, min_size=1, max_size=3).map(
    lambda fields: Region(tuple(sorted(fields.items())))
)
RULE = st.builds(
    Rule,
    PATTERN,
    st.frozensets(st.sampled_from(Operation), min_size=1),
    st.none() | st.lists(REGION, max_size=3).map(tuple),
    **dict.fromkeys(("blind_appends", "strict", "require_key", "prove_partitions", "reads_owned"), st.booleans()),
    isolation=st.none() | st.sampled_from(Isolation),
    orchestration=st.sampled_from((Orchestration.DIRECT, Orchestration.MEDIATOR, Orchestration.COLLECTOR)),
    own_location=st.booleans(),
    quota=st.builds(Quota, *[st.none() | st.integers(1, 10**12)] * 3),
)
SECONDS = st.integers(1, 10**8).map(lambda thousandths: thousandths / 1000)
CONTRACTS = st.builds(
    Contract,
    NAMES.filter(lambda name: not name.startswith("_")),
    tables=st.lists(RULE, max_size=3).map(tuple),
    reads=st.lists(PATTERN, max_size=2).map(tuple),
    description=WORDS,
    owner=st.none() | WORDS,
    role=st.sampled_from(Role),
    shadow=st.booleans(),
    retries=st.none() | st.builds(Retries, st.integers(0, 99), st.integers(1, 500), st.integers(500, 10**7)),
    escalation=st.none()
    | st.builds(Escalation, st.integers(1, 99), SECONDS, st.just("a@b.c"), st.sampled_from((None, "w"))),
    idempotency=st.none()
    | st.builds(Idempotency, st.booleans(), st.frozensets(st.sampled_from(KeyWay), min_size=1), st.none() | SECONDS),
    orphans=st.none() | st.builds(Orphans, SECONDS, SECONDS, st.booleans()),
    branches=st.none()
    | st.builds(
        Branches,
        st.none() | SECONDS,
        st.lists(NAMES.map("c".__add__), min_size=1, max_size=2).map(tuple),
        st.lists(NAMES.map("p".__add__), max_size=2).map(tuple),
    ),
    revocation=st.none() | st.builds(Revocation, st.lists(NAMES.map("p".__add__), max_size=2).map(tuple)),
    requests_at_once=st.none() | st.integers(1, 10**6),
)


@settings(deadline=None)
@given(CONTRACTS)
def test_a_contract_survives_being_written_as_yaml_and_as_json(contract: Contract) -> None:
    assert load(dump(contract), source="again") == contract
    assert from_json(to_json(contract), source="again") == contract


@pytest.mark.parametrize(
    ("spelling", "means"),
    [
        ("day(ts)", ("day", "ts")),
        ("days(ts)", ("day", "ts")),
        ("date(ts)", ("day", "ts")),
        ("DATE( a.ts )", ("day", "a.ts")),
        ("hour(ts)", ("hour", "ts")),
        ("date_hour(ts)", ("hour", "ts")),
        ("bucket(16, customer_id)", ("bucket[16]", "customer_id")),
        ("bucket(customer_id, 16)", ("bucket[16]", "customer_id")),
        ("bucket[16](customer_id)", ("bucket[16]", "customer_id")),
        ("truncate(sku, 10)", ("truncate[10]", "sku")),
    ],
)
def test_every_spelling_of_a_term_means_the_same(spelling: str, means: tuple[str, str]) -> None:
    assert parse_term(spelling) == Term(*means)
    text = f"version: 1\nagent: a\ntables:\n- table: a.b\n  operations: [append]\n  partitions: [{{'{spelling}': 1}}]\n"
    load(text, source="a.yaml")


@pytest.mark.parametrize(
    "wrong", ["bucket(id)", "bucket(1, id, 2)", "bucket[1](2, id)", "day(ts, 3)", "day[1](ts)", "date()"]
)
def test_what_is_no_term_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"number|transform"):
        parse_term(wrong)
