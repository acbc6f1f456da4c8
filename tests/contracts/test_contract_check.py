"""Is what a commit touches owned? Tables of cases, and a property against naive membership."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.contracts.check import Clear, Touch, Undecided, Verdict, Violation, check, owned, reads_only_owned
from icetower.contracts.document import load
from icetower.contracts.model import Contract, Operation
from icetower.contracts.terms import NO_LAYOUT
from icetower.contracts.values import Membership, NotUnderstood, compile_extent
from icetower.iceberg.partitions import PartitionField, PartitionSpec
from icetower.protocol.names import Identifier

TABLE = Identifier(("pricing",), "product_prices")
APPEND = frozenset({Operation.APPEND})
EPOCH = dt.date(1970, 1, 1)


def field(name: str, transform: str, source_type: str = "long") -> PartitionField:
    results = {"day": "date", "hour": "int", "month": "int", "year": "int"}
    result = "int" if transform.startswith("bucket") else results.get(transform, source_type)
    return PartitionField(1000, name, transform, name, source_type, result, 2 if name == "bucket" else 1)


def days(text: str) -> int:
    return (dt.date.fromisoformat(text) - EPOCH).days


SPEC = PartitionSpec(1, (field("date_day", "day", "timestamptz"), field("bucket", "bucket[16]")))
DAY_ONLY = PartitionSpec(0, (field("date_day", "day", "timestamptz"),))
NONE = PartitionSpec(2, ())


def contract(*rules: str) -> Contract:
    return load("version: 1\nagent: a\ntables:\n" + "\n".join(f"- {rule}" for rule in rules), source="test")


def judge(owner: Contract, table: Identifier, touches: Sequence[Touch], operations: frozenset[Operation]) -> Verdict:
    return check(owner, table, touches, operations, layout=NO_LAYOUT, now_ms=0)


OWNED = """{table: pricing.product_prices, operations: [append], partitions: [
    {date_day: {from: 2017-01-01, to: 2017-02-01}, bucket: [0, 1]}, {date_day: [2017-03-05, null]}]}"""

CASES = """\
day         bucket  expected
2017-01-01  0       clear
2017-01-31  1       clear
2017-02-01  1       contract.partitions  date_day=2017-02-01/bucket=1
2016-12-31  1       contract.partitions  date_day=2016-12-31/bucket=1
2017-01-31  2       contract.partitions  date_day=2017-01-31/bucket=2
2017-03-05  15      clear
2017-03-05  null    clear
null        3       clear
2017-01-05  null    contract.partitions  date_day=2017-01-05/bucket=null
2017-03-05  -       clear
2017-01-05  -       contract.undecided   date_day=2017-01-05
2017-05-05  -       contract.partitions  date_day=2017-05-05
-           -       contract.undecided   (unpartitioned)
"""


@pytest.mark.parametrize("line", CASES.splitlines()[1:])
def test_regions(line: str) -> None:
    day, bucket, expected, *named = line.split()
    values: list[Any] = [None if day == "null" else days(day)] if day != "-" else []
    if bucket != "-":
        values.append(None if bucket == "null" else int(bucket))
    spec = (NONE, DAY_ONLY, SPEC)[len(values)]
    for adds, content in ((True, 0), (False, 0), (True, 1), (True, 2)):
        verdict = judge(contract(OWNED), TABLE, [Touch(spec, tuple(values), adds, content)], APPEND)
        if expected == "clear":
            assert verdict == Clear()
        else:
            assert isinstance(verdict, Violation if expected == "contract.partitions" else Undecided)
            assert (verdict.rule, list(verdict.partitions)) == (expected, named)
            assert named[0] in verdict.message


def test_one_partition_outside_is_enough_and_is_the_only_one_named() -> None:
    touches = [Touch(SPEC, (days("2017-01-01"), 0), True, 0), Touch(SPEC, (days("2017-01-01"), 9), False, 0)]
    verdict = judge(contract(OWNED), TABLE, touches, APPEND)
    assert isinstance(verdict, Violation)
    assert verdict.partitions == ("date_day=2017-01-01/bucket=9",)


RULES = [
    # rules, operations, verdict's rule
    (["{table: pricing.other, operations: [append], partitions: all}"], "append", "contract.table"),
    (["{table: pricing.*, operations: [read], partitions: all}"], "append", "contract.operation"),
    (["{table: pricing.*, operations: [append]}"], "append", "contract.partitions"),
    (["{table: pricing.*, operations: [append], partitions: all}"], "append", None),
    (["{table: pricing.*, operations: [append], partitions: all}"], "append alter", "contract.operation"),
    (["{table: pricing.*, operations: [append, alter], partitions: all}"], "append alter", None),
    (["{table: pricing.*, operations: [overwrite], partitions: all}"], "delete append", None),
    # What several rules grant on one table adds up, but one of them must grant a partition all that is done to it.
    (["{table: '**', operations: [read], partitions: all}", "{table: pricing.*, operations: [append]}"], "append",
     "contract.partitions"),
    (["{table: '**', operations: [delete], partitions: all}", OWNED], "append", "contract.partitions"),
    (["{table: '**', operations: [alter]}", "{table: pricing.*, operations: [append], partitions: all}"],
     "append alter", None),
    # A value that means nothing for the field can't be judged.
    (["{table: pricing.*, operations: [append], partitions: [{date_day: [soon]}]}"], "append", "contract.undecided"),
    (["{table: pricing.*, operations: [append], partitions: [{bucket: [16]}]}"], "append", "contract.undecided"),
    (["{table: pricing.*, operations: [append], partitions: [{region: [EU]}]}"], "append", "contract.undecided"),
    (["{table: pricing.*, operations: [append], partitions: [{region: [EU], bucket: 3}]}"], "append",
     "contract.partitions"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "operations", "expected"), RULES)
def test_rules(rules: list[str], operations: str, expected: str | None) -> None:
    wanted = frozenset(Operation(operation) for operation in operations.split())
    verdict = judge(contract(*rules), TABLE, [Touch(SPEC, (days("2017-05-01"), 9), True, 0)], wanted)
    assert getattr(verdict, "rule", None) == expected


def test_a_manifest_with_values_of_another_type_is_not_owned() -> None:
    """R5: such values are compared with nothing, and named without failing."""
    ranged = contract("{table: pricing.*, operations: [append], partitions: [{date_day: {from: 2017-01-01}}]}")
    for partition, rule in ((("tomorrow",), "contract.partitions"), ((1, 2, 3), "contract.undecided")):
        verdict = judge(ranged, TABLE, [Touch(DAY_ONLY, partition, True, 0)], APPEND)
        assert getattr(verdict, "rule", None) == rule


VALUES = [
    # transform, source type, text, raw
    ("day", "date", "2017-01-02", days("2017-01-02")),
    ("day", "date", "1969-12-31", -1),
    ("hour", "timestamp", "2017-03-01T05", days("2017-03-01") * 24 + 5),
    ("hour", "timestamp", "2017-03-01-05", days("2017-03-01") * 24 + 5),
    ("month", "date", "2017-03", 47 * 12 + 2),
    ("year", "date", "1969", -1),
    ("bucket[16]", "string", "15", 15),
    ("identity", "int", "-7", -7),
    ("identity", "string", "2017", "2017"),
    ("identity", "boolean", "true", True),
    ("identity", "decimal(9, 2)", "1.10", Decimal("1.1")),
    ("identity", "date", "2017-01-02", days("2017-01-02")),
    ("identity", "time", "00:00:01", 1_000_000),
    ("identity", "timestamp", "1970-01-01T00:00:01.5", 1_500_000),
    ("identity", "timestamptz", "1970-01-01T01:00:00+01:00", 0),
    ("identity", "timestamp_ns", "1970-01-01T00:00:01", 1_000_000_000),
    ("identity", "uuid", "00000000-0000-0000-0000-00000000000a", UUID(int=10).bytes),
    ("identity", "binary", "ff00", b"\xff\x00"),
    ("truncate[3]", "string", "abc", "abc"),
    ("truncate[10]", "int", "20", 20),
    ("identity", "double", "1e3", 1000.0),
]


@pytest.mark.parametrize(("transform", "source_type", "text", "raw"), VALUES)
def test_values_are_understood_by_transform_and_type(transform: str, source_type: str, text: str, raw: Any) -> None:
    region = contract(f"{{table: a.b, operations: [read], partitions: [{{f: ['{text}']}}]}}").tables[0].partitions
    assert region is not None
    compiled = compile_extent(field("f", transform, source_type), region[0].fields[0][1], 0)
    assert compiled.of(raw) is Membership.INSIDE
    assert compiled.of(None) is Membership.OUTSIDE


MEANINGLESS = """\
day         date       2017-02-30
day         date       2017-01
hour        timestamp  2017-03-01
hour        timestamp  2017-03-01T24
month       date       2017-01-01
year        date       17
bucket[16]  int        16
bucket[16]  int        -1
bucket[16]  int        1.5
identity    int        one
identity    boolean    yes
identity    timestamp  1970-01-01T00:00:00Z
identity    uuid       12
identity    binary     xyz
identity    variant    1
void        int        1
zorder      int        1
"""


@pytest.mark.parametrize("line", MEANINGLESS.splitlines())
def test_values_that_mean_nothing_say_so(line: str) -> None:
    transform, source_type, text = line.split()
    region = contract(f"{{table: a.b, operations: [read], partitions: [{{f: ['{text}']}}]}}").tables[0].partitions
    assert region is not None
    with pytest.raises(NotUnderstood, match="f"):
        compile_extent(field("f", transform, source_type), region[0].fields[0][1], 0)


def test_a_bound_may_be_coarser_than_its_field() -> None:
    """A month of hours is written as two days or two months."""
    hours = PartitionSpec(0, (field("h", "hour", "timestamp"),))
    for bounds in (
        "{from: 2017-01, to: 2017-02}",
        "{from: 2017-01-01, to: 2017-02-01}",
        "{from: 2017-01-01T00, to: 2017-02}",
    ):
        owner = contract(f"{{table: pricing.*, operations: [append], partitions: [{{h: {bounds}}}]}}")
        for hour, mine in ((0, True), (31 * 24 - 1, True), (-1, False), (31 * 24, False)):
            raw = days("2017-01-01") * 24 + hour
            verdict = judge(owner, TABLE, [Touch(hours, (raw,), True, 0)], APPEND)
            assert isinstance(verdict, Clear) is mine


# ---- the property: the verdict equals naive membership of each partition

DAYS = st.integers(0, 8)
SOME_DAYS = st.none() | DAYS
BUCKETS = st.integers(0, 3)


@st.composite
def regions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Regions as (day extent, bucket extent); a range is a pair, a set a list."""
    extent_of_days = st.tuples(st.none() | DAYS, st.none() | DAYS).filter(
        lambda b: b != (None, None) and (None in b or b[0] < b[1])
    ) | st.lists(SOME_DAYS, min_size=1, max_size=3)
    extent_of_buckets = st.lists(st.none() | BUCKETS, min_size=1, max_size=3)
    region = st.fixed_dictionaries({}, optional={"date_day": extent_of_days, "bucket": extent_of_buckets})
    return draw(st.lists(region.filter(bool), max_size=3))


