"""Resends, rollbacks, expiry and creation, over the wire: nothing is called done that is not in the table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from icetower.agent import new_key
from tests.commit.engine_world import creation
from verify.kit.forger import SCHEMA, Forger, plain
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
BLIND = {"icetower.blind": "true"}


def head_of(request: tuple[list[Any], list[dict[str, Any]]]) -> int:
    return request[1][0]["snapshot"]["snapshot-id"]


def point_main_at(snapshot_id: int) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}


def test_a_staged_snapshot_that_is_sent_for_main_is_not_called_done(forge: Forge) -> None:
    admin = forge()
    admin.create()
    request = admin.append("a.parquet")
    assert admin.commit([], request[1][:1]).status_code == 200
    answer = admin.send(request)
    assert (answer.status_code, error_of(answer)["rule"]) == (422, "snapshot.rolled-back")
    assert admin.commit([], [request[1][1]]).status_code == 200
    assert admin.send(request).status_code == 200
    assert admin.live() == ["a.parquet"]


def test_a_snapshot_sent_again_after_a_rollback_is_not_called_done(forge: Forge) -> None:
    admin = forge()
    admin.create()
    first, second = admin.append("a.parquet"), None
    assert admin.send(first).status_code == 200
    second = admin.append("b.parquet")
    assert admin.send(second).status_code == 200
    assert admin.send(first).status_code == 200  # an ancestor: a replay
    assert admin.commit([], [point_main_at(head_of(first))]).status_code == 200
    assert error_of(admin.send(second))["rule"] == "snapshot.rolled-back"
    assert admin.live() == ["a.parquet"]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("is_blind", [False, True])
def test_a3_what_has_landed_and_expired_without_a_key_is_not_answered_409_while_its_manifest_is_live(
    forge: Forge, version: int, is_blind: bool
) -> None:
    """Its client would delete the manifest, and the whole branch could not be read any more."""
    admin = forge()
    admin.create(version)
    admin.send(admin.append("first.parquet")).raise_for_status()
    request = admin.append("a.parquet", summary={"icetower.blind": "true"} if is_blind else {})
    admin.send(request).raise_for_status()
    admin.send(admin.append("b.parquet")).raise_for_status()
    head_id = admin.load()["refs"]["main"]["snapshot-id"]
    expired = [snapshot["snapshot-id"] for snapshot in admin.load()["snapshots"] if snapshot["snapshot-id"] != head_id]
    admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": expired}]).raise_for_status()

    refused = admin.send(request)

    assert (refused.status_code, error_of(refused)["rule"]) == (422, "manifest.reused")
    assert admin.live() == ["a.parquet", "b.parquet", "first.parquet"]


def test_h1_expiry_that_has_not_seen_a_rollback_or_a_tag_removes_neither(forge: Forge) -> None:
    admin = forge()
    admin.create()
    requests = []
    for name in ("a", "b", "c"):
        requests.append(admin.append(f"{name}.parquet"))
        admin.send(requests[-1]).raise_for_status()
    one, two, _ = map(head_of, requests)
    expire = {"action": "remove-snapshots", "snapshot-ids": [one, two]}  # as computed while main stood at the third
    tag = {"action": "set-snapshot-ref", "ref-name": "keep", "type": "tag", "snapshot-id": one}
    for meanwhile in (point_main_at(two), tag):
        assert admin.commit([], [meanwhile]).status_code == 200
        assert error_of(admin.commit([], [expire]))["rule"] == "commit.refs"
    assert admin.live() == ["a.parquet", "b.parquet"]
    unref = {"action": "remove-snapshot-ref", "ref-name": "keep"}
    assert admin.commit([], [unref, {**expire, "snapshot-ids": [one]}]).status_code == 200


def test_k1_a_key_outlives_its_expired_snapshot_though_the_ledger_never_heard_of_it(
    forge: Forge, tower: TowerProcess
) -> None:
    """The ledger may have missed a key: by a crash, or because another tower committed it."""
    admin = forge()
    admin.create()
    first = admin.append("a.parquet", summary={"icetower.idempotency-key": "k1", **BLIND})
    admin.send(first).raise_for_status()
    admin.send(admin.append("b.parquet")).raise_for_status()
    tower.admin.commits()  # writes what waits for the ledger
    with sqlite3.connect(tower.data / "control.db") as ledger:
        assert ledger.execute("DELETE FROM ledger_keys").rowcount
    expire = {"action": "remove-snapshots", "snapshot-ids": [head_of(first)]}
    admin.commit([], [expire]).raise_for_status()
    again = admin.append("again.parquet", summary={"icetower.idempotency-key": "k1", **BLIND})
    assert admin.send(again).status_code == 200
    assert admin.live() == ["a.parquet", "b.parquet"]


def test_k2_a_key_whose_snapshot_was_rolled_back_and_expired_is_not_called_done(forge: Forge) -> None:
    admin = forge()
    admin.create()
    first = admin.append("a.parquet")
    admin.send(first).raise_for_status()
    keyed = admin.append("b.parquet", summary={"icetower.idempotency-key": "k2"})
    admin.send(keyed).raise_for_status()
    admin.commit([], [point_main_at(head_of(first))]).raise_for_status()
    admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": [head_of(keyed)]}]).raise_for_status()
    again = admin.append("b2.parquet", summary={"icetower.idempotency-key": "k2"})
    assert admin.send(again).status_code == 200
    assert admin.live() == ["a.parquet", "b2.parquet"]


CREATE = [{"type": "assert-create"}]


def created_with_rows(forger: Forger) -> list[dict[str, Any]]:
    """The updates that create a table with one file, as CREATE TABLE AS SELECT sends them."""
    body = {"name": "t", "schema": SCHEMA, "stage-create": True}
    staged = forger.http.post(f"/v1/namespaces/{forger.namespace}/tables", json=body).json()["metadata"]
    plain(staged["location"]).joinpath("metadata").mkdir(parents=True)
    _, snapshot = forger.append("a.parquet", base=staged, partition=())
    return [*creation(staged), *snapshot]


def test_a3_a_creation_sent_again_is_answered_as_the_first_and_not_by_409(forge: Forge) -> None:
    """A client that hears 409 deletes the manifests of a table that stands."""
    admin = forge()
    updates = created_with_rows(admin)
    key = {"Idempotency-Key": new_key()}
    assert admin.commit(CREATE, updates, **key).status_code == 200
    assert admin.commit(CREATE, updates, **key).status_code == 200
    assert admin.commit(CREATE, updates).status_code == 200
    assert admin.live() == ["a.parquet"]
    other = [{**updates[0], "uuid": "12345678-0000-4000-8000-000000000000"}, *updates[1:]]
    assert error_of(admin.commit(CREATE, other))["rule"] == "requirement.assert-create"


def test_k2_a_creation_whose_snapshot_left_its_branch_is_not_called_done(forge: Forge) -> None:
    admin = forge()
    updates, key = created_with_rows(admin), {"Idempotency-Key": new_key()}
    assert admin.commit(CREATE, updates, **key).status_code == 200
    admin.commit([], [{"action": "remove-snapshot-ref", "ref-name": "main"}]).raise_for_status()
    for number in range(2):
        answer = admin.commit(CREATE, updates, **key)
        assert (answer.status_code, error_of(answer)["rule"]) == (422, "key.rolled-back")
        answer = admin.commit(CREATE, updates)
        assert (answer.status_code, error_of(answer)["rule"]) == (422, "snapshot.rolled-back")
        admin.send(admin.append(f"later{number}.parquet", partition=())).raise_for_status()
    assert admin.live() == ["later0.parquet", "later1.parquet"]


@pytest.mark.parametrize("how", ["dropped", "created again", "renamed"])
@pytest.mark.parametrize("name", [{"Idempotency-Key": ""}, {"Icetower-Application": "a", "Icetower-Sequence": "7"}])
def test_k2_a_creation_is_not_done_again_under_its_key_once_its_table_is_gone(
    forge: Forge, how: str, name: dict[str, str]
) -> None:
    admin = forge()
    updates, key = created_with_rows(admin), {each: text or new_key() for each, text in name.items()}
    assert admin.commit(CREATE, updates, **key).status_code == 200
    if how == "renamed":
        names = [{"namespace": [admin.namespace], "name": each} for each in ("t", "u")]
        rename = {"source": names[0], "destination": names[1]}
        admin.http.post("/v1/tables/rename", json=rename).raise_for_status()
    else:
        admin.http.delete(admin.url).raise_for_status()
    if how == "created again":
        admin.create()
    answer = admin.commit(CREATE, updates, **key)
    assert (answer.status_code, error_of(answer)["rule"]) == (422, "key.gone")
    assert error_of(answer)["next_step"] == "ask_owner"
    assert admin.http.get(admin.url).status_code == (200 if how == "created again" else 404)


def test_k2_the_same_key_creates_a_table_that_is_staged_anew(forge: Forge) -> None:
    """Another UUID is another table: the key starts afresh."""
    admin, key = forge(), {"Idempotency-Key": new_key()}
    assert admin.commit(CREATE, created_with_rows(admin), **key).status_code == 200
    admin.http.delete(admin.url).raise_for_status()
    assert admin.commit(CREATE, created_with_rows(admin), **key).status_code == 200
    assert admin.live() == ["a.parquet"]


def test_k1_a_creation_whose_snapshot_has_expired_is_done(forge: Forge) -> None:
    admin = forge()
    updates, key = created_with_rows(admin), {"Idempotency-Key": new_key()}
    assert admin.commit(CREATE, updates, **key).status_code == 200
    admin.send(admin.append("b.parquet", partition=())).raise_for_status()
    gone = updates[-2]["snapshot"]["snapshot-id"]
    admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": [gone]}]).raise_for_status()
    assert admin.commit(CREATE, updates, **key).status_code == 200
    assert admin.live() == ["a.parquet", "b.parquet"]
