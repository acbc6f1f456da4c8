"""Requests that are nearly right: one value in a good one is replaced. Every one is answered, and never by a 5xx."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import json
import random
import sqlite3
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
import pytest

from icetower.ambient import SystemAmbient
from icetower.errors import ConfigurationError
from icetower.gateway.app import build
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from icetower.protocol import sizes
from icetower.table.head import HeadState

SAMPLE = 600
TABLE = "/v1/namespaces/db/tables/{table}"
DEEP: Any = functools.reduce(lambda inside, _: [inside], range(400), None)

ODD: tuple[Any, ...] = (
    *(-1, 0, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400, 1.5, 1e19),
    *(float("inf"), float("-inf"), float("nan"), True, False, None),
    *("", "\x00", "a\x00b", "\ud800", "..", "a/b", "\x1f", "\u202e", "x" * 300, "x" * 5_000, "18446744073709551616"),
    *([], {}, [None], {"": None}, [[]], [2**64], {"a": 2**64}, DEEP),
)

FIELDS = [
    {"id": 1, "name": "id", "type": "long", "required": True, "doc": "d"},
    {"id": 2, "name": "at", "type": "timestamptz", "required": False},
    {"id": 3, "name": "x", "type": "int", "required": False, "initial-default": 1, "write-default": 2},
    {
        "id": 4,
        "name": "m",
        "required": False,
        "type": {
            "type": "map",
            "key-id": 5,
            "key": "string",
            "value-id": 6,
            "value-required": False,
            "value": {"type": "list", "element-id": 7, "element": "decimal(9, 2)", "element-required": False},
        },
    },
]
SCHEMA = {"type": "struct", "schema-id": 0, "identifier-field-ids": [1], "fields": FIELDS}
SPEC = {"spec-id": 0, "fields": [{"name": "day", "transform": "day", "source-id": 2, "field-id": 1000}]}
ORDER_FIELD = {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}
ORDER = {"order-id": 1, "fields": [ORDER_FIELD]}
SNAPSHOT = {
    "snapshot-id": 7,
    "parent-snapshot-id": 6,
    "sequence-number": 1,
    "timestamp-ms": 1_700_000_000_000,
    "manifest-list": "file:///none/list.avro",
    "summary": {"operation": "append", "added-records": "3"},
    "schema-id": 0,
    "first-row-id": 0,
    "added-rows": 3,
}
BLOB = {"type": "t", "snapshot-id": 7, "sequence-number": 1, "fields": [1], "properties": {"a": "b"}}
STATISTICS = {
    "snapshot-id": 7,
    "statistics-path": "file:///none/s.puffin",
    "file-size-in-bytes": 100,
    "file-footer-size-in-bytes": 10,
    "blob-metadata": [BLOB],
}
REF = {"snapshot-id": 7, "type": "branch", "min-snapshots-to-keep": 1, "max-snapshot-age-ms": 1, "max-ref-age-ms": 1}
UPDATES: tuple[dict[str, Any], ...] = (
    {"action": "assign-uuid", "uuid": "123e4567-e89b-42d3-a456-426614174000"},
    {"action": "upgrade-format-version", "format-version": 3},
    {"action": "add-schema", "schema": SCHEMA},
    {"action": "set-current-schema", "schema-id": 0},
    {"action": "add-spec", "spec": SPEC},
    {"action": "set-default-spec", "spec-id": 0},
    {"action": "add-sort-order", "sort-order": ORDER},
    {"action": "set-default-sort-order", "sort-order-id": 0},
    {"action": "add-snapshot", "snapshot": SNAPSHOT},
    {"action": "set-snapshot-ref", "ref-name": "main", **REF},
    {"action": "remove-snapshot-ref", "ref-name": "b"},
    {"action": "remove-snapshots", "snapshot-ids": [1]},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "set-statistics", "snapshot-id": 7, "statistics": STATISTICS},
    {"action": "remove-statistics", "snapshot-id": 7},
    {"action": "set-partition-statistics", "partition-statistics": STATISTICS},
    {"action": "remove-partition-statistics", "snapshot-id": 7},
    {"action": "remove-partition-specs", "spec-ids": [1]},
    {"action": "remove-schemas", "schema-ids": [1]},
    {"action": "add-encryption-key", "encryption-key": {"key-id": "k", "encrypted-key-metadata": "bQ=="}},
    {"action": "remove-encryption-key", "key-id": "k"},
)
REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-table-uuid", "uuid": "123e4567-e89b-42d3-a456-426614174000"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 7},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
]
DATA_FILE = {
    "file-path": "file:///none/a.parquet",
    "file-format": "PARQUET",
    "record-count": 3,
    "file-size-in-bytes": 1_000,
    "spec-id": 0,
    "sort-order-id": 0,
    "partition": {"day": "2017-01-01"},
    "nan-value-counts": {"keys": [3], "values": [0]},
}
APPEND = {"files": [DATA_FILE], "ref": "main", "key": "k", "application": {"id": "a", "sequence": 1}}
CREATE = {
    "name": "new-{table}",
    "schema": SCHEMA,
    "partition-spec": SPEC,
    "write-order": ORDER,
    "stage-create": False,
    "properties": {"format-version": "3", "a": "b"},
}
ASKED = {"table": "db.t", "partitions": ["day=2017-01-01"], "operations": ["append"], "reason": "r"}
BODIES: tuple[tuple[str, Any], ...] = (
    ("/v1/namespaces", {"namespace": ["db", "of-{table}"], "properties": {"a": "b"}}),
    ("/v1/namespaces/db/properties", {"removals": ["a"], "updates": {"c": "d"}}),
    ("/v1/namespaces/db/tables", CREATE),
    ("/v1/namespaces/db/tables", {**CREATE, "stage-create": True}),
    ("/v1/namespaces/db/register", {"name": "r", "metadata-location": "file:///none/m.json", "overwrite": False}),
    (
        "/v1/tables/rename",
        {
            "source": {"namespace": ["db"], "name": "{table}"},
            "destination": {"namespace": ["db"], "name": "b-{table}"},
        },
    ),
    *((TABLE, {"requirements": [], "updates": [update]}) for update in UPDATES),
    *((TABLE, {"requirements": [requirement], "updates": []}) for requirement in REQUIREMENTS),
    (
        "/v1/transactions/commit",
        {
            "table-changes": [
                {
                    "identifier": {"namespace": ["db"], "name": "{table}"},
                    "requirements": [],
                    "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
                }
            ]
        },
    ),
    (TABLE + "/append", APPEND),
    (TABLE + "/metrics", {"report-type": "scan-report", "table-name": "t", "snapshot-id": 1, "metrics": {}}),
    ("/icetower/v1/contracts/apply", {"contracts": [{"text": "a: b", "expected": 1}], "message": "m"}),
    ("/icetower/v1/contracts/a/restore", {"version": 1, "expected": 1, "message": "m"}),
    ("/icetower/v1/principals", {"name": "p", "contract": "administrator"}),
    ("/icetower/v1/escalations/1/close", {"note": "n"}),
    ("/icetower/v1/alerts/silence", {"rule": "retry-rate", "for_s": 1, "reason": "r"}),
    ("/icetower/v1/requests", ASKED),
    ("/icetower/v1/requests/1/close", {"decision": "granted", "note": "n"}),
)
QUERIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("/v1/namespaces", ("parent", "pageSize", "pageToken")),
    ("/v1/namespaces/db/tables", ("pageSize", "pageToken")),
    (TABLE, ("snapshots",)),
    ("/icetower/v1/commits", ("limit", "table", "principal")),
    ("/icetower/v1/bypasses", ("limit",)),
    ("/icetower/v1/metrics", ("since_ms", "principal", "table", "limit", "page_token")),
    ("/icetower/v1/undeclared", ("table", "limit")),
    ("/icetower/v1/escalations", ("state", "limit", "principal")),
    ("/icetower/v1/contracts/a", ("version",)),
    ("/icetower/v1/shadow", ("contract",)),
)
ODD_TEXTS = (
    "",
    "-1",
    "0",
    str(2**31),
    str(2**63),
    str(2**64),
    "1e400",
    "NaN",
    "²",
    "%00",
    "%ff",
    "%1F",
    "%2F",
    "a" * 9_000,
)

Case = tuple[str, str, bytes | None]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, the names of an object's members included: those end with None."""
    yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield (*path, key, None)
            yield from places(each, (*path, key))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from places(each, (*path, at))


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """A copy with something odd in one place."""
    if not path:
        return odd
    result = copy.copy(value)
    if path[-1] is None and len(path) == 2:
        kept = result.pop(path[0])
        result[odd if isinstance(odd, str) else str(odd)[:50]] = kept
    else:
        result[path[0]] = changed(value[path[0]], path[1:], odd)
    return result


