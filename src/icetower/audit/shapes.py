"""What the rules take for granted of a table's metadata, looked at before anything else. Pure.

Metadata comes from whoever could write it. What is in its snapshots is what is audited; that they are snapshots at all
is asked here, so that damage is reported by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

from icetower.errors import ValidationFailed

T = TypeVar("T")

_NUMBER, _TEXT = (int,), (str,)
_REQUIRED: Mapping[str, tuple[type, ...]] = {"snapshot-id": _NUMBER, "timestamp-ms": _NUMBER}
_OPTIONAL: Mapping[str, tuple[type, ...]] = {
    "parent-snapshot-id": _NUMBER,
    "sequence-number": _NUMBER,
    "first-row-id": _NUMBER,
    "manifest-list": _TEXT,
}
_OF_THE_TABLE: Mapping[str, tuple[type, ...]] = {
    "format-version": _NUMBER,
    "current-snapshot-id": _NUMBER,
    "default-spec-id": _NUMBER,
    "last-sequence-number": _NUMBER,
    "table-uuid": _TEXT,
}
_WORDS = {str, int, float, bool}
_NUMBER_MAX = 1 << 63


def check_shape(metadata: Mapping[str, Any]) -> None:
    """Raises `ValidationFailed`, which names the field."""
    _fields("the table", metadata, {}, _OF_THE_TABLE)
    for name, value in _object(metadata, "properties").items():
        if type(value) is not str:
            _refuse(f"the table's property {name!r}", "a text")
    for list_name, number_name in (("schemas", "id"), ("partition-specs", "field-id")):
        for part in _objects(metadata, list_name):
            for field in _objects(part, "fields"):
                _fields(f"a field of {list_name!r}", field, {"name": _TEXT}, {number_name: _NUMBER})
    for number, snapshot in enumerate(_objects(metadata, "snapshots")):
        _fields(f"snapshot {number}", snapshot, _REQUIRED, _OPTIONAL)
        for name, value in _object(snapshot, "summary").items():
            if type(value) not in (_WORDS if name != "operation" else {str}):
                _refuse(f"{name!r} in the summary of snapshot {snapshot['snapshot-id']}", "a text")
    for name, reference in _object(metadata, "refs").items():
        if not isinstance(reference, dict):
            _refuse(f"the reference {name!r}", "an object")
        _fields(f"the reference {name!r}", cast("dict[str, Any]", reference), {"snapshot-id": _NUMBER}, {})
    for entry in _objects(metadata, "snapshot-log"):
        _fields("the log of snapshots", entry, {"snapshot-id": _NUMBER}, {})


def readable(what: str, read: Callable[[], T]) -> T:
    """What `read` makes of a part of the metadata. Raises `ValidationFailed` where it is no such thing."""
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"[:100]
        raise ValidationFailed(f"the table's {what} cannot be read ({said})", rule="metadata") from error


def _fields(
    what: str, given: Mapping[str, Any], required: Mapping[str, tuple[type, ...]], optional: Mapping[str, Any]
) -> None:
    for name, kinds in (*required.items(), *optional.items()):
        value = given.get(name)
        if value is None and name in optional:
            continue
        if type(value) not in kinds or (type(value) is int and not -_NUMBER_MAX <= value < _NUMBER_MAX):
            _refuse(f"{name!r} of {what}", "a number" if kinds is _NUMBER else "a text")


def _object(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse(repr(name), "an object")
    return cast("Mapping[str, Any]", value)


def _objects(of: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    value = of.get(name)
    if value is None:
        return
    if not isinstance(value, list):
        _refuse(repr(name), "a list")
    for each in cast("Sequence[object]", value):
        if not isinstance(each, dict):
            _refuse(f"a part of {name!r}", "an object")
        yield cast("Mapping[str, Any]", each)


def _refuse(what: str, wanted: str) -> NoReturn:
    raise ValidationFailed(
        f"the table's metadata cannot be read: {what} is not {wanted}; read it at a version before (metadata-log)",
        rule="metadata",
    )
