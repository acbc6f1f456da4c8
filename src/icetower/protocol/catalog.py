"""Requests of the Iceberg REST specification other than commits, and the body of an error.

Source: rest-catalog-open-api.yaml, the schemas named in each class.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import Field, model_validator

from icetower.errors import BadRequest, IcetowerError, KeyMisused, PublishConflict
from icetower.protocol.commits import table_identifier
from icetower.protocol.names import Identifier, Namespace, checked_namespace
from icetower.protocol.sizes import check_commit, check_namespace
from icetower.protocol.tails import with_tail
from icetower.protocol.wire import JSON, Model, Name, Wire, read, read_object


class CreateNamespace(Wire):
    """`CreateNamespaceRequest`."""

    namespace: list[str]
    properties: dict[str, str] = Field(default_factory=dict)

    def levels(self) -> Namespace:
        """The namespace.

        Raises:
            BadRequest: no level, or an empty one.
        """
        return checked_namespace(tuple(self.namespace))


class UpdateProperties(Wire):
    """`UpdateNamespacePropertiesRequest`."""

    removals: list[str] = Field(default_factory=list)
    updates: dict[str, str] = Field(default_factory=dict)


class CreateTable(Wire):
    """`CreateTableRequest`. Schema, spec and order stay JSON: `iceberg.metadata.new_table` reads them."""

    name: Name
    location: str | None = None
    schema_: JSON = Field(alias="schema")
    partition_spec: JSON | None = None
    write_order: JSON | None = None
    stage_create: bool = False
    properties: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _null_means_absent(cls, value: Any) -> Any:
        """PyIceberg and others write null for what they leave out."""
        if isinstance(value, dict):
            return {key: entry for key, entry in value.items() if entry is not None}
        return value


class RenameTable(Wire):
    """`RenameTableRequest`."""

    source: JSON
    destination: JSON

    def identifiers(self) -> tuple[Identifier, Identifier]:
        """Source and destination.

        Raises:
            BadRequest: one of them is no table identifier.
        """
        return table_identifier(self.source, "source"), table_identifier(self.destination, "destination")


class RegisterTable(Wire):
    """`RegisterTableRequest`."""

    name: Name
    metadata_location: str = Field(min_length=1)
    overwrite: bool = False


def parse_request(model: type[Model], data: bytes) -> Model:
    """Read a request's body.

    Raises:
        BadRequest: bad JSON or a bad shape; the message names the field.
        KeyMisused: 422, as the specification asks, for a property that is both set and removed.
    """
    what = f"{model.__name__} request"
    request = read(model, read_object(data, what), what)
    if isinstance(request, UpdateProperties):
        both = sorted(set(request.removals) & set(request.updates))
        if both:
            raise KeyMisused(
                f"Invalid namespace update: cannot simultaneously set and remove keys: {both}",
                rule="properties.disjoint",
                next_step="fix_request",
            )
    if isinstance(request, CreateTable):
        if not request.schema_:
            raise BadRequest("Cannot parse CreateTable request: schema: a struct type is required", rule="shape")
        check_commit(_as_updates(request), "creation")
    elif isinstance(request, CreateNamespace):
        check_namespace(request.properties)
    elif isinstance(request, UpdateProperties):
        check_namespace(request.updates)
    return request


def _as_updates(request: CreateTable) -> list[JSON]:
    return [
        {"action": "add-schema", "schema": request.schema_},
        {"action": "add-spec", "spec": request.partition_spec},
        {"action": "add-sort-order", "sort-order": request.write_order},
        {"action": "set-location", "location": request.location},
        {"action": "set-properties", "updates": request.properties},
    ]


RETRY_AFTER_S = 1
RETRY_AFTER_MAX_S = 3600
"""Longer, no client should sleep over a header. `wait_until_ms` in the body says it all."""


def retry_after_s(error: IcetowerError, now_ms: int) -> int | None:
    """Seconds for the header `Retry-After`: where the same again may succeed later; None elsewhere.

    Iceberg's Java client goes by it where it sends again by itself: upon 429 and 503, and from 1.12 on, where it has
    sent an idempotency key, upon 408, 500, 502 and 504 as well.
    """
    if error.next_step == "retry":
        return RETRY_AFTER_S
    if error.next_step != "wait_until":
        return None
    left_ms = (error.wait_until_ms or 0) - now_ms
    return min(max(RETRY_AFTER_S, -(-left_ms // 1000)), RETRY_AFTER_MAX_S)


def error_body(error: IcetowerError) -> JSON:
    """The body of an error: `IcebergErrorResponse`, with what a machine needs to act beside the message.

    Iceberg's clients show people the message alone, so what they need to go on stands at its end, too (`tails`).
    """
    conflicts = {"conflicts": [asdict(each) for each in error.conflicts]} if isinstance(error, PublishConflict) else {}
    return {
        "error": {
            "message": with_tail(error),
            "type": error.kind,
            "code": error.status,
            "rule": error.rule,
            "partitions": list(error.partitions),
            "snapshot": error.snapshot,
            "files": list(error.files),
            "next_step": error.next_step,
            "owner": error.owner,
            "wait_until_ms": error.wait_until_ms,
            "escalated_to": error.escalated_to,
            "request_id": error.request_id,
            **conflicts,
        }
    }
