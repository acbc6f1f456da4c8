"""What a review of contracts finds, with the line, and what it leaves alone."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from icetower.contracts import review
from icetower.contracts.findings import ALIKE_MAX, Finding, Place, Severity, Written, condensed, of_syntax
from icetower.contracts.gaps import gaps
from icetower.contracts.model import Retries
from icetower.contracts.references import Found, between, missing, references
from icetower.errors import BadRequest
from icetower.iceberg.partitions import spec_of
from icetower.protocol.names import Identifier

NOW_MS = int(dt.datetime(2020, 3, 1, 10, 30, tzinfo=dt.UTC).timestamp() * 1000)
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "contracts"

HEAD = """\
version: 1
agent: pricing_agent
owner: pricing@example.com
"""
CLAUSES = """\
escalation: {after_failures: 5, within: 10m, to: dana@example.com}
idempotency: {required: true, how: [header, summary]}
"""


def written(text: str, source: str = "a.yaml") -> Written:
    return Written.read(text, source)


def entry(partitions: str, operations: str = "overwrite", *, agent: str = "pricing_agent", table: str = "p.t") -> str:
    return (
        f"version: 1\nagent: {agent}\nowner: x@example.com\n{CLAUSES}"
        f"tables:\n- table: {table}\n  operations: [{operations}]\n  partitions: {partitions}\n"
    )


def lines(findings: list[Finding]) -> list[tuple[str, int, str]]:
    return [(finding.severity.value, finding.place.line, finding.rule) for finding in findings]


ONE = "tables:\n- table: p.t\n  operations: [append]\n"
TABLE = "tables:\n- {table: p.t, operations: [append], partitions: all}\n"
ALONE = [
    # what is added to the head, what is found: severity, line, rule, words
    (CLAUSES + TABLE, []),
    # What unchanged clients meet: a refusal of each commit, and in the end a stop.
    (
        CLAUSES.replace(", how: [header, summary]", "") + TABLE,
        [("note", 5, "idempotency.clients", "Unchanged PyIceberg")],
    ),
    ("reads: [p.*]\n", []),  # who only reads needs none of the clauses
    (
        TABLE,
        [
            ("warning", 2, "escalation.none", "add 'escalation'"),
            ("warning", 5, "retries.key", "lands twice"),
        ],
    ),
    (CLAUSES + TABLE + "retries: {attempts: 0}\nmode: shadow\n", [("note", 9, "mode.shadow", "admits everything")]),
    (
        "escalation: {after_failures: 9, within: 10m, to: dana@example.com}\nretries: {attempts: 5}\n" + TABLE,
        [("warning", 5, "retries.key", "need no idempotency key")],
    ),
    (
        TABLE.replace("all}", "all, require_key: true}")
        + "escalation:\n  after_failures: 3\n  within: 10s\n  to: dana@example.com\n"
        + "retries: {attempts: 5, min_wait: 1s, max_wait: 10s}\n",
        [
            ("warning", 8, "escalation.within", "take up to 25s, longer than the 10s"),
        ],
    ),
    (
        CLAUSES.replace("summary]}", "summary], window: 1m}")
        + TABLE
        + "retries: {attempts: 90, max_wait: 9s, min_wait: 9s}\n",
        [
            ("warning", 4, "escalation.within", "810s"),
            ("warning", 5, "idempotency.window", "forgotten after 1m"),
        ],
    ),
    (
        CLAUSES + TABLE + "orphans: {older_than: 1h, action: delete}\n",
        [("warning", 8, "orphans.age", "from the age of 1h on")],
    ),
    (CLAUSES + TABLE + "orphans: {older_than: 1h}\n", []),
    (
        CLAUSES + "tables:\n- {table: p.t, operations: [overwrite]}\n"
        "- {table: p.u, operations: [create], partitions: [{a: 1}]}\n"
        "- {table: p.v, operations: [refs], partitions: [{a: 1}]}\n"
        "- {table: p.w, operations: [alter], partitions: [{a: 1}]}\n",
        [
            ("warning", 7, "partitions.none", "overwrite on p.t comes to nothing"),
            ("note", 8, "partitions.unused", "partitions of p.u come to nothing"),
        ],
    ),
    (
        CLAUSES + ONE + "  partitions: all\n  strict: true\n  blind_appends: true\n",
        [("note", 11, "strict.rebase", "'blind_appends' comes to nothing")],
    ),
    (
        CLAUSES + ONE + "  partitions: all\n  isolation: serializable\n  blind_appends: true\n",
        [("note", 11, "blind.serializable", "goes before it")],
    ),
    (
        CLAUSES + "tables:\n- {table: p.t, operations: [overwrite], partitions: all, blind_appends: true}\n",
        [("note", 7, "blind.upsert", "may change rows of p.t")],
    ),
    (
        CLAUSES + "tables:\n- {table: p.t, operations: [append, drop], partitions: [{d: [1]}]}\n",
        [("warning", 7, "operation.table", "drop on p.t comes to nothing")],
    ),
    (
        CLAUSES + "tables:\n- {table: p.t, operations: [append], partitions: all, pattern: mediator}\n",
        [("warning", 7, "pattern.mediator", "no other table")],
    ),
    (
        CLAUSES + "tables:\n- {table: p.t, operations: [append], partitions: all, pattern: collector}\n",
        [("warning", 7, "pattern.collector", "add the delta table")],
    ),
    (
        CLAUSES + "tables:\n- {table: p.t, operations: [append], partitions: all, pattern: mediator}\n"
        "- {table: wal.t, operations: [append], partitions: all}\n",
        [],
    ),
    (
        CLAUSES + ONE + "  partitions:\n  - day(ts): monday\n",
        [("error", 10, "partitions.value", "cannot be read as a day like 2017-01-31")],
    ),
    (
        CLAUSES + ONE + "  partitions:\n  - bucket(16, id): [1, 16]\n",
        [("error", 10, "partitions.value", "there are only the buckets 0 to 15")],
    ),
    (
        CLAUSES + ONE + "  partitions:\n  - hour(ts): {from: now+2h, to: now}\n",
        [("warning", 10, "partitions.empty", "never holds anything")],
    ),
    (
        CLAUSES + ONE + "  partitions:\n  - day(ts): {from: now, to: now+2h}\n",
        [("warning", 10, "partitions.slot", "shorter than one day")],
    ),
    (
        CLAUSES + ONE + "  partitions:\n  - hour(ts): {from: now, to: now+2h}\n",
        [],
    ),
    (
        CLAUSES + "tables:\n- table: p.t\n  operations: [append]\n  partitions: [{day(ts): 2017-01-01}]\n"
        "  except:\n  - day(ts): 2017-01-02\n  - month(ts): 2017-01\n",
        [
            ("warning", 10, "partitions.empty", "'except' takes all of them away"),
            ("note", 11, "except.nothing", "takes nothing away"),
        ],
    ),
    (
        CLAUSES + ONE + "  partitions: all\n  except: [{day(ts): 2017-01-02}]\n",
        [],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("more", "found"), ALONE, ids=[str([f[2] for f in found]) + m[-30:] for m, found in ALONE])
def test_one_contract_alone(more: str, found: list[tuple[str, int, str, str]]) -> None:
    findings = condensed(review.one(written(HEAD + more), now_ms=NOW_MS))
    assert lines(findings) == [each[:3] for each in found]
    for finding, (*_, words) in zip(findings, found, strict=True):
        assert words in finding.message


def test_without_an_owner_nobody_answers() -> None:
    found = list(review.one(written("version: 1\nagent: a\n"), now_ms=NOW_MS))
    assert lines(found) == [("note", 2, "owner.none")]


def test_the_longest_retrying_is_that_of_icebergs_clients() -> None:
    assert review.longest_retrying_s(Retries(5, 100, 5_000)) == 0.1 + 0.2 + 0.4 + 0.8 + 1.6
    assert review.longest_retrying_s(Retries(8, 1_000, 5_000)) == 1 + 2 + 4 + 5 * 5
    assert review.longest_retrying_s(Retries(0)) == 0
    assert review.longest_retrying_s(Retries(10**12, 1, 1)) == 10**9


def test_a_mistake_in_writing_is_a_finding_with_its_line() -> None:
    with pytest.raises(BadRequest) as caught:
        written("version: 1\nagent: a\ntables: 5\n", "x, line 7.yaml")
    finding = of_syntax(caught.value, "x, line 7.yaml")
    assert (finding.place, finding.rule, finding.severity) == (
        Place("x, line 7.yaml", 3),
        "contract.syntax",
        Severity.ERROR,
    )
    assert finding.message == "tables must be a list"
    assert of_syntax(BadRequest("of another kind"), "y").place == Place("y", 1)


def test_the_examples_are_free_of_errors_and_warnings_and_apart_from_each_other() -> None:
    contracts = [written(path.read_text(), path.name) for path in sorted(EXAMPLES.glob("*.yaml"))]
    found = [finding for it in contracts for finding in review.one(it, now_ms=NOW_MS)]
    found += review.together(contracts, now_ms=NOW_MS)
    assert [finding for finding in found if finding.severity is not Severity.NOTE] == []


# -- between contracts -------------------------------------------------------------------------------------------------

JANUARY = "[{day(ts): {from: 2017-01-01, to: 2017-02-01}}]"
DAYS = "day(ts) is from 2017-01-01 to 2017-02-01"
OWNED = f"pricing_agent and other_agent both own p.t where {DAYS} (overwrite here, append at b.yaml:7); give it to one"
POSSIBLE = (
    f"may both own p.t where {DAYS} and ts_day is 2017-01-05 (overwrite here, delete at b.yaml:7): without the table"
)
BETWEEN = [
    # of the one, of the other: partitions and operations; what is found: severity, rule, words
    (JANUARY, "overwrite", "[{day(ts): {from: 2017-02-01}}]", "overwrite", []),
    (
        JANUARY, "overwrite", "[{month(ts): 2017-01}]", "append",
        [("error", "overlap.owned", OWNED)],
    ),
    (
        JANUARY, "overwrite", "[{ts_day: 2017-01-05}]", "delete",
        [("warning", "overlap.possible", POSSIBLE)],
    ),
    (
        "all", "append", "all", "append, replace",
        [("note", "overlap.shared", "share p.t, all of it (append here, append and replace at b.yaml:7)")],
    ),
    ("all", "read", "all", "overwrite", []),
    (
        "[{hour(ts): {from: now, to: now+1h}}]", "delete", "[{hour(ts): 2021-01-01T00}]", "append",
        [("error", "overlap.owned", "where hour(ts) is 2021-01-01T00 from 2021-01-01 00:00 UTC on,")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("one", "may", "other", "its_may", "found"), BETWEEN, ids=[f"{b[0]} {b[2]}" for b in BETWEEN])
def test_two_agents(one: str, may: str, other: str, its_may: str, found: list[tuple[str, str, str]]) -> None:
    first = written(entry(one, may))
    second = written(entry(other, its_may, agent="other_agent"), "b.yaml")
    both = [f for f in review.together([first, second], now_ms=NOW_MS) if f.rule.startswith("overlap")]
    assert [(f.severity, f.rule, f.place) for f in both] == [(s, rule, Place("a.yaml", 7)) for s, rule, _ in found]
    for finding, (*_, words) in zip(both, found, strict=True):
        assert words in finding.message
        assert finding.also == (Place("b.yaml", 7),)
    # As much is found against one that is in force, but nothing among those.
    against = [f for f in review.together([first], [second], now_ms=NOW_MS) if f.rule.startswith("overlap")]
    assert against == both
    assert list(review.together([], [first, second], now_ms=NOW_MS)) == []


@pytest.mark.parametrize(("role", "its_role", "found"), [
    ("agent", "agent", ("error", "overlap.owned")),
    ("agent", "maintenance", ("note", "overlap.role")),
    ("pipeline", "agent", ("note", "overlap.role")),
    ("pipeline", "maintenance", ("note", "overlap.role")),
    ("pipeline", "pipeline", ("error", "overlap.owned")),
    ("maintenance", "maintenance", ("error", "overlap.owned")),
])  # fmt: skip
def test_of_different_roles_both_may_own_the_same(role: str, its_role: str, found: tuple[str, str]) -> None:
    first = written(entry(JANUARY) + f"role: {role}\n")
    second = written(entry("all", agent="other_agent") + f"role: {its_role}\n", "b.yaml")
    both = [f for f in review.together([first, second], now_ms=NOW_MS) if f.rule.startswith("overlap")]
    assert [(f.severity.value, f.rule) for f in both] == [found]
    assert role == its_role or f"pricing_agent ({role}) and other_agent ({its_role})" in both[0].message


LOGS = "create, append, overwrite"


@pytest.mark.parametrize(("table", "may", "its_may", "its_role", "its_partitions", "found"), [
    ("system.*", LOGS, LOGS, "pipeline", "all", ("note", "overlap.shared")),
    ("system.agent_dedup_log", LOGS, LOGS, "pipeline", "all", ("note", "overlap.shared")),
    ("system.*", "append, overwrite", LOGS, "pipeline", "all", ("error", "overlap.owned")),
    ("system.*", LOGS, "append, overwrite", "pipeline", "all", ("error", "overlap.owned")),
    ("system.*", LOGS, LOGS, "pipeline", JANUARY, ("error", "overlap.owned")),
    ("system.*", LOGS, LOGS, "agent", "all", ("note", "overlap.role")),
    ("shop.*", LOGS, LOGS, "pipeline", "all", ("error", "overlap.owned")),
    ("shop.stock", LOGS, LOGS, "pipeline", "all", ("error", "overlap.owned")),
    ("'**'", LOGS, LOGS, "pipeline", "all", ("error", "overlap.owned")),
])  # fmt: skip
def test_pipelines_share_the_tables_of_their_logs_alone(
    table: str, may: str, its_may: str, its_role: str, its_partitions: str, found: tuple[str, str]
) -> None:
    """The mediator, the collector and the export write to `system`, each under a contract of its own."""
    first = written(entry("all", may, table=table) + "role: pipeline\n")
    its = entry(its_partitions, its_may, agent="other_agent", table=table)
    second = written(its + f"role: {its_role}\n", "b.yaml")
    both = [f for f in review.together([first, second], now_ms=NOW_MS) if f.rule.startswith("overlap")]
    assert [(f.severity.value, f.rule) for f in both] == [found]


@pytest.mark.parametrize(("pattern", "its_pattern", "found"), [
    ("collector", "collector", ("note", "overlap.shared")),
    ("collector", "direct", ("error", "overlap.owned")),
    ("direct", "collector", ("error", "overlap.owned")),
    ("mediator", "mediator", ("error", "overlap.owned")),
])  # fmt: skip
def test_agents_may_change_the_same_rows_through_a_collector(
    pattern: str, its_pattern: str, found: tuple[str, str]
) -> None:
    first = written(entry("all") + f"  pattern: {pattern}\n")
    second = written(entry("all", agent="other_agent") + f"  pattern: {its_pattern}\n", "b.yaml")
    both = [f for f in review.together([first, second], now_ms=NOW_MS) if f.rule.startswith("overlap")]
    assert [(f.severity.value, f.rule) for f in both] == [found]


@pytest.mark.parametrize(("word", "its_word", "found"), [
    ("required", "required", ("note", "overlap.shared")),
    ("required", "advisory", ("error", "overlap.owned")),
    ("advisory", "required", ("error", "overlap.owned")),
])  # fmt: skip
def test_agents_that_stay_out_of_held_rows_may_change_the_same_ones(
    word: str, its_word: str, found: tuple[str, str]
) -> None:
    first = written(entry("all") + f"  intents: {word}\n")
    second = written(entry("all", agent="other_agent") + f"  intents: {its_word}\n", "b.yaml")
    both = [f for f in review.together([first, second], now_ms=NOW_MS) if f.rule.startswith("overlap")]
    assert [(f.severity.value, f.rule) for f in both] == [found]


@pytest.mark.parametrize(("operation", "more", "words"), [
    ("overwrite", "  blind_appends: true\n", "the appends of other_agent (`blind_appends: true`) and appends of"),
    ("overwrite", "", "keeps out appends of pricing_agent and other_agent that say that they are blind"),
    ("delete", "", "keeps out appends of pricing_agent that say that they are blind"),
])  # fmt: skip
def test_whose_appends_come_into_held_rows_is_said(operation: str, more: str, words: str) -> None:
    first = written(entry("all") + "  intents: required\n")
    theirs = entry("all", agent="other_agent") + "  intents: required\n" + more
    second = written(theirs.replace("[overwrite]", f"[{operation}]"), "b.yaml")
    (shared,) = [f for f in review.together([first, second], now_ms=NOW_MS) if f.rule == "overlap.shared"]
    assert words in shared.message


def test_an_entry_for_refs_alone_needs_all_partitions_and_says_nothing_in_vain() -> None:
    refs = written("version: 1\nagent: pricing\ntables:\n- table: p.t\n  operations: [refs]\n  partitions: all\n")
    assert "partitions.unused" not in {f.rule for f in review.one(refs, now_ms=NOW_MS)}


def test_maintenance_fills_no_gap() -> None:
    """It owns nothing by itself: what no agent owns is still said."""
    parts = "[{day(ts): {from: 2017-01-01, to: 2017-02-01}}, {day(ts): {from: 2017-02-03, to: 2017-03-01}}]"
    agent = written(entry(parts))
    for role, count in (("maintenance", 1), ("pipeline", 0)):
        other = written(entry("all", agent="other_agent") + f"role: {role}\n", "b.yaml")
        found = [f for f in review.together([agent, other], now_ms=NOW_MS) if f.rule == "gap.partitions"]
        assert len(found) == count


def test_an_overlap_with_a_contract_in_shadow_mode_is_a_warning() -> None:
    first, second = written(entry("all")), written(entry("all", agent="other_agent") + "mode: shadow\n", "b.yaml")
    both = [f for f in review.together([first, second], now_ms=NOW_MS) if f.rule.startswith("overlap")]
    assert [(f.severity.value, f.rule) for f in both] == [("warning", "overlap.owned")]


def test_two_contracts_of_one_agent_and_two_agents_of_one_role() -> None:
    first, second = written(entry("all")), written(entry("all"), "b.yaml")
    twice = list(review.together([first, second], now_ms=NOW_MS))
    assert [(f.severity, f.rule, f.place, f.also) for f in twice] == [
        (Severity.ERROR, "agent.twice", Place("b.yaml", 2), (Place("a.yaml", 2),))
    ]
    namesake = written(entry("all", agent="pricing", table="x.y"), "c.yaml")
    for others in ([first, namesake], [first]):
        found = list(review.together(others, [namesake][len(others) - 1 :], now_ms=NOW_MS))
        assert [(f.severity, f.rule) for f in found] == [(Severity.WARNING, "agent.role")]
        assert "would share the role pricing_writer" in found[0].message
    reader = written("version: 1\nagent: pricing\nreads: [a.*]\n", "d.yaml")
    assert list(review.together([first, reader], now_ms=NOW_MS)) == []


GAPS = [
    (["{day(ts): {from: 2017-01-01, to: 2017-02-01}}", "{day(ts): {from: 2017-02-03, to: 2017-03-01}}"],
     ["day(ts) is from 2017-02-01 to 2017-02-03"]),
    (["{month(ts): 2017-01}", "{day(ts): {from: 2017-02-01, to: 2017-02-03}}"], []),
    (['{"bucket(16, id)": [0, 1, 2, 3]}', '{"bucket(16, id)": {from: 8}}'], ["bucket(16, id) is 4–7"]),
    (['{"bucket(2, id)": 0}', '{"bucket(4, id)": 1}'], ["bucket(4, id) is 3"]),
    (['{"bucket(4, id)": [0, 1], region: eu}', '{"bucket(4, id)": [2, 3], region: us}'],
     ["bucket(4, id) is 2 or 3 and region is eu", "bucket(4, id) is 0 or 1 and region is us"]),
    (["{hour(ts): {from: now, to: now+1h}}", "{hour(ts): {from: now+2h, to: now+4h}}"],
     ["hour(ts) is from now+1h to now+2h"]),
    (["{day(ts): {from: 2017-01-01}}", "{day(ts): {to: 2016-12-30}}"], ["day(ts) is from 2016-12-30 to 2017-01-01"]),
    (["{region: eu}", "{region: us}"], []),  # nobody knows what is between them
    (["{ts_day: 2017-01-01}", "{day(ts): 2017-01-03}"], []),  # nobody knows what they have to do with each other
]  # fmt: skip


@pytest.mark.parametrize(("regions", "left"), GAPS, ids=[str(regions) for regions, _ in GAPS])
def test_what_nobody_owns(regions: list[str], left: list[str]) -> None:
    contracts = [written(entry(f"[{region}]", agent=f"agent{n}"), f"{n}.yaml") for n, region in enumerate(regions)]
    assert gaps([it.contract.tables[0] for it in contracts], now_ms=NOW_MS) == left
    found = [f for f in review.together(contracts, now_ms=NOW_MS) if f.rule == "gap.partitions"]
    assert [(f.severity, f.place, f.message) for f in found] == [
        (Severity.NOTE, Place("0.yaml", 9), f"nobody owns p.t where {words}") for words in left
    ]
    everything = written(entry("all", agent="all"), "z.yaml")
    assert [f for f in review.together(contracts, [everything], now_ms=NOW_MS) if f.rule.startswith("gap")] == []


# -- against tables ----------------------------------------------------------------------------------------------------

METADATA = {
    "current-schema-id": 0,
    "schemas": [
        {
            "schema-id": 0,
            "fields": [
                {"id": 1, "name": "ts", "type": "timestamp"},
                {"id": 2, "name": "id", "type": "long"},
                {"id": 3, "name": "sku", "type": "string"},
                {"id": 4, "name": "price", "type": "decimal(9,2)"},
            ],
        }
    ],
    "default-spec-id": 1,
    "partition-specs": [
        {"spec-id": 0, "fields": [{"name": "old_id", "transform": "identity", "source-id": 2, "field-id": 1000}]},
        {
            "spec-id": 1,
            "fields": [
                {"name": "ts_day", "transform": "day", "source-id": 1, "field-id": 1001},
                {"name": "id_bucket", "transform": "bucket[4]", "source-id": 2, "field-id": 1002},
            ],
        },
    ],
}
NAME = Identifier(("p",), "t")
NO_COLUMN = "no column for 'day(tx)'; its partition fields are ts_day, id_bucket, its columns ts, id, sku, price"
AGAINST = [
    # a region, what is found: severity, rule, words
    ("{ts_day: 2017-01-01, id_bucket: 3}", []),
    ("{month(ts): 2017-01}", []),
    ("{day(tx): 2017-01-01}", [("error", "reference.name", NO_COLUMN)]),
    ("{ts_hour: 2017-01-01T00}", [("error", "reference.name", "no partition field")]),
    ("{ts_day: 2017-01}", [("error", "reference.value", "p.t: value '2017-01' of ts_day (day): cannot be read")]),
    ("{id_bucket: 4}", [("error", "reference.value", "only the buckets 0 to 3")]),
    ("{day(id): 2017-01-01}", [("error", "reference.value", "can't be applied to a column of type long")]),
    ('{"bucket(4, price)": 1}', [("warning", "reference.spec", "partitioned by no field of that column")]),
    ("{identity(id): 5}", [("warning", "reference.spec", "partitioned by bucket[4] of it")]),
    ('{"bucket(8, id)": 5}', []),  # two of eight are one of four
    ("{old_id: 5}", [("warning", "reference.spec", "old_id is identity of id, and p.t is partitioned by bucket[4]")]),
    ("{ts_day: {from: now, to: now+2h}}", [("warning", "partitions.slot", "p.t: ts_day from now to now+2h is")]),
]  # fmt: skip


@pytest.mark.parametrize(("region", "found"), AGAINST, ids=[region for region, _ in AGAINST])
def test_what_regions_mean_for_a_table(region: str, found: list[tuple[str, str, str]]) -> None:
    for it in (
        written(entry("").removesuffix(" \n") + f"\n  - {region}\n"),
        written(entry("all").rstrip() + f"\n  except:\n  - {region}\n"),
    ):
        findings = list(references(it, Found(NAME, METADATA), now_ms=NOW_MS))
        assert [(f.severity.value, f.rule) for f in findings] == [each[:2] for each in found]
        for finding, (*_, words) in zip(findings, found, strict=True):
            assert words in finding.message
            assert finding.place.line == len(it.lines) or finding.place.line in it.lines.values()


def test_of_a_table_without_partitions_only_all_can_be_owned() -> None:
    plain = {**METADATA, "partition-specs": [{"spec-id": 0, "fields": []}], "default-spec-id": 0}
    found = list(references(written(entry("[{day(ts): 2017-01-01}]")), Found(NAME, plain), now_ms=NOW_MS))
    assert lines(found) == [("warning", 7, "reference.spec")]
    assert list(references(written(entry("all")), Found(NAME, plain), now_ms=NOW_MS)) == []


def test_with_a_table_names_of_its_fields_and_its_columns_are_one() -> None:
    first = written(entry("[{ts_day: 2017-01-01}]"))
    second = written(entry("[{hour(ts): 2017-01-01T05}]", agent="b"), "b.yaml")
    found = list(between(Found(NAME, METADATA), [first], [second], now_ms=NOW_MS))
    assert [(f.severity, f.rule) for f in found] == [(Severity.ERROR, "overlap.owned")]
    assert "p.t where hour(ts) is 2017-01-01T05" in found[0].message
    # What is looked at by itself is left out otherwise.
    apart = review.together([first], [second], now_ms=NOW_MS, tables=[NAME])
    assert list(apart) == []


def test_partitions_that_are_there_and_nobodys() -> None:
    spec, old = spec_of(METADATA, 1), spec_of(METADATA, 0)
    there = [(spec, (17167, 0)), (spec, (17167, 3)), (spec, (17168, None)), (old, (6,))]
    half = written(entry("[{ts_day: 2017-01-01, id_bucket: [0, 1]}]"))
    found = list(between(Found(NAME, METADATA, there), [half], [], now_ms=NOW_MS))
    assert [(f.severity, f.rule, f.place.line) for f in found] == [
        (Severity.WARNING, "gap.partitions", 9),
        (Severity.WARNING, "gap.rows", 7),
    ]
    assert found[0].message == "nobody owns p.t where id_bucket is 2 or 3 and ts_day is 2017-01-01"
    # What lies in the old partition is in bucket 1, of any day: nobody can tell.
    assert found[1].message == (
        "nobody owns 2 of the 4 partitions of p.t that hold rows: ts_day=2017-01-01/id_bucket=3, "
        "ts_day=2017-01-02/id_bucket=null"
    )
    rest = written(entry("all", agent="rest"), "b.yaml")
    assert [f.rule for f in between(Found(NAME, METADATA, there), [half], [rest], now_ms=NOW_MS)] == ["overlap.owned"]


def test_tables_that_are_not_there() -> None:
    it = written(
        HEAD + CLAUSES + "tables:\n- {table: p.gone, operations: [append], partitions: all}\n"
        "- {table: new.t, operations: [create]}\nreads: [p.*, x.**]\n"
    )
    found = list(missing(it, [NAME]))
    assert lines(found) == [
        ("warning", 7, "reference.table"),
        ("note", 8, "reference.table"),
        ("warning", 9, "reference.table"),
    ]
    assert [f.message.split(";")[0] for f in found] == [
        "there is no table p.gone",
        "there is no table new.t yet",
        "no table that x.** names is there",
    ]


def test_a_catalogs_name_in_front_is_an_error_that_says_the_right_name() -> None:
    it = written(
        HEAD + CLAUSES + f"tables:\n- {{table: prod.{NAME}, operations: [append], partitions: all}}\n"
        f"- {{table: prod.{NAME.namespace[0]}.*, operations: [read]}}\nreads: ['prod.other.t']\n"
    )
    found = list(missing(it, [], [NAME]))
    assert lines(found) == [
        ("error", 7, "reference.catalog"),
        ("error", 8, "reference.catalog"),
        ("warning", 9, "reference.table"),
    ]
    assert f"write {NAME}" in found[0].message
    assert f"write {NAME.namespace[0]}.*" in found[1].message


def test_a_misspelt_table_is_answered_with_the_nearest_one() -> None:
    it = written(HEAD + CLAUSES + f"tables:\n- {{table: {NAME}x, operations: [append], partitions: all}}\n")
    assert f"did you mean {NAME}?" in next(missing(it, [], [NAME])).message


def test_of_many_alike_a_few_are_shown() -> None:
    it = written(entry("[{day(ty): 2017-01-01}]", table="p.*"))
    tables = [Found(Identifier(("p",), f"t{number}"), METADATA) for number in range(9)]
    found = condensed(finding for table in tables for finding in references(it, table, now_ms=NOW_MS))
    assert len(found) == ALIKE_MAX + 1
    assert found[-1].message == "and 5 more like these"
