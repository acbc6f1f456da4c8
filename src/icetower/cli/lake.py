"""Lists and loads the tables of a catalog through its Iceberg REST routes.

It does not use PyIceberg's client, whose calls have no time limit, and which requests storage credentials for each
table that it loads: reading metadata needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast
from urllib.parse import quote

from icetower.contracts.regions import Pattern
from icetower.errors import NotFound, UpstreamFailed
from icetower.protocol.names import Identifier, Namespace, namespace_to_path

LISTED_MAX = 100_000
"""The most tables, namespaces and pages that a catalog may list; more is taken for an endless answer."""

JSON = Mapping[str, Any]


class Rest(Protocol):
    """JSON over HTTP to one catalog; `uri` is that of its routes, without ``/v1``."""

    uri: str

    def get(self, where: str, **parameters: str) -> JSON:
        """The object at a path. Raises the `IcetowerError` of its status."""
        ...


class Lake:
    """The tables of one catalog.

    Args:
        warehouse: the catalog's name, if the server has several.
    """

    def __init__(self, http: Rest, warehouse: str | None = None) -> None:
        self._http = http
        config = http.get("/v1/config", **({} if warehouse is None else {"warehouse": warehouse}))
        prefix = {**part(config, "defaults"), **part(config, "overrides")}.get("prefix")
        self._listed_count = 0
        self._root = f"/v1/{quote(str(prefix), safe='/')}" if prefix else "/v1"

    def path(self, table: Identifier) -> str:
        """The route of a table."""
        return f"{self._root}/namespaces/{namespace_to_path(table.namespace)}/tables/{quote(table.name, safe='')}"

    def load(self, table: Identifier) -> JSON:
        """The catalog's answer about a table: `metadata`, `config`, …. Raises `NotFound`."""
        return self._http.get(self.path(table))

    def matching(self, pattern: Pattern) -> Iterator[Identifier]:
        """The tables that a pattern matches; a table that it names literally need not exist."""
        if pattern.last not in ("*", "**"):
            yield Identifier(pattern.namespace, pattern.last)
            return
        spaces = self._under(pattern.namespace) if pattern.last == "**" else (pattern.namespace,)
        for space in spaces:
            for item in self._listed(f"{self._root}/namespaces/{namespace_to_path(space)}/tables", "identifiers"):
                yield Identifier(space, str(item["name"]))

    def _under(self, namespace: Namespace) -> Iterator[Namespace]:
        """A namespace, and all below it."""
        if namespace:
            yield namespace
        parent = {"parent": "\x1f".join(namespace)} if namespace else {}
        for levels in self._listed(f"{self._root}/namespaces", "namespaces", **parent):
            yield from self._under(tuple(map(str, levels)))

    def _listed(self, where: str, name: str, **parameters: str) -> Iterator[Any]:
        """The items of a list, which may have pages; none if the namespace does not exist."""
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
                raise UpstreamFailed(
                    f"{self._http.uri} lists more than {LISTED_MAX:,} {name} at {where}: the list seems endless",
                    rule="catalog.tables",
                )
            yield from items
            token = answer.get("next-page-token")
            if not isinstance(token, str) or not token:
                return
            page = {**parameters, "pageToken": token}


def part(answer: JSON, name: str) -> JSON:
    """A part of an answer that is an object, or empty."""
    found: object = answer.get(name)
    return cast("JSON", found) if isinstance(found, dict) else {}
