"""The light SDK and plain HTTP: the fast path, the control API, escalations, requests for partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from icetower.agent import DataFile, Tower, new_key
from verify.exchanges.stage import Stage, fails, rows

NORTH = "tables: [{table: NS.t, operations: [append], partitions: [{region: north}]%s}]\n"


def written(sdk: Tower, table: Table, *ids: int, region: str = "north", at: str | None = None) -> DataFile:
    """A Parquet file at a new place of the caller's, with the table's field ids."""
    place = at or sdk.new_data_file(".".join(table.name()))
    path = Path(place.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(*ids, region=region).cast(schema_to_pyarrow(table.schema())), path)
    return DataFile(place, len(ids), path.stat().st_size, {"region": region})


def fast_path(stage: Stage) -> None:
    table = stage.table()
    name = stage.name()
    with stage.sdk(stage.agent(NORTH % "")) as sdk:
        stage.step("appended, and again under its key")
        file, key = written(sdk, table, 1), new_key()
        sdk.append(name, [file], key=key)
        sdk.append(name, [file], key=key)
        stage.step("numbered")
        for number in (1, 2, 1):
            sdk.append(name, [written(sdk, table, 2)], application=("app", number))
        stage.step("another's partition")
        fails(lambda: sdk.append(name, [written(sdk, table, 3, region="south")]))
        stage.step("elsewhere")
        fails(lambda: sdk.append(name, [written(sdk, table, 3, at=f"{table.location()}/data/other.parquet")]))
        stage.step("the key with other files")
        sdk.append(name, [written(sdk, table, 4), written(sdk, table, 5)], key=key)
        stage.step("a branch, and none")
        fails(lambda: sdk.append(name, [written(sdk, table, 6)], ref="missing"))
    path = f"/v1/namespaces/{stage.ns}/tables/t/append"
    with stage.sdk() as sdk, stage.http() as http:
        fine: dict[str, Any] = written(sdk, table, 7).to_json()
        stage.step("descriptions that are wrong")
        wrong: list[dict[str, Any]] = [
            {"record-count": 2}, {"file-size-in-bytes": 1}, {"file-path": "s3://elsewhere/x.parquet"}, {"spec-id": 9},
            {"partition": {"region": 7}}, {"partition": {}}, {"file-format": "orc"}, {"content": "equality-deletes"},
            {"file-path": fine["file-path"] + "x"}, {"record-count": "one"},
        ]  # fmt: skip
        for change in wrong:
            http.post(path, json={"files": [fine | change], "key": new_key()})
        for body in ({}, {"files": []}, {"files": [fine], "ref": 1}, {"files": [fine], "key": ""}):
            http.post(path, json=body)
        http.post(path, content=b"{")
        http.post(path.replace("/t/", "/missing/"), json={"files": [fine], "key": new_key()})
        stage.step("as an administrator")
        http.post(path, json={"files": [fine], "key": new_key()})


def control(stage: Stage) -> None:
    stage.table()
    agent = f"{stage.ns}-one"
    text = f"version: 1\nagent: {agent}\nowner: dana@example.com\n" + (NORTH % "").replace("NS", stage.ns)
    with stage.sdk() as admin, stage.http() as http:
        stage.step("a contract")
        admin.apply_contract(text)
        admin.apply_contract(text)
        admin.apply_contracts([text.replace("append", "append, overwrite")], expected=[1], message="more")
        fails(lambda: admin.apply_contracts([text], expected=[1]))
        admin.contract(agent)
        admin.contract(agent, 1)
        admin.contract_history(agent)
        stage.step("contracts that are wrong")
        for wrong in (
            "", "version: 2\n", text + "nothing: 1\n", text.replace("append", "appendd"), text.replace("north", "[]"),
            "version: 1\nagent: x\ntables: []\nescalation: {after_failures: 1, within: 1m, to: webhook:none}\n",
            text + "idempotency: {required: true, window: 90d}\n",
        ):  # fmt: skip
            http.post("/icetower/v1/contracts", content=wrong.encode())
        stage.step("a principal")
        secret = admin.create_principal(agent, agent)
        fails(lambda: admin.create_principal(agent, agent))
        fails(lambda: admin.create_principal(f"{agent}-2", "none-such"))
        fails(lambda: admin.create_principal("a b", agent))
        secret = admin.rotate_principal(agent)
        fails(lambda: admin.rotate_principal("none-such"))
        with stage.sdk(secret) as own:
            own.me()
            own.contract(agent)
            fails(lambda: own.contract("another"))
            fails(lambda: own.revoke_contract(agent))
            stage.catalog(secret).load_table(stage.name()).append(rows(1))
            stage.step("what was committed, as an agent")
            own.commits()
        stage.step("what was committed")
        admin.commits(table=stage.name())
        admin.commits(table=stage.name(), refused=True)
        http.get("/icetower/v1/commits", params={"limit": 1, "table": stage.name(), "principal": agent})
        http.get("/icetower/v1/commits", params={"outcome": "nothing"})
        http.get("/icetower/v1/commits", params={"limit": 0})
        admin.bypasses()
        stage.step("who I am")
        admin.me()
        stage.step("an end")
        admin.revoke_contract(agent, message="done")
        fails(lambda: admin.contract("none-such"))
        fails(lambda: admin.contract_history("none-such"))
        fails(lambda: admin.revoke_contract("none-such"))
        admin.contract_history(agent)
        admin.restore_contract(agent, 1, message="again")
        fails(lambda: admin.restore_contract(agent, 99))
        admin.revoke_principal(agent)
        admin.revoke_principal(agent)


def escalations(stage: Stage) -> None:
    stage.table()
    budget = "escalation: {after_failures: 2, within: 10m, to: dana@example.com}\n"
    secret = stage.agent(budget + NORTH % "")
    table = stage.catalog(secret).load_table(stage.name())
    with stage.sdk() as admin, stage.sdk(secret) as own:
        stage.step("refused until it is stopped")
        for _ in range(3):
            fails(lambda: table.append(rows(1, region="south")))
        stage.step("what waits")
        (found,) = [each for each in own.escalations() if each["table"] == stage.name()]
        own.escalation(found["id"])
        fails(lambda: own.close_escalation(found["id"], "please"))
        fails(lambda: admin.escalation("none"))
        stage.step("let go on")
        admin.close_escalation(found["id"], "looked")
        fails(lambda: admin.close_escalation(found["id"], "again"))
        table.refresh().append(rows(1))
        stage.step("a request for partitions")
        asked = own.request_partitions(stage.name(), ["region=south"], operations=["append"], reason="new data")
        own.request_partitions(stage.name(), ["region=south"], operations=["append"], reason="new data")
        fails(lambda: own.request_partitions(stage.name(), ["region=south"], operations=["fly"], reason="x"))
        fails(lambda: own.request_partitions("elsewhere.t", [], operations=["append"], reason=""))
        own.requests()
        own.request(asked["id"])
        admin.close_request(asked["id"], "denied", "ask again in spring")
        fails(lambda: admin.close_request(asked["id"], "perhaps", "x"))
        own.request(asked["id"])


PARTS = (fast_path, control, escalations)
