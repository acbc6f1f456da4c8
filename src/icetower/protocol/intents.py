"""Declaring intents.

POST /icetower/v1/intents
{"tables": [{"table": "shop.prices", "partitions": [{"day": "2017-01-02"}], "operations": ["overwrite"]}],
 "ttl_s": 60, "wait_s": 0}
{"tables": [{"table": "shop.prices", "filter": {"type": "eq", "term": "region", "value": 1}, "exclusive": true}]}

POST /icetower/v1/slots/next
{"table": "shop.bids", "wait_s": 20, "ttl_s": 60, "least_s": 10}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from icetower.errors import BadRequest
from icetower.protocol.checks import OPERATIONS
from icetower.protocol.wire import JSON, read_object

TABLES_MAX = 16
REGIONS_MAX = 100
TEXT_CHARACTERS_MAX = 1_024
TTL_S_MIN, TTL_S_MAX, TTL_S = 1.0, 3_600.0, 60.0
LEAST_S_MAX = 86_400.0
WAIT_S_MAX = 30.0
"""So long one request may wait; whoever wants to wait for longer asks again."""


class _Wire(BaseModel):
    """Unlike Iceberg's own, strict about names: a misspelt `exclusive` would hold less than its holder believes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class TableWanted(_Wire):
    """Rows of one table: regions as contracts have them, or a filter in Iceberg's expression JSON; else all."""

    table: str = Field(min_length=3, max_length=TEXT_CHARACTERS_MAX)
    partitions: list[JSON] | None = Field(default=None, min_length=1, max_length=REGIONS_MAX)
    filter: Any = None
    operations: list[str] = Field(default=["overwrite"], min_length=1, max_length=len(OPERATIONS))
    exclusive: bool = False


class IntentWanted(_Wire):
    """What is to be held.

    Attributes:
        intent: an id that the caller chooses: sent again with it, the request has the same answer.
        ttl_s: it ends unless it is renewed within this time.
        wait_s: how long the answer may wait, where others hold some of the rows.
        queue: after that it stays in line, and is asked for again.
    """

    tables: list[TableWanted] = Field(min_length=1, max_length=TABLES_MAX)
    intent: str | None = Field(default=None, pattern=r"^[0-9A-Za-z_-]{16,64}$")
    ttl_s: float = Field(default=TTL_S, ge=TTL_S_MIN, le=TTL_S_MAX)
    wait_s: float = Field(default=0.0, ge=0.0, le=WAIT_S_MAX)
    queue: bool = False


class SlotWanted(_Wire):
    """The next slot of a table.

    Attributes:
        wait_s: how long the answer may wait for it.
        ttl_s: it ends unless it is renewed within this time; None: it lives to the end of the slot.
        least_s: so much must be left of the slot; else it is the next one.
        intent: as of an intent.
    """

    table: str = Field(min_length=3, max_length=TEXT_CHARACTERS_MAX)
    wait_s: float = Field(default=0.0, ge=0.0, le=WAIT_S_MAX)
    ttl_s: float | None = Field(default=None, ge=TTL_S_MIN, le=TTL_S_MAX)
    least_s: float = Field(default=0.0, ge=0.0, le=LEAST_S_MAX)
    intent: str | None = Field(default=None, pattern=r"^[0-9A-Za-z_-]{16,64}$")


class _Renewal(_Wire):
    ttl_s: float | None = Field(default=None, ge=TTL_S_MIN, le=TTL_S_MAX)


def parse_intent(data: bytes) -> IntentWanted:
    """What is to be held. Raises `BadRequest`."""
    wanted = _read(IntentWanted, read_object(data, "intent"))
    for each in wanted.tables:
        strange = [operation for operation in each.operations if operation not in OPERATIONS]
        if strange:
            raise BadRequest(
                f"operations: names {strange[0][:100]!r}; write some of: {', '.join(OPERATIONS)}",
                rule="request.operations",
            )
        if each.partitions is not None and each.filter is not None:
            raise BadRequest(
                f"Cannot parse intent: {each.table[:100]} has partitions and a filter; give one of them", rule="shape"
            )
    return wanted


def parse_slot(data: bytes) -> SlotWanted:
    """The slot that is wanted. Raises `BadRequest`."""
    return _read(SlotWanted, read_object(data, "slot"))


def parse_renewal(data: bytes) -> float | None:
    """For how long from now on, in seconds; None: as before. Raises `BadRequest`."""
    return _read(_Renewal, read_object(data or b"{}", "renewal")).ttl_s


def _read(model: type[Any], body: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(body)
    except ValueError as error:
        faults: Any = getattr(error, "errors", list)()
        said = "; ".join(
            f"{'.'.join(str(part) for part in each['loc']) or 'body'}: {each['msg']}" for each in faults[:5]
        )
        raise BadRequest(f"Cannot parse intent: {said}", rule="shape") from error
