"""Rows that an agent sends are judged row by row, by what they say themselves."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.admission.gate import ROWS_CHECKS, ask
from icetower.admission.identity import Identity
from icetower.admission.rows import RowsFacts, SentRows, admitted_rows, read_rows
from icetower.errors import IcetowerError
from icetower.iceberg.record_sizes import PARTITION_MAX_BYTES, PARTITION_VALUE_MAX_BYTES
from icetower.registry.principals import Principal, administrator
from icetower.table.head import HeadState
from tests.admission.test_admit_appends import TABLE, agent, head
from tests.rows.making import request


def sent(principal: Principal, table: HeadState, *rows: dict[str, Any], key: str | None = None) -> SentRows:
    identity = Identity.of_append(principal.name, "main", key, None)
    return read_rows(RowsFacts(principal, TABLE, table, request(*rows), identity, 1_700_000_000_000))


def refused(principal: Principal, table: HeadState, *rows: dict[str, Any]) -> IcetowerError:
    with pytest.raises(IcetowerError) as error:
        ask(ROWS_CHECKS, sent(principal, table, *rows))
    return error.value


BY_DAY = (("day", "identity"),)
DAYS = [{"day": f"2026-01-0{n}", "name": "ann"} for n in (1, 2, 3)]


def test_the_partition_is_computed_and_the_bad_rows_are_named() -> None:
    principal, table = agent(", partitions: [{day_identity: ['2026-01-01', '2026-01-02']}]"), head(*BY_DAY)
    assert ask(ROWS_CHECKS, sent(principal, table, *DAYS[:2])) == ()
    error = refused(principal, table, *DAYS, DAYS[2])
    assert (error.rule, error.next_step) == ("contract.partitions", "request_partition")
    assert error.partitions == ("day_identity=2026-01-03",)
    assert "rows 3, 4" in error.message


@pytest.mark.parametrize("partitioned", [(), (("at", "day"),), (("id", "bucket[4]"),), (("name", "truncate[1]"),)])
def test_a_column_that_the_table_is_not_partitioned_by_is_looked_at_in_each_row(partitioned: Any) -> None:
    principal, table = agent(", partitions: [{identity(name): [ann, anton]}]"), head(*partitioned)
    ours = [{"id": n, "name": name, "at": "2026-01-01T00:00:00"} for n, name in enumerate(("ann", "anton"))]
    assert ask(ROWS_CHECKS, sent(principal, table, *ours)) == ()
    error = refused(principal, table, ours[0], {"id": 9, "name": "bob"}, {"id": 8})
    assert error.rule == "contract.partitions"
    assert "rows 2, 3" in error.message


def test_rows_of_one_file_s_bounds_are_no_way_around_it() -> None:
    """A file's bounds from ann to anton hold anna, too: of files that is undecided, of rows it is not."""
    principal, table = agent(", partitions: [{identity(name): [ann, anton]}]"), head()
    assert "row 2" in refused(principal, table, {"name": "ann"}, {"name": "anna"}, {"name": "anton"}).message


def test_what_is_excluded_is_excluded_row_by_row() -> None:
    principal = agent(", partitions: all, except: [{identity(name): [root]}]")
    assert ask(ROWS_CHECKS, sent(principal, head(), {"name": "ann"}, {})) == ()
    assert "row 2" in refused(principal, head(), {"name": "ann"}, {"name": "root"}).message


def test_operations_tables_quotas_and_keys_hold_for_rows() -> None:
    reader = Principal("ann", agent(", partitions: all").contract, 1)
    assert ask(ROWS_CHECKS, sent(reader, head(), {"id": 1})) == ()
    few = agent(", partitions: all, quotas: {files_per_commit: 1}")
    assert refused(few, head(*BY_DAY), *DAYS).rule == "contract.quota"
    keyed = agent(", partitions: all, require_key: true")
    assert refused(keyed, head(), {"id": 1}).rule == "contract.key"
    assert ask(ROWS_CHECKS, sent(keyed, head(), {"id": 1}, key="k")) == ()
    logged = agent(", partitions: all, pattern: mediator, through: db.log")
    assert refused(logged, head(), {"id": 1}).rule == "contract.pattern"


def test_unknown_columns_are_passed_over_where_the_contract_says_so() -> None:
    lenient = agent(", partitions: all, ignore_unknown_columns: true")
    assert sent(lenient, head(), {"id": 1, "nope": 2}).batch.count == 1
    for principal in (agent(", partitions: all"), administrator("root")):
        with pytest.raises(IcetowerError) as error:
            sent(principal, head(), {"id": 1, "nope": 2})
        assert error.value.rule == "rows.columns"


def test_equal_rows_have_one_fingerprint_however_they_are_spelled() -> None:
    principal, table = agent(", partitions: all"), head()
    one = admitted_rows(sent(principal, table, {"id": 1, "name": "a"}))
    other = admitted_rows(sent(principal, table, {"name": "a", "id": 1}))
    assert one.fingerprint == other.fingerprint
    assert one.rows is not None
    assert one.rows.count == 1
    assert one.fingerprint != admitted_rows(sent(principal, table, {"id": 2, "name": "a"})).fingerprint


@pytest.mark.parametrize("principal", [agent(", partitions: all"), administrator("root")], ids=["agent", "chief"])
@pytest.mark.parametrize(
    ("column", "long", "fits"),
    [
        ("name", "x" * (PARTITION_VALUE_MAX_BYTES + 1), "x" * PARTITION_VALUE_MAX_BYTES),
        ("name", "ü" * (PARTITION_VALUE_MAX_BYTES // 2 + 1), "ü" * (PARTITION_VALUE_MAX_BYTES // 2)),
        ("blob", "base64:" + "AAAA" * 1_366, "base64:" + "AAAA" * 1_365),
    ],
)
def test_a_partition_value_is_bounded_whoever_sends_it(principal: Principal, column: str, long: str, fits: str) -> None:
    table = head((column, "identity"))
    assert ask(ROWS_CHECKS, sent(principal, table, {column: fits})) == ()
    error = refused(principal, table, {column: "b" if column == "name" else "base64:AAAA"}, {column: long})
    assert (error.status, error.rule, error.next_step) == (400, "limit.record", "fix_request")
    assert f"{column}_identity of row 2" in error.message
    assert str(PARTITION_VALUE_MAX_BYTES) in error.message
    assert long[:50] not in error.message
    assert ask(ROWS_CHECKS, sent(principal, head((column, "truncate[4]")), {column: long})) == ()


def test_the_values_of_a_partition_are_bounded_together() -> None:
    names = {f"truncate[{width}]": "name" for width in range(PARTITION_VALUE_MAX_BYTES - 5, PARTITION_VALUE_MAX_BYTES)}
    table = head(*((column, transform) for transform, column in list(names.items())[:1]))
    assert ask(ROWS_CHECKS, sent(administrator("root"), table, {"name": "x" * 9_000})) == ()
    spec = table.metadata["partition-specs"][0]
    spec["fields"] = [
        {**spec["fields"][0], "name": f"p{at}", "field-id": 1000 + at, "transform": transform}
        for at, transform in enumerate(names)
    ]
    error = refused(administrator("root"), table, {"name": "x" * 9_000})
    assert error.rule == "limit.record"
    assert f"at most {PARTITION_MAX_BYTES}" in error.message
