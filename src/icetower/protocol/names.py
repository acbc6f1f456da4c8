"""Names of namespaces and tables, as people write them and as they travel in URLs."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from icetower.errors import BadRequest

Namespace = tuple[str, ...]

NAMESPACE_SEPARATOR = "\x1f"
"""Between the levels of a namespace in a URL, written `%1F` (REST specification, parameter `namespace`)."""


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
            BadRequest: no namespace, or an empty level.
        """
        *levels, name = text.split(".")
        if not levels or not name or not all(levels):
            raise BadRequest(
                f"Not a table name: {text!r}; write namespace.table, as in sales.orders", rule="request.name"
            )
        return cls(tuple(levels), name)


def namespace_to_path(namespace: Namespace) -> str:
    """The path segment for a namespace, percent-encoded."""
    return quote(NAMESPACE_SEPARATOR.join(namespace), safe="")


def checked_namespace(namespace: Namespace) -> Namespace:
    """The same namespace.

    Raises:
        BadRequest: it has no level, an empty one, or one that contains the separator or a null byte.
    """
    if not namespace or not all(namespace):
        raise BadRequest(f"Invalid namespace {list(namespace)}: it needs levels, none of them empty", rule="namespace")
    if any(NAMESPACE_SEPARATOR in level or "\x00" in level for level in namespace):
        raise BadRequest(f"Invalid namespace {list(namespace)}: a level holds a control character", rule="namespace")
    return namespace
