"""Work at a caller's desk: in this process, or in one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from icetower.ambient import Ambient, SystemAmbient
from icetower.mcp.caller import Caller
from icetower.mcp.tables import Desk, error_of

T = TypeVar("T")


def at_a_desk(caller: Caller, ambient: Ambient, work: Callable[[Desk], T]) -> T:
    """What `work` returns. Raises the `IcetowerError` behind what it raises, if there is one."""
    with Desk(caller, ambient) as desk:
        try:
            return work(desk)
        except Exception as raised:
            found = error_of(raised)
            if found is None:
                raise
            raise found from None


def apart(caller: Caller, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """The same in a process of its own, which has the machine's own clock."""
    return at_a_desk(caller, SystemAmbient(), lambda desk: work(desk, *arguments))
