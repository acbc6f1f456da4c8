"""Calls in processes of their own: whatever they do, they end, their caller hears how, and no place is held."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from icetower.errors import BadRequest, CommitStateUnknown, Forbidden, Unavailable
from icetower.mcp.apart import Call, Failed, Given
from icetower.mcp.workers import BY_CALLER_MAX, Workers

SMALL = 256 * 1024 * 1024


def doubled(number: int) -> int:
    return 2 * number


def refusing() -> None:
    raise Forbidden("not yours", rule="mcp.location", next_step="ask_owner", files=["/x"])


def failing() -> None:
    raise LookupError("something of ours")


def hungry(count: int) -> int:
    held = [bytes(1024 * 1024) for _ in range(count)]
    return len(held)


def crashing() -> None:
    os.abort()


def hanging(fifo: str) -> None:
    """Nobody ever writes to it; and a thread holds on, too."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    with open(fifo, "rb") as file:
        file.read()


def noted(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(3600)


async def until(holds: Callable[[], bool]) -> None:
    """Another process says nothing when it has done it."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


def test_what_a_call_returns_or_raises_arrives() -> None:
    assert Call(doubled, (21,)).run() == 42
    with pytest.raises(Forbidden, match="not yours") as refused:
        Call(refusing, ()).run()
    assert (refused.value.rule, refused.value.next_step, refused.value.files) == ("mcp.location", "ask_owner", ("/x",))
    with pytest.raises(Failed, match="LookupError: something of ours"):
        Call(failing, ()).run()


@pytest.mark.parametrize(
    "call", [Call(hungry, (2_000,), memory_bytes=SMALL), Call(crashing, ())], ids=["memory", "crash"]
)
def test_too_much_memory_is_a_refusal(call: Call) -> None:
    with pytest.raises(BadRequest, match="memory") as refused:
        call.run()
    assert refused.value.rule == "mcp.memory"
    assert Call(hungry, (100,), memory_bytes=SMALL).run() == 100


def test_a_call_that_hangs_is_ended_and_gives_back_its_place(fifo: str) -> None:
    async def story() -> None:
        workers = Workers(places=1, timeout_s=60)
        assert await workers.run_apart("ann", Call(doubled, (1,))) == 2  # the server of forks is there now
        short = Workers(places=1, timeout_s=3)
        with pytest.raises(BadRequest, match="was ended") as late:
            await short.run_apart("bob", Call(hanging, (fifo,)))
        assert late.value.rule == "mcp.time"
        with pytest.raises(CommitStateUnknown):
            await short.run_apart("bob", Call(hanging, (fifo,)), writes=True)
        assert await workers.run_apart("bob", Call(doubled, (2,))) == 4
        # What was never begun is known not to have been committed.
        held = [asyncio.create_task(short.run_apart("bob", Call(hanging, (fifo,)))) for _ in range(BY_CALLER_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="not begun"):
            await short.run_apart("ann", Call(doubled, (1,)), writes=True)
        await asyncio.gather(*held, return_exceptions=True)
        workers.close()
        short.close()

    asyncio.run(story())


def test_a_call_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    async def story() -> None:
        workers = Workers(places=2)
        for end in ("cancel", "close"):
            path = tmp_path / end
            task = asyncio.create_task(workers.run_apart("bob", Call(noted, (str(path),)), writes=end == "close"))
            await until(lambda path=path: path.exists() and path.read_text() != "")
            pid = int(path.read_text())
            assert is_there(pid)
            if end == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                workers.close()
                with pytest.raises(CommitStateUnknown, match="stops"):
                    await task
            await until(lambda pid=pid: not is_there(pid))

    asyncio.run(asyncio.wait_for(story(), 120))


def test_a_call_that_was_given_up_before_it_began_starts_nothing() -> None:
    call = Call(doubled, (1,))
    call.give_up()
    with pytest.raises(Given):
        call.run()
    assert not call.began
