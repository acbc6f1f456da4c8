"""The request and the answer of a dry run: a commit's own body, or an intent.

POST /v1/namespaces/{ns}/tables/{table}/check
{"requirements": […], "updates": […]}
{"intent": {"operation": "append", "partitions": ["day=2017-01-02", {"day": ["2017-01-03", "2017-01-04"]}],
            "files": 1, "bytes": 1000}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from icetower.errors import BadRequest
from icetower.protocol.commits import CommitRequest, parse_commit
from icetower.protocol.wire import JSON, Wire, read, read_object

OPERATIONS = ("append", "overwrite", "delete", "replace")
"""What an intent may name, as contracts name it."""
LISTED_MAX = 1_000
TEXT_CHARACTERS_MAX = 1_024

Values = tuple[str | None, ...]


class IntentRequest(Wire):
    """What somebody intends to write, without any files."""

    operation: str | list[str]
    partitions: list[str | JSON] = Field(default_factory=list, max_length=LISTED_MAX)
    files: int = Field(default=0, ge=0, lt=2**31)
    size_bytes: int = Field(default=0, ge=0, lt=2**63, alias="bytes")

    def operations(self) -> tuple[str, ...]:
        """The operations. Raises `BadRequest`."""
        named = [self.operation] if isinstance(self.operation, str) else self.operation
        strange = [each for each in named if each not in OPERATIONS]
        if strange or not named:
            said = f"names {strange[0][:100]!r}" if strange else "is empty"
            raise BadRequest(f"operation: {said}; write some of: {', '.join(OPERATIONS)}", rule="request.operations")
        return tuple(dict.fromkeys(named))

    def regions(self) -> tuple[str | Mapping[str, Values], ...]:
        """The partitions: names, or values by field. Raises `BadRequest`."""
        return tuple(each[:TEXT_CHARACTERS_MAX] if isinstance(each, str) else _values(each) for each in self.partitions)


class LandedRequest(Wire):
    """Whether what the caller has sent under a key is in the table."""

    key: str = Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)
    ref: str = Field(default="main", min_length=1, max_length=TEXT_CHARACTERS_MAX)


def parse_check(data: bytes) -> CommitRequest | IntentRequest | LandedRequest:
    """What is to be checked. Raises `BadRequest`."""
    body = read_object(data, "check")
    if isinstance(body.get("landed"), dict):
        return read(LandedRequest, body["landed"], "landed")
    if "intent" not in body:
        if not body.keys() & {"requirements", "updates"}:
            raise BadRequest(
                "Cannot parse check: it has no intent, nothing landed, and is no commit (requirements, updates): there "
                "is nothing to check",
                rule="shape",
            )
        return parse_commit(data)
    if not isinstance(body["intent"], dict):
        raise BadRequest("Cannot parse check: intent: it must be a JSON object", rule="shape")
    return read(IntentRequest, body["intent"], "intent")


def _values(region: JSON) -> Mapping[str, Values]:
    found: dict[str, Values] = {}
    for name, given in region.items():
        values: list[Any] = given if isinstance(given, list) else [given]
        if len(values) > LISTED_MAX:
            raise BadRequest(f"partitions: {name[:100]} has {len(values)} values", rule="request.partitions")
        found[name] = tuple(_text(name, value) for value in values)
    return found


def _text(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)[:TEXT_CHARACTERS_MAX]
    if value is None:
        return None
    raise BadRequest(
        f"partitions: {name[:100]} is a range or a structure; name each value, or the partition as refusals do",
        rule="request.partitions",
    )
