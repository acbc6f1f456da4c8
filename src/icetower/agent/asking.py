"""An agent's requests to the tower, as steps: with its token, and with refusals raised as the errors that they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from icetower.agent.appends import checked_token
from icetower.agent.deliveries import GRANTS, Delivery
from icetower.agent.failures import error_of
from icetower.agent.recovery import Patience
from icetower.agent.slots import once_in_time
from icetower.agent.steps import Lost, Request, Response, Steps, Work
from icetower.errors import IcetowerError, UpstreamFailed
from icetower.protocol.names import Identifier, namespace_to_path

DELIVERY_KEPT_S = 5.0
"""So long the way of an agent's rows is taken for what it was. A refusal ends it at once."""

COLUMNS_KEPT_S = 60.0

NOBODY_THERE_S = 2.0
"""So long an address is tried at which nothing listens, and from which no answer ever came."""

DOUBTFUL = frozenset({408, 500, 502, 503, 504})
"""Statuses after which a request may land, or have landed."""

_LIFETIME = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.\d+)?S)?)?")


class Credentials:
    """An agent's token: a text, or a function that returns one and is called again when the last one is refused."""

    def __init__(self, token: str | Callable[[], str] | None) -> None:
        self._ask = token if callable(token) else None
        self.token = None if callable(token) else checked_token(token)

    @property
    def renewable(self) -> bool:
        return self._ask is not None

    def renew(self) -> None:
        assert self._ask is not None
        self.token = checked_token(self._ask())


