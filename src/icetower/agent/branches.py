"""`Branch` and `AsyncBranch`: a branch of a table that an agent writes to as often as it likes, and publishes.

with Agent("http://127.0.0.1:8181", token=secret) as agent:
    branch = agent.branch("shop.prices", "agent-7")
    branch.append(rows)
    branch.publish()
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from icetower.agent.asking import Asker, table_path
from icetower.agent.intents import Lease
from icetower.agent.keys import new_key
from icetower.agent.publishing import Keep, PublishedBranch, body, creation
from icetower.agent.recovery import Patience
from icetower.agent.steps import Pause, Steps
from icetower.agent.written import Written
from icetower.errors import CommitConflict, CommitStateUnknown, IcetowerError

AGAIN = frozenset({"retry"})
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0


def created(asker: Asker, table: str, name: str, start: str) -> Steps[None]:
    """Create a branch where there is none."""
    path = table_path(table)
    while True:
        metadata = (yield from asker.json("GET", path, params={"snapshots": "refs"}))["metadata"]
        commit = creation(name, metadata, start)
        if commit is None:
            return
        try:
            yield from asker.json("POST", path, body={"requirements": commit[0], "updates": commit[1]})
        except CommitConflict:  # somebody else has created it, perhaps
            continue
        return


def published(
    asker: Asker,
    patience: Patience,
    table: str,
    branch: str,
    *,
    to: str,
    keep: Keep,
    key: str | None,
    isolation: str | None,
    read: Mapping[str, Any] | None,
    blind: bool,
    lease: Lease | None,
) -> Steps[PublishedBranch]:
    """Publish a branch. What may be sent again is, under the same key."""
    key = key or new_key(patience.ambient)
    under = None if lease is None else (lease.id, lease.fence)
    request = body(branch, to, keep, key, isolation, read, blind, under)
    pause_s, doubtful = PAUSE_S, False
    for left in reversed(range(patience.attempts_max)):
        try:
            return PublishedBranch.of((yield from asker.json("POST", f"{table_path(table)}/publish", body=request)))
        except IcetowerError as error:
            doubtful = doubtful or error.status >= 500
            if (error.next_step not in AGAIN and error.status < 500) or not left or asker.nobody_there:
                if doubtful:
                    raise CommitStateUnknown(
                        f"{error.message}; branch {branch} may have been published to {to}. Publish it again under "
                        f"the key {key}"
                    ) from error
                raise
        yield Pause(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
    raise AssertionError("the last attempt returns or raises")


class Branch:
    """A branch of a table. Other clients may write to it, too.

    Attributes:
        table, name: ``namespace.table``, and the branch.
    """

    def __init__(
        self,
        table: str,
        name: str,
        append: Callable[..., Written],
        publish: Callable[..., PublishedBranch],
    ) -> None:
        self.table = table
        self.name = name
        self._append = append
        self._publish = publish

    def append(self, rows: Any, *, key: str | None = None) -> Written:
        """Add rows to the branch. Arguments and errors as of `Agent.append`."""
        return self._append(self.table, rows, key=key, ref=self.name)

    def publish(self, **how: Any) -> PublishedBranch:
        """Publish the branch. Arguments and errors as of `Agent.publish`."""
        return self._publish(self.table, self.name, **how)


class AsyncBranch:
    """See `Branch`."""

    def __init__(
        self,
        table: str,
        name: str,
        append: Callable[..., Awaitable[Written]],
        publish: Callable[..., Awaitable[PublishedBranch]],
    ) -> None:
        self.table = table
        self.name = name
        self._append = append
        self._publish = publish

    async def append(self, rows: Any, *, key: str | None = None) -> Written:
        """See `Branch.append`."""
        return await self._append(self.table, rows, key=key, ref=self.name)

    async def publish(self, **how: Any) -> PublishedBranch:
        """See `Branch.publish`."""
        return await self._publish(self.table, self.name, **how)
