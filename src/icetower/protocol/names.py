"""Names of namespaces and tables."""

from __future__ import annotations

from dataclasses import dataclass

from icetower.errors import BadRequest

Namespace = tuple[str, ...]

NAMESPACE_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """The full name of a table: its namespace and its own name."""

    namespace: Namespace
    name: str

    @classmethod
    def parse(cls, text: str) -> Identifier:
        """Read ``a.b.t``. Raises `BadRequest` where a level is empty or the namespace is missing."""
        *namespace, name = text.split(".")
        if not namespace or not name or not all(namespace):
            raise BadRequest(f"{text!r} is not the name of a table: write namespace.table", rule="request.name")
        return cls(tuple(namespace), name)

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))
