"""Names of namespaces and tables, as people write them and as they travel in URLs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from icetower.errors import BadRequest
from icetower.texts import acting_character

Namespace = tuple[str, ...]

NAMESPACE_SEPARATOR = "\x1f"
"""Between the levels of a namespace in a URL, written `%1F` (REST specification, parameter `namespace`)."""

PART_CHARACTERS_MAX = 255
"""Of a level of a namespace, and of a table's own name: what JDBC catalogs, Hive and Glue hold."""

NAME_CHARACTERS_MAX = 1_000
"""Of a full name, its dots included. It is repeated in errors, in the log, in files' paths and in URLs."""

LEVELS_MAX = 100

FOLDER_NAME_BYTES_MAX = 255 - len("-123e4567-e89b-42d3-a456-426614174000")
"""Of a table's name in its location."""


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """A table's full name: its namespace's levels, then its own name."""

    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))

    @classmethod
    def parse(cls, text: str) -> Identifier:
        """Read `a.b.t`. Levels that contain a dot can't be written so; they travel as lists.

        Raises:
            BadRequest: no namespace, an empty level, or too long a name.
        """
        _check_length((text,), NAME_CHARACTERS_MAX)
        *levels, name = text.split(".")
        if not levels or not name or not all(levels):
            raise BadRequest(
                f"Not a table name: {text!r}; write namespace.table, as in sales.orders", rule="request.name"
            )
        return checked_identifier(tuple(levels), name)


def namespace_to_path(namespace: Namespace) -> str:
    """The path segment for a namespace, percent-encoded."""
    return quote(NAMESPACE_SEPARATOR.join(namespace), safe="")


def checked_namespace(namespace: Namespace) -> Namespace:
    """The same namespace.

    Raises:
        BadRequest: it has no level, an empty one, one that contains the separator or a null byte, or is too long.
    """
    check_bounds(namespace)
    if not namespace or not all(namespace):
        raise BadRequest(f"Invalid namespace {list(namespace)}: it needs levels, none of them empty", rule="namespace")
    if any(NAMESPACE_SEPARATOR in level or "\x00" in level for level in namespace):
        raise BadRequest(f"Invalid namespace {list(namespace)}: a level holds a control character", rule="namespace")
    return namespace


def checked_identifier(namespace: Namespace, name: str) -> Identifier:
    """The table's full name. Raises `BadRequest` (``request.length``) where it is too long to be one."""
    check_bounds((*namespace, name))
    return Identifier(namespace, name)


def check_bounds(parts: Sequence[str]) -> None:
    """Raises `BadRequest` (``request.length``) for a name that is too long. The error does not repeat it."""
    if len(parts) > LEVELS_MAX:
        raise BadRequest(
            f"a name of a table or a namespace has {len(parts)} levels; at most {LEVELS_MAX} are taken",
            rule="request.length",
        )
    _check_length(parts, PART_CHARACTERS_MAX)
    _check_length([".".join(parts)], NAME_CHARACTERS_MAX)


def folder_of(name: str, uuid: str) -> str:
    """The last part of a new table's location. Of a long name the beginning: file systems take 255 bytes."""
    data = name.encode("utf-8", "surrogatepass")
    if len(data) > FOLDER_NAME_BYTES_MAX:
        name = data[:FOLDER_NAME_BYTES_MAX].decode("utf-8", "ignore")
    return f"{name}-{uuid}"


def check_new(*parts: str) -> None:
    """Raises `BadRequest` (``request.name``) for a new name that readers would not see as it is.

    What exists under such a name can still be loaded, renamed and dropped.
    """
    for part in parts:
        character = acting_character(part)
        if character is not None:
            raise BadRequest(
                f"a new name of a table or a namespace holds the control character {character}: people read it in "
                "logs and at terminals. Choose a name without",
                rule="request.name",
            )


def _check_length(parts: Sequence[str], characters_max: int) -> None:
    longest = max(map(len, parts), default=0)
    if longest > characters_max:
        part = "a level of it" if characters_max == PART_CHARACTERS_MAX else "all of it"
        raise BadRequest(
            f"a name of a table or a namespace is too long: {part} has {longest} characters, and at most "
            f"{characters_max} are taken. Send a shorter one",
            rule="request.length",
        )
