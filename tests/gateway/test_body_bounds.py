"""Trap A8: how long a body is read follows from its route and from what its sender may do there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.errors import BadRequest, BodyTooLarge, ContractViolation, IcetowerError
from icetower.files.parsing import Parsing
from icetower.gateway import body_bounds as bodies
from icetower.gateway.body_bounds import APPEND, COMMIT, CREATION, MIDDLE, REPORT, SHORT, TRANSACTION, BodyBound, parsed
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from icetower.protocol import wire
from icetower.recent import Budget
from icetower.registry.principals import Principal, administrator
from icetower.threads import Threads

MOST = 32 * 1024 * 1024
READER = "reads: [h.t]"
WRITER = 'tables: [{table: "h.t", operations: [append]}]'
MAKER = 'tables: [{table: "h.*", operations: [create]}]'
ELSEWHERE = 'tables: [{table: "z.z", operations: [append, create]}]'


def agent(text: str) -> Principal:
    return Principal("ann", load(f"version: 1\nagent: ann\n{text}\n", source="test"), 1)


def request(**path: str) -> Request:
    return Request({"type": "http", "path_params": path, "headers": [], "method": "POST", "path": "/"})


def bound_of(bound: BodyBound, principal: Principal) -> int:
    """How much is read at most."""
    asked: list[int] = []

    async def read(_: Request, most: int) -> bytes:
        asked.append(most)
        return b""

    asyncio.run(bound.read(read, request(namespace="h", table="t"), principal, MOST))
    return asked[0]


def too_long(bound: BodyBound, principal: Principal) -> IcetowerError:
    """What the sender of an endless body is told."""

    async def read(_: Request, most: int) -> bytes:
        raise BodyTooLarge(f"longer than {most}")

    with pytest.raises(IcetowerError) as refused:
        asyncio.run(bound.read(read, request(namespace="h", table="t"), principal, MOST))
    return refused.value


def test_each_route_takes_what_its_requests_need(tmp_path: Path) -> None:
    tower = open_tower(load_settings(None, data=str(tmp_path)), SystemAmbient())
    found = {
        (method, route.path): cast("Any", route.endpoint).body
        for route in tower.routes()
        for method in sorted((route.methods or set()) - {"HEAD"})
        if hasattr(route.endpoint, "body")
    }
    table = "/v1/namespaces/{namespace}/tables"
    assert {name: bound for name, bound in found.items() if bound is not SHORT} == {
        ("POST", table + "/{table}"): COMMIT,
        ("POST", table + "/{table}/append"): APPEND,
        ("POST", table): CREATION,
        ("POST", table + "/{table}/metrics"): REPORT,
        ("POST", "/v1/transactions/commit"): TRANSACTION,
        ("POST", "/icetower/v1/contracts"): MIDDLE,
        ("POST", "/icetower/v1/contracts/apply"): MIDDLE,
    }
    assert len(found) > 30
    asyncio.run(tower.close())


@pytest.mark.parametrize(
    ("bound", "may", "may_not"),
    [
        (COMMIT, (WRITER, 'tables: [{table: "h.t", operations: [alter]}]', MAKER), (READER, ELSEWHERE)),
        (APPEND, (WRITER,), (READER, ELSEWHERE)),
        (CREATION, (MAKER,), (READER, WRITER, ELSEWHERE)),
        (TRANSACTION, (WRITER, ELSEWHERE), (READER,)),
    ],
    ids=["commit", "append", "creation", "transaction"],
)
def test_who_may_not_do_it_is_refused_before_a_long_body_is_read(
    bound: BodyBound, may: tuple[str, ...], may_not: tuple[str, ...]
) -> None:
    most = bodies.MIDDLE_MAX_BYTES if bound is APPEND else MOST
    trusted = [administrator("admin"), *map(agent, may), *(agent(f"mode: shadow\n{text}") for text in may_not)]
    for principal in trusted:
        assert bound_of(bound, principal) == most
        assert isinstance(too_long(bound, principal), BodyTooLarge)
    for principal in map(agent, may_not):
        assert bound_of(bound, principal) == bodies.STRANGER_MAX_BYTES
        assert isinstance(too_long(bound, principal), ContractViolation)


def test_a_short_route_says_what_it_takes() -> None:
    assert "longer than 131072 bytes, which is all that this route takes" in too_long(SHORT, administrator("a")).message
    assert bound_of(SHORT, administrator("a")) == bodies.SHORT_MAX_BYTES


def test_a_long_body_is_parsed_away_from_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    away: list[int] = []
    run = Threads.run

    async def counted(self: Threads, work: Callable[[], Any], timeout_s: float | None = None) -> Any:
        away.append(1)
        return await run(self, work, timeout_s)

    monkeypatch.setattr(Threads, "run", counted)
    for size, times in ((bodies.ON_LOOP_BYTES, 0), (bodies.ON_LOOP_BYTES + 1, 1)):
        assert asyncio.run(parsed(Parsing(Budget()), administrator("a"), len, b"x" * size)) == size
        assert len(away) == times
    read = partial(wire.read_object, what="commit")
    with pytest.raises(BadRequest):  # what it raises, it raises here
        asyncio.run(parsed(Parsing(Budget()), administrator("a"), read, b"x" * (bodies.ON_LOOP_BYTES + 1)))


@pytest.mark.parametrize("value", [b"1", b'""', b"1.5", b"null", b'"a"'])
def test_a_body_of_very_many_values_is_not_parsed(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "VALUES_MAX", 1_000)
    few = b'{"a":[' + b",".join([value] * 1_001) + b"]}"
    assert len(wire.read_object(few, "commit")["a"]) == 1_001
    monkeypatch.setattr(wire, "from_json", None)
    with pytest.raises(BadRequest) as refused:
        wire.read_object(b'{"a":[' + b",".join([value] * 1_002) + b"]}", "commit")
    assert refused.value.rule == "limit.objects"
