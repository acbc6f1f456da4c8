"""Revocation: from the next request on, with its tokens, for nobody else. Where nobody can be asked, nobody is in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import OAuthError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField
from sqlalchemy import text as sql

from icetower.admission.admitted import Admitted
from icetower.agent import DataFile
from icetower.agent import Tower as Agent
from icetower.ambient import SystemAmbient
from icetower.commit.engine import Committed
from icetower.contracts.document import load
from icetower.errors import Forbidden, NotAuthenticated
from icetower.gateway.app import build
from icetower.gateway.settings import Settings
from icetower.gateway.tower import open_tower
from verify.kit.tower_process import SCHEMA, TowerProcess, error_of

APPENDER = "tables:\n  - {table: NS.t, operations: [append], partitions: all, write_location: table}\n"
AGENTS = 4
"""Threads of each agent."""


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> Table:
    return catalog.create_table(f"{namespace}.t", Schema(NestedField(1, "id", LongType(), required=False)))


def write(table: Table, number: int) -> DataFile:
    """One row in a Parquet file in the table's place."""
    folder = Path(table.location().removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table({"id": [number]}, schema=schema_to_pyarrow(table.schema())), path)
    return DataFile.of_parquet(path)


def form(name: str, secret: str) -> dict[str, str]:
    return {"grant_type": "client_credentials", "client_id": name, "client_secret": secret}


# -- clause 6: how the agent's access can be revoked without affecting other agents -----------------------------------


def test_revoking_one_of_two_agents_under_load_stops_it_at_once_and_no_commit_of_the_other(
    tower: TowerProcess, table: Table, namespace: str
) -> None:
    name = f"{namespace}.t"
    secrets = [tower.principal(f"{namespace}-{who}", APPENDER.replace("NS", namespace)) for who in ("one", "two")]
    revoked, warm = Event(), Event()
    landed: dict[str, list[int]] = {"one": [], "two": []}
    refused: list[Forbidden] = []

    def write_until_refused(agent: Agent, first: int) -> None:
        for number in range(first, first + 1_000):
            try:
                agent.append(name, [write(table, number)])
            except Forbidden as error:
                refused.append(error)
                assert revoked.is_set()
                return
            landed["one"].append(number)
            warm.set()
        raise AssertionError("it was never stopped")

    def write_on(agent: Agent, first: int) -> None:
        number = first
        # As many again after the revocation; whatever is refused fails the test.
        after = 0
        while after < 10:
            after += revoked.is_set()
            agent.append(name, [write(table, number)])
            landed["two"].append(number)
            number += 1

    with (
        Agent(tower.uri, secrets[0]) as one,
        Agent(tower.uri, secrets[1]) as two,
        ThreadPoolExecutor(2 * AGENTS) as threads,
    ):
        running = [threads.submit(write_until_refused, one, 10_000 * (n + 1)) for n in range(AGENTS)]
        running += [threads.submit(write_on, two, 1_000_000 + 10_000 * n) for n in range(AGENTS)]
        assert warm.wait(60)
        revoked.set()  # said first: a refusal may come before the answer to this request does
        tower.admin.revoke_contract(f"{namespace}-one")
        with pytest.raises(Forbidden) as next_request:
            one.append(name, [write(table, 1)])
        for each in running:
            each.result(timeout=120)
    assert next_request.value.rule == "contract.revoked"
    assert {error.rule for error in refused} == {"contract.revoked"}
    assert len(refused) == AGENTS
    # All that was acknowledged is there, and nothing that was refused.
    there = sorted(table.refresh().scan().to_arrow()["id"].to_pylist())
    assert there == sorted(landed["one"] + landed["two"])
    outcomes = [a for a in tower.admin.commits(limit=1000, table=name) if a["principal"] == f"{namespace}-two"]
    assert {attempt["outcome"] for attempt in outcomes} == {"appended"}


def test_after_a_revocation_old_tokens_never_work_again_and_the_secret_does_once_it_is_restored(
    tower: TowerProcess, table: Table, namespace: str
) -> None:
    name, agent = f"{namespace}.t", f"{namespace}-agent"
    secret = tower.principal(agent, APPENDER.replace("NS", namespace))
    writer = load_catalog("w", type="rest", uri=tower.uri, credential=f"{agent}:{secret}").load_table(name)
    writer.append(pa.table({"id": [1]}))
    with httpx2.Client(base_url=tower.uri, timeout=60) as http:

        def token() -> httpx2.Response:
            return http.post("/v1/oauth/tokens", data=form(agent, secret))

        def config(bearer: str) -> httpx2.Response:
            return http.get("/v1/config", headers={"Authorization": f"Bearer {bearer}"})

        old = token().json()["access_token"]
        assert config(old).status_code == 200
        tower.admin.revoke_contract(agent, message="it went wild")
        refused = token()
        assert (refused.status_code, refused.json()["error"]) == (400, "unauthorized_client")
        assert f"the contract of {agent} was revoked" in refused.json()["error_description"]
        wrong = http.post("/v1/oauth/tokens", data=form(agent, secret[:-1]))
        assert (wrong.status_code, wrong.json()["error"]) == (401, "invalid_client")
        assert config(old).status_code == 401
        assert error_of(config(secret))["rule"] == "contract.revoked"
        # Its client asks for another token, in vain.
        with pytest.raises(OAuthError, match="was revoked; nothing is allowed until it is restored"):
            writer.append(pa.table({"id": [2]}))

        assert tower.admin.restore_contract(agent) == {
            "contract": agent, "version": 3, "changed": True, "warnings": []
        }  # fmt: skip
        assert config(old).status_code == 401
        assert config(secret).status_code == config(token().json()["access_token"]).status_code == 200
    again = load_catalog("w", type="rest", uri=tower.uri, credential=f"{agent}:{secret}").load_table(name)
    again.append(pa.table({"id": [3]}))
    assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [1, 3]
    assert [(v["version"], v["applied_by"], v["message"]) for v in tower.admin.contract_history(agent)] == [
        (1, "admin", None),
        (2, "admin", "it went wild"),
        (3, "admin", None),
    ]


