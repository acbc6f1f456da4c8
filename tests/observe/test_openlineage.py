"""Commits as OpenLineage's events: each is as its specification has it, facets included, whatever clients write."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import ValidationError

from icetower.observe.openlineage import COLUMNS_MAX, Names, Output, Run, events_of
from tests.observe.openlineage_schemas import check

NAMES = Names("icetower", "prod")
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "tags", "type": {"type": "list", "element": "string"}, "required": False},
    ],
}
SUMMARY = {"operation": "append", "added-records": "7", "added-files-size": "1200", "added-data-files": "x"}
FACTS: dict[str, Any] = {
    "requestId": "9915ed55a0cc6f48",
    "contract": None,
    "operation": "append",
    "outcome": "rebased",
    "snapshots": ["7302423324034792114"],
    "base": "-1",
    "latencyMs": 8.2,
}
RUN = Run(
    run_id="019e0d51-5f0c-7aaa-8000-0123456789ab",
    began_ms=1_790_000_000_000,
    ended_ms=1_790_000_000_123,
    principal="pricing-1",
    table="shop.sales",
    facts=FACTS,
    partitions=("region=eu",),
    output=Output("s3://user@bucket/warehouse/shop/sales", 7302423324034792114, SCHEMA, SUMMARY),
)
REFUSED = replace(RUN, output=None, failure="region=eu of shop.sales is not pricing-1's", facts={**FACTS, "rule": "x"})


def test_what_has_landed_is_a_run_that_began_and_is_complete() -> None:
    start, end = events_of(RUN, NAMES)
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert (start["eventTime"], end["eventTime"]) == ("2026-09-21T14:13:20.000Z", "2026-09-21T14:13:20.123Z")
    assert start["run"]["runId"] == end["run"]["runId"] == RUN.run_id
    assert check(start) == ["catalog", "icetower_commit", "icetower_partitions", "jobType", "symlinks"]
    assert set(check(end)) - set(check(start)) == {"schema", "version", "outputStatistics"}
    [table] = end["outputs"]
    assert (table["namespace"], table["name"]) == ("s3://bucket", "warehouse/shop/sales")
    symlinks = table["facets"]["symlinks"]["identifiers"]
    assert symlinks == [{"namespace": "prod", "name": "shop.sales", "type": "TABLE"}]
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (7, 1200)
    assert "fileCount" not in statistics  # what is no number is left out
    assert [column["type"] for column in table["facets"]["schema"]["fields"]] == ["long", "list"]
    assert table["facets"]["icetower_partitions"]["partitions"] == ["region=eu"]


@pytest.mark.parametrize(("unknown", "kind"), [(False, "FAIL"), (True, "ABORT")])
def test_what_was_refused_has_failed_with_what_its_client_was_told(unknown: bool, kind: str) -> None:
    start, end = events_of(replace(REFUSED, unknown=unknown), NAMES)
    assert "errorMessage" not in check(start)
    assert "errorMessage" in check(end)
    assert end["eventType"] == kind
    assert end["run"]["facets"]["errorMessage"]["message"] == REFUSED.failure
    assert (end["outputs"][0]["namespace"], end["outputs"][0]["name"]) == ("prod", "shop.sales")


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("eventType",), "LANDED"),
        (("run", "runId"), None),
        (("run", "facets", "icetower_commit", "outcome"), "done"),
        (("run", "facets", "icetower_commit", "secret"), "x"),
        (("outputs", 0, "facets", "version", "datasetVersion"), 7),
    ],
)
def test_the_check_of_these_tests_can_fail(at: tuple[Any, ...], value: object) -> None:
    event = copy.deepcopy(events_of(RUN, NAMES)[1])
    inner = event
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    with pytest.raises(ValidationError):
        check(event)


@given(st.text(), st.text(), st.text(), st.text())
def test_texts_of_clients_are_one_line_and_bounded(principal: str, table: str, failure: str, name: str) -> None:
    schema = {"fields": [{"name": name * 600, "type": "long"}] * 3}
    output = Output(None, 1, schema, {})
    run = replace(REFUSED, principal=principal, table=table, failure=failure or "x", output=output)
    for event in events_of(run, NAMES):
        check(event)
        named = event["job"]["name"]
        assert "\n" not in named
        assert len(named) <= 1_001
    landed = events_of(replace(run, failure=None), NAMES)[1]
    columns = landed["outputs"][0]["facets"]["schema"]["fields"]
    assert all(len(column["name"]) <= 500 for column in columns)


def test_a_wide_table_makes_no_event_of_any_length() -> None:
    schema = {"fields": [{"name": f"c{n}", "type": "long"} for n in range(COLUMNS_MAX + 1)]}
    landed = events_of(replace(RUN, output=Output(None, 1, schema, {})), NAMES)[1]
    check(landed)
    assert len(landed["outputs"][0]["facets"]["schema"]["fields"]) == COLUMNS_MAX
