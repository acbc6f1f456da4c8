"""A commit has landed, and its answer was lost: what its sender hears who may not commit any more, or not there.

Iceberg's Java client sends it again by itself, and deletes its files upon 400, 401, 403, 404 and 409 (trap A3).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from icetower.agent import new_key
from verify.kit.forger import Forger
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
Happens = Callable[[TowerProcess, Forger, Forger], None]

CONTRACT = "tables:\n  - {table: NS.t, operations: [read, append], write_location: table, partitions: all}\n"


def name_of(agent: Forger) -> str:
    return f"{agent.namespace}-1"


def revoked(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    tower.admin.revoke_contract(name_of(agent))


def without_the_table(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    contract = CONTRACT.replace("NS.t", f"{agent.namespace}.other")
    tower.admin.apply_contract(f"version: 1\nagent: {name_of(agent)}\n{contract}")


def renamed(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    names = [{"namespace": [admin.namespace], "name": name} for name in ("t", "u")]
    admin.http.post("/v1/tables/rename", json={"source": names[0], "destination": names[1]}).raise_for_status()


def renamed_and_made_anew(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    renamed(tower, admin, agent)
    admin.create()


def revoked_and_renamed(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    revoked(tower, admin, agent)
    renamed_and_made_anew(tower, admin, agent)


def without_the_table_and_renamed(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    without_the_table(tower, admin, agent)
    renamed(tower, admin, agent)


def dropped(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    admin.http.delete(admin.url).raise_for_status()


HAPPENS = (
    revoked, without_the_table, renamed, renamed_and_made_anew, revoked_and_renamed, without_the_table_and_renamed,
)  # fmt: skip


@pytest.mark.parametrize(
    ("happens", "has_key"),
    [*itertools.product(HAPPENS, (True, False)), (dropped, True)],  # of a table that is gone only keys are known
)
def test_a3_a_landed_commit_is_not_refused_in_a_way_upon_which_its_files_are_deleted(
    tower: TowerProcess, forge: Forge, happens: Happens, has_key: bool
) -> None:
    admin, agent = forge(), forge(CONTRACT)
    admin.create()
    key: Any = {"Idempotency-Key": new_key()} if has_key else {}
    sent, other = agent.append("a.parquet"), agent.append("b.parquet")
    assert agent.send(sent, **key).status_code == 200

    happens(tower, admin, agent)

    refused = agent.send(sent, **key)
    assert (refused.status_code, error_of(refused)["rule"]) == (504, "commit.unknown")
    assert "it has landed" in error_of(refused)["message"]
    assert agent.send(other).status_code in (400, 403, 404, 409), "what has not landed is refused as ever"


def test_a_commit_of_another_is_none_of_ones_own(tower: TowerProcess, forge: Forge) -> None:
    """Who may not see the table hears nothing of what landed there."""
    admin, agent, stranger = forge(), forge(CONTRACT), forge(CONTRACT.replace("NS.t", "NS.other"))
    admin.create()
    sent, key = agent.append("a.parquet"), {"Idempotency-Key": new_key()}
    assert agent.send(sent, **key).status_code == 200
    assert stranger.send(sent, **key).status_code == 403
    renamed(tower, admin, agent)
    assert stranger.send(sent, **key).status_code == 403


def rotated(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    admin.http.post(f"/icetower/v1/principals/{name_of(agent)}/rotate", json={}).raise_for_status()


def revoked_principal(tower: TowerProcess, admin: Forger, agent: Forger) -> None:
    tower.admin.revoke_principal(name_of(agent))


@pytest.mark.parametrize("happens", [revoked, revoked_and_renamed, rotated, revoked_principal])
def test_a3_a_landed_commit_is_not_answered_401_where_its_token_has_ended(
    tower: TowerProcess, forge: Forge, happens: Happens
) -> None:
    admin, agent = forge(), forge(CONTRACT)
    admin.create()
    secret = agent.http.headers["Authorization"].removeprefix("Bearer ")
    grant = {"grant_type": "client_credentials", "client_id": name_of(agent), "client_secret": secret}
    token = agent.http.post("/v1/oauth/tokens", data=grant).json()["access_token"]
    with tower.client(token) as http, tower.client("icat_unknown") as unknown:
        by_token, nobody = Forger(http, agent.namespace), Forger(unknown, agent.namespace)
        sent, other = by_token.append("a.parquet"), by_token.append("b.parquet")
        key = {"Idempotency-Key": new_key()}
        assert by_token.send(sent, **key).status_code == 200

        happens(tower, admin, agent)

        for headers in ({}, key):
            refused = by_token.send(sent, **headers)
            assert (refused.status_code, error_of(refused)["rule"]) == (504, "commit.unknown")
        assert nobody.send(sent, **key).status_code == 401
        # In all else it is a credential that nobody knows.
        body: Any = ([], [{"action": "set-properties", "updates": {"a": "b"}}])
        requests: list[Callable[[Forger], Any]] = [
            lambda f: f.send(other),
            lambda f: f.send(body, **{"Idempotency-Key": new_key()}),
            lambda f: f.http.post(f.url, content=b"{"),
            lambda f: f.http.post(f.url + "/append", json={"files": []}),
            lambda f: f.http.get(f.url),
            lambda f: f.http.get("/icetower/v1/me"),
            lambda f: f.http.post("/v1/namespaces", json={"namespace": ["mine"]}),
        ]
        for request in requests:
            answers = [request(forger) for forger in (by_token, nobody)]
            assert [answer.status_code for answer in answers] == [401, 401]
            assert len({re.sub("[0-9a-f]{16}", "request", answer.text) for answer in answers}) == 1
