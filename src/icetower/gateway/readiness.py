"""`GET /readyz`: whether everything is there that a commit needs. `/healthz` says only that the process answers.

upstream    the catalog behind the tower answers a query
warehouse   the storage of new tables answers
registry    the database of principals, contracts and the log answers
disk        there is room below the data directory

Anybody may ask, so asking must cost next to nothing: an answer is kept for a moment, each check runs once at a time and
has a time limit, and one that hangs is not started again. Callers without a credential hear the state of each component
and nothing else; administrators hear details at `GET /icetower/v1/readiness`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from icetower.ambient import Ambient
from icetower.counting import counted
from icetower.database import Database
from icetower.errors import IcetowerError
from icetower.registry.schema import contracts
from icetower.storage.port import Storage
from icetower.threads import Threads
from icetower.upstream.port import Upstream

LIMIT_S = 2.0
KEPT_S = 1.0
OK, FAILED, TIMEOUT = "ok", "failed", "timeout"
_PROBE = "icetower-readiness"

Check = Callable[[], Awaitable[Mapping[str, Any]]]
"""Raises where the component is not ready; else returns details for administrators."""


@dataclass(frozen=True, slots=True)
class State:
    """One component: `ok`, `failed` or `timeout`, and details for administrators."""

    state: str
    took_ms: float
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Readiness:
    """Asks the components of one server."""

    def __init__(
        self, checks: Mapping[str, Check], ambient: Ambient, *, limit_s: float = LIMIT_S, kept_s: float = KEPT_S
    ) -> None:
        self._checks = checks
        self._ambient = ambient
        self._limit_s = limit_s
        self._kept_s = kept_s
        self._running: dict[str, asyncio.Task[Mapping[str, Any]]] = {}
        self._asking: asyncio.Task[Mapping[str, State]] | None = None
        self._asked_s = 0.0

    async def states(self) -> Mapping[str, State]:
        """All components, as they were a moment ago at the most."""
        asking = self._asking
        if asking is None or (asking.done() and self._ambient.monotonic_s() >= self._asked_s + self._kept_s):
            asking = self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(asking)

    async def close(self) -> None:
        """Let go of checks that hang."""
        tasks = [*self._running.values(), *([] if self._asking is None else [self._asking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self) -> Mapping[str, State]:
        found = await asyncio.gather(*(self._state(name) for name in self._checks))
        self._asked_s = self._ambient.monotonic_s()
        return dict(zip(self._checks, found, strict=True))

    async def _state(self, name: str) -> State:
        began_s = self._ambient.monotonic_s()
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.create_task(_run(self._checks[name]))
        done, _ = await asyncio.wait([task], timeout=self._limit_s)
        took_ms = (self._ambient.monotonic_s() - began_s) * 1000
        if not done:  # it stays where it is: a second one would hang, too
            return State(TIMEOUT, took_ms, {"cause": f"no answer within {self._limit_s:g} s"})
        del self._running[name]
        error = task.exception()
        if error is None:
            return State(OK, took_ms, task.result())
        return State(FAILED, took_ms, {"cause": error.message if isinstance(error, IcetowerError) else repr(error)})


async def _run(check: Check) -> Mapping[str, Any]:
    return await check()


def readiness_of(
    upstream: Upstream,
    storage: Storage,
    control: Database,
    ambient: Ambient,
    *,
    warehouse: str,
    data: Path,
    disk_min_bytes: int,
) -> Readiness:
    """The components of a tower."""
    disk = Threads(1, "disk")

    async def check_upstream() -> Mapping[str, Any]:
        await upstream.namespace_exists((_PROBE,))
        return {}

    async def check_warehouse() -> Mapping[str, Any]:
        await storage.exists(f"{warehouse.rstrip('/')}/{_PROBE}")
        return {}

    async def check_registry() -> Mapping[str, Any]:
        await control.run(lambda connection: connection.execute(select(contracts.c.name).limit(1)).first())
        return {}

    async def check_disk() -> Mapping[str, Any]:
        usage = await disk.run(lambda: shutil.disk_usage(data))
        if usage.free < disk_min_bytes:
            raise IcetowerError(
                f"{counted(usage.free, 'byte')} free below {data}, and server.disk_min_bytes is {disk_min_bytes}"
            )
        return {"free_bytes": usage.free, "total_bytes": usage.total}

    checks = {
        "upstream": check_upstream,
        "warehouse": check_warehouse,
        "registry": check_registry,
        "disk": check_disk,
    }
    return Readiness(checks, ambient)
