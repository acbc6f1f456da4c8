"""People who look: each signs in as a browser does, and asks for one page after the other, in an order of chance.

Pages of an agent, a table, a contract or an attempt are of another one each time, so that what the tower keeps for a
second hides nothing of what they cost. What all pages share is read anew by whichever comes when its second is over.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx2

from bench.page.filling import ADMINISTRATOR
from bench.page.warehouse import HOT, Size, agent_name, table_name, tables_of

AGENT = "an agent"
CODE = re.compile(r'name="code" value="([0-9a-f]{64})"')
TIMEOUT_S = 60.0
RECENT = 5_000
"""Of the newest attempts one is shown half of the time: its table still has the snapshots around it."""

Address = Callable[[], str]


class NotShown(Exception):
    """A page could not be asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer: whose, which page, how long from the request to its last byte. `status` 200: it was shown."""

    visitor: str
    page: str
    took_ms: float
    status: int
    address: str


class Log:
    """Numbers and ids of attempts, from the database itself: what somebody would click on."""

    def __init__(self, database: Path, draw: random.Random) -> None:
        self._draw = draw
        self._connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def number(self) -> int:
        """One of the newest, or any other."""
        ((oldest, newest),) = self._connection.execute(
            "select (select min(id) from ledger_attempts), (select max(id) from ledger_attempts)"
        )
        recent = self._draw.random() < 0.5
        return self._draw.randint(max(oldest, newest - RECENT) if recent else oldest, newest)

    def request(self) -> str:
        """The id of a request that was refused lately, as far back as one page of a search looks."""
        ((newest,),) = self._connection.execute("select max(id) from ledger_attempts")
        at = max(1, newest - self._draw.randint(0, 40_000))
        query = "select request_id from ledger_attempts where id >= ? and rule is not null order by id limit 1"
        row = self._connection.execute(query, (at,)).fetchone()
        return str(row[0]) if row else "0000"

    def own(self, principal: str, most: int) -> list[int]:
        """The newest attempts of a principal."""
        query = "select id from ledger_attempts where principal = ? order by id desc limit ?"
        return [number for (number,) in self._connection.execute(query, (principal, most))]


def everything(size: Size, log: Log, draw: random.Random) -> Mapping[str, Address]:
    """The pages of an administrator: by the name that the tables have for each, its next address."""

    def agent() -> str:
        return agent_name(draw.randrange(size.agents))

    def table() -> str:
        return str(table_name(draw.randrange(size.tables)))

    return {
        "Now": lambda: "/",
        "Agents": lambda: "/ui/agents",
        "one agent": lambda: f"/ui/agents/{agent()}",
        "Tables": lambda: "/ui/tables",
        "one table": lambda: f"/ui/tables/{table()}",
        "the table of the load": lambda: f"/ui/tables/{table_name(HOT)}",
        "Commits": lambda: "/ui/commits",
        "Commits of one agent": lambda: f"/ui/commits?principal={agent()}",
        "Commits to one table": lambda: f"/ui/commits?table={table()}",
        "Commits not landed": lambda: "/ui/commits?outcome=failed",
        "found by its request": lambda: f"/ui/commits?request={log.request()}",
        "one commit": lambda: f"/ui/commits/{log.number()}",
        "Contracts": lambda: "/ui/contracts",
        "one contract": lambda: f"/ui/contracts/{agent()}",
        "Slots": lambda: "/ui/slots",
        "Leases": lambda: "/ui/leases",
        "Choosing": lambda: "/ui/choosing",
        "Metrics": lambda: "/ui/metrics",
        "Metrics of one agent": lambda: f"/ui/metrics?principal={agent()}",
        "Metrics of one table": lambda: f"/ui/metrics/data?table={table()}",
        "Operations": lambda: "/ui/operations",
    }


def own(agent: int, size: Size, log: Log, draw: random.Random) -> Mapping[str, Address]:
    """The pages of an agent, which sees its own affairs."""
    name = agent_name(agent)
    numbers = log.own(name, 200)
    tables = [str(table_name(number)) for number in tables_of(agent, size)]
    return {
        "Now": lambda: "/",
        "Agents": lambda: "/ui/agents",
        "one agent": lambda: f"/ui/agents/{name}",
        "Tables": lambda: "/ui/tables",
        "one table": lambda: f"/ui/tables/{draw.choice(tables)}",
        "Commits": lambda: "/ui/commits",
        "Commits not landed": lambda: "/ui/commits?outcome=failed",
        "one commit": lambda: f"/ui/commits/{draw.choice(numbers)}" if numbers else "/ui/commits",
        "one contract": lambda: f"/ui/contracts/{name}",
        "Slots": lambda: "/ui/slots",
        "Leases": lambda: "/ui/leases",
        "Choosing": lambda: "/ui/choosing",
        "Metrics": lambda: "/ui/metrics",
    }


class Visitor:
    """Somebody who has signed in. Raises `NotShown` where that fails."""

    def __init__(self, uri: str, who: str, name: str, secret: str) -> None:
        self.who = who
        self._http = httpx2.Client(base_url=uri, timeout=TIMEOUT_S)
        code = CODE.findall(self._http.get("/ui/sign-in").text)[-1]
        fields = {"code": code, "name": name, "secret": secret}
        answer = self._http.post("/ui/sign-in", data=fields, headers={"Origin": uri})
        if answer.status_code != 303:
            raise NotShown(f"{name} could not sign in: {answer.status_code} {answer.text[:500]}")

    def ask(self, page: str, address: str) -> Asked:
        """A page, until its last byte; a redirection to it is a part of it."""
        start_s = time.perf_counter()
        answer = self._http.get(address, follow_redirects=True)
        took_ms = (time.perf_counter() - start_s) * 1000
        return Asked(self.who, page, took_ms, answer.status_code, address)

    def close(self) -> None:
        self._http.close()


def read(uri: str, data: Path, size: Size, secrets: list[str], until_s: float, seed: int) -> list[Asked]:
    """Ask for every page over and over until a moment of the monotonic clock; each at least once."""
    draw = random.Random(seed)
    agent = draw.randrange(size.agents)
    administrator = Visitor(uri, "the administrator", ADMINISTRATOR, (data / "admin.token").read_text().strip())
    other = Visitor(uri, AGENT, agent_name(agent), secrets[agent])
    found: list[Asked] = []
    with closing(administrator), closing(other), closing(Log(data / "control.db", draw)) as log:
        turns = [(administrator, page, address) for page, address in everything(size, log, draw).items()]
        turns += [(other, page, address) for page, address in own(agent, size, log, draw).items()]
        while not found or time.monotonic() < until_s:
            draw.shuffle(turns)
            for visitor, page, address in turns:
                found.append(visitor.ask(page, quote(address(), safe="/?=&.")))
                if len(found) >= len(turns) and time.monotonic() >= until_s:
                    break
    return found
