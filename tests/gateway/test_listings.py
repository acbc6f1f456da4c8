"""Trap A8: lists of tens of thousands of names take turns, and the long ones are made away from the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from icetower.admission.permissions import visible, visible_tables
from icetower.contracts.document import load
from icetower.errors import Unavailable
from icetower.files.parsing import WAITING_MAX, Parsing
from icetower.gateway.http import Call
from icetower.gateway.listings import ON_LOOP, listed
from icetower.protocol.names import Identifier
from icetower.recent import Budget
from icetower.registry.principals import Principal, administrator

TABLES = [Identifier(("ns",), f"t{number:05}") for number in range(ON_LOOP + 1)]


class Asked:
    """A request for a list, by a principal."""

    def __init__(self, name: str, **query: str) -> None:
        self.principal = administrator(name)
        self._query = query

    def query(self, name: str) -> str | None:
        return self._query.get(name)


def names(answer: Any) -> list[str]:
    return json.loads(answer.body)["identifiers"]


def body(page: Sequence[Identifier]) -> dict[str, Any]:
    return {"identifiers": [table.name for table in page]}


def test_lists_take_turns_by_principal_and_those_that_wait_are_bounded() -> None:
    async def story() -> None:
        parsing, go_on, read = Parsing(Budget()), asyncio.Event(), list[str]()

        def ask(name: str) -> asyncio.Future[Any]:
            async def tables() -> list[Identifier]:
                read.append(name)
                await go_on.wait()
                return TABLES[:2]

            call = cast(Call, Asked(name))
            return asyncio.ensure_future(listed(parsing, call, tables, lambda _: True, body))

        ann = [ask("ann") for _ in range(WAITING_MAX + 1)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="64 lists of ann wait") as refused:
            await ask("ann")
        assert (refused.value.status, refused.value.next_step) == (503, "retry")
        bob = ask("bob")
        await asyncio.sleep(0)
        assert read == ["ann"]  # one at a time
        go_on.set()
        assert names(await bob) == ["t00000", "t00001"]
        assert read.index("bob") <= 2
        await asyncio.gather(*ann)

    asyncio.run(story())


@pytest.mark.parametrize(("count", "away"), [(ON_LOOP, False), (ON_LOOP + 1, True)])
def test_a_long_list_is_made_away_from_the_event_loop(count: int, away: bool) -> None:
    async def story() -> None:
        threads = set[int]()

        async def tables() -> list[Identifier]:
            return TABLES[:count]

        def seen(_: Identifier) -> bool:
            threads.add(threading.get_ident())
            return True

        call = cast(Call, Asked("ann", pageSize="3"))
        answer = await listed(Parsing(Budget()), call, tables, seen, body)
        assert names(answer) == ["t00000", "t00001", "t00002"]
        assert (threads != {threading.get_ident()}) is away
        token = json.loads(answer.body)["next-page-token"]
        call = cast(Call, Asked("ann", pageSize="3", pageToken=token))
        answer = await listed(Parsing(Budget()), call, tables, seen, body)
        assert names(answer) == ["t00003", "t00004", "t00005"]

    asyncio.run(story())


ENTRIES = {
    "ns.*": {"ns": {"a", "b"}, "ns.sub": set()},
    "ns.**": {"ns": {"a", "b"}, "ns.sub": {"a", "b"}},
    "**": {"ns": {"a", "b"}, "ns.sub": {"a", "b"}, "other": {"a", "b"}},
    "ns.a": {"ns": {"a"}, "ns.sub": set(), "other": set()},
    "other.a": {"ns": set(), "other": {"a"}},
}


@pytest.mark.parametrize("pattern", ENTRIES)
@pytest.mark.parametrize("mode", ["", "mode: shadow\n"])
def test_a_list_shows_what_a_principal_may_see(pattern: str, mode: str) -> None:
    text = f"version: 1\nagent: a\n{mode}tables:\n  - {{table: '{pattern}', operations: [read]}}\n"
    principal = Principal("a", load(text, source="test"), 1)
    for namespace, shown in ENTRIES[pattern].items():
        tables = [Identifier(tuple(namespace.split(".")), name) for name in ("a", "b")]
        found = {table.name for table in filter(visible_tables(principal, tables[0].namespace), tables)}
        assert found == ({"a", "b"} if mode else shown)
        assert found == {table.name for table in tables if visible(principal, table)}
