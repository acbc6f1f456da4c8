"""What all wire models share: strict types, dashed names, and errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from icetower.errors import BadRequest

JSON = dict[str, Any]
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int64 = Annotated[int, Field(ge=LONG_MIN, le=LONG_MAX)]
"""As wide as Iceberg's own: what is wider, no Java client could read again, and the table would be lost to it."""


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class Wire(BaseModel):
    """Unknown fields are ignored, as the specification wants it: newer clients send more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", alias_generator=_dashed, populate_by_name=True)


Model = TypeVar("Model", bound=Wire)


def _fit_for_a_url(name: str) -> str:
    if name in (".", "..") or "\x00" in name:
        raise ValueError("'.', '..' and names with a NUL character cannot be asked for by URL; choose another")
    return name


Name = Annotated[str, Field(min_length=1), AfterValidator(_fit_for_a_url)]
"""A table's name that a client gives: clients resolve ``.`` and ``..`` in URLs themselves, and never get there."""

OBJECTS_MAX = 100_000
"""Lists and objects of one request: parsing takes time by their number, and megabytes may hold millions."""


VALUES_MAX = 500_000
"""Values of one request, whatever they are: numbers and short texts take their time, too. They are counted by the
commas, those within texts included: metadata has one comma in twenty bytes or so, of which a request has few MiB."""


def check_counts(data: bytes, what: str) -> None:
    """Raises `BadRequest` for a body with more objects, or values, than are parsed."""
    objects = data.count(b"{") + data.count(b"[")
    if objects > OBJECTS_MAX:
        raise BadRequest(
            f"Cannot parse {what}: it has {objects} lists and objects, and at most {OBJECTS_MAX} are read; send it in "
            "several requests",
            rule="limit.objects",
        )
    values = data.count(b",")
    if values > VALUES_MAX:
        raise BadRequest(
            f"Cannot parse {what}: it has {values} commas, and so about as many values; at most {VALUES_MAX} are read. "
            "Send it in several requests",
            rule="limit.objects",
        )


def read_object(data: bytes, what: str) -> JSON:
    """A JSON object.

    Raises:
        BadRequest: not JSON, not an object, or a number in it that is beyond 64 bits.
    """
    check_counts(data, what)
    try:
        value: object = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"Cannot parse {what}: not JSON: {error}", rule="json") from error
    if not isinstance(value, dict):
        raise BadRequest(f"Cannot parse {what}: it must be a JSON object", rule="json")
    _check_numbers(value, what)
    return value


def _check_numbers(value: JSON, what: str) -> None:
    """No number is beyond what clients can read back, wherever it stands: what is not known here is passed on."""
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        kind = type(each)
        if kind is dict:
            waiting.extend(each.values())
        elif kind is list:
            waiting.extend(each)
        elif (kind is int or kind is float) and _is_beyond(each):
            raise BadRequest(
                f"Cannot parse {what}: {_place_of(value)}: the number is beyond 64 bits; send one that a signed "
                "integer or a floating-point number of 64 bits can hold",
                rule="json",
            )


def _is_beyond(number: float) -> bool:
    return not LONG_MIN <= number <= LONG_MAX if type(number) is int else not math.isfinite(number)


def _place_of(value: JSON) -> str:
    """Where the number is; found only when there is one."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, dict):
            members: JSON = each
            waiting += [(f"{place}.{name}".lstrip("."), inner) for name, inner in members.items()]
        elif isinstance(each, list):
            items: list[Any] = each
            waiting += [(f"{place}[{at}]", inner) for at, inner in enumerate(items)]
        elif isinstance(each, int | float) and _is_beyond(each):
            return place
    return "body"


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