def naive(region: dict[str, Any], partition: tuple[int | None, ...]) -> bool | None:
    """Membership spelled out; None where the bucket is asked for and the spec has none."""
    verdicts: list[bool | None] = []
    for name, extent in region.items():
        index = ("date_day", "bucket").index(name)
        if index >= len(partition):
            verdicts.append(None)
        elif isinstance(extent, tuple):
            low, high = extent
            raw = partition[index]
            verdicts.append(raw is not None and (low is None or low <= raw) and (high is None or raw < high))
        else:
            verdicts.append(partition[index] in extent)
    return False if False in verdicts else None if None in verdicts else True


def day_text(day: int | None) -> str:
    return "null" if day is None else str(EPOCH + dt.timedelta(days=day))


def text_of(region: dict[str, Any]) -> str:
    parts: list[str] = []
    for name, extent in region.items():
        write = day_text if name == "date_day" else lambda value: "null" if value is None else str(value)
        if isinstance(extent, tuple):
            bounds = [f"{side}: {write(v)}" for side, v in zip(("from", "to"), extent, strict=True) if v is not None]
            parts.append(f"{name}: {{{', '.join(bounds)}}}")
        else:
            parts.append(f"{name}: [{', '.join(write(v) for v in extent)}]")
    return "{" + ", ".join(parts) + "}"


