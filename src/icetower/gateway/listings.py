"""Lists of tables and namespaces: pages of them, one list at a time, the long ones away from the event loop.

A namespace may have tens of thousands of tables, and each list reads all of them, whatever the size of its page: which
of them a principal may see is not the catalog's to say. So lists take turns, principal by principal (trap A8).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import orjson
from starlette.responses import Response

from icetower.errors import BadRequest, CommitConflict, Unavailable
from icetower.files.parsing import Parsing
from icetower.gateway.http import Call
from icetower.protocol.names import NAMESPACE_SEPARATOR, Identifier, Namespace

Item = TypeVar("Item", Identifier, Namespace)

PAGE_MAX = 1_000
ON_LOOP = 200
"""So many names are put into an answer on the event loop."""


async def listed(
    parsing: Parsing,
    call: Call,
    read: Callable[[], Awaitable[Sequence[Item]]],
    visible: Callable[[Item], bool],
    answer: Callable[[Sequence[Item]], dict[str, Any]],
) -> Response:
    """The answer to a request for a list.

    Args:
        read: reads all names, sorted.
        visible: whether the caller may see one.
        answer: the body for those of a page, but for its token.

    Raises:
        Unavailable: too many lists of this principal wait, or it waited for too long.
    """

    def body(found: Sequence[Item]) -> bytes:
        page, token = page_of(call, [item for item in found if visible(item)])
        return orjson.dumps({**answer(page), "next-page-token": token})

    try:
        async with parsing.listing(call.principal.name):
            found = await read()
            if len(found) <= ON_LOOP:
                content = body(found)
            else:
                content = await parsing.body(lambda: body(found), call.principal.name)
    except CommitConflict as error:
        raise Unavailable(error.message) from error
    return Response(content, media_type="application/json")


def page_of(call: Call, items: Sequence[Item]) -> tuple[Sequence[Item], str | None]:
    """One page of a sorted list. The token names the last item given, so that a page stays right while names come and
    go."""
    size_text, token = call.query("pageSize"), call.query("pageToken")
    if size_text is None and not token:
        return items, None
    try:
        size = min(int(size_text or PAGE_MAX), PAGE_MAX)
    except ValueError:
        size = 0
    if size < 1:
        raise BadRequest(f"query parameter pageSize is {size_text!r}; write a number from 1")
    start = 0
    if token:
        try:
            after = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError) as error:
            raise BadRequest("query parameter pageToken was not given out by this server") from error
        start = sum(1 for item in items if _name(item) <= after)
    page = items[start : start + size]
    more = start + size < len(items)
    return page, base64.urlsafe_b64encode(_name(page[-1]).encode()).decode() if more else None


def _name(item: Identifier | Namespace) -> str:
    return item.name if isinstance(item, Identifier) else NAMESPACE_SEPARATOR.join(item)
