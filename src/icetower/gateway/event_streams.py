"""Server-sent events: how one is written and sent to whoever may read slowly, and how many streams there may be."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.types import Send

SEND_TIMEOUT_S = 10.0
"""Whoever takes nothing for so long is let go."""
CONTENT_TYPE = "text/event-stream; charset=utf-8"


class StreamPlaces:
    """Places for streams, of all principals together and of each.

    Args:
        most, of_principal: so many at once.
    """

    def __init__(self, most: int, of_principal: int) -> None:
        self._most = most
        self._of_principal = of_principal
        self._by_principal: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_principal.total()

    def take(self, name: str) -> bool:
        """Whether a principal may have one more; then it has it until `leave`."""
        if len(self) >= self._most or self._by_principal[name] >= self._of_principal:
            return False
        self._by_principal[name] += 1
        return True

    def leave(self, name: str) -> None:
        self._by_principal[name] -= 1
        if not self._by_principal[name]:
            del self._by_principal[name]


def message(text: str, *, event: str = "", id_: str = "") -> bytes:
    """One event: each line of the text is a line of its own, so that no text can begin a field or an event."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head = (f"event: {event}\n" if event else "") + (f"id: {id_}\n" if id_ else "")
    return (head + "".join(f"data: {line}\n" for line in lines) + "\n").encode()


async def sent(send: Send, body: bytes, *, more: bool = True) -> bool:
    """Whether the connection took it in time."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError:
        return False
    return True