class Asker:
    """What an agent asks a tower for. Threads may share it."""

    def __init__(self, credentials: Credentials, patience: Patience) -> None:
        self.credentials = credentials
        self._patience = patience
        self._deliveries: dict[tuple[str, str], tuple[float, Delivery]] = {}
        self._columns: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._answered = False
        self._refused_s: float | None = None

    @property
    def nobody_there(self) -> bool:
        """Whether nothing listens at the address, and never has: it is wrong, rather than that the tower restarts."""
        if self._answered or self._refused_s is None:
            return False
        return self._patience.ambient.monotonic_s() - self._refused_s >= NOBODY_THERE_S

    # -- the way of rows ------------------------------------------------------------------------------------------

    def delivery(self, table: str, operation: str) -> Steps[Delivery]:
        """How rows come into a table by an operation; its slot goes on when this returns."""
        clock_s = self._patience.ambient.monotonic_s
        known = self._deliveries.get((table, operation))
        if known is not None and clock_s() - known[0] < DELIVERY_KEPT_S:
            return known[1]

        def ask() -> Steps[Delivery]:
            params = {"table": table, "operation": operation, "least_ms": "0"}
            return Delivery.of((yield from self.json("GET", "/icetower/v1/me/delivery", params=params)))

        found = yield from once_in_time(ask, table, operation, self._patience)
        if found.slot is None:
            self._deliveries[table, operation] = (clock_s(), found)
        return found

    def columns(self, table: str) -> Steps[tuple[str, ...]]:
        """The columns of a table's current schema."""
        clock_s = self._patience.ambient.monotonic_s
        known = self._columns.get(table)
        if known is not None and clock_s() - known[0] < COLUMNS_KEPT_S:
            return known[1]
        metadata = (yield from self.json("GET", table_path(table), params={"snapshots": "refs"}))["metadata"]
        current = metadata["current-schema-id"]
        schema = next(each for each in metadata["schemas"] if each.get("schema-id", 0) == current)
        columns = tuple(str(column["name"]) for column in schema["fields"])
        self._columns[table] = (clock_s(), columns)
        return columns

    def forget(self, *tables: str) -> None:
        """Ask anew for the way of these tables' rows, and for their columns."""
        for table in tables:
            self._columns.pop(table, None)
            for operation in set(GRANTS.values()):
                self._deliveries.pop((table, operation), None)

    def landed(self, table: str, key: str, ref: str) -> Steps[int | None]:
        """The snapshot in which what was sent under a key is in a table; None where it is not there."""
        body = {"landed": {"key": key, "ref": ref}}
        answer = yield from self.json("POST", f"{table_path(table)}/check", body=body)
        if answer.get("error") is not None:
            raise error_of(int(answer["error"].get("code", 500)), json.dumps({"error": answer["error"]}).encode())
        return answer["snapshot"] if answer["outcome"] == "replayed" else None

    def key_lifetime_s(self) -> Steps[float | None]:
        """How long the tower remembers keys, in seconds; None where it does not say."""
        config = yield from self.json("GET", "/v1/config")
        return _seconds(str(config.get("idempotency-key-lifetime", "")))

    # -- the control API ------------------------------------------------------------------------------------------

    def me(self) -> Steps[Mapping[str, Any]]:
        """See `Tower.me`."""
        return (yield from self.json("GET", "/icetower/v1/me"))

    def request_partitions(
        self, table: str, partitions: Sequence[str], *, operations: Sequence[str], reason: str
    ) -> Steps[Mapping[str, Any]]:
        """See `Tower.request_partitions`."""
        body = {"table": table, "partitions": list(partitions), "operations": list(operations), "reason": reason}
        return (yield from self.json("POST", "/icetower/v1/requests", body=body))

    def request(self, id_: str) -> Steps[Mapping[str, Any]]:
        """See `Tower.request`."""
        return (yield from self.json("GET", f"/icetower/v1/requests/{quote(id_, safe='')}"))

    def requests(self) -> Steps[Sequence[Mapping[str, Any]]]:
        """The caller's, newest first."""
        return (yield from self.json("GET", "/icetower/v1/requests", params={"limit": "100"}))["requests"]

    def escalations(self) -> Steps[Sequence[Mapping[str, Any]]]:
        """The caller's open ones."""
        params = {"limit": "100", "state": "open"}
        return (yield from self.json("GET", "/icetower/v1/escalations", params=params))["escalations"]

    # -- requests -------------------------------------------------------------------------------------------------

    def json(self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None) -> Steps[Any]:
        """What the tower answers. Raises its refusal, and `Unavailable` where there is no answer."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        content = b"" if body is None else json.dumps(body).encode()
        try:
            response = yield from self.sent(Request(method, path, params or {}, headers, content))
        except Lost as lost:
            raise lost.error from lost
        if not 200 <= response.status < 300:
            raise refusal_in(response)
        try:
            return json.loads(response.body)
        except ValueError as error:
            raise UpstreamFailed(
                "this address answers, but not with JSON, so it is not a tower; check it",
                rule="client.connection",
                next_step="none",
            ) from error

    def sent(self, request: Request) -> Steps[Response]:
        """The answer to a request as the agent, whatever it is. Raises `Lost`."""
        credentials = self.credentials
        if credentials.token is None and credentials.renewable:
            yield Work(credentials.renew)
        own = {} if credentials.token is None else {"Authorization": f"Bearer {credentials.token}"}
        headers = {**request.headers, **own}
        try:
            response: Response = yield Request(request.method, request.path, request.params, headers, request.body)
        except Lost as lost:
            if not lost.refused:
                self._refused_s = None
            elif self._refused_s is None:
                self._refused_s = self._patience.ambient.monotonic_s()
            raise
        self._answered = True
        return response


def refusal_in(response: Response) -> IcetowerError:
    """The error of an answer."""
    error = error_of(response.status, response.body)
    if response.status in DOUBTFUL and error.next_step == "none":
        error.next_step = "retry"  # a proxy's, or a failure of the tower's own: what is sent again is done once
    return error


def table_path(table: str) -> str:
    """The path of a table's routes."""
    name = Identifier.parse(table)
    return f"/v1/namespaces/{namespace_to_path(name.namespace)}/tables/{quote(name.name, safe='')}"


def _seconds(duration: str) -> float | None:
    """Of a duration in ISO 8601's form; None where it is none."""
    found = _LIFETIME.fullmatch(duration)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
