"""Every endpoint that changes something, each request under a key, and sent until its client has heard of it twice.

So does Iceberg's Java client from 1.12 on: it sends a request again by itself, under the same key, upon 408, 429, 500,
502, 503 and 504 and when a connection breaks. The first success is taken for one that a gateway has lost. Every answer
must be a success, and the catalog must be as if each request had been carried out once: also where the tower is killed
right before or after it has changed something, and its client comes to another.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from verify.torture.kill import (
    ANSWERS,
    DONE_WITHIN_S,
    HTTP_TIMEOUT_S,
    SCHEMA,
    SPEC,
    Broken,
    Launcher,
    Place,
    Point,
    Story,
    following,
)

AGAIN = (408, 429, 500, 502, 503, 504)
"""Upon these Java's client sends again where it has sent a key."""


def key() -> str:
    """A UUID of version 7, as the header wants it."""
    return str(uuid.UUID(int=(uuid.uuid4().int & ~((0xF << 76) | (3 << 62))) | (7 << 76) | (2 << 62)))


@dataclass
class Client:
    """One client; it goes through the life of a namespace and its tables."""

    place: Place
    name: str
    counts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self._http = httpx2.Client(timeout=HTTP_TIMEOUT_S)
        self._uri: str | None = None
        self.last = ""

    def live(self) -> None:
        """Each request of a life in turn. Raises `Broken`."""
        space = f"/v1/namespaces/{self.name}"
        tables = f"{space}/tables"
        self.change("POST", "/v1/namespaces", {"namespace": [self.name], "properties": {"a": "1"}})
        self.change("POST", f"{space}/properties", {"removals": ["a"], "updates": {"b": "2"}})
        self.expect(self.read(space)["properties"] == {"b": "2"}, "the namespace has other properties")
        made = self.change("POST", tables, {"name": "made", "schema": SCHEMA, "partition-spec": SPEC})["metadata"]
        self.expect(self.read(f"{tables}/made")["metadata"]["table-uuid"] == made["table-uuid"], "another table")
        self.staged(tables)
        asserted = [{"type": "assert-table-uuid", "uuid": made["table-uuid"]}]
        updates = [{"action": "set-properties", "updates": {"owner": "ann"}}]
        self.change("POST", f"{tables}/made", {"requirements": asserted, "updates": updates})
        names = {
            "source": {"namespace": [self.name], "name": "made"},
            "destination": {"namespace": [self.name], "name": "moved"},
        }
        self.change("POST", "/v1/tables/rename", names)
        moved = self.read(f"{tables}/moved")
        self.expect(moved["metadata"]["table-uuid"] == made["table-uuid"], "another table was renamed")
        self.expect(moved["metadata"]["properties"].get("owner") == "ann", "a property is missing")
        self.change("DELETE", f"{tables}/moved")
        there = {"name": "again", "metadata-location": moved["metadata-location"]}
        again = self.change("POST", f"{space}/register", there)
        self.expect(again["metadata"]["table-uuid"] == made["table-uuid"], "another table was registered")
        self.change("DELETE", f"{tables}/again")
        self.change("DELETE", f"{tables}/staged?purgeRequested=true")
        self.expect(self.read(tables)["identifiers"] == [], "tables are left")
        self.change("DELETE", space)
        self._http.close()

    def staged(self, tables: str) -> None:
        """A table whose creation is staged, and committed then."""
        body = {"name": "staged", "stage-create": True, "schema": SCHEMA, "partition-spec": SPEC}
        metadata = self.change("POST", tables, body)["metadata"]
        updates: list[dict[str, Any]] = [
            {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
            {"action": "upgrade-format-version", "format-version": metadata["format-version"]},
            {"action": "add-schema", "schema": metadata["schemas"][0]},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": metadata["partition-specs"][0]},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": metadata["location"]},
        ]
        self.change("POST", f"{tables}/staged", {"requirements": [{"type": "assert-create"}], "updates": updates})
        found = self.read(f"{tables}/staged")["metadata"]["table-uuid"]
        self.expect(found == metadata["table-uuid"], "another table than the staged one was created")

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A request under a key, sent until its client has heard of it twice; the last answer."""
        headers, until_s, heard = {"Idempotency-Key": key()}, time.monotonic() + DONE_WITHIN_S, 0
        more: dict[str, Any] = {} if body is None else {"json": body}
        while time.monotonic() < until_s:
            answer = self._ask(method, path, headers=headers, **more)
            status = None if answer is None else answer.status_code
            self.counts[f"lifecycle {status}"] += 1
            if answer is not None and answer.is_success:
                heard += 1
                if heard == ANSWERS:
                    return answer.json() if answer.content else {}
            elif answer is not None and status in AGAIN:
                self.last = f"{status} {answer.text[:300]}"
            elif answer is not None:
                said = "was done, and now" if heard else "is"
                raise Broken(f"{self.name}: {method} {path} {said} {status}: {answer.text[:400]} (before: {self.last})")
        raise Broken(f"{self.name}: {method} {path} was not answered in {DONE_WITHIN_S:g} s")

    def read(self, path: str) -> dict[str, Any]:
        while True:
            answer = self._ask("GET", path)
            if answer is not None and answer.is_success:
                return answer.json()
            if answer is not None and answer.status_code < 500:
                raise Broken(f"{self.name}: GET {path}: {answer.status_code} {answer.text[:400]}")

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Broken(f"{self.name}: {otherwise}")

    def _ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        self._uri = self._uri or self.place.uri(None)
        try:
            return self._http.request(method, self._uri + path, **more)
        except httpx2.TransportError:
            self.counts["connections lost"] += 1
            self._uri = self.place.uri(self._uri)
            return None


def play_life(launcher: Launcher, point: Point | None) -> Story:
    """One run over a fresh copy of the template. Raises `Broken`."""
    data = launcher.home / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(launcher.home / "template", data)
    place = Place()
    client = Client(place, "life")
    with following(launcher, data, place, launcher.start(data, point)) as watch:
        try:
            client.live()
        except Broken as broken:
            raise Broken(f"{point}: {broken}") from broken
    return Story(watch.steps, watch.killed, client.counts)


def every_point_of_a_life(launcher: Launcher, when: str, *, share: int = 0, of: int = 1) -> list[Story]:
    """Kill at every step in turn, as `kill.every_point`."""
    stories: list[Story] = []
    at = 1 + share
    while not stories or at - of <= stories[-1].steps:
        stories.append(play_life(launcher, Point(at, when)))
        at += of
    return stories
