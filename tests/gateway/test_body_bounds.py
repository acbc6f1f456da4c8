"""Trap A8: how long a body is read follows from its route and from what its sender may do there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.errors import (
    BadRequest,
    BodyTooLarge,
    CommitConflict,
    ContractViolation,
    IcetowerError,
    TooManyRequests,
    Unavailable,
)
from icetower.files.parsing import WAITING_MAX, Parsing
from icetower.gateway import body_bounds as bodies
from icetower.gateway.body_bounds import (
    APPEND,
    COMMIT,
    CREATION,
    MIDDLE,
    NAMESPACE,
    REPORT,
    SHORT,
    TRANSACTION,
    BodyBound,
    parsed,
)
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from icetower.protocol import wire
from icetower.recent import Budget
from icetower.registry.principals import Principal, administrator, ended
from icetower.threads import Threads

MOST = 32 * 1024 * 1024
READER = "reads: [h.t]"
WRITER = 'tables: [{table: "h.t", operations: [append]}]'
MAKER = 'tables: [{table: "h.*", operations: [create]}]'
LONG = b"x" * (bodies.ON_LOOP_BYTES + 1)
ELSEWHERE = 'tables: [{table: "z.z", operations: [append, create]}]'


def agent(text: str) -> Principal:
    return Principal("ann", load(f"version: 1\nagent: ann\n{text}\n", source="test"), 1)


ANN = agent(READER)


def request(**path: str) -> Request:
    return Request({"type": "http", "path_params": path, "headers": [], "method": "POST", "path": "/"})


def bound_of(bound: BodyBound, principal: Principal) -> int:
    """How much is read at most."""
    asked: list[int] = []

    async def read(_: Request, most: int, *_fits: object) -> bytes:
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
    rows = found.pop(("POST", table + "/{table}/rows"))
    assert bound_of(rows, ANN) == bodies.STRANGER_MAX_BYTES
    assert bound_of(rows, agent(WRITER)) == bodies.MIDDLE_MAX_BYTES
    assert {name: bound for name, bound in found.items() if bound is not SHORT} == {
        ("POST", table + "/{table}"): COMMIT,
        ("POST", table + "/{table}/append"): APPEND,
        ("POST", table + "/{table}/check"): COMMIT,
        ("POST", table): CREATION,
        ("POST", table + "/{table}/metrics"): REPORT,
        ("POST", "/v1/namespaces"): NAMESPACE,
        ("POST", "/v1/namespaces/{namespace}/properties"): NAMESPACE,
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


def test_what_is_refused_for_its_sender_is_not_refused_for_want_of_room() -> None:
    def full(principal: Principal, size_bytes: int) -> None:
        raise TooManyRequests(f"{principal.name}: {size_bytes}", rule="limit.in-flight")

    bound = bodies.rows_body(full)
    assert isinstance(too_long(bound, ANN), ContractViolation)
    assert bound_of(bound, ANN) == bodies.STRANGER_MAX_BYTES
    assert bound_of(bound, ended("ann")) == bodies.STRANGER_MAX_BYTES
    with pytest.raises(TooManyRequests, match="ann: 0"):
        bound_of(bound, agent(WRITER))


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


def test_one_principals_bodies_take_turns_with_the_work_of_others() -> None:
    """A herd of long bodies: another's body, and each piece of another's commit, waits for one of them."""

    async def story() -> list[str]:
        parsing, order, go_on = Parsing(Budget()), list[str](), threading.Event()

        def piece(name: str) -> None:
            order.append(name)

        async def body(principal: Principal) -> None:
            await parsed(parsing, principal, lambda _: piece(principal.name), LONG)

        async def commit(principal: str) -> None:
            async with parsing.commit(principal):
                for _ in range(3):
                    await parsing.away(lambda: piece("commit"))

        first = asyncio.ensure_future(parsed(parsing, ANN, lambda _: go_on.wait(), LONG))
        await asyncio.sleep(0)
        herd = [asyncio.ensure_future(body(ANN)) for _ in range(32)]
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(commit("bob")), asyncio.ensure_future(body(administrator("carl")))]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, *herd, *others)
        return order

    order = asyncio.run(story())
    assert order[:2] == ["commit", "carl"]  # they came while one of the herd was parsed, and go before its next one
    last = max(at for at, name in enumerate(order) if name == "commit")
    assert len(order) == 36
    assert order[:last].count("ann") <= 4


def test_a_principals_commit_goes_before_its_own_bodies() -> None:
    """Others wait for a commit that reads manifests: its bodies don't stand before it."""

    async def story() -> list[str]:
        parsing, order, go_on = Parsing(Budget()), list[str](), threading.Event()

        async def commit(principal: str) -> None:
            async with parsing.commit(principal):
                for _ in range(3):
                    await parsing.away(lambda: order.append(principal))

        first = asyncio.ensure_future(parsed(parsing, ANN, lambda _: go_on.wait(), LONG))
        await asyncio.sleep(0)
        herd = [asyncio.ensure_future(parsed(parsing, ANN, lambda _: order.append("body"), LONG)) for _ in range(32)]
        await asyncio.sleep(0)
        commits = [asyncio.ensure_future(commit("ann")), asyncio.ensure_future(commit("bob"))]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, *herd, *commits)
        return order

    order = asyncio.run(story())
    last = max(at for at, name in enumerate(order) if name == "bob")
    assert order[:last].count("body") <= 8


def test_bodies_of_a_credential_that_has_ended_stand_in_no_principals_way() -> None:
    """Its secret was stolen, and rotated since: whoever has it may not fill the places of the one that it was."""

    async def story() -> None:
        parsing, go_on = Parsing(Budget()), threading.Event()
        under_way = [asyncio.ensure_future(parsed(parsing, ended("ann"), lambda _: go_on.wait(), LONG))]
        await asyncio.sleep(0)
        under_way += [asyncio.ensure_future(parsed(parsing, ended("ann"), len, LONG)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(CommitConflict, match=r"64 long bodies of \(ended\) wait"):
            await parsed(parsing, ended("bob"), len, LONG, commits=True)
        own = asyncio.ensure_future(parsed(parsing, ANN, len, LONG, commits=True))
        await asyncio.sleep(0)
        go_on.set()
        assert await own == len(LONG)
        await asyncio.gather(*under_way)

    asyncio.run(story())


def test_a_principals_waiting_bodies_are_bounded() -> None:
    async def story() -> None:
        parsing, go_on = Parsing(Budget()), threading.Event()
        under_way = [asyncio.ensure_future(parsed(parsing, ANN, lambda _: go_on.wait(), LONG))]
        await asyncio.sleep(0)
        under_way += [asyncio.ensure_future(parsed(parsing, ANN, len, LONG)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(CommitConflict, match="64 long bodies of ann wait") as refused:
            await parsed(parsing, ANN, len, LONG, commits=True)
        assert (refused.value.rule, refused.value.next_step) == ("queue.full", "retry")
        with pytest.raises(Unavailable, match="64 long bodies of ann wait") as busy:
            await parsed(parsing, ANN, len, LONG)
        assert (busy.value.status, busy.value.next_step) == (503, "retry")
        other = asyncio.ensure_future(parsed(parsing, administrator("carl"), len, LONG))
        go_on.set()
        assert await other == len(LONG)
        await asyncio.gather(*under_way)

    asyncio.run(story())


@pytest.mark.parametrize("value", [b"1", b'""', b"1.5", b"null", b'"a"'])
def test_a_body_of_very_many_values_is_not_parsed(value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "VALUES_MAX", 1_000)
    few = b'{"a":[' + b",".join([value] * 1_001) + b"]}"
    assert len(wire.read_object(few, "commit")["a"]) == 1_001
    monkeypatch.setattr(wire, "from_json", None)
    with pytest.raises(BadRequest) as refused:
        wire.read_object(b'{"a":[' + b",".join([value] * 1_002) + b"]}", "commit")
    assert refused.value.rule == "limit.objects"