def test_whom_a_contract_names_may_revoke_it_and_nothing_else(tower: TowerProcess, namespace: str) -> None:
    oncall, agent, other = (f"{namespace}-{who}" for who in ("oncall", "agent", "other"))
    secrets = {who: tower.principal(who, "reads: [nothing.*]\n") for who in (oncall, other)}
    secrets[agent] = tower.principal(agent, f"revocation: {{by: [{oncall}]}}\n")
    with Agent(tower.uri, secrets[oncall]) as caller, Agent(tower.uri, secrets[agent]) as itself:
        for someone, name in ((itself, agent), (caller, other), (caller, "nobody-at-all")):
            with pytest.raises(Forbidden) as refused:
                someone.revoke_contract(name)
            assert refused.value.rule == "permission.revocation"
        for forbidden in (
            lambda: caller.restore_contract(agent, 1),
            lambda: caller.contract(agent),
            lambda: caller.contract_history(agent),
            lambda: caller.apply_contracts(["version: 1\nagent: x\n"]),
        ):
            with pytest.raises(Forbidden) as refused:
                forbidden()
            assert refused.value.rule == "permission.administrator"
        assert caller.revoke_contract(agent, message="at night")["version"] == 2
        with pytest.raises(Forbidden, match="was revoked"):
            itself.me()
    assert tower.admin.contract_history(agent)[-1]["applied_by"] == oncall
    tower.admin.revoke_contract(oncall)
    with Agent(tower.uri, secrets[oncall]) as caller, pytest.raises(Forbidden) as refused:
        caller.revoke_contract(agent)  # who is revoked revokes nobody any more
    assert refused.value.rule == "contract.revoked"


def test_rows_under_a_revoked_contract_are_refused_as_that(tower: TowerProcess, namespace: str) -> None:
    """And not as too much for the contract: nobody is to ask its owner for more."""
    table, agent = f"{namespace}.t", f"{namespace}-agent"
    tower.catalog().create_table(table, pa.schema([("id", pa.int64())]))
    secret = tower.principal(agent, f"tables: [{{table: {table}, operations: [append], partitions: all}}]\n")
    tower.admin.revoke_contract(agent)
    with tower.client(secret) as http:
        answer = http.post(f"/v1/namespaces/{namespace}/tables/t/rows", json={"key": "k", "rows": [{"id": 1}]})
    assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.revoked"), answer.text


def test_a_revoked_principal_is_gone_for_good_and_its_contract_stays(tower: TowerProcess, namespace: str) -> None:
    contract = f"{namespace}-both"
    secret = tower.principal(contract, "reads: [nothing.*]\n")
    other = tower.admin.create_principal(f"{namespace}-other", contract)
    with httpx2.Client(base_url=tower.uri, timeout=60) as http:
        token = http.post("/v1/oauth/tokens", data=form(contract, secret)).json()["access_token"]
    tower.admin.revoke_principal(contract)
    for bearer in (secret, token):
        with Agent(tower.uri, bearer) as gone, pytest.raises(NotAuthenticated):
            gone.me()
    with Agent(tower.uri, other) as stays:
        assert stays.me()["contract"] == contract


# -- contracts over the wire ------------------------------------------------------------------------------------------


