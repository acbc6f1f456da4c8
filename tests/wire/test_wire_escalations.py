"""An agent that fails too often is stopped, a human told, and a person frees it: real clients, receivers and towers."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.agent import DataFile, Tower
from icetower.errors import BadRequest, Conflict, Forbidden, NotFound
from tests.wire.receivers import HookReceiver, MailReceiver, hook, mail_server
from verify.kit.tower_process import TowerProcess, command, error_of

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "region", StringType(), required=False)
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
CONTRACT = """\
owner: Pricing Team <team@example.com>
tables:
  - table: shop.prices
    operations: [append]
    partitions: [{{region: [{region}]}}]
    blind_appends: true
  - {{table: shop.prices, operations: [drop, rename]}}
  - table: shop.other
    operations: [append, create]
    partitions: all
    blind_appends: true
escalation: {{after_failures: 5, within: 10m, to: Dana Ito <dana.ito@example.com>{webhook}}}
"""
SECRET = "s3cret-of-the-hook"
DANA = "Dana Ito <dana.ito@example.com>"


def rows(region: str) -> pa.Table:
    return pa.table({"id": pa.array([1], pa.int64()), "region": pa.array([region], pa.string())})


def regions(table: Table) -> list[str]:
    return sorted(table.refresh().scan().to_arrow()["region"].to_pylist())


class World:
    """A tower, its receivers, and how to start more of them on the same data."""

    def __init__(self, folder: Path, receiver: HookReceiver, post_office: MailReceiver) -> None:
        self.receiver = receiver
        self.post_office = post_office
        self._folder = folder
        self._running: list[TowerProcess] = []

    def start(
        self, *, hook_url: str | None = None, mail_port: int | None = None, hook_name: str = "oncall"
    ) -> TowerProcess:
        config = self._folder / "tower.toml"
        config.write_text(
            f"[escalations]\nsmtp_host = '127.0.0.1'\nsmtp_port = {mail_port or self.post_office.port}\n"
            "smtp_encryption = 'none'\nsender = 'Icetower <icetower@example.com>'\n"
            f"[escalations.webhooks]\n{hook_name} = {{url = '{hook_url or self.receiver.url}', secret_env = 'HOOK'}}\n"
        )
        data = self._folder / "data"
        self._running.append(TowerProcess(data, "--config", str(config), environment={"HOOK": SECRET}))
        return self._running[-1]

    def stop(self, tower: TowerProcess) -> None:
        self._running.remove(tower)
        assert tower.stop() == 0

    def stop_all(self) -> None:
        assert [tower.stop() for tower in self._running] == [0] * len(self._running)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with hook() as receiver, mail_server() as post_office:
        world = World(tmp_path, receiver, post_office)
        yield world
        world.stop_all()


def furnish(tower: TowerProcess) -> Catalog:
    catalog = tower.catalog()
    catalog.create_namespace("shop")
    for name in ("shop.prices", "shop.other"):
        catalog.create_table(name, schema=SCHEMA, partition_spec=BY_REGION)
    return catalog


def agent(tower: TowerProcess, name: str, region: str, webhook: str = ", webhook: oncall") -> str:
    return tower.principal(name, CONTRACT.format(region=region, webhook=webhook))


def fail(table: Table, times: int, told: str = "contract") -> None:
    """Appends to a region that is not the writer's own."""
    for _ in range(times):
        with pytest.raises(ForbiddenError, match=told):
            table.append(rows("elsewhere"))


def refusal(tower: TowerProcess, secret: str, table: str = "prices") -> dict[str, Any]:
    """What a plain HTTP client is told of the smallest of commits."""
    with tower.client(secret) as http:
        commit = {"requirements": [], "updates": []}
        return error_of(http.post(f"/v1/namespaces/shop/tables/{table}", json=commit))


