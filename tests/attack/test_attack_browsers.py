"""A page in somebody's browser at a tower on loopback: what browsers send, without a browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.routing import Route

from icetower.ambient import SystemAmbient
from icetower.gateway import tower as gateway
from icetower.gateway.settings import Settings
from verify.kit.forger import Forger
from verify.kit.tower_process import TowerProcess

PRINCIPAL = '{"name": "intruder", "contract": "administrator"}'
FORM = {
    # Chromium, a form with enctype="text/plain" on a page of evil.example
    "Origin": "https://evil.example",
    "Content-Type": "text/plain",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-User": "?1",
}
BEACON = {"Origin": "http://127.0.0.1:3000", "Content-Type": "text/plain", "Sec-Fetch-Site": "same-site"}
OLD = {"Content-Type": "text/plain"}
SCRIPT = {"Origin": "null", "Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}


@pytest.fixture(scope="module")
def open_tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    tower = TowerProcess(tmp_path_factory.mktemp("open") / "data", "--open")
    yield tower
    assert tower.stop() == 0


def intruders(tower: TowerProcess) -> list[str]:
    return [record["name"] for record in tower.admin.principals() if record["name"] == "intruder"]


@pytest.mark.parametrize(
    ("headers", "status", "rule"),
    [
        (FORM, 403, "request.origin"),
        (BEACON, 403, "request.origin"),
        (SCRIPT, 403, "request.origin"),
        (OLD, 400, "request.content-type"),
        ({}, 400, "request.content-type"),
    ],
)
def test_no_page_makes_an_administrator(
    open_tower: TowerProcess, headers: dict[str, str], status: int, rule: str
) -> None:
    url = f"{open_tower.uri}/icetower/v1/principals"
    answer = httpx2.post(url, content=PRINCIPAL.encode(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (status, rule)
    assert "access-control-allow-origin" not in answer.headers
    assert intruders(open_tower) == []


def test_a_name_that_was_made_to_lead_here_gets_nothing(open_tower: TowerProcess) -> None:
    """DNS rebinding: to the browser the page and the tower are one site."""
    host = f"evil.example:{urlsplit(open_tower.uri).port}"
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    kind = {"Content-Type": "application/json"}
    made = httpx2.post(f"{open_tower.uri}/icetower/v1/principals", content=PRINCIPAL.encode(), headers=headers | kind)
    read = httpx2.get(f"{open_tower.uri}/icetower/v1/me", headers=headers)
    assert [made.status_code, read.status_code] == [401, 401]
    assert intruders(open_tower) == []


def test_a_link_and_a_program_are_let_in(open_tower: TowerProcess) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert httpx2.get(f"{open_tower.uri}/icetower/v1/me", headers=link).json()["administrator"] is True
    own = {"Origin": open_tower.uri, "Sec-Fetch-Site": "same-origin"}
    assert httpx2.get(f"{open_tower.uri}/icetower/v1/me", headers=own).status_code == 200
    made = httpx2.post(f"{open_tower.uri}/v1/namespaces", json={"namespace": ["made_by_a_program"]})
    assert made.status_code == 200


def test_every_route_refuses_foreign_pages_before_it_reads_a_body(tower: TowerProcess, tmp_path: Path) -> None:
    settings = Settings.model_validate({"server": {"data": str(tmp_path)}})
    known = gateway.open_tower(settings, SystemAmbient()).routes()
    asked = {(method, each.path) for each in known if isinstance(each, Route) for method in each.methods or ()}
    asked |= {("GET", "/no/such/route"), ("OPTIONS", "/v1/config"), ("PUT", "/v1/namespaces")}
    assert len(asked) > 40
    address = urlsplit(tower.uri)
    for method, path in sorted(asked):
        with socket.create_connection((address.hostname or "", address.port or 0), 30) as connection:
            # A body is announced, and never sent.
            head = (
                f"{method} {path.replace('{', '').replace('}', '')} HTTP/1.1\r\nHost: {address.netloc}\r\n"
                f"Authorization: Bearer {tower.secret}\r\nOrigin: https://evil.example\r\nContent-Length: 10\r\n\r\n"
            )
            connection.sendall(head.encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 403 "), (method, path)


def test_an_agents_token_does_not_help_a_page(forge: Callable[..., Forger]) -> None:
    forge().create()
    agent = forge("tables: [{table: NS.t, operations: [read, append]}]\n")
    assert agent.http.get(agent.url).status_code == 200
    answer = agent.http.get(agent.url, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]["rule"]) == (403, "request.origin")
