"""How long the body of a request may be: by its route, and by what its sender may do there (trap A8).

Reading a body and parsing it costs everybody, so a route takes what its requests need. Only commits, transactions and
creations are long. Who may do nothing of the kind gets the answer of its contract before a long body is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from icetower.admission import permissions
from icetower.contracts.model import Operation
from icetower.errors import BodyTooLarge, CommitConflict, ContractViolation, Unavailable
from icetower.files.parsing import Parsing
from icetower.protocol.names import NAMESPACE_SEPARATOR, check_bounds, checked_identifier
from icetower.registry.principals import Principal

SHORT_MAX_BYTES = 128 * 1024
"""For all requests that are not named below. They are parsed on the event loop, while everybody waits."""

REPORT_MAX_BYTES = 1024 * 1024
"""For reports of metrics, which carry the filter of their scan."""

NAMESPACE_MAX_BYTES = 512 * 1024
"""For namespaces: the properties that one request sets may take 256 KiB, and JSON escapes them."""

MIDDLE_MAX_BYTES = 4 * 1024 * 1024
"""For appends, as they say themselves, and for contracts."""

STRANGER_MAX_BYTES = 1024 * 1024
"""For a commit or a creation by somebody who may not do it: enough for most of what clients send to be answered in
full, and to be counted and explained."""

ON_LOOP_BYTES = SHORT_MAX_BYTES
"""So long a body is parsed on the event loop."""

T = TypeVar("T")
MayCommit = Callable[[Principal, Request], None]
"""Raises `ContractViolation` where the path alone tells that the contract refuses the request."""

Fits = Callable[[Principal, int], None]
"""Raises `TooManyRequests` where there is no room now for so many bytes of a principal."""


def to_table(principal: Principal, request: Request) -> None:
    """A commit needs one of the rights on the table that its path names."""
    path = request.path_params
    table = checked_identifier(tuple(str(path["namespace"]).split(NAMESPACE_SEPARATOR)), str(path["table"]))
    if principal.contract.shadow or any(principal.contract.grants(operation, table) for operation in _CHANGING):
        return
    permissions.require(principal, Operation.READ, table)
    permissions.require(principal, Operation.APPEND, table)


def into_namespace(principal: Principal, request: Request) -> None:
    """A creation needs the right to create some table in the namespace."""
    contract = principal.contract
    namespace = tuple(str(request.path_params["namespace"]).split(NAMESPACE_SEPARATOR))
    check_bounds(namespace)
    if contract.shadow or contract.administrator:
        return
    permissions.require_visible(principal, namespace)
    if not any(rule.grants(Operation.CREATE) and rule.pattern.reaches(namespace) for rule in contract.rules):
        raise ContractViolation(
            f"{principal.name} may not create a table in {'.'.join(namespace)}: contract {contract.name} doesn't grant "
            "create there",
            rule="contract.operation",
        )


def anywhere(principal: Principal, request: Request) -> None:
    """A transaction names its tables in its body: it needs a right to change some table."""
    contract = principal.contract
    if contract.shadow or contract.administrator:
        return
    if not any(rule.grants(operation) for rule in contract.rules for operation in _CHANGING):
        raise ContractViolation(
            f"{principal.name} may not commit to any table: contract {contract.name} grants reading at most",
            rule="contract.operation",
        )


async def parsed(
    parsing: Parsing, principal: Principal, parse: Callable[[bytes], T], body: bytes, *, commits: bool = False
) -> T:
    """What `parse` makes of a principal's body, and raises; a long one is parsed away from the event loop, in turn.

    Raises:
        CommitConflict: of a commit, where too many bodies of its sender wait, or it has waited for too long.
        Unavailable: of another request, for the same reason; on a 409 clients would say that it is there already.
    """
    if len(body) <= ON_LOOP_BYTES:
        return parse(body)
    try:
        return await parsing.body(partial(parse, body), principal.waits_as)
    except CommitConflict as error:
        if commits:
            raise
        raise Unavailable(error.message) from error


_CHANGING = tuple(operation for operation in Operation if operation is not Operation.READ)


class BodyBound:
    """The bound of a route.

    Args:
        most_bytes: None for the setting `server.body_max_bytes`, which no route goes beyond.
        may: asked before a body is read that may be long.
        fits: asked whether there is room for a body: before it is read, where it says how long it is, else as it comes;
            and before it is parsed.
    """

    def __init__(self, most_bytes: int | None, may: MayCommit | None = None, fits: Fits | None = None) -> None:
        self._most_bytes = most_bytes
        self._may = may
        self._fits = fits

    async def read(self, read: Callable[..., Any], request: Request, principal: Principal, most: int) -> bytes:
        """The body.

        Args:
            read: `http.read_body`, with the request, the bound, and what is asked about its length where anything is.
            most: `server.body_max_bytes`.

        Raises:
            BodyTooLarge: it is longer than the route takes.
            BadRequest: the path has too long a name of a table or a namespace.
            ContractViolation: it is long, and its sender may not do here what it is for.
            TooManyRequests: there is no room for it now.
        """
        bound = most if self._most_bytes is None else min(most, self._most_bytes)
        refusal: ContractViolation | None = None
        if self._may is not None:
            try:
                self._may(principal, request)
            except ContractViolation as error:
                refusal, bound = error, min(bound, STRANGER_MAX_BYTES)
        try:
            if self._fits is None or refusal is not None or principal.ended:  # these are answered otherwise
                return await read(request, bound)
            fits = partial(self._fits, principal)
            body: bytes = await read(request, bound, fits)
            fits(len(body))
            return body
        except BodyTooLarge as error:
            if refusal is not None:
                raise refusal from error
            if bound == most:
                raise
            raise BodyTooLarge(f"the body is longer than {bound} bytes, which is all that this route takes") from error


SHORT = BodyBound(SHORT_MAX_BYTES)
REPORT = BodyBound(REPORT_MAX_BYTES)
NAMESPACE = BodyBound(NAMESPACE_MAX_BYTES)
MIDDLE = BodyBound(MIDDLE_MAX_BYTES)
COMMIT = BodyBound(None, to_table)
APPEND = BodyBound(MIDDLE_MAX_BYTES, to_table)


def rows_body(fits: Fits) -> BodyBound:
    """The bound of rows, of which only so many bytes are on their way at once."""
    return BodyBound(MIDDLE_MAX_BYTES, to_table, fits)


CREATION = BodyBound(None, into_namespace)
TRANSACTION = BodyBound(None, anywhere)
