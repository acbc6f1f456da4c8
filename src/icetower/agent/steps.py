"""The steps of which an agent's work consists: requests, pauses and calls that block. Nothing here does any of them.

Work is a generator that yields its steps and is sent what came of each: a `Response`, or what the call returned. So the
same work is driven by threads and by an event loop (`transport.py`), and by the tests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from icetower.errors import Unavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """A request to the tower. `path`: from its address on, percent-encoded."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `headers`: by their names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """A wait of so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """A call that blocks or computes for long; an event loop makes it in a thread."""

    call: Callable[[], Any]


Step = Request | Pause | Work
Steps = Generator[Step, Any, T]


class Lost(Exception):
    """A request has no answer.

    Attributes:
        error: for the caller.
        sent: whether the tower may have received the request.
        refused: whether nothing listens at the address.
    """

    def __init__(self, error: Unavailable, *, sent: bool, refused: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.sent = sent
        self.refused = refused


def driven(steps: Steps[T], take: Callable[[Step], Any]) -> T:
    """Carry out some work, each step by `take`; what it raises is raised at that step."""
    try:
        step = next(steps)
        while True:
            try:
                came = take(step)
            except Exception as error:  # noqa: BLE001 - the work decides about it
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as done:
        return done.value
    finally:
        steps.close()


async def driven_async(steps: Steps[T], take: Callable[[Step], Awaitable[Any]]) -> T:
    """The same in an event loop. Where its task is cancelled, the work ends at the step that it has come to."""
    try:
        step = next(steps)
        while True:
            try:
                came = await take(step)
            except Exception as error:  # noqa: BLE001 - the work decides about it
                step = steps.throw(error)
            else:
                step = steps.send(came)
    except StopIteration as done:
        return done.value
    finally:
        steps.close()
