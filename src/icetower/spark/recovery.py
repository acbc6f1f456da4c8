"""A Spark agent's reaction to a refusal: what Java's exceptions say, as the tower's own errors.

Iceberg's client in Java turns an answer into an exception by its status, and keeps the message alone. Spark wraps that
several times. The message ends with the rule, the next step and the request's id (`protocol.tails`).

Sources: Iceberg's `org.apache.iceberg.rest.ErrorHandlers` and `org.apache.iceberg.exceptions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError

from icetower import agent
from icetower.agent import Patience, Tower
from icetower.agent.failures import error_of
from icetower.errors import CommitConflict, IcetowerError, NoSuchTable, Unavailable
from icetower.protocol.tails import Tail

T = TypeVar("T")

_PACKAGE = "org.apache.iceberg.exceptions."
_STATUSES: Mapping[str, int] = {
    "BadRequestException": 400,
    "NotAuthorizedException": 401,
    "ForbiddenException": 403,
    "NoSuchTableException": 404,
    "NoSuchViewException": 404,
    "NoSuchNamespaceException": 404,
    "AlreadyExistsException": 409,
    "NamespaceNotEmptyException": 409,
    "CommitFailedException": 409,
    "UnprocessableEntityException": 422,
    "ServiceUnavailableException": 503,
    "CommitStateUnknownException": 504,
    "ServiceFailureException": 502,
    "RESTException": 422,
}
"""By the exception that Iceberg's client makes of an answer."""
_VALIDATION = _PACKAGE + "ValidationException"
_UNREACHABLE = (
    "java.net.ConnectException",
    "java.net.UnknownHostException",
    "java.net.SocketTimeoutException",
    "org.apache.hc.client5.http.HttpHostConnectException",
    "org.apache.iceberg.shaded.org.apache.hc.client5.http.HttpHostConnectException",
)
_CAUSES_MAX = 20
_ATTEMPT_LOOKS = 20
_ATTEMPT_PAUSE_S = 0.25


def refusal_of(raised: BaseException) -> IcetowerError | None:
    """The refusal behind an exception of PySpark, PyIceberg or the SDK; None if it is something else.

    It has rule, next step, `wait_until_ms` and request id; `partitions` and the other fields do not reach Java's
    exceptions. What Iceberg's client itself has found in conflict is a `CommitConflict` with ``refresh``: run the
    statement again.
    """
    known = agent.refusal_of(raised)
    if known is not None:
        return known
    causes = java_causes(raised)
    for name, message in causes:
        if name == _VALIDATION:
            return CommitConflict(message, rule="client.validation", next_step="refresh")
        status = _STATUSES.get(name.removeprefix(_PACKAGE)) if name.startswith(_PACKAGE) else None
        if status is not None:
            # An unknown outcome has the answer itself as its cause.
            tail = next((found for _, text in causes if (found := Tail.of(text)) is not None), None)
            if tail is not None or name != f"{_PACKAGE}RESTException":
                return _answered(status, name, message, tail)
    if (answered := _in_text(str(raised))) is not None:
        return answered
    if any(name in _UNREACHABLE for name, _ in causes):
        return Unavailable(f"no tower answers: {causes[-1][1]}; is it running?", rule="client.connection")
    if "TABLE_OR_VIEW_NOT_FOUND" in str(raised):
        return NoSuchTable(str(raised).splitlines()[0])
    return None


def _in_text(text: str) -> IcetowerError | None:
    """The refusal in the text of an exception that has others in its text alone, as that of a streaming query has."""
    tail = Tail.of(text)
    name = next((each for each in _STATUSES if f"{_PACKAGE}{each}" in text), None)
    if tail is None or name is None:
        return None
    message = text.partition(f"{_PACKAGE}{name}")[2].partition("\n")[0].removeprefix(": ")
    return _answered(_STATUSES[name], name, message, tail)


def java_causes(raised: BaseException) -> list[tuple[str, str]]:
    """The Java exceptions behind one of PySpark, the outermost first: of each its class and its message."""
    at: Any = getattr(raised, "_origin", None)
    if isinstance(raised, Py4JJavaError):
        at = raised.java_exception
    found: list[tuple[str, str]] = []
    while at is not None and len(found) < _CAUSES_MAX:
        found.append((str(at.getClass().getName()), str(at.getMessage() or "")))
        at = at.getCause()
    return found


def _answered(status: int, name: str, message: str, tail: Tail | None) -> IcetowerError:
    fields: dict[str, Any] = {"message": message, "type": name.rpartition(".")[2]}
    if tail is not None:
        fields |= {
            "rule": tail.rule,
            "next_step": tail.next_step,
            "wait_until_ms": tail.wait_until_ms,
            "request_id": tail.request_id,
        }
    return error_of(status, json.dumps({"error": fields}).encode())


def carry_out(
    work: Callable[[Tower, str], T],
    tower: Tower,
    table: str,
    *,
    operations: Sequence[str],
    reason: str,
    key: str | None = None,
    authenticate: Callable[[], Tower] | None = None,
    patience: Patience | None = None,
) -> T | None:
    """`icetower.agent.carry_out` for work that writes with Spark: one statement, on the table as it is at that time.

    Where an attempt's outcome was unknown and the next one learns that the key has landed, the work is done: it has
    written its rows, and what it would have returned is lost.

    Args and errors: as there. Returns None in that case.
    """
    limits = patience or Patience()
    unknown: set[str] = set()

    def attempt(using: Tower, key: str) -> T | None:
        try:
            return work(using, key)
        except Exception as raised:
            refusal = refusal_of(raised)
            if refusal is not None and refusal.rule == "key.per-write" and key in unknown:
                return None
            if refusal is not None and refusal.status == 504:
                unknown.add(key)
            raise

    def understand(raised: BaseException) -> IcetowerError | None:
        refusal = refusal_of(raised)
        if refusal is not None and refusal.next_step == "request_partition" and not refusal.partitions:
            refusal.partitions = _partitions_of(tower, refusal.request_id, limits)
        return refusal

    return agent.carry_out(
        attempt,
        tower,
        table,
        operations=operations,
        reason=reason,
        key=key,
        authenticate=authenticate,
        patience=limits,
        understand=understand,
    )


def _partitions_of(tower: Tower, request_id: str | None, limits: Patience) -> tuple[str, ...]:
    """The partitions for which a request was refused, from the log of attempts, which is written a moment later."""
    for _ in range(_ATTEMPT_LOOKS if request_id is not None else 0):
        try:
            found = tower.commits(limit=1, request_id=request_id)
        except IcetowerError:
            break
        if found:
            return tuple(found[0]["partitions"])
        limits.pause(_ATTEMPT_PAUSE_S)
    return ()
