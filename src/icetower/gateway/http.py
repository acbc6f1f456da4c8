"""From a request to a `Call` and from an error to an answer: what every route shares."""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import Ambient
from icetower.errors import (
    BadRequest,
    BodyTooLarge,
    CommitConflict,
    CommitStateUnknown,
    Forbidden,
    IcetowerError,
    KeyMisused,
    NotAuthenticated,
    without_frames,
)
from icetower.gateway.bodies import FREE_BYTES, Room
from icetower.gateway.body_bounds import SHORT, BodyBound
from icetower.gateway.browsers import require_json
from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.deeds import Deed, begin
from icetower.gateway.intake import Intake
from icetower.gateway.kept_answers import REFERENCE, KeptAnswers, endpoint_of
from icetower.gateway.paths import NamedRoute, path_of
from icetower.gateway.settings import LOOPBACK, Server
from icetower.gateway.unknown_callers import NO_CREDENTIAL, bearer_of
from icetower.ledger.answers import BEGUN, Answer
from icetower.observe.events import one_line
from icetower.observe.traces import CommitTrace, Traces
from icetower.protocol.catalog import error_body, retry_after_s
from icetower.protocol.events import Kind
from icetower.protocol.names import NAMESPACE_SEPARATOR, Identifier, Namespace, check_bounds, checked_identifier
from icetower.registry.principals import Principal, administrator
from icetower.registry.registry import RESERVED_NAME, Registry
from icetower.registry.tokens import contract_revoked, not_authenticated
from icetower.service.attempts import READ, REFUSED_TABLES_MAX, STAGED, Attempts, Known
from icetower.service.journal import Journal
from icetower.service.single_flight import Turns
from icetower.table.keys import application_sequence

log = logging.getLogger("icetower")

_CONCERNS = "icetower.concerns"
"""In the scope of a request: what the log of attempts calls it."""

_CALLER = "icetower.caller"
"""In the scope of a request: the principal."""

_CHANGED = "icetower.changed"
"""In the scope of a request that changes something, and is no commit: the operation as an event has it."""

_TRACE = "icetower.trace"
"""In the scope of a commit's request, where it is traced."""

_PROVEN_S = 1.0
"""A caller is known for so long; who is held for longer, or takes longer to send a body, is asked for again."""

_DEED = "icetower.deed"
"""In the scope of a request that changes something under a key, and is no commit: the `Deed`."""

_REPLAYED = "icetower.replayed"
"""In the scope of a request that got the answer of an earlier one."""

_GZIP = b"\x1f\x8b"
"""JSON never begins so."""

