"""Table properties through the Iceberg REST routes of a catalog: which tables there are, and commits that set some.

A plain client, and not PyIceberg's, whose calls have no time limit, and which asks for credentials to the storage of
each table that it loads: who sets properties needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from icetower.cli.polaris import Polaris
from icetower.contracts.model import Contract, Pattern
from icetower.contracts.write_settings import properties_of, written_patterns
from icetower.errors import NotFound, UpstreamFailed
from icetower.protocol.names import Identifier, Namespace, namespace_to_path

LISTED_MAX = 100_000
"""Tables, namespaces and pages that a catalog may list; more is an answer that does not end."""

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """Properties of one table that are to be changed.

    Attributes:
        uuid: the table's; a table that was made anew under the name is left alone.
        now: their values today, None where there are none.
    """

    table: Identifier
    uuid: str
    wanted: Mapping[str, str]
    now: Mapping[str, str | None]


class Tables:
    """The tables of one catalog.

    Args:
        http: whose `uri` is that of the catalog's routes, without ``/v1``.
        warehouse: the catalog's name.
    """

    def __init__(self, http: Polaris, warehouse: str) -> None:
        self._http = http
        config = http.get("/v1/config", warehouse=warehouse)
        prefix = {**_object(config, "defaults"), **_object(config, "overrides")}.get("prefix")
        self._listed_count = 0
        self._root = f"/v1/{quote(str(prefix), safe='/')}" if prefix else "/v1"

    def settings(self, contracts: Sequence[Contract]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
        """What is to be set on which tables; and the tables that contracts name but that are not there."""
        found: dict[Identifier, JSON] = {}
        missing: list[str] = []
        for pattern in written_patterns(contracts):
            for table in self._matching(pattern):
                try:
                    if table not in found:
                        found[table] = _object(self._http.get(self._path(table)), "metadata")
                except NotFound:
                    if pattern.last not in ("*", "**"):
                        missing.append(str(table))
        settings = (self._setting(table, metadata, contracts) for table, metadata in sorted(found.items()))
        return tuple(setting for setting in settings if setting.wanted), tuple(missing)

    def commit(self, setting: Setting) -> None:
        """Set what differs, if the table is still the same one."""
        body = {
            "requirements": [{"type": "assert-table-uuid", "uuid": setting.uuid}],
            "updates": [{"action": "set-properties", "updates": dict(setting.wanted)}],
        }
        self._http.send("POST", self._path(setting.table), body)

    def _setting(self, table: Identifier, metadata: JSON, contracts: Sequence[Contract]) -> Setting:
        now = _object(metadata, "properties")
        uuid = metadata.get("table-uuid")
        if not isinstance(uuid, str):
            raise UpstreamFailed(f"{self._http.uri} describes {table} without its uuid", rule="grants.tables")
        wanted = {name: value for name, value in properties_of(table, contracts).items() if now.get(name) != value}
        return Setting(table, uuid, wanted, {name: now.get(name) for name in wanted})

    def _path(self, table: Identifier) -> str:
        return f"{self._root}/namespaces/{namespace_to_path(table.namespace)}/tables/{quote(table.name, safe='')}"

    def _matching(self, pattern: Pattern) -> Iterator[Identifier]:
        if pattern.last not in ("*", "**"):
            yield Identifier(pattern.namespace, pattern.last)
            return
        spaces = self._under(pattern.namespace) if pattern.last == "**" else (pattern.namespace,)
        for space in spaces:
            for item in self._listed(f"{self._root}/namespaces/{namespace_to_path(space)}/tables", "identifiers"):
                yield Identifier(space, str(item["name"]))

    def _under(self, namespace: Namespace) -> Iterator[Namespace]:
        """A namespace, and all under it."""
        if namespace:
            yield namespace
        parent = {"parent": "\x1f".join(namespace)} if namespace else {}
        for levels in self._listed(f"{self._root}/namespaces", "namespaces", **parent):
            yield from self._under(tuple(map(str, levels)))

    def _listed(self, where: str, name: str, **parameters: str) -> Iterator[Any]:
        """The items of a list that may come in pages; none where the namespace is not there."""
        page = parameters
        while True:
            try:
                answer = self._http.get(where, **page)
            except NotFound:
                return
            items: object = answer.get(name)
            items = cast("list[Any]", items) if isinstance(items, list) else []
            self._listed_count += len(items) + 1
            if self._listed_count > LISTED_MAX:
                raise UpstreamFailed(f"{self._http.uri} lists no end of {name} at {where}", rule="grants.tables")
            yield from items
            token = answer.get("next-page-token")
            if not isinstance(token, str) or not token:
                return
            page = {**parameters, "pageToken": token}


def _object(answer: JSON, name: str) -> JSON:
    part: object = answer.get(name)
    return cast("JSON", part) if isinstance(part, dict) else {}
