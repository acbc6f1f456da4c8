"""Every error that Icetower raises on purpose.

    IcetowerError                      500  something of ours failed
    ├── BadRequest                     400  the input breaks a rule; the message names the input and the rule
    │   └── ValidationFailed           400  a commit that can never be valid (Iceberg: ValidationException)
    ├── NotAuthenticated               401  no token, an unknown one, an expired one
    ├── Forbidden                      403  known, but not allowed
    │   └── ContractViolation          403  outside the isolation contract; carries the partitions
    ├── NotFound                       404
    │   ├── NoSuchNamespace            404
    │   └── NoSuchTable                404
    ├── MethodNotAllowed               405  the route is there, but not for this method
    ├── NotSupported                   406  a request of the specification that is not offered here
    ├── Conflict                       409
    │   ├── AlreadyExists              409
    │   ├── NamespaceNotEmpty          409
    │   └── CommitConflict             409  stale: refresh and try again (Iceberg: CommitFailedException)
    │       └── PublishConflict        409  a branch cannot be published; what stands against each of its snapshots
    ├── Gone                           410  what was asked for is no longer kept
    ├── BodyTooLarge                   413
    ├── RequestTooSlow                 408  the head or the body of a request does not come
    ├── UrlTooLong                     414
    ├── HeadTooLarge                   431  headers that are too long, or too numerous
    ├── KeyMisused                     422  an idempotency key that stands for something else
    ├── TooManyRequests                429  too many requests for tokens; never the answer to a commit (trap A4)
    ├── UpstreamFailed                 502  the catalog or the storage behind us failed; nothing was committed
    │   ├── DatabaseBusy               502  another process holds the lock of a database
    │   └── DiskFull                   507  no room is left to write; nothing was committed
    ├── Unavailable                    503  not now: nobody answers, or a store that must be asked is away
    └── CommitStateUnknown             504  may or may not have landed (Iceberg: CommitStateUnknownException)

    ConfigurationError and UsageError (exit status 2) are for people at a terminal.

`rules.toml` has each rule with its statuses and next steps; a test holds whatever is raised to it.

Each error says what happened, to what, and what to do next. Its attributes travel beside the message in the body of the
answer, so that an agent can act without reading prose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from icetower.texts import clipped, without_middle

MESSAGE_CHARACTERS_MAX = 10_000
"""Of a longer message the middle is left out: it repeats what a client sent."""

PARTITION_CHARACTERS_MAX = 1_000
PATH_CHARACTERS_MAX = 5_000


class IcetowerError(Exception):
    """Root of the tree.

    Attributes:
        status: HTTP status.
        kind: exception name in the error body, as Iceberg's clients know it.
        rule: machine-readable id of the rule that was broken, such as ``contract.partitions`` or ``requirement.ref``.
        partitions: human names of the partitions concerned, such as ``date=2017-01-02/bucket=3``.
        snapshot: id of the snapshot that stands in the way, if one does.
        files: paths of the files that it is about, a few.
        next_step: one word for machines: ``refresh``, ``retry``, ``wait_until``, ``fix_request``, ``ask_owner``,
            ``request_partition``, ``escalated_to``, ``new_key``, ``authenticate``, ``none``.
        owner: whose partitions they are, where they are somebody else's: a contract's name, and its contact.
        wait_until_ms: before this time (milliseconds since 1970) trying again is in vain.
        escalated_to: the person whose decision it has become.
        request_id: under which the server's log has the request; the server sets it before it answers.
        logged: whether the server's log has it already.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "InternalServerError"
    default_rule: ClassVar[str] = "internal"
    default_next_step: ClassVar[str] = "none"

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        partitions: Sequence[str] = (),
        snapshot: int | None = None,
        files: Sequence[str] = (),
        next_step: str | None = None,
        owner: str | None = None,
        wait_until_ms: int | None = None,
        escalated_to: str | None = None,
    ) -> None:
        message = without_middle(message, MESSAGE_CHARACTERS_MAX)
        super().__init__(message)
        self.message = message
        self.rule = rule or self.default_rule
        self.partitions = tuple(clipped(name, PARTITION_CHARACTERS_MAX) for name in partitions)
        self.snapshot = snapshot
        self.files = tuple(clipped(path, PATH_CHARACTERS_MAX) for path in files)
        self.next_step = next_step or self.default_next_step
        self.owner = owner
        self.wait_until_ms = wait_until_ms
        self.escalated_to = escalated_to
        self.request_id: str | None = None
        self.logged = False


def without_frames(error: BaseException) -> None:
    """Let go of the frames that an answered error has passed through.

    A frame that names the error and the error's traceback hold each other, with the request's body, until the garbage
    collector comes by. It counts objects, and no bytes: by then such bodies may take gigabytes.
    """
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each.__traceback__ is not None:
            each.__traceback__ = None
            waiting += [each.__cause__, each.__context__]