_NUMBER = re.compile(r"[0-9]{1,18}")
_KEY = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Front:
    """What every route needs, before and after its handler.

    Attributes:
        open_to_all: whether callers without credentials are let in as an administrator (loopback only).
        turns: requests under one idempotency key, one at a time.
        traces: of commits; None: nobody traces.
    """

    registry: Registry
    intake: Intake
    attempts: Attempts
    journal: Journal
    shadow: ShadowRecorder
    ambient: Ambient
    settings: Server
    open_to_all: bool = False
    turns: Turns = field(default_factory=Turns)
    traces: Traces | None = None

    def place(self, principal: Principal, scope: Scope) -> AbstractAsyncContextManager[None]:
        """A place for a request of a principal, as soon as it may have one more. Raises as `Places.place`."""
        at_once = principal.contract.requests_at_once or self.settings.requests_at_once
        return self.intake.places.place(principal.name, connection_state_of(scope), at_once)


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated request."""

    request: Request
    principal: Principal
    body: bytes
    shadow: ShadowRecorder

    @property
    def namespace(self) -> Namespace:
        """The namespace in the path; its levels come separated by the unit separator (trap A7)."""
        return namespace_of(self.request.path_params["namespace"])

    @property
    def table(self) -> Identifier:
        return checked_identifier(self.namespace, self.request.path_params["table"])

    @property
    def trace(self) -> CommitTrace | None:
        """The trace of a commit's request; None: nobody traces."""
        return self.request.scope.get(_TRACE)

    @property
    def deed(self) -> Deed | None:
        """The change that it makes, if it has a key."""
        return self.request.scope.get(_DEED)

    @property
    def is_again(self) -> bool:
        """Whether the very same change was begun before, and may have been made: what it finds may be its own deed."""
        return self.deed is not None and self.deed.is_again

    def concerns(self, *about: Identifier | Namespace, operation: str | None = None) -> None:
        """Say what the log of attempts calls this request, where its path does not tell.

        Args:
            about: the tables, or the namespace.
            operation: another one than the route's.
        """
        names = tuple(str(each) if isinstance(each, Identifier) else ".".join(each) for each in about)
        self.request.scope[_CONCERNS] = names, operation

    def changed(self, kind: Kind, **about: Any) -> None:
        """Say what this request, which is no commit, changes: for those who follow changes by events."""
        self.request.scope[_CHANGED] = {
            "operation-type": kind.value,
            **{name.replace("_", "-"): value for name, value in about.items()},
        }

    def require_administrator(self) -> None:
        """Raises `Forbidden` for anybody else."""
        require_administrator(self.principal)

    def require_overseer(self) -> None:
        """Raises `Forbidden` for anybody but administrators and viewers. Only for what changes nothing."""
        require_overseer(self.principal)

    def allow(self, check: Callable[..., None], *arguments: Any) -> None:
        """Ask `admission.permissions` about the caller. Raises `ContractViolation`, but in shadow mode."""
        self.shadow.allow(self.principal, check, *arguments)

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def number(self, name: str) -> int | None:
        """A number of the query that is not negative; None where it is not given. Raises `BadRequest`."""
        text = self.query(name)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            raise BadRequest(f"query parameter {name} must be a number")
        return int(text)

    def limit(self, most: int, default: int = 100) -> int:
        """How many rows the query asks for, from 1 to `most`. Raises `BadRequest` for what is no number."""
        try:
            return max(1, min(int(self.query("limit") or default), most))
        except ValueError as error:
            raise BadRequest("query parameter limit must be a number") from error

    def flag(self, name: str) -> bool:
        """A boolean of the query. Raises `BadRequest` for anything but true and false."""
        value = (self.query(name) or "false").lower()
        if value not in ("true", "false"):
            raise BadRequest(f"query parameter {name} is {value!r}; write true or false")
        return value == "true"


def require_administrator(principal: Principal) -> None:
    """Raises `Forbidden` for anybody else."""
    if not principal.administrator:
        raise Forbidden(f"{principal.name} is not an administrator", rule="permission.administrator")


def require_overseer(principal: Principal) -> None:
    """Raises `Forbidden` for anybody but administrators and viewers. Only for what changes nothing."""
    if not principal.sees_all:
        raise Forbidden(f"{principal.name} is neither an administrator nor a viewer", rule="permission.administrator")


Handler = Callable[[Call], Awaitable[Response]]


def namespace_of(text: str) -> Namespace:
    levels = tuple(text.split(NAMESPACE_SEPARATOR))
    check_bounds(levels)
    if not all(levels):
        raise BadRequest(f"namespace {text!r} has an empty level", rule="request.name")
    return levels


def _replayed(request: Request, answer: Answer) -> Response:
    """An answer as it was kept. Long ones are kept compressed: the first caller took them so, this one may not."""
    if not answer.body.startswith(_GZIP):
        return Response(answer.body, answer.status, media_type="application/json" if answer.body else None)
    if takes_gzip(request):
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(answer.body, answer.status, headers, "application/json")
    return Response(gzip.decompress(answer.body), answer.status, {"Vary": "Accept-Encoding"}, "application/json")


def takes_gzip(request: Request) -> bool:
    """Whether the caller takes compressed answers."""
    return "gzip" in request.headers.get("accept-encoding", "")


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, dict(headers or {}), "application/json")


def no_content() -> Response:
    return Response(status_code=204)


