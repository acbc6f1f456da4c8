"""Apache Polaris over HTTP: reads its roles and principals, and sends requests one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2

from icetower.cli.credentials import Credentials
from icetower.contracts.grants import Grants
from icetower.contracts.polaris import Found, Mark, Request, path
from icetower.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    IcetowerError,
    NotAuthenticated,
    NotFound,
    Unavailable,
    UpstreamFailed,
    UsageError,
)

TIMEOUT_S = 30.0
MANAGEMENT = "/api/management/v1"
CATALOG = "/api/catalog"
TOKEN_VARIABLE = "ICETOWER_POLARIS_TOKEN"  # noqa: S105 - a name
CREDENTIAL_VARIABLE = "ICETOWER_POLARIS_CREDENTIAL"
_SAID_CHARACTERS_MAX = 300
_KINDS: Mapping[int, type[IcetowerError]] = {
    400: BadRequest,
    401: NotAuthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
}
_HINTS = {
    401: f"; is {TOKEN_VARIABLE} or {CREDENTIAL_VARIABLE} that of an administrator?",
    403: "; the caller needs to manage roles, principals and grants: service_admin, and catalog_admin of the catalog",
    409: "; somebody else changes the same things: run the command again",
}

JSON = Mapping[str, Any]


class Polaris:
    """JSON over HTTP to one server, as one caller.

    Args:
        uri: without a path, such as ``http://127.0.0.1:8181``.
        token: bearer token; never in errors.

    Every call raises the `IcetowerError` of its status; `Unavailable` if there is no answer, and `UpstreamFailed` for
    an unexpected answer: then the request may have been carried out.
    """

    def __init__(self, uri: str, token: str | None = None) -> None:
        parts = urlsplit(uri)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise UsageError(
                "the address must be like https://polaris.example.com, without a name or password; credentials come "
                f"from {TOKEN_VARIABLE} or {CREDENTIAL_VARIABLE}"
            )
        self.uri = uri.rstrip("/")
        self._token = token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=self.uri, headers=headers, timeout=TIMEOUT_S)

    def __enter__(self) -> Polaris:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def elsewhere(self, uri: str) -> Polaris:
        """The same caller at another address."""
        return Polaris(uri, self._token)

    def get(self, where: str, **parameters: str) -> JSON:
        """The object at a path."""
        answer = self._answer("GET", where, params=parameters)
        if answer is None:
            raise self._strange("GET", where)
        return answer

    def send(self, method: str, where: str, body: JSON | None) -> JSON | None:
        """A request that changes something; the object in the answer, or None."""
        return self._answer(method, where, **({} if body is None else {"json": body}))

    def exchange(self, credential: str) -> str:
        """A bearer token for ``client-id:client-secret`` (OAuth 2, client credentials)."""
        client_id, _, client_secret = credential.partition(":")
        form = {
            "grant_type": "client_credentials",
            "client_id": client_id,
            "client_secret": client_secret,
            "scope": "PRINCIPAL_ROLE:ALL",
        }
        where = f"{CATALOG}/v1/oauth/tokens"
        token = (self._answer("POST", where, data=form) or {}).get("access_token")
        if not isinstance(token, str):
            raise self._strange("POST", where)
        return token

    def _answer(self, method: str, where: str, **options: Any) -> JSON | None:
        try:
            response = self._http.request(method, where, **options)
        except httpx2.HTTPError as error:
            raise Unavailable(
                f"no answer from {self.uri} to {method} {where}: {type(error).__name__}; is Polaris running there?",
                rule="grants.polaris",
            ) from error
        if not response.is_success:
            words, nothing_to_revoke = _explanation(response.content)
            kind = NotFound if nothing_to_revoke else _KINDS.get(response.status_code, UpstreamFailed)
            raise kind(
                f"{self.uri} answers {response.status_code} to {method} {where}{words}"
                f"{_HINTS.get(response.status_code, '')}",
                rule="grants.polaris",
            )
        if not response.content:
            return None
        try:
            answer: object = json.loads(response.content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._strange(method, where)
        return cast("JSON", answer)

    def _strange(self, method: str, where: str) -> UpstreamFailed:
        return UpstreamFailed(
            f"{self.uri} gives an unexpected answer to {method} {where}; is that Apache Polaris?",
            rule="grants.polaris",
        )

    # -- lists ----------------------------------------------------------------------------------------------------

    def marks(self, where: str, name: str) -> Mapping[str, Mark]:
        """A list of roles or principals: names → the marks in their properties."""
        return {item["name"]: Mark.of(item.get("properties") or {}) for item in self.objects(where, name, "name")}

    def objects(self, where: str, name: str, required: str) -> Sequence[JSON]:
        """The list called `name` in the answer; each object in it has the text `required`."""
        items: object = self.get(MANAGEMENT + where).get(name)
        if not isinstance(items, list) or not all(
            isinstance(item, dict) and isinstance(cast("JSON", item).get(required), str)
            for item in cast("list[object]", items)
        ):
            raise self._strange("GET", where)
        return cast("list[JSON]", items)


def connect(uri: str) -> Polaris:
    """A client of Polaris with the credentials in the environment. Raises `UsageError` if there are none."""
    token, credential = os.environ.get(TOKEN_VARIABLE), os.environ.get(CREDENTIAL_VARIABLE)
    if not token:
        if not credential or ":" not in credential:
            raise UsageError(
                f"set {TOKEN_VARIABLE} to a bearer token, or {CREDENTIAL_VARIABLE} to client-id:client-secret, of a "
                "principal that may manage roles in Polaris"
            )
        with Polaris(uri) as anonymous:
            token = anonymous.exchange(credential)
    return Polaris(uri, token)


def _explanation(body: bytes) -> tuple[str, bool]:
    """The explanation in an error's body, if any; and whether it says that there was no grant to revoke.

    Polaris answers 400 in that case, and 404 if the role or the granted object does not exist.
    """
    try:
        error = json.loads(body)["error"]
        message, kind = str(error["message"]), error.get("type")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", False
    return ": " + "".join(filter(str.isprintable, message))[:_SAID_CHARACTERS_MAX], kind == "GRANT_NOT_FOUND"


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def look(polaris: Polaris, grants: Grants) -> Found:
    """The state in Polaris of the roles and principals in `grants`. Only reads."""
    catalog = grants.catalog
    catalog_roles = polaris.marks(path("catalogs", catalog, "catalog-roles"), "roles")
    principal_roles = polaris.marks(path("principal-roles"), "roles")
    principals = polaris.marks(path("principals"), "principals")

    def names(where: str, kind: str) -> frozenset[str]:
        return frozenset(polaris.marks(where, kind))

    in_catalog = [role.name for role in grants.roles if role.name in catalog_roles]
    everywhere = [role.name for role in grants.roles if role.name in principal_roles]
    bound = [name for role in grants.roles for name in role.principals if name in principals]
    return Found(
        catalog_roles,
        principal_roles,
        principals,
        grants={
            name: tuple(polaris.objects(path("catalogs", catalog, "catalog-roles", name, "grants"), "grants", "type"))
            for name in in_catalog
        },
        held_by={
            name: names(path("catalogs", catalog, "catalog-roles", name, "principal-roles"), "roles")
            for name in in_catalog
        },
        holds={name: names(path("principal-roles", name, "catalog-roles", catalog), "roles") for name in everywhere},
        members={name: names(path("principal-roles", name, "principals"), "principals") for name in everywhere},
        roles_of={name: names(path("principals", name, "principal-roles"), "roles") for name in bound},
    )


# ── Changing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Outcome:
    """The outcome of requests.

    Attributes:
        done: the number of requests carried out.
        waiting: grants that could not be made, since their object does not exist.
        credentials: principal → the file with its credentials.
        error: the error that ended it early.
    """

    done: int = 0
    waiting: list[str] = field(default_factory=list[str])
    credentials: dict[str, Path] = field(default_factory=dict[str, Path])
    error: IcetowerError | None = None


def carry_out(polaris: Polaris, requests: Sequence[Request], credentials: Credentials, attempt: str) -> Outcome:
    """Send `requests`, one after the other, until one fails.

    Args:
        attempt: the id of the attempt that the requests were built for.

    Raises:
        AlreadyExists: the file for new credentials exists already; nothing was sent.
    """
    for request in requests:
        if request.creates_principal:
            credentials.require_room(request.creates_principal)
    outcome = Outcome()
    for request in requests:
        try:
            _send(polaris, request, credentials, attempt, outcome)
        except IcetowerError as error:
            if isinstance(error, NotFound) and request.waits:
                outcome.waiting.append(f"{request.why}: {error.message}")
                continue
            if not (isinstance(error, NotFound) and request.takes):
                outcome.error = error
                break
        outcome.done += 1
    return outcome


def _send(polaris: Polaris, request: Request, credentials: Credentials, attempt: str, outcome: Outcome) -> None:
    where = MANAGEMENT + request.path
    created = request.creates_principal
    if created:
        credentials.expect(created, attempt)
    try:
        answer = polaris.send(request.method, where, request.body) or {}
    except (BadRequest, NotAuthenticated, Forbidden, NotFound, Conflict):
        if created:
            credentials.forget(created)
        raise
    principal = created or request.resets_principal
    if not principal:
        return
    match answer.get("credentials"):
        case {"clientId": str(client_id), "clientSecret": str(client_secret)}:
            outcome.credentials[principal] = credentials.keep(principal, client_id, client_secret)
        case _:
            raise UpstreamFailed(
                f"{polaris.uri} answers {request.method} {where} without credentials; run the command again",
                rule="grants.polaris",
            )
