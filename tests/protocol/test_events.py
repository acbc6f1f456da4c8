"""Queries of events, their tokens, and what is left out of an event that would be too long."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import ValidationError

from icetower.errors import BadRequest
from icetower.protocol.events import Kind, Query, event_of, parse_query, token_of
from icetower.protocol.reports import Report, parse_report
from tests.protocol.events_schema import check

SALES = ("shop", "sales")


def test_filters_are_of_the_request_or_of_its_token() -> None:
    query = parse_query({"operation-types": ["update-table"], "catalog-objects-by-name": [["shop"]], "page-size": 7})
    assert (query.after, query.page_size, query.kinds, query.names) == (0, 7, {"update-table"}, {("shop",)})
    token = token_of(42, query)
    again = parse_query({"continuation-token": token})
    assert (again.after, again.filters) == (42, query.filters)
    others = parse_query({"continuation-token": token, "object-types": ["namespace"]})
    assert (others.after, others.filters) == (42, {"types": ["namespace"]})


@pytest.mark.parametrize(
    ("filters", "kind", "objects", "fits"),
    [
        ({}, "update-table", [SALES], True),
        ({"operation-types": ["drop-table"]}, "update-table", [SALES], False),
        ({"operation-types": []}, "update-table", [SALES], True),  # as if none were given
        ({"object-types": ["table"]}, "drop-namespace", [("shop",)], False),
        ({"object-types": ["view"]}, "update-table", [SALES], False),
        ({"catalog-objects-by-name": [["shop"]]}, "update-table", [SALES], True),
        ({"catalog-objects-by-name": [["shop"]]}, "drop-namespace", [("shop",)], True),
        ({"catalog-objects-by-name": [["shop"]]}, "update-table", [("shopping", "sales")], False),
        ({"catalog-objects-by-name": [["shop", "sales"]]}, "update-table", [("shop", "sal")], False),
        ({"catalog-objects-by-name": [["shop", "sales"]]}, "rename-table", [("old", "x"), SALES], True),
        ({"catalog-objects-by-uuid": ["ABC"]}, "update-table", [SALES], True),
        ({"catalog-objects-by-uuid": ["abd"]}, "update-table", [SALES], False),
    ],
)
def test_which_events_fit(filters: dict[str, Any], kind: str, objects: list[tuple[str, ...]], fits: bool) -> None:
    assert parse_query(filters).wants(kind, tuple(objects), "abc") is fits


@pytest.mark.parametrize(
    "body",
    [
        {"page-size": 0},
        {"page-size": "7"},
        {"since-timestamp-ms": -1},
        {"catalog-objects-by-name": [[]]},
        {"catalog-objects-by-name": ["shop.sales"]},
        {"custom-filters": {"principal": "x"}},
        {"continuation-token": "no token"},
        {"continuation-token": base64.b64encode(b"[1]").decode()},
        {"continuation-token": base64.b64encode(b'{"after": -1}').decode()},
        {"continuation-token": base64.b64encode(b"[" * 20_000).decode()},
    ],
)
def test_what_makes_no_sense_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse_query(body)


@given(st.text(max_size=200))
def test_any_text_as_a_token_is_an_answer(text: str) -> None:
    with suppress(BadRequest):
        parse_query({"continuation-token": text})


def event(updates: list[dict[str, Any]]) -> dict[str, Any]:
    operation = {
        "operation-type": Kind.UPDATE_TABLE.value,
        "identifier": {"namespace": ["shop"], "name": "sales"},
        "table-uuid": "5b9a2f3e-6c1d-4a55-9a63-0d2c6f1e7b11",
        "updates": updates,
    }
    text = event_of(
        event_id="e", request_id="r", request_count=1, at_ms=1, principal="p", contract=None, operation=operation,
        characters_max=1_000,
    )  # fmt: skip
    check({"continuation-token": token_of(0, Query()), "events": [json.loads(text)]})
    assert len(text) <= 1_000
    return json.loads(text)["operation"]


def test_updates_that_are_too_long_are_left_out_and_counted() -> None:
    short = [{"action": "set-location", "location": "x"}]
    assert event(short)["updates"] == short
    assert event([*short, {"action": "set-location", "location": "x" * 1_000}])["x-updates-left-out"] == 2


def test_the_check_of_these_tests_can_fail() -> None:
    with pytest.raises(ValidationError):
        check({"continuation-token": "", "events": [{"event-id": "e"}]})
    with pytest.raises(ValidationError):
        check({"events": []})


REPORT = {
    "report-type": "commit-report",
    "table-name": "shop.sales",
    "snapshot-id": 7302423324034792114,
    "sequence-number": 7,
    "operation": "append",
    "metrics": {
        "total-duration": {"count": 1, "time-unit": "nanoseconds", "total-duration": 1_500_000},
        "attempts": {"unit": "count", "value": 3},
    },
}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, Report(7302423324034792114, "append", 3, 1.5)),
        ({"operation": "a\n" + "b" * 100}, Report(7302423324034792114, "a " + "b" * 30, 3, 1.5)),
        ({"metrics": {"attempts": {"value": 1}}}, Report(7302423324034792114, "append", 1, None)),
        ({"metrics": {"attempts": {"value": 1}, "total-duration": {"time-unit": "years", "total-duration": 1}}},
         Report(7302423324034792114, "append", 1, None)),
        ({"report-type": "scan-report"}, None),
        ({"snapshot-id": "7"}, None),
        ({"metrics": {"attempts": {"value": 0}}}, None),
        ({"metrics": {"attempts": {"value": True}}}, None),
        ({"metrics": {"attempts": {"value": 2_000_000}}}, None),
        ({"metrics": []}, None),
        ({"metrics": {"attempts": 3}}, None),
    ],
)  # fmt: skip
def test_what_is_kept_of_a_report(change: dict[str, Any], kept: Report | None) -> None:
    assert parse_report(json.dumps({**REPORT, **change}).encode()) == kept