def error_response(error: IcetowerError, ambient: Ambient) -> Response:
    headers = retry_after(error, ambient)
    if isinstance(error, NotAuthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="icetower"'
    return json_response(error_body(error), error.status, headers)


def retry_after(error: IcetowerError, ambient: Ambient) -> dict[str, str]:
    """The header of an answer that says when to send the same again, where that may help."""
    seconds = retry_after_s(error, ambient.now_ms())
    return {} if seconds is None else {"Retry-After": str(seconds)}


def route(
    front: Front,
    method: str,
    path: str,
    handler: Handler,
    *,
    mutates: bool = False,
    operation: str | None = None,
    commits: bool = False,
    again: Handler | None = None,
    body: BodyBound = SHORT,
    waits: bool = False,
) -> Route:
    """A route for authenticated callers.

    Args:
        mutates: `Idempotency-Key` replays the answer that was given before.
        operation: under this name requests are in the log of attempts: reads that were refused, and all changes.
        again: answers such a request whose first answer is not kept, once its change is made.
        commits: the tower itself logs what it has read of a commit.
        body: how long a body it takes.
        waits: its handler takes a place by itself, while it does not wait.
    """
    # An object, and no function: Starlette wraps functions twice, to catch exceptions that never leave this one.
    endpoint = _Endpoint(front, handler, mutates, operation, commits, again, body, path, waits)
    return NamedRoute(path, endpoint, methods=[method])


@dataclass(frozen=True, slots=True)
class _Endpoint:
    front: Front
    handler: Handler
    mutates: bool
    operation: str | None
    commits: bool
    again: Handler | None
    body: BodyBound
    path: str
    waits: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        traces = self.front.traces
        if traces is None or not self.commits:
            response = await self._answer(request)
        else:
            response = await self._traced(request, traces)
        await self.front.intake.unread.send(response, scope.get(_CALLER, ""), scope, send)

    async def _traced(self, request: Request, traces: Traces) -> Response:
        with traces.request(request.method, self.path, request.headers) as trace:
            request.scope[_TRACE] = trace
            response = await self._answer(request)
            trace.answered(response.status_code)
            return response

    async def _answer(self, request: Request) -> Response:
        front = self.front
        principal: Principal | None = None
        started_s = front.ambient.monotonic_s()
        try:
            number = front.registry.number  # before it is asked: what changes meanwhile counts as later
            principal = await authenticate(front, request, may_be_revoked=self.commits)
            if principal.ended:
                ended, principal = principal, None
                await self._refuse_ended(request, ended)
            connection_state = connection_state_of(request.scope)
            connection_state.prove(principal.name)
            request.scope[_CALLER] = principal.name
            _require_only_looks(principal, request.method)
            intake, name = front.intake, principal.name
            room = intake.bodies.room(name, connection_state)
            place = nullcontext() if self.waits else front.place(principal, request.scope)
            async with place, room:
                read = partial(read_body, room=room)
                body = await self.body.read(read, request, principal, front.settings.body_max_bytes)
                if front.registry.number != number or front.ambient.monotonic_s() - started_s > _PROVEN_S:
                    # A body may take an hour to come: revocations and the ends of tokens hold for it, too.
                    principal = None
                    found = await authenticate(front, request, may_be_revoked=self.commits)
                    if found.ended:
                        await self._refuse_landed(self.handler(Call(request, found, body, front.shadow)))
                    _require_only_looks(found, request.method)
                    principal = found
                call = Call(request, principal, body, front.shadow)
                if self.mutates and (key := idempotency_key(request)) is not None:
                    response = await once(front, call, key, self.handler, again=self.again, begins=True)
                else:
                    response = await self.handler(call)
                await intake.unread.turn(response, name, request.scope)
            if response.status_code < 400 and _REPLAYED not in request.scope:
                self._log(request, principal, started_s, None)
            return response
        except IcetowerError as error:
            self._log(request, principal, started_s, error)
            response = error_response(error, front.ambient)
            without_frames(error)
            return response
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception:
            # What went wrong is for the log; it may hold what the caller must not see.
            failure = IcetowerError("the server failed; its log says how")
            log.exception(
                "request %s: %s %s failed", front.attempts.named(failure), request.method, path_of(request.scope)
            )
            return error_response(failure, front.ambient)

    async def _refuse_ended(self, request: Request, principal: Principal) -> NoReturn:
        """A commit by a credential that had ended before it came. Raises as `_refuse_landed`."""
        intake, name = self.front.intake, principal.waits_as
        request.scope[_CALLER] = name

        async def answer() -> None:
            at_once, connection_state = self.front.settings.requests_at_once, connection_state_of(request.scope)
            room = intake.bodies.room(name, connection_state)
            async with intake.places.place(name, connection_state, at_once), room:
                read = partial(read_body, room=room)
                body = await self.body.read(read, request, principal, self.front.settings.body_max_bytes)
                await self.handler(Call(request, principal, body, self.front.shadow))

        await self._refuse_landed(answer())

    async def _refuse_landed(self, answer: Awaitable[object]) -> NoReturn:
        """A commit by a credential that has ended: 504 where it has landed, or it can't be told, and else 401."""
        try:
            await answer
        except (NotAuthenticated, BadRequest, BodyTooLarge):  # what cannot be a commit has not landed
            pass
        except CommitStateUnknown:
            raise
        except IcetowerError as error:
            raise CommitStateUnknown(
                "the credential has ended, and whether the commit has landed before cannot be told now. Look for its "
                "rows before writing them again"
            ) from error
        raise not_authenticated()

    def _log(
        self, request: Request, principal: Principal | None, started_s: float, error: IcetowerError | None
    ) -> None:
        """Keep an attempt, unless the tower has done so, or nobody will look for it."""
        attempts = self.front.attempts
        read = self.operation == READ and (error is None or error.status not in (401, 403))
        if principal is None or self.operation is None or read:
            if error is not None:
                who = {} if principal is None else {"principal": principal.name}
                attempts.failed(request.method, path_of(request.scope), error, **who)
            return
        if (error is None and self.commits) or (error is not None and error.logged):
            return
        names, operation = request.scope.get(_CONCERNS, (_named(request), None))
        if error is None and operation == STAGED:
            return
        change = None if error is not None else request.scope.get(_CHANGED)
        left_out = len(names) - REFUSED_TABLES_MAX
        for name in names[:REFUSED_TABLES_MAX]:
            about = one_line(name)
            known = Known(principal.contract.name, change=change)
            change = None  # one request is one event, whatever it is about
            attempts.ended(
                principal.name, about, operation or self.operation, started_s, error, known=known, left_out=left_out
            )


def _named(request: Request) -> tuple[str]:
    """The table, or the namespace, that a path names; an empty name where none."""
    named = request.path_params
    levels = str(named.get("namespace", "")).split(NAMESPACE_SEPARATOR)
    return (".".join(filter(None, (*levels, named.get("table")))),)


async def authenticate(front: Front, request: Request, *, may_be_revoked: bool) -> Principal:
    """The caller. `may_be_revoked`: of a commit it is asked first whether it has landed (trap A3)."""
    header = request.headers.get("authorization")
    if header is None or header == NO_CREDENTIAL:
        # The name in the request must be loopback's, too: a page in a browser here can make another name resolve to it.
        if front.open_to_all and request.url.hostname in LOOPBACK:
            headers = request.headers
            has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
            require_json(request.method, headers.get("content-type"), has_body=has_body)
            return administrator(RESERVED_NAME)
        raise NotAuthenticated(
            "no credential was sent; send 'Authorization: Bearer TOKEN', or configure the client's credential"
        )
    token = bearer_of(header)
    if token is None:
        raise NotAuthenticated("the Authorization header is not of the form 'Bearer TOKEN'")
    try:
        principal = await front.registry.authenticate(token)
    except NotAuthenticated:
        front.intake.unknown_callers.wrong(token)
        ended = await front.registry.ended(token) if may_be_revoked else None
        if ended is None:
            raise
        return ended
    front.intake.unknown_callers.right(token)
    if principal.revoked and not may_be_revoked:
        raise contract_revoked(f"contract {principal.contract.name} of {principal.name}")
    return principal


def _require_only_looks(principal: Principal, method: str) -> None:
    """Raises `Forbidden` where a viewer sends what may change something: any method but GET and HEAD, on any route.

    A viewer has never committed, so none of its commits can have landed before (trap A3).
    """
    if principal.viewer and method not in ("GET", "HEAD"):
        raise Forbidden(
            f"{principal.name} is a viewer, who may look and change nothing; ask an administrator to do it",
            rule="permission.viewer",
        )


async def read_body(
    request: Request, max_bytes: int, fits: Callable[[int], None] | None = None, *, room: Room | None = None
) -> bytes:
    """The body, refused as soon as it is known to be too long, or not to fit, held until there is room for it.

    Raises `BadRequest` of a packed one, `BodyTooLarge`, `RequestTooSlow`, and as `fits`, which is asked by its length.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise BadRequest(
            f"the body is packed (Content-Encoding: {encoding[:40]!r}), and no packed body is taken; send it as it is",
            rule="body.encoding",
        )
    too_large = BodyTooLarge(f"the body is longer than {max_bytes} bytes (server.body_max_bytes); send less at once")
    declared = request.headers.get("content-length", "")
    known = int(declared) if declared.isdigit() else None
    if known is not None and known > max_bytes:
        raise too_large
    if known is not None and fits:
        fits(known)

    async def read(room: Room | None) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise too_large
            if known is None and fits:
                fits(size)
            chunks.append(chunk)
            if room is not None and not room.size and size > FREE_BYTES:  # its size is unknown
                await room.take(max_bytes)
        return b"".join(chunks)

    if room is None or ((known or 0) <= FREE_BYTES and "transfer-encoding" not in request.headers):
        return await read(None)
    if known is not None:
        await room.take(known)
    body = await room.read(read(room))
    room.keep(len(body))
    return body


def idempotency_key(request: Request) -> str | None:
    """The request's `Idempotency-Key`. Raises `BadRequest` where it is no UUID of version 7 (specification)."""
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise BadRequest(
            "the header Idempotency-Key must be a UUID of version 7, 36 characters",
            rule="key.form",
            next_step="new_key",
        )
    return key


def numbered(request: Request) -> tuple[str, int] | None:
    """(application, sequence) of the request's headers. Raises `BadRequest` for one without the other, or no number."""
    headers = request.headers
    return application_sequence(headers.get("icetower-application"), headers.get("icetower-sequence"))


async def once(
    front: Front,
    call: Call,
    key: str,
    handler: Handler,
    *,
    replay: Handler | None = None,
    again: Handler | None = None,
    begins: bool = False,
) -> Response:
    """Run a mutation at most once for a key: a known key gets its first answer again, a duplicate in flight waits.

    With `replay`, success is answered by it (the specification allows a newer state), and its body is not kept.
    With `again`, it is answered by that where its body was too long to keep. What changed nothing is done again then.
    With `begins`, it is kept that it was begun, and the handler has a `Call.deed`.
    """
    endpoint = endpoint_of(call.request.method, path_of(call.request.scope))
    fingerprint = hashlib.sha256(call.body + b"\n" + call.request.url.query.encode()).hexdigest()
    name, kept = call.principal.name, front.intake.kept_answers
    async with front.turns.turn((name, key)):
        found = await front.journal.find(name, key, endpoint, fingerprint)
        begun = found if found is not None and found.status == BEGUN else None
        if begun is not None:
            found = None
        if begins and found is None:
            call.request.scope[_DEED] = await begin(
                front.journal, kept, front.ambient, (name, key), Answer(endpoint, BEGUN, b"", fingerprint), begun
            )
        if found is not None:
            call.request.scope[_REPLAYED] = True
        if found is not None and replay is not None and found.status < 300:
            return await replay(call)
        if found is not None and found.body == REFERENCE:
            return await (handler if again is None or found.status >= 400 else again)(call)
        if found is not None:
            return _replayed(call.request, found)
        try:
            response = await handler(call)
            status, body = response.status_code, b"" if replay else _to_keep(call, response, kept, again)
        except IcetowerError as error:
            # A stale commit may succeed later, and a grant may be given: only what stays wrong is final.
            if error.status in (401, 403) or error.status >= 500 or isinstance(error, CommitConflict | KeyMisused):
                raise
            front.attempts.named(error)
            if not kept.keeps_unchanged(name):
                raise
            body = kept.kept(name, orjson.dumps(error_body(error)))
            await front.journal.keep_answer(name, key, Answer(endpoint, error.status, body, fingerprint))
            raise
        staged = call.request.scope.get(_CONCERNS, (None, None))[1] == STAGED
        if not staged or kept.keeps_unchanged(name):
            brief_s = None if staged else kept.brief_s(name)
            await front.journal.keep_answer(name, key, Answer(endpoint, status, body, fingerprint, brief_s))
        return response


def _to_keep(call: Call, response: Response, kept: KeptAnswers, again: Handler | None) -> bytes:
    """What is kept of a successful answer."""
    if call.request.scope.get(_CONCERNS, (None, None))[1] == STAGED:
        return REFERENCE
    body = bytes(response.body)
    return body if again is None else kept.kept(call.principal.name, body)
