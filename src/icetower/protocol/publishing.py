"""Publishing a branch, and reporting what a check has found of it.

POST /v1/namespaces/{ns}/tables/{table}/publish
     {"branch": "agent-7", "to": "main", "keep": "each", "key": "01a1fe03-73b8-78ac-b3d5-6bcc4d844630",
      "reads": {"isolation-level": "snapshot"}, "blind": true}
POST /v1/namespaces/{ns}/tables/{table}/verdicts
     {"snapshot-id": 3814472253249775124, "check": "row-counts", "passed": true, "details": "1000 rows"}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from icetower.errors import BadRequest
from icetower.protocol.wire import JSON, Wire, read, read_object

NAME_CHARACTERS_MAX = 255
DETAILS_CHARACTERS_MAX = 4_000
PATH_CHARACTERS_MAX = 4_096
_Branch = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What is to be published.

    Attributes:
        branch, to: the branch, and the one that gets its snapshots.
        squash: as one snapshot, unless the branch can be set forward.
        filter, isolation, blind: what is said of the branch's snapshots that do not say it themselves.
        intent, fence: the intent under which it is published, and the number that came with its grant.
        unchecked: though checks that the contracts of the branch's authors name have not passed.
    """

    branch: str
    to: str
    squash: bool
    key: str | None
    filter: str | None
    isolation: str | None
    blind: bool
    intent: str | None = None
    fence: int | None = None
    unchecked: bool = False


@dataclass(frozen=True, slots=True)
class VerdictReport:
    """What a check has found of a snapshot.

    Attributes:
        manifest_list: of the snapshot that the check has read; None: it does not say.
    """

    snapshot_id: int
    check: str
    passed: bool
    details: str
    manifest_list: str | None = None


class _Reads(Wire):
    filter: JSON | bool | None = None
    isolation_level: Literal["snapshot", "serializable"]


class _Publish(Wire):
    branch: _Branch
    to: _Branch = "main"
    keep: Literal["each", "squash"] = "each"
    key: str | None = Field(default=None, min_length=1, max_length=NAME_CHARACTERS_MAX)
    reads: _Reads | None = None
    blind: bool = False
    intent: str | None = Field(default=None, min_length=1, max_length=NAME_CHARACTERS_MAX)
    fence: int | None = Field(default=None, ge=0, lt=2**63)
    unchecked: bool = False


class _Verdict(Wire):
    snapshot_id: int = Field(ge=0, lt=2**63)
    check: str = Field(min_length=1, max_length=NAME_CHARACTERS_MAX)
    passed: bool
    details: str = Field(default="", max_length=DETAILS_CHARACTERS_MAX)
    manifest_list: str | None = Field(default=None, min_length=1, max_length=PATH_CHARACTERS_MAX)


def parse_publish(data: bytes) -> PublishRequest:
    """What is to be published. Raises `BadRequest`."""
    wanted = read(_Publish, read_object(data, "publication"), "publication")
    if wanted.fence is not None and wanted.intent is None:
        raise BadRequest("fence is the number of an intent: name that as well, as intent", rule="request")
    if wanted.branch == wanted.to:
        raise BadRequest(f"branch {wanted.branch[:100]!r} cannot be published to itself", rule="request")
    reads = wanted.reads
    scope = None if reads is None or reads.filter is None else json.dumps(reads.filter)
    isolation = None if reads is None else reads.isolation_level
    squash = wanted.keep == "squash"
    return PublishRequest(
        wanted.branch,
        wanted.to,
        squash,
        wanted.key,
        scope,
        isolation,
        wanted.blind,
        wanted.intent,
        wanted.fence,
        wanted.unchecked,
    )


def parse_verdict(data: bytes) -> VerdictReport:
    """What a check has found. Raises `BadRequest`."""
    found = read(_Verdict, read_object(data, "verdict"), "verdict")
    return VerdictReport(found.snapshot_id, found.check, found.passed, found.details, found.manifest_list)
