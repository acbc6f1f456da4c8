"""Asking whether a write has landed, and fencing it.

GET  /v1/namespaces/{ns}/tables/{table}/landed?key=…&ref=main
GET  /v1/namespaces/{ns}/tables/{table}/landed?application=ingest&sequence=7
GET  /v1/namespaces/{ns}/tables/{table}/landed?snapshot-id=3814472253249775124
POST /v1/namespaces/{ns}/tables/{table}/fence
     {"key": "01a1fe03-73b8-78ac-b3d5-6bcc4d844630", "ref": "main"}
     {"application": {"id": "ingest", "sequence": 7}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from icetower.errors import BadRequest
from icetower.protocol.wire import JSON, Wire, read, read_object

TEXT_CHARACTERS_MAX = 1_024
SNAPSHOT_ID_MAX = 2**63 - 1
PARAMETERS = ("key", "snapshot-id", "application", "sequence", "ref", "principal")


@dataclass(frozen=True, slots=True)
class WriteNamed:
    """The write that is meant, by one of its names; as sent.

    Attributes:
        application: its name and number, which are read elsewhere.
    """

    ref: str
    key: str | None
    application: tuple[object, object] | None
    snapshot_id: int | None
    principal: str | None


class _FenceRequest(Wire):
    key: str | None = Field(default=None, min_length=1, max_length=TEXT_CHARACTERS_MAX)
    application: JSON | None = None
    ref: str = Field(default="main", min_length=1, max_length=TEXT_CHARACTERS_MAX)
    principal: str | None = Field(default=None, min_length=1, max_length=TEXT_CHARACTERS_MAX)


def parse_fence(data: bytes) -> WriteNamed:
    """The write that is to be fenced. Raises `BadRequest`."""
    wanted = read(_FenceRequest, read_object(data, "fence"), "fence")
    application = None
    if wanted.application is not None:
        application = wanted.application.get("id"), wanted.application.get("sequence")
    if (wanted.key is None) == (application is None):
        raise BadRequest('Cannot parse fence: send either "key" or "application"', rule="shape")
    return WriteNamed(wanted.ref, wanted.key, application, None, wanted.principal)


def parse_landed(query: Mapping[str, str]) -> WriteNamed:
    """The write that is asked about. Raises `BadRequest`."""
    strange = next((name for name in query if name not in PARAMETERS), None)
    if strange is not None:
        raise BadRequest(
            f"query parameter {strange[:100]!r} is not known; these are: {', '.join(PARAMETERS)}", rule="request"
        )
    for name, value in query.items():
        if not 0 < len(value) <= TEXT_CHARACTERS_MAX:
            raise BadRequest(f"query parameter {name} is empty or too long", rule="request")
    key, snapshot = query.get("key"), query.get("snapshot-id")
    numbered = "application" in query or "sequence" in query
    if (key is not None) + (snapshot is not None) + numbered != 1:
        raise BadRequest("name the write by one of: key; application and sequence; snapshot-id", rule="request")
    if snapshot is not None and not (snapshot.isascii() and snapshot.isdecimal() and int(snapshot) <= SNAPSHOT_ID_MAX):
        raise BadRequest(
            f"query parameter snapshot-id is {snapshot[:100]!r}; write the id of a snapshot", rule="request"
        )
    application = (query.get("application"), query.get("sequence")) if numbered else None
    snapshot_id = None if snapshot is None else int(snapshot)
    return WriteNamed(query.get("ref", "main"), key, application, snapshot_id, query.get("principal"))
