"""Server-sent events of intents over the wire: changes and warnings, where a client goes on, and what ends a stream."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icetower.gateway.intent_events import STREAMS_OF_PRINCIPAL_MAX
from verify.kit.tower_process import TowerProcess, error_of

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "region", StringType(), required=False)
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
HELD = {"partitions": [{"region": "eu"}]}
READ_S = 60


class Shop:
    """A table by region, and agents that may do anything to it."""

    def __init__(self, tower: TowerProcess, catalog: Catalog, namespace: str) -> None:
        self.tower = tower
        self.name = f"{namespace}.prices"
        self.namespace = namespace
        catalog.create_table((namespace, "prices"), SCHEMA, partition_spec=BY_REGION)
        self._secrets: dict[str, str] = {}

    def secret(self, who: str, more: str = "") -> str:
        if who not in self._secrets:
            contract = f"tables: [{{table: {self.name}, operations: [overwrite], partitions: all}}]\n{more}"
            self._secrets[who] = self.tower.principal(f"{self.namespace}_{who}", contract)
        return self._secrets[who]

    def declare(self, who: str, **more: Any) -> str:
        with self.tower.client(self.secret(who)) as http:
            answer = http.post("/icetower/v1/intents", json={"tables": [{"table": self.name, **HELD}], **more})
        assert answer.status_code in (201, 202), answer.text
        return str(answer.json()["intent"])

    def append(self, who: str, number: int) -> int:
        """A row; its snapshot."""
        with self.tower.client(self.secret(who)) as http:
            answer = http.post(
                f"/v1/namespaces/{self.namespace}/tables/prices/rows", json={"rows": [{"id": number, "region": "eu"}]}
            )
        assert answer.status_code == 200, answer.text
        return int(answer.json()["snapshot-id"])

    @contextmanager
    def stream(self, who: str, intent: str, last: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a stream, as they come."""
        with (
            self.tower.client(self.secret(who)) as http,
            http.stream(
                "GET",
                f"/icetower/v1/intents/{intent}/events",
                headers={} if last is None else {"Last-Event-ID": last},
                timeout=READ_S,
            ) as answer,
        ):
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield events(answer.iter_lines())


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Events, each with its `event`, `id` and `data`; a comment is one with `comment`."""
    event: dict[str, Any] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if not line:
            if "data" in event:
                yield {**event, "data": json.loads(event["data"])}
            event = {}
        elif not name:
            yield {"comment": value}
        else:
            event[name] = event.get(name, "") + value.strip()


def told(stream: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (each for each in stream if "comment" not in each)


@pytest.fixture
def shop(tower: TowerProcess, catalog: Catalog, namespace: str) -> Shop:
    return Shop(tower, catalog, namespace)


def test_who_stands_in_line_hears_of_the_grant_and_then_of_commits(shop: Shop) -> None:
    first, second = shop.declare("ann"), shop.declare("bob", queue=True, ttl_s=600)
    with shop.stream("bob", second) as stream:
        news = told(stream)
        begun = next(news)
        assert (begun["event"], begun["id"], begun["data"]["state"]) == ("state", "0", "queued")
        assert begun["data"]["waits_for"][0]["intent"] == first
        assert "warnings" not in begun["data"]
        with shop.tower.client(shop.secret("ann")) as ann:
            assert ann.delete(f"/icetower/v1/intents/{first}").status_code == 200
        granted = next(news)
        assert (granted["event"], granted["data"]["state"]) == ("state", "held")
        assert granted["data"]["fence"] > 0
        snapshot = shop.append("ann", 1)
        warned = next(news)
        assert (warned["event"], warned["id"]) == ("warning", "1")
        assert (warned["data"]["snapshot-id"], warned["data"]["partitions"]) == (snapshot, ["region=eu"])
        with shop.tower.client(shop.secret("bob")) as bob:
            assert bob.delete(f"/icetower/v1/intents/{second}").status_code == 200
        ended = next(news)
        assert (ended["event"], ended["id"], ended["data"]["ended"]) == ("state", "ended", "released")
        assert list(news) == []  # it closes


def test_a_client_goes_on_where_it_was(shop: Shop) -> None:
    intent = shop.declare("ann", ttl_s=600)
    snapshots = [shop.append("bob", number) for number in range(3)]
    with shop.stream("ann", intent, last="1") as stream:
        news = told(stream)
        state, *warnings = [next(news) for _ in range(3)]
    assert (state["event"], state["id"]) == ("state", "1")
    assert [(each["id"], each["data"]["snapshot-id"]) for each in warnings] == [
        ("2", snapshots[1]), ("3", snapshots[2]),
    ]  # fmt: skip
    with shop.tower.client(shop.secret("ann")) as ann:
        path = f"/icetower/v1/intents/{intent}"
        assert ann.delete(path).status_code == 200
        with shop.stream("ann", intent, last="2") as stream:  # it has ended meanwhile: what was missed, and the end
            assert [each["id"] for each in told(stream)] == ["3", "ended"]
        assert ann.get(f"{path}/events", headers={"Last-Event-ID": "ended"}).status_code == 204
        assert ann.get(f"{path}/events", headers={"Last-Event-ID": "x"}).status_code == 400
        assert ann.head(f"{path}/events").headers["content-type"].startswith("text/event-stream")


def test_a_stream_says_that_it_is_there(shop: Shop) -> None:
    intent = shop.declare("ann", ttl_s=600)
    with shop.stream("ann", intent) as stream:
        assert next(stream)["event"] == "state"
        assert next(stream) == {"comment": " "}


def test_a_stream_is_of_ones_own_intent(shop: Shop) -> None:
    intent = shop.declare("ann", ttl_s=600)
    for who, status in ((shop.secret("bob"), 404), ("no-secret", 401)):
        with shop.tower.client(who) as http:
            assert http.get(f"/icetower/v1/intents/{intent}/events").status_code == status


def test_streams_of_a_principal_are_bounded_and_take_none_of_its_places(shop: Shop) -> None:
    secret = shop.secret("cy", "quotas: {requests_at_once: 1}\n")
    intent = shop.declare("cy", ttl_s=600)
    with shop.tower.client(secret) as http:
        open_: list[Any] = []
        try:
            for _ in range(STREAMS_OF_PRINCIPAL_MAX):
                open_.append(http.stream("GET", f"/icetower/v1/intents/{intent}/events", timeout=READ_S))
                assert open_[-1].__enter__().status_code == 200
            refused = http.get(f"/icetower/v1/intents/{intent}/events")
            assert (refused.status_code, error_of(refused)["rule"]) == (429, "intent.streams")
            assert http.post(f"/icetower/v1/intents/{intent}/renew").status_code == 200
        finally:
            for each in open_:
                each.__exit__(None, None, None)
    with shop.tower.client(secret) as http:  # as soon as the tower has seen that they are closed
        while http.head(f"/icetower/v1/intents/{intent}/events").status_code == 429:
            threading.Event().wait(0.1)


def test_a_revocation_ends_the_stream(shop: Shop) -> None:
    intent = shop.declare("dan", ttl_s=600)
    with shop.stream("dan", intent) as stream:
        assert next(stream)["event"] == "state"
        shop.tower.admin.revoke_principal(f"{shop.namespace}_dan")
        assert list(told(stream)) == []


def test_who_reads_slowly_holds_up_nobody_and_misses_nothing(shop: Shop) -> None:
    """One stream is not read while commits land; another one hears of each at once."""
    intent = shop.declare("ann", ttl_s=600)
    address = urlsplit(shop.tower.uri)
    with socket.create_connection((address.hostname or "", address.port or 0), READ_S) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        request = (
            f"GET /icetower/v1/intents/{intent}/events HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Authorization: Bearer {shop.secret('ann')}\r\n\r\n"
        )
        slow.sendall(request.encode())
        with shop.stream("ann", intent) as stream:
            news = told(stream)
            assert next(news)["event"] == "state"
            for number in range(1, 13):
                snapshot = shop.append("bob", number)
                warned = next(news)
                assert (warned["id"], warned["data"]["snapshot-id"]) == (str(number), snapshot)
        with shop.tower.client(shop.secret("ann")) as ann:
            assert ann.delete(f"/icetower/v1/intents/{intent}").status_code == 200
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += slow.recv(256)
    ids = [line.removeprefix(b"id: ") for line in received.splitlines() if line.startswith(b"id: ")]
    assert ids == [b"0", *(str(number).encode() for number in range(1, 13)), b"ended"]


def test_a_tower_that_stops_ends_its_streams_at_once(start_tower: Callable[..., TowerProcess]) -> None:
    tower = start_tower()
    catalog = tower.catalog()
    catalog.create_namespace("shop")
    shop = Shop(tower, catalog, "shop")
    intent = shop.declare("ann", ttl_s=600)
    begun, ended = threading.Event(), threading.Event()
    heard: list[dict[str, Any]] = []
    faults: list[Exception] = []

    def listen() -> None:
        try:
            with shop.stream("ann", intent) as stream:
                for each in told(stream):
                    heard.append(each)
                    begun.set()
        except httpx2.HTTPError as error:
            faults.append(error)
        ended.set()

    thread = threading.Thread(target=listen)
    thread.start()
    assert begun.wait(READ_S)
    assert tower.stop() == 0
    assert ended.wait(READ_S)
    thread.join()
    assert [each["event"] for each in heard] == ["state"]
    assert faults == []  # it was ended, and not cut off after the half minute of a drain
    with (  # the intent is there, and so is its stream
        start_tower().client(shop.secret("ann")) as http,
        http.stream("GET", f"/icetower/v1/intents/{intent}/events", timeout=READ_S) as answer,
    ):
        assert next(told(events(answer.iter_lines())))["data"]["state"] == "held"
