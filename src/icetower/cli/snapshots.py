"""Reads two snapshots of a real table from storage, and compares their changes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx2
import orjson

from icetower.agent.causes import unreachable, without_password
from icetower.agent.failures import NO_EXPLANATION, error_of
from icetower.errors import BadRequest, IcetowerError, NoSuchTable, NotAuthenticated, Unavailable, UpstreamFailed
from icetower.files.changes import Manifests
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.change import Change, change_of, diff_lists, manifests_to_read
from icetower.iceberg.entries import Files, NeedsFile
from icetower.iceberg.expressions import TRUE, Expression, columns_of, from_json, typed
from icetower.iceberg.manifests import Manifest, ManifestFile
from icetower.iceberg.validation import Level
from icetower.protocol.snapshots import Snapshot
from icetower.storage.file_io import FileIOStorage
from icetower.storage.port import ON_OWN_ACCOUNT
from icetower.table.client_properties import is_code
from icetower.table.head import HeadState
from icetower_client_model.coexist import (
    Comparison,
    Guess,
    LevelVerdict,
    comparison_of,
    operation_of,
    touched_partitions,
    verdicts_by_level,
)
from icetower_client_model.explain import Names
from icetower_client_model.isolation import DEFAULT_LEVEL, LEVEL_PROPERTIES, Command, level_of

T = TypeVar("T")
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class SnapshotComparison:
    """The comparison of two snapshots.

    Attributes:
        earlier, later: descriptions of the two.
        between: descriptions of the snapshots that the later one is compared with, oldest first.
        guess: the command that seems to have made the later one.
        conflict_filter: the filter that it is assumed to have read with.
        opinions: one a level.
        set_level: what the table's properties set for such a command.
    """

    earlier: str
    later: str
    comparison: Comparison
    between: tuple[str, ...]
    guess: Guess
    conflict_filter: Expression
    verdicts_by_level: tuple[LevelVerdict, ...]
    set_level: Level


# ── Where tables are ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Place:
    """A table's metadata, and access to its files.

    Attributes:
        head: the table.
        storage: properties as for PyIceberg's FileIO.
        folder: a folder in which manifests are found by name; None: they are at the paths in the metadata.
    """

    head: HeadState
    storage: Mapping[str, str]
    folder: str | None = None


async def place_of_metadata(path: str, storage: Mapping[str, str], *, copied: bool) -> Place:
    """A table by its metadata file.

    Args:
        path: of the file: local, or a URI that the storage reads.
        copied: the file's folder was copied from elsewhere, manifests and all.

    Raises:
        BadRequest: it is not a metadata file.
        NotFound: there is no such file.
    """
    path = _absolute(path)
    files = FileIOStorage(storage)
    try:
        data = await files.read(path, ON_OWN_ACCOUNT)
    finally:
        await files.close()
    return Place(HeadState(path, table_metadata.parse(data)), storage, path.rpartition("/")[0] if copied else None)


def _absolute(path: str) -> str:
    """A URI unchanged, or the absolute path of a local file."""
    return path if re.match(r"^[a-z0-9]+:", path) else os.path.abspath(path)


def place_in_catalog(uri: str, table: str, token: str | None, storage: Mapping[str, str]) -> Place:
    """A table of a REST catalog, such as a running tower.

    Args:
        table: ``namespace.table``.
        token: bearer token; None for a catalog that is open.
        storage: overrides the properties that the catalog returns.

    Raises:
        BadRequest: the name is invalid, or the answer is not table metadata.
        NoSuchTable, NotAuthenticated, Unavailable, UpstreamFailed: the catalog answers so, or does not answer.
    """
    *namespace, name = table.split(".")
    if not namespace or not all((*namespace, name)):
        raise BadRequest(f"{table!r} is not a table's name: write namespace.table", rule="explain.table")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with _client(uri, headers) as http:
        config = _get(http, uri, "/v1/config", table)
        prefix = {**_object(config, "defaults"), **_object(config, "overrides")}.get("prefix", "")
        root = f"/v1/{quote(prefix)}" if prefix else "/v1"
        spaces = quote("\x1f".join(namespace), safe="")
        found = _get(http, uri, f"{root}/namespaces/{spaces}/tables/{quote(name, safe='')}", table)
    metadata = table_metadata.parse(orjson.dumps(found.get("metadata")))
    # A catalog may configure access to its storage, but not the Python code that is loaded for it.
    config = {key: value for key, value in _object(found, "config").items() if not is_code(key)}
    return Place(HeadState(str(found.get("metadata-location") or ""), metadata), {**config, **storage})


def _client(uri: str, headers: Mapping[str, str]) -> httpx2.Client:
    try:
        return httpx2.Client(base_url=uri.rstrip("/"), headers=dict(headers), timeout=TIMEOUT_S)
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise Unavailable(unreachable("catalog", uri, error)) from error


def _object(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of an answer that is an object, or empty."""
    part = answer.get(name)
    return cast("Mapping[str, Any]", part) if isinstance(part, dict) else {}