def cases() -> list[Case]:
    found: list[Case] = []
    for path, body in BODIES:
        for place in places(body):
            found += [("POST", path, json.dumps(changed(body, place, odd)).encode()) for odd in ODD]
        text = json.dumps(body)
        found.append(("POST", path, (text[:-1] + ", " + text[1:]).encode()))  # every member twice
        found += [("POST", path, each) for each in (b"", b"\xff", b"[" * 100_000, text.encode("utf-16"), b"null")]
    for path, names in QUERIES:
        found += [("GET", f"{path}?{name}={odd}", None) for name in names for odd in ODD_TEXTS]
    for odd in (*ODD_TEXTS[1:], "..", "a%2Fb", "%E2%80%AE"):
        found += [
            (method, path.format(odd), None)
            for method in ("GET", "HEAD", "DELETE")
            for path in ("/v1/namespaces/{}", "/v1/namespaces/{}/tables/t", "/v1/namespaces/db/tables/{}")
        ]
        found += [("GET", f"/icetower/v1/{room}/{odd}", None) for room in ("contracts", "escalations", "requests")]
    return found


def short(value: Any) -> bool:
    """Whether all numbers in a JSON value are such as Java's readers take: within 64 bits, and no fraction in an id."""
    if isinstance(value, dict):
        return all(short(each) and not (key.endswith("-id") and isinstance(each, float)) for key, each in value.items())
    if isinstance(value, list):
        return all(map(short, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**63


@asynccontextmanager
async def tower_of(folder: Path) -> AsyncGenerator[httpx2.AsyncClient]:
    tower = open_tower(load_settings(None, data=str(folder)), SystemAmbient(), open_to_all=True)
    transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
    headers = {"Content-Type": "application/json"}
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", timeout=60, headers=headers
    ) as http:
        (await http.post("/v1/namespaces", json={"namespace": ["db"]})).raise_for_status()
        try:
            yield http
        finally:
            await tower.close()


def told(folder: Path, story: Callable[[httpx2.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with tower_of(folder) as http:
            await story(http)

    asyncio.run(run())


def wrong_answers(folder: Path, wanted: list[Case]) -> list[tuple[Any, ...]]:
    """Answers that there must not be. A table that a request has changed is not used for the next one."""
    wrong: list[tuple[Any, ...]] = []
    answers = Counter[int]()

    async def story(http: httpx2.AsyncClient) -> None:
        name = ""
        for at, (method, path, body) in enumerate(wanted):
            if not name:
                name = f"t{at}"
                (await http.post("/v1/namespaces/db/tables", json={**CREATE, "name": name})).raise_for_status()
            content = None if body is None else body.replace(b"{table}", name.encode())
            target = path.replace("{table}", name)
            answer = await http.request(method, target, content=content)
            answers[answer.status_code] += 1
            if answer.status_code >= 500:
                wrong.append((answer.status_code, method, path, (body or b"")[:300], answer.text[:200]))
            elif answer.status_code < 300 and method == "POST":
                name = ""
                if target.startswith("/v1/namespaces/db/tables") and not short(orjson.loads(answer.content or b"{}")):
                    wrong.append(
                        (answer.status_code, method, path, (body or b"")[:300], "numbers that Java cannot read")
                    )

    told(folder, story)
    assert min(answers[200], answers[400]) > len(wanted) / 20, answers
    return wrong


def test_nearly_right_requests_are_refused_or_carried_out(tmp_path: Path) -> None:
    every = cases()
    assert len(every) > 10_000
    chosen = random.Random(16).sample(every, SAMPLE)
    assert wrong_answers(tmp_path, chosen) == []


def test_numbers_beyond_what_iceberg_holds_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    beyond = [
        ("/v1/namespaces/db/tables", changed(CREATE, ("schema", "fields", 0, "id"), 2**31)),
        ("/v1/namespaces/db/tables", changed(CREATE, ("schema", "fields", 2, "write-default"), 2**64)),
        ("/v1/namespaces/db/tables", changed(CREATE, ("partition-spec", "fields", 0, "field-id"), 2**31)),
        ("/v1/namespaces/db/tables", changed(CREATE, ("write-order", "order-id"), 2**31)),
        ("/v1/namespaces/db/tables/t/append", changed(APPEND, ("files", 0, "file-size-in-bytes"), 2**63 - 1)),
        ("/v1/namespaces/db/tables/t/append", changed(APPEND, ("files", 0, "record-count"), 2**63 - 1)),
        ("/v1/namespaces/db/tables/t/metrics", {"of": [float("inf")]}),
    ]

    async def story(http: httpx2.AsyncClient) -> None:
        (await http.post("/v1/namespaces/db/tables", json={**CREATE, "name": "t"})).raise_for_status()
        for path, body in beyond:
            answer = await http.post(path, content=json.dumps(body))
            assert (answer.status_code, answer.json()["error"]["next_step"]) == (400, "fix_request"), (
                path,
                answer.text,
            )

    told(tmp_path, story)


def test_a_creation_is_replayed_as_its_caller_can_read_it(tmp_path: Path) -> None:
    wide = [{"id": n, "name": f"column_{n}", "type": "long", "required": False} for n in range(1, 501)]
    body = {"name": "t", "schema": {"type": "struct", "fields": wide}}
    key = {"Idempotency-Key": "0197e0d4-4f6b-7c7e-8a53-6d2f1a0b9c11"}

    async def story(http: httpx2.AsyncClient) -> None:
        path = "/v1/namespaces/db/tables"
        first = await http.post(path, json=body, headers=key)
        assert first.headers["Content-Encoding"] == "gzip"
        for accepted in ("gzip", "identity"):
            again = await http.post(path, json=body, headers={**key, "Accept-Encoding": accepted})
            assert (again.status_code, again.json()) == (200, first.json())
            assert again.headers.get("Content-Encoding", "identity") == accepted
            assert again.headers["Vary"] == "Accept-Encoding"

    told(tmp_path, story)


def test_names_with_slashes_are_found_and_dropped(tmp_path: Path) -> None:
    async def story(http: httpx2.AsyncClient) -> None:
        for levels in (["a/b"], ["a/b", "c"], ["a"], ["a%2Fb"]):
            (await http.post("/v1/namespaces", json={"namespace": levels})).raise_for_status()
        at = "/v1/namespaces/"
        assert (await http.get(at + "a%2Fb")).json()["namespace"] == ["a/b"]
        assert (await http.get(at + "a%2fb%1Fc")).json()["namespace"] == ["a/b", "c"]
        assert (await http.get(at + "a%252Fb")).json()["namespace"] == ["a%2Fb"]
        assert (await http.get(at + "a/b")).status_code == 404
        for name in ("a%2Fb%1Fc", "a%2Fb", "a%252Fb"):
            assert (await http.delete(at + name)).status_code == 204
        assert (await http.get("/v1/namespaces")).json()["namespaces"] == [["a"], ["db"]]
        assert (await http.delete(at + "a%00b")).status_code == 400
        refused = await http.post("/v1/namespaces/db/tables", json={**CREATE, "name": ".."})
        assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "shape")

    told(tmp_path, story)


PLAIN = {"type": "struct", "fields": FIELDS[:2]}


def test_long_names_are_refused_at_every_route_and_kept_nowhere(tmp_path: Path) -> None:
    long = "n" * 100_000
    creation: dict[str, Any] = {"name": long, "schema": PLAIN}
    named = {"namespace": ["db"], "name": long}
    other = {"namespace": ["db"], "name": "t"}
    sent: list[tuple[str, dict[str, Any]]] = [
        ("/v1/transactions/commit", {"table-changes": [{"identifier": named}]}),
        ("/v1/namespaces/db/tables", creation),
        ("/v1/namespaces/db/tables", {**creation, "stage-create": True}),
        ("/v1/namespaces/db/register", {"name": long, "metadata-location": "file:///none/m.json"}),
        ("/v1/namespaces", {"namespace": ["db", long]}),
        ("/v1/tables/rename", {"source": named, "destination": other}),
        ("/v1/tables/rename", {"source": other, "destination": named}),
        ("/v1/namespaces/db/tables/t", {"identifier": named}),
        (f"/v1/namespaces/db/tables/{long[:300]}", {}),
        (f"/v1/namespaces/{long[:300]}/tables", {**creation, "name": "t"}),
    ]

    async def story(http: httpx2.AsyncClient) -> None:
        for path, body in sent:
            refused = await http.post(path, json=body)
            error = refused.json()["error"]
            assert (refused.status_code, error["rule"], len(refused.content) < 1_000) == (400, "request.length", True)
        kept = await http.get("/icetower/v1/commits")
        assert len(kept.json()["attempts"]) >= len(sent)
        assert len(kept.content) < 20_000

    told(tmp_path, story)


def test_nothing_of_a_refused_request_stays_in_memory(tmp_path: Path) -> None:
    filler = {"action": "set-properties", "updates": {"a": "b" * 1_000_000}}

    def changed(name: str) -> dict[str, Any]:
        return {"identifier": {"namespace": ["db"], "name": name}, "updates": [filler]}

    sent = [
        ("/v1/transactions/commit", {"table-changes": [changed("n" * 300)]}),
        ("/v1/transactions/commit", {"table-changes": [changed("none"), changed("neither")]}),
        ("/v1/namespaces/db/tables/none", changed("none")),
        ("/v1/namespaces/db/tables", {"name": "n" * 300, "schema": PLAIN, "properties": {"a": "b" * 1_000_000}}),
    ]

    async def story(http: httpx2.AsyncClient) -> None:
        for path, body in sent:
            await http.post(path, json=body)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for path, body in sent * 5:
                assert (await http.post(path, json=body)).status_code in (400, 404)
            await asyncio.to_thread(tuple)  # the loop turns once more
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert held_bytes < 4_000_000

    told(tmp_path, story)


def test_a_refused_transaction_leaves_a_few_attempts(tmp_path: Path) -> None:
    def changes(count: int) -> dict[str, Any]:
        return {"table-changes": [{"identifier": {"namespace": ["db"], "name": f"t{at}"}} for at in range(count)]}

    async def story(http: httpx2.AsyncClient) -> None:
        for at in range(40):
            created = await http.post("/v1/namespaces/db/tables", json={"name": f"t{at}", "schema": PLAIN})
            created.raise_for_status()
        refused = await http.post("/v1/transactions/commit", json=changes(60))
        assert (refused.status_code, refused.json()["error"]["rule"]) == (404, "table.exists")
        attempts = (await http.get("/icetower/v1/commits?refused=true")).json()["attempts"]
        assert [row["table"] for row in attempts] == ["db.t3", "db.t2", "db.t1", "db.t0", "db.t40"]
        assert {row["message"].split(" (")[-1] for row in attempts} == {"and for 55 more tables)"}
        refused = await http.post("/v1/transactions/commit", json=changes(101))
        assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "limit.tables")
        [newest, *_] = (await http.get("/icetower/v1/commits?refused=true")).json()["attempts"]
        assert newest["rule"] == "limit.tables"

    told(tmp_path, story)


def test_the_longest_name_is_created_loaded_and_dropped(tmp_path: Path) -> None:
    async def story(http: httpx2.AsyncClient) -> None:
        for name in ("n" * 255, "\N{PILE OF POO}" * 255):
            tables = "/v1/namespaces/db/tables"
            created = await http.post(tables, json={"name": name, "schema": PLAIN})
            assert created.status_code == 200, created.text
            staged = await http.post(tables, json={"name": name[1:], "schema": PLAIN, "stage-create": True})
            assert staged.status_code == 200
            assert (await http.get(f"{tables}/{quote(name)}")).status_code == 200
            assert (await http.delete(f"{tables}/{quote(name)}?purgeRequested=true")).status_code == 204

    told(tmp_path, story)


def test_a_new_name_has_no_control_characters_and_an_old_one_can_be_renamed(tmp_path: Path) -> None:
    tables, rename = "/v1/namespaces/db/tables", "/v1/tables/rename"
    bad = "a\nicetower contracts revoke prod\u202e"

    def named(name: str) -> dict[str, Any]:
        return {"namespace": ["db"], "name": name}

    async def story(http: httpx2.AsyncClient) -> None:
        (await http.post(tables, json={"name": "t", "schema": PLAIN})).raise_for_status()
        creation = {"requirements": [{"type": "assert-create"}], "updates": []}
        sent: list[tuple[str, dict[str, Any]]] = [
            (tables, {"name": bad, "schema": PLAIN}),
            (tables, {"name": bad, "schema": PLAIN, "stage-create": True}),
            (f"{tables}/{quote(bad)}", creation),
            ("/v1/namespaces/db/register", {"name": bad, "metadata-location": "file:///none/m.json"}),
            ("/v1/namespaces", {"namespace": ["db", bad]}),
            (rename, {"source": named("t"), "destination": named(bad)}),
        ]
        for path, body in sent:
            refused = await http.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "request.name"), path
        with sqlite3.connect(tmp_path / "catalog.db") as connection:
            connection.execute("UPDATE iceberg_tables SET table_name = ?", [bad])
        assert (await http.get(f"{tables}/{quote(bad)}")).status_code == 200
        done = await http.post(rename, json={"source": named(bad), "destination": named("u")})
        assert done.status_code == 204
        assert (await http.get(f"{tables}/u")).status_code == 200

    told(tmp_path, story)


def test_nobody_is_redirected_to_the_host_that_the_caller_names(tmp_path: Path) -> None:
    async def story(http: httpx2.AsyncClient) -> None:
        for path in ("/v1/config/", "/v1/namespaces/", "/healthz/", "/v1/namespaces/db/tables/", "/icetower/v1/me/"):
            answer = await http.get(path, headers={"Host": "elsewhere.example"})
            assert answer.status_code == 404, path
            assert "elsewhere" not in answer.text + str(answer.headers)

    told(tmp_path, story)


def test_an_older_icetower_says_that_a_newer_one_has_used_its_database(tmp_path: Path) -> None:
    settings = load_settings(None, data=str(tmp_path))
    for room, table in (("ledger", "ledger_version"), ("registry", "registry_version")):
        asyncio.run(open_tower(settings, SystemAmbient()).close())
        database = sqlite3.connect(tmp_path / "control.db")
        known = database.execute(f"SELECT version_num FROM {table}").fetchone()
        with database:
            database.execute(f"UPDATE {table} SET version_num = 'v9999'")
        with pytest.raises(ConfigurationError, match=f"v9999 \\({table}\\).*{known[0]}.*newer Icetower") as refused:
            open_tower(settings, SystemAmbient())
        assert refused.value.rule == "configuration.newer", room
        with database:
            database.execute(f"UPDATE {table} SET version_num = ?", known)
        database.close()


def test_a_table_does_not_grow_by_a_megabyte_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(characters: int) -> dict[str, Any]:
        updates = {"a": "x" * characters}
        return {"requirements": [], "updates": [{"action": "set-properties", "updates": updates}]}

    async def story(http: httpx2.AsyncClient) -> None:
        tables = "/v1/namespaces/db/tables"
        (await http.post(tables, json={**CREATE, "name": "t"})).raise_for_status()
        long = {**SNAPSHOT, "summary": {"operation": "append", "a": "x" * 1_000_000}}
        refused = await http.post(
            tables + "/t", json={"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": long}]}
        )
        assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "limit.summaries")
        monkeypatch.setattr(sizes, "ADDED_TO_LARGE_MAX_BYTES", 1_000)
        monkeypatch.setattr(HeadState, "size_bytes", 40 * 1024 * 1024)
        refused = await http.post(tables + "/t", json=properties(100_000))
        assert (refused.status_code, refused.json()["error"]["rule"]) == (400, "limit.metadata")
        assert (await http.post(tables + "/t", json=properties(100))).status_code == 200

    told(tmp_path, story)


def test_only_their_owner_may_read_the_databases(tmp_path: Path) -> None:
    """Whoever may read a database of SQLite may lock it: another user of the machine stopped all commits so."""

    async def story(http: httpx2.AsyncClient) -> None:
        (await http.post("/v1/namespaces/db/tables", json={**CREATE, "name": "t"})).raise_for_status()
        modes = _modes(tmp_path)
        assert modes.keys() >= {"catalog.db", "catalog.db-shm", "control.db", "control.db-shm"}
        assert {mode & 0o077 for mode in modes.values()} == {0}

    told(tmp_path, story)


def _modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode for path in folder.iterdir() if ".db" in path.name}
