"""Who is revoked while a request is under way: its body may come as slowly as 1,024 bytes a second, for an hour."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from icetower.protocol.marks import KEY
from verify.kit.forger import SCHEMA, Forger
from verify.kit.tower_process import TowerProcess

Forge = Callable[..., Forger]
Begin = Callable[..., "Late"]

EVERYTHING = """tables:
  - table: NS.*
    operations: [read, append, overwrite, delete, create, drop, rename, alter]
    write_location: table
    partitions: all
"""


class Late:
    """A request of whose body the last byte is missing."""

    def __init__(self, connection: socket.socket, last: bytes) -> None:
        self._connection = connection
        self._last = last

    def end(self) -> tuple[int, str]:
        """Send it: the status, and the body."""
        self._connection.sendall(self._last)
        answer = b""
        while piece := self._connection.recv(65536):
            answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()


@pytest.fixture
def begin(tower: TowerProcess) -> Iterator[Begin]:
    with ExitStack() as opened:

        def request(token: str, method: str, path: str, content: Any = " ") -> Late:
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            host, port = tower.uri.removeprefix("http://").split(":")
            connection = opened.enter_context(socket.create_connection((host, int(port)), timeout=30))
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            connection.sendall(head.encode() + body[:-1])
            return Late(connection, body[-1:])

        yield request


def test_an_administrator_who_is_revoked_makes_nobody_another_one(tower: TowerProcess, begin: Begin) -> None:
    name = f"boss-{uuid4()}"
    boss = tower.admin.create_principal(name, "administrator")
    contract = f"version: 1\nagent: {name}\ntables:\n  - {{table: '**', operations: [drop], partitions: all}}\n"
    late = [
        begin(boss, "POST", "/icetower/v1/principals", {"name": f"ghost-{name}", "contract": "administrator"}),
        begin(boss, "POST", "/icetower/v1/contracts", contract),
        begin(boss, "POST", "/icetower/v1/principals/admin/rotate", {"grace_s": 600}),
        begin(boss, "GET", "/icetower/v1/principals"),
    ]
    with tower.client() as http:
        # Their heads have been read, and who sends them is known: requests are answered in turn.
        assert http.get("/icetower/v1/me").status_code == 200
        http.delete(f"/icetower/v1/principals/{name}").raise_for_status()
        assert [each.end()[0] for each in late] == [401] * len(late)
        assert f"ghost-{name}" not in http.get("/icetower/v1/principals").text
        assert http.get(f"/icetower/v1/contracts/{name}").status_code == 404


@pytest.mark.parametrize("what", ["principal", "contract", "secret"])
def test_an_agent_that_is_revoked_ends_no_request_that_it_has_begun(
    tower: TowerProcess, namespace: str, forge: Forge, begin: Begin, what: str
) -> None:
    admin = forge()
    before = admin.create()
    name = f"agent-{uuid4()}"
    token = tower.principal(name, EVERYTHING.replace("NS", namespace))
    with tower.client(token) as http:
        agent = Forger(http, namespace)
        requirements, updates = agent.append("a.parquet", summary={KEY: "a"})
        landed = {"requirements": requirements, "updates": updates}
        agent.commit(requirements, updates).raise_for_status()
    tables = f"/v1/namespaces/{namespace}/tables"
    change = [{"action": "set-properties", "updates": {"late": "1"}}]
    late = [
        begin(token, "DELETE", f"{tables}/t?purgeRequested=true"),
        begin(token, "POST", tables, {"name": "late", "schema": SCHEMA}),
        begin(token, "DELETE", f"/v1/namespaces/{namespace}"),
        begin(token, "GET", f"{tables}/t"),
        begin(token, "POST", f"{tables}/t", {"requirements": [], "updates": change}),
    ]
    again = begin(token, "POST", f"{tables}/t", landed)
    with tower.client() as http:
        assert http.get("/icetower/v1/me").status_code == 200
        if what == "secret":
            http.post(f"/icetower/v1/principals/{name}/rotate").raise_for_status()
        else:
            http.delete(f"/icetower/v1/{what}s/{name}").raise_for_status()
        assert [each.end()[0] for each in late] == [403 if what == "contract" else 401] * len(late)
        # What has landed is not called lost (trap A3), and nothing of the table is told.
        status, body = again.end()
        assert (status, "commit.unknown" in body, before["location"] in body) == (504, True, False)
        assert [each["name"] for each in http.get(tables).json()["identifiers"]] == ["t"]
    assert "late" not in admin.load()["properties"]
    assert admin.live() == ["a.parquet"]
