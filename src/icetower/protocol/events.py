"""Events of a catalog, by the names of Iceberg's open proposal: apache/iceberg, pull request 12584, "REST Spec: Events
endpoint" (`QueryEventsRequest`, `QueryEventsResponse`, `Event`), as of June 2026 (commit ee335c43).

The proposal may change before it is part of the specification. So `POST /v1/events` is not among the endpoints that
clients hear of.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from icetower.errors import BadRequest
from icetower.protocol.wire import JSON, Int64, Wire, read

LEVELS_MAX = 100
OBJECTS_MAX = 100
TOKEN_CHARACTERS_MAX = 64 * 1024
NOBODY_KNOWS = "00000000-0000-0000-0000-000000000000"
"""The uuid of a table whose metadata could not be read when it was dropped or renamed."""


class Kind(StrEnum):
    """The operations of the proposal that this catalog has; it has no views."""

    CREATE_TABLE = "create-table"
    REGISTER_TABLE = "register-table"
    DROP_TABLE = "drop-table"
    UPDATE_TABLE = "update-table"
    RENAME_TABLE = "rename-table"
    CREATE_NAMESPACE = "create-namespace"
    UPDATE_NAMESPACE_PROPERTIES = "update-namespace-properties"
    DROP_NAMESPACE = "drop-namespace"

    @property
    def object_type(self) -> str:
        return "namespace" if "namespace" in self.value else "table"


class _Query(Wire):
    continuation_token: Annotated[str, Field(max_length=TOKEN_CHARACTERS_MAX)] | None = None
    page_size: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    since_timestamp_ms: Annotated[Int64, Field(ge=0)] | None = None
    # As text: clients may know more kinds than this server, such as those of views.
    operation_types: Annotated[list[str], Field(max_length=OBJECTS_MAX)] | None = None
    catalog_objects_by_name: (
        Annotated[list[Annotated[list[str], Field(min_length=1, max_length=LEVELS_MAX)]], Field(max_length=OBJECTS_MAX)]
        | None
    ) = None
    catalog_objects_by_uuid: Annotated[list[str], Field(max_length=OBJECTS_MAX)] | None = None
    object_types: Annotated[list[str], Field(max_length=OBJECTS_MAX)] | None = None
    custom_filters: JSON | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """Which events are wanted: all that fit every filter that is given.

    Attributes:
        after: the number of the last one that the caller has passed.
        names: of tables and namespaces; a namespace stands for all that is in it.
    """

    after: int = 0
    page_size: int | None = None
    since_ms: int = 0
    kinds: frozenset[str] | None = None
    names: frozenset[tuple[str, ...]] | None = None
    uuids: frozenset[str] | None = None
    object_types: frozenset[str] | None = None

    @property
    def filters(self) -> JSON:
        """What a token carries beside the place."""
        found = {
            "kinds": self.kinds,
            "names": self.names,
            "uuids": self.uuids,
            "types": self.object_types,
        }
        return {name: sorted(each) for name, each in found.items() if each is not None}

    def wants(self, kind: str, objects: tuple[tuple[str, ...], ...], uuid: str | None) -> bool:
        """Whether an event fits."""
        return (
            (self.kinds is None or kind in self.kinds)
            and (self.object_types is None or Kind(kind).object_type in self.object_types)
            and (self.uuids is None or uuid in self.uuids)
            and (
                self.names is None
                or any(levels[:n] in self.names for levels in objects for n in range(1, len(levels) + 1))
            )
        )


def parse_query(body: JSON) -> Query:
    """A `QueryEventsRequest`. Raises `BadRequest`, also for a token that is not one of ours, and for custom filters.

    Filters come from the request, or, where it has none, from its token.
    """
    wanted = read(_Query, body, "events query")
    if wanted.custom_filters:
        raise BadRequest(
            f"custom-filters: this server knows none, and {sorted(wanted.custom_filters)[0]!r:.100} is one"
        )
    token = _Token() if wanted.continuation_token is None else _token(wanted.continuation_token)
    given = wanted.operation_types, wanted.catalog_objects_by_name, wanted.catalog_objects_by_uuid, wanted.object_types
    kinds, names, uuids, types = (token.kinds, token.names, token.uuids, token.types) if not any(given) else given
    return Query(
        token.after,
        wanted.page_size,
        (wanted.since_timestamp_ms or 0) if wanted.continuation_token is None else 0,
        None if kinds is None else frozenset(kinds),
        None if names is None else frozenset(map(tuple, names)),
        None if uuids is None else frozenset(uuid.lower() for uuid in uuids),
        None if types is None else frozenset(types),
    )


class _Token(Wire):
    after: Annotated[Int64, Field(ge=0)] = 0
    kinds: list[str] | None = None
    names: list[list[str]] | None = None
    uuids: list[str] | None = None
    types: list[str] | None = None


def _text(value: JSON) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def token_of(after: int, query: Query) -> str:
    """A `continuation-token`: a place in the log, and the filters. It grants nothing: each page is judged anew."""
    return base64.urlsafe_b64encode(_text({"after": after, **query.filters}).encode()).decode()


def _token(text: str) -> _Token:
    try:
        value: object = json.loads(base64.urlsafe_b64decode(text))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise BadRequest("continuation-token: this server has given out no such token", rule="events.token") from error
    if not isinstance(value, dict):
        raise BadRequest("continuation-token: this server has given out no such token", rule="events.token")
    return read(_Token, value, "continuation-token")


def event_of(
    *,
    event_id: str,
    request_id: str,
    request_count: int,
    at_ms: int,
    principal: str,
    contract: str | None,
    operation: Mapping[str, Any],
    characters_max: int,
    text_of: Callable[[JSON], str] = _text,
) -> str:
    """An `Event` as JSON. Updates that would make it too long are left out, and counted in `x-updates-left-out`.

    Args:
        text_of: writes JSON; a server has a faster way than the standard library's.
    """
    event: JSON = {
        "event-id": event_id,
        "request-id": request_id,
        "request-event-count": request_count,
        "timestamp-ms": at_ms,
        "actor": {"id": principal} if contract is None else {"id": principal, "contract": contract},
        "operation": operation,
    }
    text = text_of(event)
    if len(text) > characters_max:
        left_out = len(operation.get("updates") or ())
        short = {key: value for key, value in operation.items() if key not in ("updates", "requirements", "properties")}
        short |= {"updates": [], "x-updates-left-out": left_out} if "updates" in operation else {}
        text = text_of({**event, "operation": short})
    return text
