"""Viewers: people on call who look at everything that the control API shows, and change nothing."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.contracts.model import NAME, VIEWER_NAME
from icetower.errors import Forbidden, IcetowerError
from icetower.gateway.settings import Server, Settings
from icetower.gateway.tower import open_tower
from verify.kit.tower_process import TowerProcess, error_of

CONTRACT = "version: 1\nagent: shop\nowner: a@example.com\ntables: [{table: shop.*, operations: [append]}]\n"
FOR_ALL = {"/healthz", "/readyz", "/icetower/v1/proof", "/v1/oauth/tokens", "/v1/config"}
"""Routes that ask nobody, or everybody alike."""
MEANING_NOTHING = {"/icetower/v1/me/delivery"}
"""Reads that need parameters."""


def named_routes(folder: Path) -> list[tuple[str, str]]:
    """(method, path) of every route of a tower, with `x` for each parameter of the path."""
    tower = open_tower(Settings(server=Server(data=str(folder))), SystemAmbient())
    found = [
        (method, re.sub(r"\{[^}]*\}", "x", each.path))
        for each in tower.routes()
        for method in sorted(each.methods or ())
    ]
    assert len(found) > 50
    return found


LOGGED = ("ledger_attempts", "ledger_metric", "ledger_tries", "registry_alert", "sqlite_sequence")
"""What was refused is logged and counted."""


def stored(data: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the tower's databases that a viewer might have changed."""
    rows: dict[str, list[tuple[object, ...]]] = {}
    for name in ("control.db", "catalog.db"):
        with sqlite3.connect(f"file:{data / name}?mode=ro", uri=True) as database:
            tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
            for table in tables:
                if not table.startswith(LOGGED):
                    rows[f"{name}:{table}"] = sorted(database.execute(f"select * from {table}"), key=repr)
    return rows


def test_a_viewer_sees_what_an_administrator_sees_and_changes_nothing(untouched: TowerProcess, tmp_path: Path) -> None:
    """Every route of the tower is asked; one that is added later is asked, too."""
    untouched.admin.apply_contract(CONTRACT)
    secret = untouched.admin.create_principal("dana", VIEWER_NAME)
    routes = named_routes(tmp_path / "another")
    before = stored(untouched.data)
    with untouched.client(secret) as viewer, untouched.client() as admin:
        looked = 0
        for method, path in routes:
            if path in FOR_ALL | MEANING_NOTHING | {"/mcp"} or path.startswith("/ui/"):
                continue  # MCP's tools ask these very routes; the page takes no token (tests/page)
            answer = viewer.request(method, path, json={} if method in ("POST", "PUT") else None)
            if method not in ("GET", "HEAD"):
                assert answer.status_code == 403, (method, path, answer.text)
                assert error_of(answer)["rule"] == "permission.viewer", (method, path)
            elif path.startswith("/icetower/v1/"):
                assert answer.status_code == admin.request(method, path).status_code, (method, path)
                assert answer.status_code in (200, 404), (method, path, answer.text)
                looked += 1
            else:  # Iceberg's routes: no table is read, and none is listed
                is_json = answer.status_code == 200 and "json" in answer.headers.get("content-type", "")
                listed = answer.json() if method == "GET" and is_json else {}
                assert answer.status_code in (403, 404) or not any(
                    listed.get(name) for name in ("identifiers", "namespaces")
                ), (method, path, answer.text)
        assert looked >= 12
    assert stored(untouched.data) == before


def test_a_viewer_sees_the_affairs_of_others(untouched: TowerProcess) -> None:
    admin = untouched.admin
    admin.apply_contract(CONTRACT)
    agent = Tower(untouched.uri, admin.create_principal("shop-1", "shop"))
    agent.request_partitions("shop.sales", [], operations=["append"], reason="late rows")
    with Tower(untouched.uri, admin.create_principal("dana", VIEWER_NAME)) as viewer:
        assert viewer.me() | {"text": None} == {
            "principal": "dana", "administrator": False, "contract": VIEWER_NAME, "version": 0, "text": None,
            "retries": None,
        }  # fmt: skip
        assert [each["principal"] for each in viewer.requests()] == ["shop-1"]
        assert viewer.contract("shop")["text"] == CONTRACT
        assert {each["name"] for each in viewer.principals()} == {"admin", "shop-1", "dana"}
        assert viewer.readiness()["ready"]
        with pytest.raises(Forbidden, match="look and change nothing"):
            viewer.close_request(viewer.requests()[0]["id"], "granted", "x")
        with pytest.raises(Forbidden, match="look and change nothing"):
            viewer.create_principal("mallory", "administrator")
    agent.close()


def test_a_viewer_named_by_a_contract_does_not_revoke_it(untouched: TowerProcess) -> None:
    admin = untouched.admin
    secret = admin.create_principal("dana", VIEWER_NAME)
    admin.apply_contract(CONTRACT + "revocation: {by: [dana]}\n")
    with Tower(untouched.uri, secret) as viewer, pytest.raises(Forbidden, match="change nothing"):
        viewer.revoke_contract("shop")
    assert admin.contract("shop")["version"] == 1


def test_a_viewer_gets_a_token_and_loses_it_when_it_is_revoked(untouched: TowerProcess) -> None:
    secret = untouched.admin.create_principal("dana", VIEWER_NAME)
    form = {"grant_type": "client_credentials", "client_id": "dana", "client_secret": secret}
    with untouched.client(secret) as viewer:
        token = viewer.post("/v1/oauth/tokens", data=form).json()["access_token"]
        own = {"Authorization": f"Bearer {token}"}
        assert viewer.get("/icetower/v1/commits", headers=own).status_code == 200
        assert viewer.post("/icetower/v1/contracts", headers=own, content=CONTRACT.encode()).status_code == 403
        untouched.admin.revoke_principal("dana")
        assert viewer.get("/icetower/v1/commits", headers=own).status_code == 401


def test_no_contract_of_a_file_makes_viewers() -> None:
    assert not NAME.fullmatch(VIEWER_NAME)
    with pytest.raises(IcetowerError):
        load(json.dumps({"version": 1, "agent": VIEWER_NAME, "tables": []}), source="x")
