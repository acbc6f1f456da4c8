"""What all wire models share: strict types, dashed names, and errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from icetower.errors import BadRequest

JSON = dict[str, Any]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class Wire(BaseModel):
    """Unknown fields are ignored, as the specification wants it: newer clients send more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", alias_generator=_dashed, populate_by_name=True)


Model = TypeVar("Model", bound=Wire)


def read_object(data: bytes, what: str) -> JSON:
    """A JSON object.

    Raises:
        BadRequest: not JSON, or not an object.
    """
    try:
        value: object = from_json(data)
    except ValueError as error:
        raise BadRequest(f"Cannot parse {what}: not JSON: {error}", rule="json") from error
    if not isinstance(value, dict):
        raise BadRequest(f"Cannot parse {what}: it must be a JSON object", rule="json")
    return value


def read(model: type[Model], value: Mapping[str, Any], what: str) -> Model:
    """Validate a JSON object.

    Raises:
        BadRequest: the message names what was read and each field at fault.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise BadRequest(f"Cannot parse {what}: {_faults(error)}", rule="shape") from error


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'body'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )
