"""Streams of events of intents without a server: who takes nothing, a database that is away, what ends a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from icetower.errors import Unavailable
from icetower.gateway import event_streams, intent_events
from icetower.gateway.connection_state import ConnectionState, attach
from icetower.gateway.event_streams import StreamPlaces
from icetower.gateway.http import Front
from icetower.gateway.intent_events import IntentEvents
from icetower.gateway.places import Places
from icetower.registry.principals import administrator
from icetower.registry.registry import RESERVED_NAME
from tests.intents.test_waiting import BOB, Towers

OPEN = administrator(RESERVED_NAME)
WITHIN_S = 60


class Streams:
    """Two towers' intents, and the streams of the first one for anybody on loopback."""

    def __init__(self, towers: Towers) -> None:
        self.towers = towers
        self.refused: list[Any] = []
        front: Any = SimpleNamespace(
            ambient=towers.ambient,
            open_to_all=True,
            registry=None,
            intake=SimpleNamespace(places=Places(deadline_s=WITHIN_S)),
            settings=SimpleNamespace(requests_at_once=10),
            attempts=SimpleNamespace(failed=lambda *_: None),
        )
        front.place = partial(Front.place, front)
        self.events = IntentEvents(front, towers.towers[0])

    def listen(self, id_: str, takes: Callable[[bytes], Coroutine[Any, Any, None]], **headers: str) -> Any:
        """A stream as a task, and its connection; `takes` gets the pieces of the body."""
        aborted = asyncio.Event()
        connection = ConnectionState(abort=aborted.set)
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": f"/icetower/v1/intents/{id_}/events",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), *((name.encode(), text.encode()) for name, text in headers.items())],
            "server": ("127.0.0.1", 80),
            "path_params": {"intent": id_},
        }
        attach(scope, connection)

        async def send(sent: Any) -> None:
            if sent["type"] == "http.response.start":
                self.refused.append(sent["status"])
            else:
                await takes(bytes(sent.get("body", b"")))

        request = Request(scope, None, send)  # pyright: ignore[reportArgumentType]
        return asyncio.create_task(self.events.answer(request, send)), connection, aborted


def at_streams(path: Path, story: Callable[[Streams], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        towers = Towers(path)
        try:
            await asyncio.wait_for(story(Streams(towers)), WITHIN_S)
        finally:
            await towers.close()

    asyncio.run(scenario())


def test_who_takes_nothing_is_let_go_and_its_place_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "SEND_TIMEOUT_S", 0.05)

    async def story(streams: Streams) -> None:
        held = await streams.towers.declare(0, OPEN, 1)

        async def takes(_: bytes) -> None:
            await asyncio.Event().wait()

        task, _, aborted = streams.listen(held.intent.id, takes)
        await task
        assert aborted.is_set()
        assert len(streams.events._places) == 0  # pyright: ignore[reportPrivateUsage]

    at_streams(tmp_path, story)


def test_a_stream_lives_over_a_moment_without_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intent_events, "TICK_S", 0.01)
    monkeypatch.setattr(intent_events, "HEARTBEAT_S", 0.0)

    async def story(streams: Streams) -> None:
        held = await streams.towers.declare(0, OPEN, 1)
        intents, body, beats = streams.towers.towers[0], bytearray(), asyncio.Event()
        waits = intents.wait

        async def takes(piece: bytes) -> None:
            body.extend(piece)
            if piece.startswith(b":"):
                beats.set()

        async def away(*_: Any, **__: Any) -> Any:
            raise Unavailable("the database is away")

        task, _, aborted = streams.listen(held.intent.id, takes)
        await beats.wait()
        monkeypatch.setattr(intents, "wait", away)
        beats.clear()
        await beats.wait()  # its client knows that it is there all the same
        monkeypatch.setattr(intents, "wait", waits)
        await streams.towers.towers[1].release(OPEN, held.intent.id)  # at another tower
        await task
        assert not aborted.is_set()
        assert body.startswith(b"retry: 1000\n\nevent: state\nid: 0\ndata: {")
        assert body.count(b"event: state") == 2
        assert b"event: state\nid: ended\n" in body

    at_streams(tmp_path, story)


def test_a_stream_ends_with_its_time_its_connection_and_its_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(streams: Streams) -> None:
        held = await streams.towers.declare(0, OPEN, 1)
        pieces: list[bytes] = []
        begun = asyncio.Event()

        async def takes(piece: bytes) -> None:
            pieces.append(piece)
            begun.set()

        monkeypatch.setattr(intent_events, "STREAM_MAX_S", 0.0)
        await streams.listen(held.intent.id, takes)[0]
        assert pieces[-1] == b""  # it was ended as a whole
        monkeypatch.setattr(intent_events, "STREAM_MAX_S", 300.0)
        begun.clear()
        task, connection, _ = streams.listen(held.intent.id, takes)
        await begun.wait()
        connection.lose()
        await task
        begun.clear()
        task, _, _ = streams.listen(held.intent.id, takes)
        await begun.wait()
        streams.towers.towers[0].let_go()
        await task
        assert len(streams.events._places) == 0  # pyright: ignore[reportPrivateUsage]

    at_streams(tmp_path, story)


def test_what_is_no_intent_of_ones_own_is_refused(tmp_path: Path) -> None:
    async def story(streams: Streams) -> None:
        others = await streams.towers.declare(0, BOB, 1)

        async def takes(_: bytes) -> None:
            return

        for id_, headers in ((others.intent.id, {}), ("none", {}), (others.intent.id, {"last-event-id": "-1"})):
            await streams.listen(id_, takes, **headers)[0]
        assert streams.refused == [404, 404, 400]

    at_streams(tmp_path, story)


def test_places_are_bounded_by_principal_and_for_all() -> None:
    places = StreamPlaces(3, 2)
    assert [places.take(name) for name in ("a", "a", "a", "b", "c")] == [True, True, False, True, False]
    places.leave("a")
    assert (len(places), places.take("c"), len(places)) == (2, True, 3)