def test_an_agent_that_writes_outside_its_contract_is_stopped_and_a_person_frees_it(world: World) -> None:
    tower = world.start()
    furnish(tower)
    wild, good = agent(tower, "wild", "north"), agent(tower, "good", "south")
    prices = tower.catalog(wild).load_table("shop.prices")
    prices.append(rows("north"))
    fail(prices, 4)
    prices.append(rows("north"))  # it lands: the row begins anew
    fail(prices, 5)

    with pytest.raises(ForbiddenError, match=r"wild is stopped at shop\.prices after 5 failures in a row"):
        prices.append(rows("north"))  # within its contract, and stopped
    error = refusal(tower, wild)
    (escalation,) = tower.admin.escalations(state="open")
    assert (error["code"], error["rule"], error["next_step"]) == (403, "contract.escalated", "escalated_to")
    assert error["escalated_to"] == DANA
    assert escalation["id"] in error["message"]
    assert "contract.partitions (5)" in error["message"]
    (line,) = [each for each in tower.log.read_text().splitlines() if " event=escalation " in each]
    assert f"id={escalation['id']} principal=wild contract=wild table=shop.prices " in line
    assert 'rules="contract.partitions (5)"' in line

    # Its other table, and the other agent, go on.
    tower.catalog(wild).load_table("shop.other").append(rows("anywhere"))
    tower.catalog(good).load_table("shop.prices").append(rows("south"))

    # The human was told, by both ways.
    post, mail = world.receiver.next(), world.post_office.next()
    assert (post.json["id"], post.json["event"]) == (escalation["id"], "escalation.opened")
    assert [failure["rule"] for failure in post.json["failures"]] == ["contract.partitions"] * 5
    at_s, _, signed = post.headers["Icetower-Signature"].removeprefix("t=").partition(",v1=")
    made = hmac.new(SECRET.encode(), at_s.encode() + b"." + post.body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(made, signed)
    assert mail.recipients == ["dana.ito@example.com"]
    assert escalation["id"] in mail.message.get_content()

    # The agent sees its own, and cannot free itself; nobody sees another's.
    with Tower(tower.uri, wild) as sdk:
        assert [each["id"] for each in sdk.escalations()] == [escalation["id"]]
        with pytest.raises(Forbidden):
            sdk.close_escalation(escalation["id"], "I am fine")
    with Tower(tower.uri, good) as sdk:
        assert sdk.escalations() == []
        with pytest.raises(NotFound):
            sdk.escalation(escalation["id"])

    closed = tower.admin.close_escalation(escalation["id"], "the region was misspelt; mended")
    assert (closed["state"], closed["closed_by"], closed["note"]) == (
        "closed",
        "admin",
        "the region was misspelt; mended",
    )
    prices.refresh().append(rows("north"))
    assert regions(prices) == ["north", "north", "north", "south"]
    with pytest.raises(Conflict, match="by admin"):
        tower.admin.close_escalation(escalation["id"], "again")
    with Tower(tower.uri, wild) as sdk:  # so it may poll
        assert sdk.escalation(escalation["id"])["state"] == "closed"
    attempts = tower.admin.commits(table="shop.prices", limit=100)
    assert [each["rule"] for each in attempts].count("contract.escalated") == 2


def test_it_stays_over_restarts_and_for_other_towers(world: World) -> None:
    first = world.start()
    furnish(first)
    secret = agent(first, "wild", "north")
    second = world.start()
    fail(first.catalog(secret).load_table("shop.prices"), 5)
    assert refusal(second, secret)["rule"] == "contract.escalated"
    world.stop(first)
    third = world.start()
    assert refusal(third, secret)["rule"] == "contract.escalated"
    (escalation,) = third.admin.escalations(state="open")
    second.admin.close_escalation(escalation["id"], "mended")
    third.catalog(secret).load_table("shop.prices").append(rows("north"))
    assert world.receiver.next().json["id"] == escalation["id"]
    assert world.receiver.posts.empty()  # of two towers, one has sent it


def test_the_fast_path_transactions_drops_and_renames_are_stopped_too(world: World) -> None:
    tower = world.start()
    furnish(tower)
    secret = agent(tower, "wild", "north")
    fail(tower.catalog(secret).load_table("shop.prices"), 5)
    with Tower(tower.uri, secret) as sdk, pytest.raises(Forbidden) as caught:
        sdk.append("shop.prices", [DataFile("file:///nowhere", 1, 1)])
    stop = caught.value
    assert (stop.rule, stop.next_step, stop.escalated_to) == ("contract.escalated", "escalated_to", DANA)
    with tower.client(secret) as http:
        elsewhere = {"namespace": ["shop"], "name": "other"}
        changes = [
            {"identifier": {"namespace": ["shop"], "name": name}, "requirements": [], "updates": []}
            for name in ("other", "prices")
        ]
        told = [
            http.post("/v1/transactions/commit", json={"table-changes": changes}),
            http.delete("/v1/namespaces/shop/tables/prices"),
            http.post("/v1/tables/rename", json={"source": changes[1]["identifier"], "destination": elsewhere}),
        ]
        assert [error_of(answer)["rule"] for answer in told] == ["contract.escalated"] * 3
        assert http.head("/v1/namespaces/shop/tables/prices").status_code == 204


def test_what_has_landed_is_told_so_to_a_stopped_agent(world: World) -> None:
    """Told 403, its client would delete manifests that the table names."""
    tower = world.start()
    furnish(tower)
    secret = agent(tower, "wild", "north")
    prices = tower.catalog(secret).load_table("shop.prices")
    sent: list[dict[str, Any]] = []
    key = {"icetower.idempotency-key": "the first"}
    prices.append(rows("north"), snapshot_properties=key)
    snapshot = prices.refresh().metadata.snapshots[-1]
    sent.append(snapshot.model_dump(mode="json", by_alias=True, exclude_none=True))
    fail(prices, 5)
    with tower.client(secret) as http:
        commit = {
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
            "updates": [
                {"action": "add-snapshot", "snapshot": sent[0]},
                {
                    "action": "set-snapshot-ref",
                    "ref-name": "main",
                    "type": "branch",
                    "snapshot-id": sent[0]["snapshot-id"],
                },
            ],
        }
        assert http.post("/v1/namespaces/shop/tables/prices", json=commit).status_code == 200
    assert refusal(tower, secret)["rule"] == "contract.escalated"


def test_no_commit_waits_for_a_receiver_and_what_did_not_arrive_is_sent_after_a_restart(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()[1]
    world.receiver.answers = [None]  # it takes the post, and says nothing
    tower = world.start(mail_port=nobody)
    furnish(tower)
    secret = agent(tower, "wild", "north")
    prices = tower.catalog(secret).load_table("shop.prices")
    fail(prices, 5)
    assert world.receiver.next().json["principal"] == "wild"
    # Nothing has been answered yet, and all goes on.
    assert refusal(tower, secret)["rule"] == "contract.escalated"
    tower.catalog(secret).load_table("shop.other").append(rows("anywhere"))
    (escalation,) = tower.admin.escalations()
    assert {each["way"]: each["state"] for each in escalation["deliveries"]} == {
        "webhook": "waiting",
        "mail": "waiting",
    }
    world.stop(tower)
    world.receiver.answers = [500]
    again = world.start()
    assert world.receiver.next().json["id"] == escalation["id"]  # 500
    assert world.receiver.next().json["id"] == escalation["id"]
    assert escalation["id"] in world.post_office.next().message.get_content()
    log = tower.log.read_text() + again.log.read_text()
    for secret_word in (SECRET, "team=pricing"):
        assert secret_word not in log
        assert secret_word not in json.dumps(again.admin.escalation(escalation["id"]))


def test_a_contract_that_names_a_webhook_which_the_tower_lacks_is_refused(world: World) -> None:
    tower = world.start()
    text = "version: 1\nagent: typo\n" + CONTRACT.format(region="north", webhook=", webhook: oncal")
    with pytest.raises(BadRequest, match=r"oncal.*have: oncall") as caught:
        tower.admin.apply_contract(text)
    assert caught.value.rule == "contract.escalation"
    with tower.client() as http:
        together = http.post("/icetower/v1/contracts/apply", json={"contracts": [{"text": text}]})
        assert error_of(together)["rule"] == "contract.escalation"
        assert http.get("/icetower/v1/contracts/typo").status_code == 404
    done = tower.admin.apply_contract(text.replace("oncal}", "oncall}"))
    assert done["warnings"] == []


def test_an_older_version_whose_webhook_is_gone_is_not_restored(world: World) -> None:
    tower = world.start()
    text = "version: 1\nagent: night\n" + CONTRACT
    for webhook in (", webhook: oncall", ""):
        tower.admin.apply_contract(text.format(region="north", webhook=webhook))
    world.stop(tower)
    tower = world.start(hook_name="daytime")
    with pytest.raises(BadRequest, match=r"oncall.*have: daytime") as caught:
        tower.admin.restore_contract("night", 1)
    assert caught.value.rule == "contract.escalation"
    assert tower.admin.contract("night")["version"] == 2
    tower.admin.revoke_contract("night")
    assert tower.admin.restore_contract("night")["version"] == 4  # the newest names none


def test_a_tower_that_can_tell_nobody_says_so(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower()
    furnish(tower)
    text = "version: 1\nagent: wild\n" + CONTRACT.format(region="north", webhook="")
    (warning,) = tower.admin.apply_contract(text)["warnings"]
    assert "nobody will be notified" in warning
    secret = tower.admin.create_principal("wild", "wild")
    fail(tower.catalog(secret).load_table("shop.prices"), 5)
    (escalation,) = tower.admin.escalations()
    (delivery,) = escalation["deliveries"]
    assert (delivery["state"], delivery["fault"]) == ("given up", "the tower's settings name no mail server")


def test_an_agent_asks_for_partitions_and_reads_the_answer(world: World) -> None:
    tower = world.start()
    furnish(tower)
    secret, stranger = agent(tower, "asks", "north"), agent(tower, "stranger", "south")
    with Tower(tower.uri, secret) as sdk:
        asked = sdk.request_partitions(
            "shop.prices", ["region=south"], operations=["append"], reason="the south came early"
        )
        assert (asked["state"], asked["contact"]) == ("open", "Pricing Team <team@example.com>")
        same = sdk.request_partitions("shop.prices", ["region=south"], operations=["append"], reason="please")
        assert same["id"] == asked["id"]
        assert [each["id"] for each in sdk.requests(state="open")] == [asked["id"]]
        with pytest.raises(Forbidden):
            sdk.close_request(asked["id"], "granted", "thanks")
        with pytest.raises(BadRequest, match="operations"):
            sdk.request_partitions("shop.prices", [], operations=["levitate"], reason="up")
        with Tower(tower.uri, stranger) as other, pytest.raises(NotFound):
            other.request(asked["id"])
        mail = world.post_office.next()
        assert mail.recipients == ["team@example.com"]
        assert "the south came early" in mail.message.get_content()
        assert world.receiver.next().json["event"] == "request.opened"
        tower.admin.close_request(asked["id"], "granted", "from tomorrow on")
        answer = sdk.request(asked["id"])
        assert (answer["state"], answer["note"], answer["closed_by"]) == ("granted", "from tomorrow on", "admin")
        # The answer grants nothing: the contract does.
        fail(tower.catalog(secret).load_table("shop.prices"), 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "named"),
    [
        ("GET", "/escalations?state=ajar", None, 400, "open or closed"),
        ("GET", "/requests?limit=many", None, 400, "limit"),
        ("GET", "/escalations/none", None, 404, "no escalation none"),
        ("POST", "/escalations/none/close", {"note": "x"}, 404, "no escalation none"),
        ("POST", "/escalations/none/close", {"note": " "}, 400, "note"),
        ("POST", "/escalations/none/close", {}, 400, "note"),
        ("POST", "/requests/none/close", {"decision": "perhaps", "note": "x"}, 400, "granted or denied"),
        ("POST", "/requests/none/close", {"decision": "closed", "note": "x"}, 400, "denied or granted"),
        ("POST", "/requests", {"table": "prices", "operations": ["append"], "reason": "x"}, 400, "namespace.table"),
        ("POST", "/requests", {"table": "a.t", "operations": ["append"]}, 400, "reason"),
        ("POST", "/requests", {"table": "a.t", "partitions": "all", "operations": [], "reason": ""}, 400, "partitions"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    tower: TowerProcess, method: str, path: str, body: Any, status: int, named: str
) -> None:
    with tower.client() as http:
        answer = http.request(method, f"/icetower/v1{path}", json=body)
    assert answer.status_code == status
    assert named in error_of(answer)["message"]


def test_the_command_line_lists_shows_and_closes(world: World) -> None:
    tower = world.start()
    furnish(tower)
    secret = agent(tower, "wild", "north")
    fail(tower.catalog(secret).load_table("shop.prices"), 5)

    def type_it(*words: str, token: str = tower.secret, status: int = 0) -> str:
        done = subprocess.run(
            command(*words),
            capture_output=True,
            text=True,
            env={"PATH": "", "COLUMNS": "250", "ICETOWER_URI": tower.uri, "ICETOWER_TOKEN": token},
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    (listed,) = json.loads(type_it("escalations", "list", "--json"))
    id_ = listed["id"]
    table = type_it("escalations", "list")
    for said in (id_, "wild", "shop.prices", "Dana Ito"):
        assert said in table
    shown = type_it("escalations", "show", id_)
    for said in ("contract.partitions", "webhook to oncall", "mail to Dana Ito"):
        assert said in shown
    assert "not an administrator" in type_it("escalations", "close", id_, "--note", "x", token=secret, status=1)
    assert "wild may commit to shop.prices again" in type_it("escalations", "close", id_, "--note", "mended")
    assert type_it("escalations", "list").strip() == "no agent is stopped; --all shows closed ones"
    assert "mended" in type_it("escalations", "show", id_)
    assert id_ in type_it("escalations", "list", "--all")

    asking = ("--operation", "append", "--partition", "region=[bold]", "--reason", "[/early]")
    made = type_it("requests", "make", "shop.prices", *asking, token=secret)
    request = made.split()[1]
    assert "Pricing Team" in made
    assert "region=[bold]" in type_it("requests", "list", token=secret)
    assert "--granted or --denied" in type_it("requests", "close", request, "--note", "no", status=2)
    denied = type_it("requests", "close", request[:6], "--denied", "--note", "no")
    assert f"request {request} is denied: wild, append on region=[bold] of shop.prices" in denied
    assert "denied" in type_it("requests", "show", request, token=secret)