def test_contracts_are_applied_together_shown_and_restored_over_the_wire(tower: TowerProcess, namespace: str) -> None:
    first, second = f"{namespace}-1", f"{namespace}-2"
    texts = [f"version: 1\nagent: {name}  # as written\nreads: [a.*]\n" for name in (first, second)]
    done = tower.admin.apply_contracts(texts, expected=[0, 0], message="both")
    assert done["contracts"] == [{"contract": name, "version": 1, "changed": True} for name in (first, second)]
    with tower.client() as http:
        route = "/icetower/v1/contracts"
        stale = http.post(route + "/apply", json={"contracts": [{"text": texts[0] + "owner: x\n", "expected": 0}]})
        assert (stale.status_code, error_of(stale)["rule"]) == (409, "contract.version")
        wrong = http.post(route + "/apply", json={"contracts": [{"text": texts[0]}, {"text": "version: 1"}]})
        assert error_of(wrong)["message"].startswith("contracts[1], line 1: the contract lacks the field 'agent'")
        for body in ({"contracts": []}, {"contracts": [{"text": "version: 1\nagent: a\n"}] * 1001}, {}):
            assert http.post(route + "/apply", json=body).status_code == 400
        assert error_of(http.get(f"{route}/{first}?version=x"))["code"] == 400
        assert error_of(http.get(f"{route}/{first}?version=9"))["code"] == 404
        assert error_of(http.get(f"{route}/never-there/history"))["code"] == 404
    tower.admin.apply_contracts([texts[0] + "owner: x\n"], expected=[1])
    assert tower.admin.contract(first, 1)["text"] == texts[0]
    assert tower.admin.contract(first)["version"] == 2
    assert tower.admin.restore_contract(first, 1, message="back")["version"] == 3
    shown = tower.admin.contract(first)
    assert (shown["text"], shown["applied_by"], shown["message"]) == (texts[0], "admin", "back")


# -- without the registry ----------------------------------------------------------------------------------------------


TABLES = ("registry_changes", "registry_contracts", "registry_credentials", "registry_principals")


class Away:
    """A tower in this process, over its real databases, from which the registry can be taken."""

    def __init__(self, data: Path) -> None:
        self.tower = open_tower(Settings.model_validate({"server": {"data": str(data)}}), SystemAmbient())
        self.submitted: asyncio.Queue[str] = asyncio.Queue()
        transport = httpx2.ASGITransport(app=build(self.tower))
        self.http = httpx2.AsyncClient(base_url="http://tower.test", transport=transport, timeout=60)
        submit = self.tower.engine.submit

        async def counted(member: Admitted, *, request: str = "") -> Committed:
            self.submitted.put_nowait(member.principal)
            return await submit(member, request=request)

        self.tower.engine.submit = counted  # type: ignore[method-assign]

    def take(self) -> None:
        self._rename(*((table, f"{table}_away") for table in TABLES))

    def bring_back(self) -> None:
        self._rename(*((f"{table}_away", table) for table in TABLES))

    def _rename(self, *names: tuple[str, str]) -> None:
        control = self.tower.records.registry._database  # type: ignore[attr-defined]
        for now, then in names:
            control.run_now(lambda c, now=now, then=then: c.execute(sql(f"ALTER TABLE {now} RENAME TO {then}")))

    async def agent(self, name: str) -> Callable[[], Awaitable[httpx2.Response]]:
        """A new agent; what it returns sets a property of the table."""
        secret = await self.tower.records.registry.create_principal(name, "setters")
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {name: "set"}}]}
        return lambda: self.http.post("/v1/namespaces/n/tables/t", json=body, headers=headers)


def test_without_the_registry_nobody_is_let_in_and_what_waits_does_not_land(tmp_path: Path) -> None:
    async def story() -> None:
        away = Away(tmp_path)
        tower = away.tower
        contract = "version: 1\nagent: setters\ntables: [{table: n.t, operations: [alter], partitions: all}]\n"
        await tower.records.registry.apply_contract(load(contract, source="test"), by="test")
        secret = await tower.records.registry.create_principal("chief", "administrator")
        chief = {"Authorization": f"Bearer {secret}"}
        for path, body in (("", {"namespace": ["n"]}), ("/n/tables", {"name": "t", "schema": SCHEMA})):
            (await away.http.post(f"/v1/namespaces{path}", json=body, headers=chief)).raise_for_status()

        async def properties() -> dict[str, Any]:
            answer = await away.http.get("/v1/namespaces/n/tables/t", headers=chief)
            return answer.raise_for_status().json()["metadata"]["properties"]

        setters = [await away.agent(name) for name in ("ann", "bob", "cid")]
        before = await properties()
        writing, go_on = asyncio.Event(), asyncio.Event()
        write = tower.lake.storage.write

        async def slow(path: str, data: bytes) -> None:
            writing.set()
            await go_on.wait()
            await write(path, data)

        tower.lake.storage.write = slow  # type: ignore[method-assign]
        sent = [asyncio.create_task(setters[0]())]
        await writing.wait()  # the first is on its way to the swap; the others come behind it
        sent += [asyncio.create_task(setter()) for setter in setters[1:]]
        assert {await away.submitted.get() for _ in setters} == {"ann", "bob", "cid"}
        away.take()
        go_on.set()
        answers = [*await asyncio.gather(*sent), await setters[0]()]
        assert {(answer.status_code, error_of(answer)["rule"]) for answer in answers} == {(503, "registry.available")}
        token = await away.http.post("/v1/oauth/tokens", data=form("chief", secret))
        assert (token.status_code, token.json()["error"]) == (503, "temporarily_unavailable")

        away.bring_back()
        assert await properties() == before
        assert [(await setter()).status_code for setter in setters] == [200, 200, 200]
        assert await properties() == before | {"ann": "set", "bob": "set", "cid": "set"}
        await away.http.aclose()
        await tower.close()

    asyncio.run(story())