def _get(http: httpx2.Client, uri: str, path: str, table: str) -> Mapping[str, Any]:
    uri = without_password(uri)
    try:
        response = http.get(path)
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise Unavailable(unreachable("catalog", uri, error)) from error
    answered = f"{uri} answers {response.status_code} to GET {path}"
    hint = "is that an Iceberg REST catalog?"
    if response.is_success:
        try:
            answer: object = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            answer = None
        if isinstance(answer, dict):
            return cast("Mapping[str, Any]", answer)
        raise UpstreamFailed(f"{answered}, without a JSON object: {hint}", rule="explain.catalog")
    kinds: dict[int, type[IcetowerError]] = {401: NotAuthenticated, 403: NotAuthenticated, 404: NoSuchTable}
    hints = {
        401: "set ICETOWER_TOKEN to a secret or token of the catalog",
        403: "set ICETOWER_TOKEN to the token of a principal that may read the table",
        404: f"check the table's name ({table}) and the catalog's address",
    }
    # The catalog's own text first: it names the table, namespace or route that does not exist.
    own = error_of(response.status_code, response.content)
    explained = "" if NO_EXPLANATION in own.message else f" ({own.message})"
    raise kinds.get(response.status_code, UpstreamFailed)(
        f"{answered}{explained}: {hints.get(response.status_code, hint)}", rule="explain.catalog"
    )


# ── Comparing ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def compare_two(place: Place, earlier: int, later: int, where: str) -> SnapshotComparison:
    """Compare two snapshots of a table.

    Args:
        where: the later one's filter: empty for none, ``partitions`` for those that it touches, or Iceberg's JSON.

    Raises:
        BadRequest: there are no such snapshots, they cannot be compared, or the filter is invalid.
        NotFound: a manifest does not exist any more.
    """
    head = place.head
    comparison = comparison_of(head, earlier, later)
    storage = FileIOStorage(place.storage)
    try:
        reader = _Reader(Manifests(storage), place.folder)
        await reader.prepare(comparison)
        change = await reader.change(head, head.snapshots[later])
        guess = operation_of(change)
        conflict_filter = _filter(where, change, head)
        names = Names({snapshot_id: _name_of(snapshot) for snapshot_id, snapshot in head.snapshots.items()})
        answer = await reader.answer(
            lambda files: verdicts_by_level(head, files, change, guess, comparison, names, conflict_filter)
        )
    finally:
        await storage.close()
    return SnapshotComparison(
        _described(head.snapshots[earlier]),
        _described(head.snapshots[later]),
        comparison,
        tuple(_described(snapshot) for snapshot in comparison.between),
        guess,
        conflict_filter,
        answer,
        _level(head, guess),
    )