@given(
    regions(),
    st.lists(st.tuples(SOME_DAYS, st.none() | BUCKETS) | st.tuples(SOME_DAYS) | st.just(()), min_size=1, max_size=5),
)
def test_the_verdict_is_membership_of_every_partition(
    owned: list[dict[str, Any]], partitions: list[tuple[int | None, ...]]
) -> None:
    rule = f"{{table: pricing.*, operations: [append], partitions: [{', '.join(text_of(r) for r in owned)}]}}"
    touches = [Touch((NONE, DAY_ONLY, SPEC)[len(partition)], partition, True, 0) for partition in partitions]
    verdict = judge(contract(rule), TABLE, touches, APPEND)

    def of(partition: tuple[int | None, ...]) -> bool | None:
        each = [naive(region, partition) for region in owned]
        return True if True in each else None if None in each else False

    membership = [of(partition) for partition in partitions]
    if False in membership:
        assert isinstance(verdict, Violation)
        assert len(verdict.partitions) == len({p for p, m in zip(partitions, membership, strict=True) if m is False})
    elif None in membership:
        assert isinstance(verdict, Undecided)
    else:
        assert verdict == Clear()


# -- what is read (trap R2) --------------------------------------------------------------------------------------------


def may_own(reader: Contract) -> Callable[[int, tuple[Any, ...]], bool]:
    return owned(reader, TABLE, SPECS, layout=NO_LAYOUT, now_ms=0)


