"""`Snapshot`: a snapshot as metadata files and commits have it, with its fields by name.

Source: Apache Iceberg specification, "Snapshots".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from icetower.protocol.marks import REVERTS

_TOTAL_OF = {"added-records": "total-records", "added-data-files": "total-data-files"}
_REMOVED = ("deleted-records", "deleted-data-files")


def _number(text: object) -> int | None:
    """A number of a summary; None where there is none."""
    if not isinstance(text, str) or not text.isascii() or not text.isdecimal() or len(text) > 19:
        return None
    return int(text)


class Snapshot(Mapping[str, Any]):
    """A view of one snapshot (JSON), which keeps the fields that this class does not know.

    It is the mapping of all its fields, and costs nothing to make: nothing is copied, checked or parsed.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields: Mapping[str, Any] = fields._fields if isinstance(fields, Snapshot) else fields

    @property
    def id(self) -> int:
        return self._fields["snapshot-id"]

    @property
    def parent_id(self) -> int | None:
        """None for the first one. Old metadata writes -1 for none."""
        parent_id = self._fields.get("parent-snapshot-id")
        return None if parent_id in (None, -1) else parent_id

    @property
    def sequence_number(self) -> int:
        """0 in format version 1."""
        return int(self._fields.get("sequence-number") or 0)

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970, by the clock of its writer."""
        return self._fields["timestamp-ms"]

    @property
    def summary(self) -> Mapping[str, str]:
        """Empty where it has none, as in format version 1."""
        return self._fields.get("summary") or {}

    @property
    def operation(self) -> str | None:
        """What it was recorded as: ``append``, ``overwrite``, ``replace`` or ``delete``."""
        return self.summary.get("operation")

    @property
    def reverts(self) -> frozenset[str]:
        """The ids of the snapshots that it says it takes back."""
        return frozenset(str(self.summary.get(REVERTS, "")).split(",")) - {""}

    @property
    def may_be_first(self) -> bool:
        """Whether its branch may have begun with it, by its totals: the table has what it added, and nothing else.

        A snapshot that names no parent need not be the first. PyIceberg takes the ids of what it expires out of their
        children, where the catalog leaves it to its clients to write the metadata.
        """
        if self.parent_id is not None:
            return False
        counted = {name: _number(self.summary.get(name)) for name in (*_TOTAL_OF, *_TOTAL_OF.values(), *_REMOVED)}
        whole = all(counted[total] == (counted[added] or 0) for added, total in _TOTAL_OF.items())
        return whole and not any(counted[name] for name in _REMOVED)

    @property
    def manifest_list(self) -> str | None:
        """The path of its manifest list; None where it lists its manifests itself, as writers did before 2019."""
        return self._fields.get("manifest-list")

    @property
    def content(self) -> tuple[str, int, int]:
        """The rows that it has: its manifests, its sequence number and its time.

        An id does not say that. Clients choose ids: where a snapshot was removed, another can come under its id.
        """
        manifests = self.manifest_list or json.dumps(self._fields.get("manifests"))
        return manifests, self.sequence_number, self.timestamp_ms

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Snapshot({dict(self._fields)!r})"
