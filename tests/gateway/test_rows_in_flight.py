"""Rows on their way are bounded, for one principal and for all, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from icetower.ambient import SystemAmbient
from icetower.errors import TooManyRequests
from icetower.gateway import tower as tower_module
from icetower.gateway.app import build
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from icetower.service.rows_in_flight import SHARE, RowsInFlight


def test_one_principal_leaves_room_for_others_and_all_leave_none_beyond_the_bound() -> None:
    door = RowsInFlight(100)
    with door.taken("ann", 25, rows=3):
        with pytest.raises(TooManyRequests) as error, door.taken("ann", 1):
            pass
        assert (error.value.rule, error.value.next_step) == ("limit.in-flight", "retry")
        with door.taken("bob", 25), door.taken("cy", 25), door.taken("dan", 24):
            with pytest.raises(TooManyRequests), door.taken("eve", 2):
                pass
            assert door.busiest(2) == [("ann", 25), ("bob", 25)]
            assert door.size_bytes == 99
    assert (door.size_bytes, door.requests, door.rows, door.refused) == (0, 4, 3, 2)
    assert door.busiest(9) == []


def test_what_fails_is_on_its_way_no_more() -> None:
    door = RowsInFlight()
    with pytest.raises(ValueError, match="x"), door.taken("ann", 7):
        raise ValueError("x")
    assert door.size_bytes == 0


def test_a_check_holds_nothing() -> None:
    door = RowsInFlight(100)
    door.check("ann", 25)
    with door.taken("ann", 25), pytest.raises(TooManyRequests):
        door.check("ann", 1)
    assert (door.size_bytes, door.requests, door.refused) == (0, 1, 1)


PIECE = b'{"rows": [{"id": 1}]}'.ljust(10_000)

SHARE_BYTES = 10 * len(PIECE)

UNREAD = [
    # free            pieces, their length is said   status  pieces that are read
    (SHARE_BYTES, 10, True, 404, 10),
    (SHARE_BYTES, 11, True, 429, 0),
    (SHARE_BYTES, 20, False, 429, 11),
    (0, 3, True, 429, 0),
    (0, 3, False, 429, 1),
    (3 * len(PIECE), 3, True, 404, 3),
    (3 * len(PIECE), 3, False, 404, 3),
    (3 * len(PIECE) - 1, 3, True, 429, 0),
    (2 * len(PIECE), 9, False, 429, 3),
]


@pytest.mark.parametrize(("free", "pieces", "length", "status", "read"), UNREAD)
def test_rows_for_which_there_is_no_room_are_refused_before_their_body_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, pieces: int, length: bool, status: int, read: int
) -> None:
    """404: the body was read, and its table looked for."""
    came = 0
    door = RowsInFlight(SHARE * SHARE_BYTES)
    monkeypatch.setattr(tower_module, "RowsInFlight", lambda: door)

    async def body() -> AsyncIterator[bytes]:
        nonlocal came
        for number in range(pieces):
            came += 1
            yield PIECE if number == 0 else b" " * len(PIECE)

    async def story() -> httpx2.Response:
        tower = open_tower(load_settings(None, data=str(tmp_path)), SystemAmbient(), open_to_all=True)
        transport = httpx2.ASGITransport(app=build(tower), raise_app_exceptions=True)
        headers = {"Content-Type": "application/json"}
        if length:
            headers["Content-Length"] = str(pieces * len(PIECE))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            with ExitStack() as held:
                for number in range(SHARE - 1):
                    held.enter_context(door.taken(f"other-{number}", SHARE_BYTES))
                held.enter_context(door.taken("another", SHARE_BYTES - free))
                answer = await http.post("/v1/namespaces/db/tables/t/rows", content=body())
        await tower.close()
        return answer

    answer = asyncio.run(story())
    assert (answer.status_code, came, door.refused, door.size_bytes) == (status, read, status == 429, 0)
    if status == 429:
        assert answer.json()["error"]["rule"] == "limit.in-flight"
        assert answer.headers["Retry-After"] == "1"
