"""A table registered anew, or at two names: no key is called done whose rows the table does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from icetower.protocol.marks import KEY
from tests.attack.test_attack_keys import fast, header_key, point
from verify.kit.forger import Forger
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
BLIND = {"icetower.blind": "true"}


def append(forger: Forger, name: str, **names: Any) -> httpx2.Response:
    return forger.http.post(forger.url + "/append", json=fast(forger, name, **names))


def appended(forger: Forger, name: str, **names: Any) -> str:
    answer = append(forger, name, **names)
    assert answer.status_code == 200, answer.text
    return answer.json()["outcome"]


def rule_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, error_of(answer)["rule"]


def location(forger: Forger) -> str:
    return forger.http.get(forger.url).json()["metadata-location"]


def register(forger: Forger, at: str, **options: Any) -> httpx2.Response:
    body = {"name": forger.table, "metadata-location": at, "overwrite": True, **options}
    return forger.http.post(f"/v1/namespaces/{forger.namespace}/register", json=body)


def overwritten(forger: Forger, at: str) -> None:
    register(forger, at).raise_for_status()


def dropped(forger: Forger, at: str) -> None:
    forger.http.delete(forger.url).raise_for_status()
    register(forger, at, overwrite=False).raise_for_status()


def expire(forger: Forger, *snapshot_ids: int) -> None:
    forger.commit([], [{"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids)}]).raise_for_status()


@pytest.mark.parametrize("recover", [overwritten, dropped])
@pytest.mark.parametrize("version", [2, 1])
def test_k2_what_a_table_has_lost_by_being_registered_anew_is_not_called_done(
    forge: Forge, recover: Callable[[Forger, str], None], version: int
) -> None:
    admin = forge()
    admin.create(version)
    for name in ("expired", "kept"):
        assert appended(admin, f"{name}.parquet", key=name, application={"id": name, "sequence": 5}) == "appended"
    expired, kept = (snapshot["snapshot-id"] for snapshot in admin.load()["snapshots"])
    assert appended(admin, "head.parquet") == "appended"
    expire(admin, expired)
    assert appended(admin, "expired.parquet", key="expired") == "replayed"
    old = location(admin)
    header = {"Idempotency-Key": header_key()}
    lost = admin.append("lost.parquet", summary=BLIND)
    admin.send(lost, **header).raise_for_status()
    admin.send(admin.append("lost2.parquet", summary={KEY: "lost2"})).raise_for_status()
    for name in ("lost3", "lost4"):
        assert appended(admin, f"{name}.parquet", key=name, application={"id": name, "sequence": 5}) == "appended"
    # Of what has expired, too: it was done, and is so no more.
    expire(admin, admin.load()["snapshots"][-2]["snapshot-id"])
    assert appended(admin, "lost3.parquet", key="lost3") == "replayed"

    recover(admin, old)
    live = ["expired.parquet", "head.parquet", "kept.parquet"]
    assert admin.live() == live
    # What is in the table is done.
    assert appended(admin, "kept.parquet", key="kept") == "replayed"
    assert appended(admin, "again.parquet", application={"id": "kept", "sequence": 4}) == "replayed"
    # What expired before may be in it or not.
    assert rule_of(append(admin, "expired.parquet", key="expired")) == (422, "key.registered-anew")
    # Of a number, what is below the last says nothing; there is always a higher one.
    assert rule_of(append(admin, "lost4.parquet", application={"id": "lost4", "sequence": 5})) == (
        422,
        "key.registered-anew",
    )
    assert admin.live() == live
    # What came after is verifiably not in it, and is done now; where snapshots are not numbered, nobody can tell.
    for name in ("lost2", "lost3", "lost4"):
        if version == 1:
            assert rule_of(append(admin, f"{name}.parquet", key=name)) == (422, "key.registered-anew")
        else:
            assert [appended(admin, f"{name}.parquet", key=name) for _ in range(2)] == ["appended", "replayed"]
            live.append(f"{name}.parquet")
    rerun = admin.send(admin.append("lost.parquet", summary=BLIND), **header)
    if version == 1:
        assert rule_of(rerun) == (422, "key.registered-anew")
    else:
        assert rerun.status_code == 200
        live.append("lost.parquet")
    assert appended(admin, "5.parquet", application={"id": "lost4", "sequence": 6}) == "appended"
    assert admin.live() == sorted([*live, "5.parquet"])
    assert kept in [snapshot["snapshot-id"] for snapshot in admin.load()["snapshots"]]


def test_k2_a_registration_that_is_undone_brings_its_keys_back(forge: Forge) -> None:
    admin = forge()
    admin.create()
    appended(admin, "first.parquet", key="first")
    old = location(admin)
    appended(admin, "second.parquet", key="second")
    new = location(admin)
    overwritten(admin, old)
    assert appended(admin, "second.parquet", key="second") == "appended"
    for number in range(3):
        appended(admin, f"{number}.parquet", key=f"{number}")
    overwritten(admin, new)
    for name in ("first", "second"):
        assert appended(admin, f"{name}.parquet", key=name) == "replayed"
    assert admin.live() == ["first.parquet", "second.parquet"]
    assert appended(admin, "2.parquet", key="2") == "appended"


def test_k2_a_key_that_was_rolled_back_and_forgotten_is_known_where_the_table_is_registered_before_that(
    forge: Forge,
) -> None:
    admin = forge()
    admin.create()
    appended(admin, "first.parquet", key="first")
    appended(admin, "second.parquet", key="second")
    first, second = (snapshot["snapshot-id"] for snapshot in admin.load()["snapshots"])
    before = location(admin)
    point(admin, "main", first)
    expire(admin, second)
    overwritten(admin, before)
    assert appended(admin, "again.parquet", key="second") == "replayed"
    assert admin.live() == ["first.parquet", "second.parquet"]


def test_a_registration_that_is_refused_costs_no_keys(forge: Forge) -> None:
    admin = forge()
    admin.create()
    appended(admin, "0.parquet", key="0")
    old = location(admin)
    appended(admin, "1.parquet", key="1")
    expire(admin, admin.load()["snapshots"][0]["snapshot-id"])
    assert register(admin, old, overwrite=False).status_code == 409
    assert appended(admin, "again.parquet", key="0") == "replayed"


@pytest.fixture
def towers(tmp_path: Path) -> Iterator[Callable[..., Forger]]:
    """Writers through two towers: with one data directory, or with one catalog and a control database each."""
    running: list[TowerProcess] = []

    def start(*, shared: bool) -> tuple[Forger, Forger]:
        running.append(TowerProcess(tmp_path / "data"))
        arguments: list[str] = []
        if not shared:
            config = tmp_path / "other.toml"
            catalog, warehouse = (running[0].data / name for name in ("catalog.db", "warehouse"))
            config.write_text(f'[upstream]\nuri = "sqlite:///{catalog}"\nwarehouse = "file://{warehouse}"\n')
            arguments = ["--config", str(config)]
        running.append(TowerProcess(tmp_path / ("data" if shared else "other"), *arguments))
        one, two = (Forger(tower.client(), "ns") for tower in running)
        one.http.post("/v1/namespaces", json={"namespace": ["ns"]}).raise_for_status()
        return one, two

    yield start
    assert [tower.stop() for tower in running] == [0, 0]


def test_k2_a_tower_hears_of_what_another_one_with_its_ledger_has_registered(towers: Callable[..., Any]) -> None:
    one, two = towers(shared=True)
    one.create()
    appended(one, "0.parquet", key="0", application={"id": "0", "sequence": 1})
    appended(one, "1.parquet", key="1")
    old = location(two)
    appended(one, "2.parquet", key="2")
    expire(one, one.load()["snapshots"][0]["snapshot-id"])
    # Whatever they have cached of it: both call everything done.
    for forger in (one, two):
        assert [appended(forger, "again.parquet", key=key) for key in "012"] == ["replayed"] * 3
    overwritten(one, old)
    assert appended(two, "1.parquet", key="1") == "replayed"
    assert appended(two, "0.parquet", key="0") == "replayed"  # the file has it
    assert appended(two, "2.parquet", key="2") == "appended"
    assert appended(one, "2.parquet", key="2") == "replayed"
    expire(two, *(snapshot["snapshot-id"] for snapshot in two.load()["snapshots"][:2]))
    assert [appended(one, "again.parquet", key=key) for key in "012"] == ["replayed"] * 3
    assert two.live() == ["0.parquet", "1.parquet", "2.parquet"]


def test_k2_a_tower_with_a_ledger_of_its_own_does_not_call_done_what_another_one_has_let_go(
    towers: Callable[..., Any],
) -> None:
    """Rolled back and expired past a tower, all that is left is the key in its ledger."""
    one, two = towers(shared=False)
    one.create()
    appended(one, "0.parquet", key="0")
    first = one.load()["snapshots"][0]["snapshot-id"]
    appended(one, "1.parquet", key="1")
    assert appended(two, "1.parquet", key="1") == "replayed"
    second = two.load()["snapshots"][-1]["snapshot-id"]
    point(two, "main", first)
    expire(two, second)
    assert rule_of(append(one, "1.parquet", key="1")) == (422, "key.gone")
    assert appended(two, "1.parquet", key="1") == "appended"
    assert appended(one, "1.parquet", key="1") == "replayed"
    assert one.live() == ["0.parquet", "1.parquet"]


def test_k2_one_metadata_file_at_two_names_is_two_tables(forge: Forge) -> None:
    admin = forge()
    admin.create()
    clone = Forger(admin.http, admin.namespace, "clone")
    appended(admin, "both.parquet", key="both", application={"id": "app", "sequence": 1})
    at = location(admin)
    appended(admin, "before.parquet", key="before")
    register(clone, at, overwrite=False).raise_for_status()
    appended(admin, "after.parquet", key="after", application={"id": "app", "sequence": 2})
    expire(admin, *(snapshot["snapshot-id"] for snapshot in admin.load()["snapshots"][:2]))
    appended(admin, "head.parquet")
    assert [appended(admin, "again.parquet", key=key) for key in ("both", "before", "after")] == ["replayed"] * 3
    assert appended(clone, "both.parquet", key="both") == "replayed"
    assert appended(clone, "before.parquet", key="before") == "appended"
    refused = [
        append(clone, "after.parquet", **name)
        for name in ({"key": "after"}, {"application": {"id": "app", "sequence": 2}})
    ]
    assert [rule_of(answer) for answer in refused] == [(422, "key.registered-anew")] * 2
    assert clone.live() == ["before.parquet", "both.parquet"]
    # Whose name a table takes, its keys are not those of the one before it.
    other = Forger(admin.http, admin.namespace, "other")
    for source, target in ((admin, other), (clone, admin)):
        names = {
            key: {"namespace": [forger.namespace], "name": forger.table}
            for key, forger in (("source", source), ("destination", target))
        }
        admin.http.post("/v1/tables/rename", json=names).raise_for_status()
    assert rule_of(append(admin, "after.parquet", key="after")) == (422, "key.registered-anew")
    assert admin.live() == ["before.parquet", "both.parquet"]


@pytest.mark.parametrize("fast_path", [True, False])
def test_k2_a_key_of_a_branch_that_was_made_anew_is_not_called_done_since_another_branch_had_it(
    forge: Forge, fast_path: bool
) -> None:
    admin = forge()
    admin.create()
    appended(admin, "0.parquet")
    before = admin.load()["current-snapshot-id"]
    point(admin, "b", before)

    def send() -> httpx2.Response:
        if fast_path:
            return append(admin, "1.parquet", key="k", ref="b")
        return admin.send(admin.append("1.parquet", summary={KEY: "k"}, ref="b"))

    assert send().status_code == 200
    landed = admin.load()["refs"]["b"]["snapshot-id"]
    point(admin, "main", landed)  # a fast-forward
    drop = {"action": "remove-snapshot-ref", "ref-name": "b"}
    admin.commit([], [drop]).raise_for_status()
    appended(admin, "2.parquet")
    point(admin, "early", before)
    expire(admin, landed)
    point(admin, "b", before)
    assert rule_of(send()) == (422, "key.gone")
    assert admin.live("b") == ["0.parquet"]
