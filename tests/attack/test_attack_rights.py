"""Who has rights to a part of a table tries what concerns all of it; who may only create tables, to read them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.commit.engine_world import creation
from verify.kit.forger import SCHEMA, Forger
from verify.kit.tower_process import error_of

Forge = Callable[..., Forger]

PART = "partitions: [{region: [1], product: [2]}]"
CREATE = [{"type": "assert-create"}]


STRICT: dict[str, Any] = {"icetower.strict": "true"}
LAX: dict[str, Any] = {"icetower.strict": "false"}


def sets(properties: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"action": "set-properties", "updates": properties}]


def test_who_repeats_what_the_table_has_undoes_no_change_of_an_administrator(forge: Forge) -> None:
    """Each is no change, and so let in, when it is sent; some are still on their way when the table has changed."""
    admin = forge()
    admin.create(**LAX)
    text = f"tables:\n  - {{table: NS.t, operations: [read, append, alter], {PART}}}\n"
    agents, stop = [forge(text) for _ in range(4)], threading.Event()
    rules: list[str] = []

    def repeat(agent: Forger) -> None:
        for sent in itertools.count():
            answer = agent.commit([], sets(LAX))
            if answer.status_code != 200:
                rules.append(error_of(answer)["rule"])
                return
            if stop.is_set() or sent > 2_000:
                return

    threads = [threading.Thread(target=repeat, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        assert admin.commit([], sets(STRICT)).status_code == 200
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert admin.load()["properties"]["icetower.strict"] == "true"
    assert set(rules) <= {"commit.permission", "contract.shared"}


@pytest.mark.parametrize("limit", [PART, "partitions: all, except: [{region: [1]}]"])
def test_who_owns_a_part_of_a_table_takes_none_of_it_away_as_a_whole(forge: Forge, limit: str) -> None:
    admin = forge()
    admin.create(**STRICT)
    older = admin.http.get(admin.url).json()["metadata-location"]
    admin.send(admin.append("a.parquet")).raise_for_status()
    entry = f"{{table: NS.t, operations: [read, append, drop, rename, register], {limit}}}"
    agent = forge(f"tables:\n  - {entry}\n  - {{table: NS.other, operations: [create]}}\n")
    names = [{"namespace": [admin.namespace], "name": name} for name in ("t", "other")]
    again = {"name": "t", "metadata-location": older, "overwrite": True}
    answers = [
        agent.http.delete(agent.url),
        agent.http.delete(f"{agent.url}?purgeRequested=true"),
        agent.http.post("/v1/tables/rename", json={"source": names[0], "destination": names[1]}),
        agent.http.post(f"/v1/namespaces/{admin.namespace}/register", json=again),
    ]
    for answer in answers:
        assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.operation")
        assert "concerns the whole table" in error_of(answer)["message"]
    assert admin.live() == ["a.parquet"]


def test_who_may_register_a_table_replaces_none_without_the_right_to_drop_it(forge: Forge) -> None:
    admin = forge()
    admin.create()
    older = admin.http.get(admin.url).json()["metadata-location"]
    admin.send(admin.append("a.parquet")).raise_for_status()
    body = {"name": "t", "metadata-location": older, "overwrite": True}
    register = f"/v1/namespaces/{admin.namespace}/register"
    refused = forge("tables:\n  - {table: NS.t, operations: [register]}\n").http.post(register, json=body)
    assert (refused.status_code, error_of(refused)["rule"]) == (403, "contract.operation")
    assert admin.live() == ["a.parquet"]
    granted = forge("tables:\n  - {table: NS.t, operations: [register, drop]}\n").http.post(register, json=body)
    assert granted.status_code == 200


def test_who_may_only_create_a_table_does_not_read_it_by_creating_it_again(forge: Forge) -> None:
    admin, text = forge(), "tables:\n  - {table: NS.t, operations: [create]}\n"
    maker, another = forge(text), forge(text)
    body = {"name": "t", "schema": SCHEMA, "stage-create": True}
    staged = maker.http.post(f"/v1/namespaces/{maker.namespace}/tables", json=body).json()["metadata"]
    assert maker.commit(CREATE, creation(staged)).status_code == 200
    for agent in (maker, another):
        answer = agent.commit(CREATE, creation(staged))
        assert (answer.status_code, error_of(answer)["rule"]) == (409, "requirement.assert-create")
        assert staged["location"] not in answer.text
    assert admin.commit(CREATE, creation(staged)).status_code == 200  # a replay


def test_who_may_create_tables_drops_no_namespace_whose_place_an_administrator_chose(forge: Forge) -> None:
    admin = forge()
    agent = forge("tables:\n  - {table: NS.**, operations: [create]}\n")
    for name, properties in (("own", {"owner": "me"}), ("team", {"location": "file:///nowhere/team"})):
        namespace = [admin.namespace, name]
        admin.http.post("/v1/namespaces", json={"namespace": namespace, "properties": properties}).raise_for_status()
    url = f"/v1/namespaces/{admin.namespace}%1F"
    assert agent.http.delete(f"{url}own").status_code == 204
    answer = agent.http.delete(f"{url}team")
    assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.location")
    assert admin.http.delete(f"{url}team").status_code == 204