class BadRequest(IcetowerError):
    status = 400
    kind = "BadRequestException"
    default_rule = "request"
    default_next_step = "fix_request"


class ValidationFailed(BadRequest):
    kind = "ValidationException"
    default_rule = "validation"


class NotAuthenticated(IcetowerError):
    status = 401
    kind = "NotAuthorizedException"
    default_rule = "authentication"
    default_next_step = "authenticate"


class Forbidden(IcetowerError):
    status = 403
    kind = "ForbiddenException"
    default_rule = "permission"
    default_next_step = "ask_owner"


class ContractViolation(Forbidden):
    default_rule = "contract"


class NotFound(IcetowerError):
    status = 404
    kind = "NotFoundException"
    default_rule = "exists"
    default_next_step = "fix_request"


class NoSuchNamespace(NotFound):
    kind = "NoSuchNamespaceException"
    default_rule = "namespace.exists"


class NoSuchTable(NotFound):
    kind = "NoSuchTableException"
    default_rule = "table.exists"


class MethodNotAllowed(IcetowerError):
    status = 405
    kind = "MethodNotAllowedException"
    default_rule = "request.method"
    default_next_step = "fix_request"


class NotSupported(IcetowerError):
    status = 406
    kind = "UnsupportedOperationException"
    default_rule = "supported"
    default_next_step = "fix_request"


class Conflict(IcetowerError):
    status = 409
    kind = "ConflictException"
    default_rule = "conflict"
    default_next_step = "refresh"


class AlreadyExists(Conflict):
    kind = "AlreadyExistsException"
    default_rule = "already-exists"
    default_next_step = "fix_request"


class NamespaceNotEmpty(Conflict):
    kind = "NamespaceNotEmptyException"
    default_rule = "namespace.empty"
    default_next_step = "fix_request"


@dataclass(frozen=True, slots=True)
class MissingDeclaration:
    """A declaration that nobody has given, without which a stale commit was refused. It is not part of the answer.

    Attributes:
        table: ``namespace.table``.
        declaration: a `protocol.declarations.Declaration`.
    """

    table: str
    declaration: str


class CommitConflict(Conflict):
    kind = "CommitFailedException"
    default_rule = "commit.stale"
    missing: MissingDeclaration | None = None


@dataclass(frozen=True, slots=True)
class SnapshotConflict:
    """What stands against one snapshot of a branch that was to be published.

    Attributes:
        source: the snapshot, as it is on its branch.
        rule, message, files, partitions: as of an error.
        snapshot: the snapshot that came to the other branch.
    """

    source: int
    rule: str
    message: str
    files: tuple[str, ...]
    partitions: tuple[str, ...]
    snapshot: int | None


class PublishConflict(CommitConflict):
    """Attributes: conflicts: those of each snapshot, a few."""

    def __init__(self, message: str, *, conflicts: Sequence[SnapshotConflict] = (), **fields: Any) -> None:
        super().__init__(message, **fields)
        self.conflicts = tuple(conflicts)


class Gone(IcetowerError):
    status = 410
    kind = "GoneException"
    default_rule = "events.gone"
    default_next_step = "fix_request"


class BodyTooLarge(IcetowerError):
    status = 413
    kind = "RequestEntityTooLargeException"
    default_rule = "limit.body"
    default_next_step = "fix_request"


class RequestTooSlow(IcetowerError):
    status = 408
    kind = "RequestTimeoutException"
    default_rule = "limit.slow"
    default_next_step = "retry"


class UrlTooLong(IcetowerError):
    status = 414
    kind = "RequestURITooLongException"
    default_rule = "limit.url"
    default_next_step = "fix_request"


class HeadTooLarge(IcetowerError):
    status = 431
    kind = "RequestHeaderFieldsTooLargeException"
    default_rule = "limit.headers"
    default_next_step = "fix_request"


class KeyMisused(IcetowerError):
    status = 422
    kind = "UnprocessableEntityException"
    default_rule = "key"
    default_next_step = "new_key"


class TooManyRequests(IcetowerError):
    status = 429
    kind = "TooManyRequestsException"
    default_rule = "oauth.rate"
    default_next_step = "wait_until"


class UpstreamFailed(IcetowerError):
    status = 502
    kind = "BadGatewayException"
    default_rule = "upstream"
    default_next_step = "retry"


class DatabaseBusy(UpstreamFailed):
    default_rule = "database.busy"


class DiskFull(UpstreamFailed):
    status = 507
    kind = "InsufficientStorageException"
    default_rule = "disk.full"
    default_next_step = "ask_owner"


class Unavailable(IcetowerError):
    status = 503
    kind = "ServiceUnavailableException"
    default_rule = "available"
    default_next_step = "retry"


class CommitStateUnknown(IcetowerError):
    status = 504
    kind = "CommitStateUnknownException"
    default_rule = "commit.unknown"
    default_next_step = "refresh"


class ConfigurationError(IcetowerError):
    default_rule = "configuration"


class UsageError(IcetowerError):
    default_rule = "usage"