class _Reader:
    """Reads the manifest lists and manifests that a computation needs."""

    def __init__(self, manifests: Manifests, folder: str | None) -> None:
        self._source = manifests
        self._folder = folder
        self._lists: dict[str, tuple[ManifestFile, ...]] = {}
        self._manifests: dict[str, Manifest] = {}
        self._files = Files(self._lists, self._manifests)

    def _at(self, path: str) -> str:
        return path if self._folder is None else f"{self._folder}/{path.rpartition('/')[2]}"

    async def prepare(self, comparison: Comparison) -> None:
        """Read concurrently what the rules look at first: the manifests that the snapshots in between wrote."""
        lists = await asyncio.gather(*(self._rows(snapshot) for snapshot in comparison.between))
        wanted = {
            row.path
            for snapshot, rows in zip(comparison.between, lists, strict=True)
            for row in rows
            if row.added_snapshot_id == snapshot["snapshot-id"]
        }
        await asyncio.gather(*(self._manifest(path) for path in wanted))

    async def _rows(self, snapshot: Mapping[str, Any]) -> tuple[ManifestFile, ...]:
        try:
            return self._files.rows(snapshot)
        except NeedsFile as need:
            await self._list(need.path)
        return self._files.rows(snapshot)

    async def _list(self, path: str) -> None:
        self._lists[path] = await self._source.list_at(self._at(path))

    async def _manifest(self, path: str) -> None:
        self._manifests[path] = await self._source.manifest_at(self._at(path))

    async def change(self, head: HeadState, snapshot: Mapping[str, Any]) -> Change:
        """The change that a snapshot made to its parent, which the table must still have."""
        parent_id = Snapshot(snapshot).parent_id
        assert parent_id is not None
        diff = diff_lists(await self._rows(head.snapshots[parent_id]), await self._rows(snapshot))
        await asyncio.gather(*(self._manifest(row.path) for row in manifests_to_read(diff)))
        return change_of(snapshot, diff, self._manifests)

    async def answer(self, question: Callable[[Files], T]) -> T:
        """Compute, and read what is missing, until nothing is missing."""
        while True:
            try:
                return question(self._files)
            except NeedsFile as need:
                await (self._list(need.path) if need.is_list else self._manifest(need.path))


def _filter(where: str, change: Change, head: HeadState) -> Expression:
    if not where:
        return TRUE
    if where == "partitions":
        return touched_partitions(change, head)
    try:
        expression = orjson.loads(where)
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"--filter {where!r} is neither `partitions` nor JSON ({error}); "
            'a filter looks like {"type": "eq", "term": "id", "value": 5}',
            rule="explain.filter",
        ) from error
    return typed(from_json(expression), columns_of(head.schema))


def _level(head: HeadState, guess: Guess) -> Level:
    """The level that the table sets for a command; Iceberg's default for commands without a property."""
    command = guess.command
    if command is Command.COPY_ON_WRITE:
        command = Command.MERGE if guess.operation.added else Command.DELETE
    if command is None or command not in LEVEL_PROPERTIES:
        return DEFAULT_LEVEL
    return level_of(head.metadata.get("properties") or {}, command)


def _name_of(snapshot: Mapping[str, Any]) -> str:
    return f"snapshot {snapshot['snapshot-id']} ({Snapshot(snapshot).operation})"


_COUNTS = {
    "added-data-files": "adds {} data files",
    "deleted-data-files": "removes {} data files",
    "added-delete-files": "adds {} delete files",
    "removed-delete-files": "removes {} delete files",
}


def _described(snapshot: Mapping[str, Any]) -> str:
    summary: Mapping[str, str] = snapshot.get("summary") or {}
    counts = (text.format(summary[key]) for key, text in _COUNTS.items() if summary.get(key))
    try:
        at = datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        at = "at no known time"
    by = f", by {summary['engine-name']}" if summary.get("engine-name") else ""
    did = re.sub(r"\b1 (\w+) files", r"1 \1 file", ", ".join(counts)) or "changes no files"
    return f"{_name_of(snapshot)}, {at}{by}: {did}"


def with_level(found: SnapshotComparison, level: Level | None) -> SnapshotComparison:
    """The same comparison with another level than the table's; None keeps the table's."""
    return found if level is None else replace(found, set_level=level)
