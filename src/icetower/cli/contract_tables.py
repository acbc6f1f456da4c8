"""A running tower's state that contracts are checked against: tables, their partitions, principals and contracts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
from pyiceberg.io import PY_IO_IMPL

from icetower.agent import Tower
from icetower.agent.causes import unreachable
from icetower.agent.failures import error_of
from icetower.cli.lake import JSON, Lake, part
from icetower.contracts.findings import Written
from icetower.contracts.references import Found, without_catalog
from icetower.contracts.regions import Pattern
from icetower.errors import BadRequest, IcetowerError, NotFound, Unavailable, UpstreamFailed, ValidationFailed
from icetower.files.changes import Manifests
from icetower.iceberg.manifests import DATA, DELETED
from icetower.iceberg.partitions import PartitionSpec, partition_key, spec_of
from icetower.protocol.names import Identifier
from icetower.storage.file_io import FileIOStorage

TIMEOUT_S = 30.0
MANIFESTS_MAX = 2_000
"""The most manifests of one table that are read to find the partitions with rows."""
SIDE_BY_SIDE = 16

Partitions = list[tuple[PartitionSpec, tuple[Any, ...]]]


class Routes:
    """A tower's Iceberg REST routes, as a principal. Every call has a time limit."""

    def __init__(self, uri: str, token: str | None) -> None:
        self.uri = uri.rstrip("/")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            self._http = httpx2.Client(base_url=self.uri, headers=headers, timeout=TIMEOUT_S)
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise BadRequest(unreachable("tower", self.uri, error)) from error

    def __enter__(self) -> Routes:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, where: str, **parameters: str) -> JSON:
        """The object at a path. Raises the `IcetowerError` of its status, `Unavailable` if there is no answer."""
        response = self._answer("GET", where, params=parameters)
        try:
            answer: object = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UpstreamFailed(f"{self.uri} answers GET {where} without a JSON object: is that a tower?")
        return cast("JSON", answer)

    def post(self, where: str, body: JSON) -> None:
        """Send an object to a path. Raises as `get` does."""
        self._answer("POST", where, json=body)

    def _answer(self, method: str, where: str, **options: Any) -> httpx2.Response:
        try:
            response = self._http.request(method, where, **options)
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            raise Unavailable(unreachable("tower", self.uri, error), rule="client.connection") from error
        if not response.is_success:
            raise error_of(response.status_code, response.content)
        return response


@dataclass(frozen=True, slots=True)
class TowerState:
    """A tower's state.

    Attributes:
        tables: the tables that the contracts name.
        in_force: other agents' contracts that are in force.
        principals: the principals that a contract binds and that are not revoked, by contract.
        names: all principals that are not revoked.
        unread: why partitions of a table could not be read, by table.
        nearby: tables that may have been meant if a contract names a table that does not exist.
    """

    tables: tuple[Found, ...]
    in_force: tuple[Written, ...]
    principals: Mapping[str, Sequence[str]]
    names: frozenset[str]
    unread: Mapping[Identifier, str] = field(default_factory=dict[Identifier, str])
    nearby: frozenset[Identifier] = frozenset()


def read_state(tower: Tower, token: str | None, contracts: Sequence[Written], *, partitions: bool) -> TowerState:
    """The tower's state that some contracts are checked against. Only administrators may see all of it.

    Args:
        partitions: also read the manifests of the tables, to find the partitions with rows.
    """
    mine = {it.contract.name for it in contracts}
    in_force = tuple(
        Written.read(version["text"], f"contract {version['name']}, version {version['version']}")
        for version in tower.contracts()
        if version["text"] is not None and version["name"] not in mine
    )
    people = [person for person in tower.principals() if person["revoked_ms"] is None]
    bound: dict[str, list[str]] = {}
    for person in people:
        bound.setdefault(person["contract"], []).append(person["name"])
    patterns = dict.fromkeys(rule.pattern for it in contracts for rule in it.contract.rules)
    with Routes(tower.uri, token) as routes:
        lake = Lake(routes)
        loaded = _load(lake, patterns)
        absent = [pattern for pattern in patterns if not any(map(pattern.matches, loaded))]
        nearby = frozenset(itertools.chain.from_iterable(_near(lake, pattern) for pattern in absent))
    tables: list[Found] = []
    unread: dict[Identifier, str] = {}
    for identifier, answer in loaded.items():
        there: Partitions | None = None
        if partitions:
            try:
                there = asyncio.run(_partitions(answer))
            except (IcetowerError, OSError) as error:
                unread[identifier] = str(error)
        tables.append(Found(identifier, part(answer, "metadata"), there))
    return TowerState(tuple(tables), in_force, bound, frozenset(person["name"] for person in people), unread, nearby)


def _near(lake: Lake, pattern: Pattern) -> Iterator[Identifier]:
    """Tables that a pattern without matches may have meant: its namespace's, also without a catalog's name."""
    shorter = without_catalog(pattern)
    for namespace in filter(None, (pattern.namespace, () if shorter is None else shorter.namespace)):
        yield from lake.matching(Pattern(namespace, "*"))


def _load(lake: Lake, patterns: Iterable[Pattern]) -> Mapping[Identifier, JSON]:
    loaded: dict[Identifier, JSON] = {}
    for pattern in patterns:
        for table in lake.matching(pattern):
            if table in loaded:
                continue
            try:
                loaded[table] = lake.load(table)
            except NotFound:
                continue
    return loaded


async def _partitions(answer: JSON) -> Partitions:
    """The partitions with live data files in the table's current snapshot."""
    metadata = part(answer, "metadata")
    current = metadata.get("current-snapshot-id")
    snapshot = next((each for each in metadata.get("snapshots") or () if each["snapshot-id"] == current), None)
    if snapshot is None or "manifest-list" not in snapshot:
        return []
    # A catalog may configure access to its storage, but not the Python code that is loaded for it.
    config = {name: str(value) for name, value in part(answer, "config").items() if name != PY_IO_IMPL}
    storage = FileIOStorage(config)
    try:
        manifests = Manifests(storage)
        rows = [row for row in await manifests.list_at(snapshot["manifest-list"]) if row.content == DATA]
        if len(rows) > MANIFESTS_MAX:
            raise UpstreamFailed(f"there are {len(rows)} manifests, and at most {MANIFESTS_MAX} are read")
        found: dict[tuple[int, tuple[Any, ...]], tuple[PartitionSpec, tuple[Any, ...]]] = {}
        for start in range(0, len(rows), SIDE_BY_SIDE):
            read = await asyncio.gather(
                *(manifests.manifest_at(row.path) for row in rows[start : start + SIDE_BY_SIDE])
            )
            for manifest in read:
                spec = _spec(metadata, manifest.spec_id)
                for entry in manifest.entries if spec is not None else ():
                    assert spec is not None
                    if entry.status != DELETED:
                        key = (spec.spec_id, partition_key(entry.file.partition))
                        found.setdefault(key, (spec, entry.file.partition))
        return list(found.values())
    finally:
        await storage.close()


def _spec(metadata: JSON, spec_id: int) -> PartitionSpec | None:
    """A partition spec; None if one of its columns no longer exists."""
    try:
        return spec_of(metadata, spec_id)
    except ValidationFailed:
        return None