SPECS = {spec.spec_id: spec for spec in (SPEC, DAY_ONLY, NONE)}
READER = contract(
    "{table: pricing.*, operations: [append], partitions: "
    "[{date_day: {from: 2017-01-01, to: 2017-02-01}, bucket: [0, 1]}]}",
    "{table: pricing.product_prices, operations: [read], partitions: [{date_day: 2017-01-31, bucket: 7}]}",
    "{table: pricing.other, operations: [append], partitions: all}",
)
READABLE = [
    # why, spec id, partition, may be owned
    ("the first rule's", 1, (days("2017-01-31"), 0), True),
    ("a day of nobody's", 1, (days("2017-02-01"), 0), False),
    ("a bucket of nobody's", 1, (days("2017-01-30"), 7), False),
    ("the second rule's, though it grants reading alone", 1, (days("2017-01-31"), 7), True),
    ("both rules need a bucket and there is none: undecided", 0, (days("2017-01-05"),), True),
    ("the day alone decides", 0, (days("2018-01-05"),), False),
    ("unpartitioned: undecided", 2, (), True),
    ("a tuple of another width: undecided", 1, (days("2017-02-01"),), True),
    ("a spec that came later: undecided", 9, (days("2017-02-01"), 0), True),
]


@pytest.mark.parametrize(("why", "spec_id", "partition", "answer"), READABLE, ids=[row[0] for row in READABLE])
def test_r2_what_a_contract_may_own_is_the_sum_of_its_rules_and_all_that_is_undecided(
    why: str, spec_id: int, partition: tuple[Any, ...], answer: bool
) -> None:
    assert may_own(READER)(spec_id, partition) is answer, why


def test_r2_whoever_owns_everything_reads_everything() -> None:
    everything = contract("{table: pricing.**, operations: [append], partitions: all}")
    assert may_own(everything)(1, (days("1999-01-01"), 9))
    nothing = contract("{table: pricing.**, operations: [append]}")
    assert not may_own(nothing)(1, (days("1999-01-01"), 9))


def test_r2_every_rule_that_grants_a_write_must_promise_what_it_reads() -> None:
    promising = "{table: pricing.product_prices, operations: [overwrite], partitions: [{bucket: 0}], read_scope: owned}"
    silent = "{table: 'pricing.*', operations: [append], partitions: [{bucket: 1}]}"
    overwrite = frozenset({Operation.OVERWRITE})
    assert reads_only_owned(contract(promising), TABLE, overwrite)
    assert reads_only_owned(contract(promising, silent), TABLE, overwrite)  # the other one does not grant it
    assert not reads_only_owned(contract(promising, silent), TABLE, APPEND)
    assert not reads_only_owned(contract(silent), TABLE, APPEND)
    assert not reads_only_owned(contract(promising), TABLE, frozenset({Operation.ALTER}))  # no write at all
    assert not reads_only_owned(contract(promising), Identifier(("pricing",), "other"), overwrite)


@pytest.mark.parametrize("pattern", ["mediator", "collector"])
def test_whose_rows_come_by_another_table_is_told_which(pattern: str) -> None:
    tables = (
        "version: 1\nagent: a\ntables:\n"
        f"- {{table: n.t, operations: [overwrite], partitions: all, pattern: {pattern}}}\n"
        "- {table: n.other, operations: [append], partitions: [{_agent: [a]}]}\n"
    )
    target, asked = Identifier(("n",), "t"), frozenset({Operation.OVERWRITE})
    found = check(load(tables, source="test"), target, (), asked, layout=NO_LAYOUT, now_ms=0)
    assert isinstance(found, Violation)
    kind = {"mediator": "log", "collector": "delta table"}[pattern]
    assert (found.rule, found.message.endswith(f"append them to the {kind} n.other")) == ("contract.pattern", True)
    by_job = check(load(tables, source="test"), target, (), asked, layout=NO_LAYOUT, now_ms=0, mediated=True)
    assert isinstance(by_job, Clear)
    trying = load(tables.replace("version: 1", "version: 1\nmode: shadow"), source="test")
    assert trying.shadow
    assert isinstance(check(trying, target, (), asked, layout=NO_LAYOUT, now_ms=0), Violation)
