"""The group file: who appended which data files under which key, where one snapshot stands for many appends. Pure.

It is written beside the snapshot's manifest list and named in its summary, so that it commits under the same swap
(trap K1). Its form is Icetower's own: compact JSON with a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from icetower.errors import ValidationFailed
from icetower.table.keys import KeyRecord

VERSION = 1
Span = tuple[int, int]
"""Rows of a file: the position of the first, and how many."""

_BEGIN = "_icetower-group-"


@dataclass(frozen=True, slots=True)
class GroupedAppend:
    """One append of a group.

    Attributes:
        application: (application, sequence), where the caller numbers its appends.
        fingerprint: stands for the files that were sent.
        files: paths of its data files.
        rows: where it brought rows, in files that others' rows may be in, too: by path, which rows are its own. Once a
            file is rewritten, whose its rows are is told no more.
    """

    principal: str
    key: str | None
    application: tuple[str, int] | None
    fingerprint: str
    files: tuple[str, ...]
    rows: Mapping[str, tuple[Span, ...]] = field(default_factory=dict[str, "tuple[Span, ...]"])

    @property
    def paths(self) -> tuple[str, ...]:
        """All data files in which it has rows."""
        return (*self.files, *self.rows)


@dataclass(frozen=True, slots=True)
class Group:
    """All appends that one snapshot stands for, in the order in which they were taken."""

    table_uuid: str
    ref: str
    snapshot_id: int
    appends: tuple[GroupedAppend, ...]


def group_file_name(snapshot_id: int, name: str) -> str:
    """The file's name; `name` makes it unique.

    Iceberg's orphan removal passes over names that begin with an underscore: to it the file belongs to nobody.
    """
    return f"{_BEGIN}{snapshot_id}-{name}.json"


def snapshot_of_group_file(path: str) -> int | None:
    """The id of the snapshot whose group file is called so; None for other files."""
    name = path.rpartition("/")[2]
    number = name[len(_BEGIN) :].partition("-")[0] if name.startswith(_BEGIN) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) < 20 else None


def write_group(group: Group) -> bytes:
    """The bytes of a group file; the same group gives the same bytes."""
    return orjson.dumps(
        {
            "version": VERSION,
            "table-uuid": group.table_uuid,
            "ref": group.ref,
            "snapshot-id": group.snapshot_id,
            "appends": [_append_json(append) for append in group.appends],
        }
    )


def _append_json(append: GroupedAppend) -> dict[str, Any]:
    document: dict[str, Any] = {
        "principal": append.principal,
        "fingerprint": append.fingerprint,
        "files": append.files,
    }
    if append.key is not None:
        document["key"] = append.key
    if append.rows:
        document["rows"] = append.rows
    if append.application is not None:
        document["application"] = {"id": append.application[0], "sequence": append.application[1]}
    return document


def read_group(data: bytes) -> Group:
    """The group of a file's bytes.

    Raises:
        ValidationFailed: no group file, or one of a later version.
    """
    try:
        document: dict[str, Any] = orjson.loads(data)
        version = document["version"]
        if version != VERSION:
            raise ValidationFailed(
                f"the group file is of version {version!r}, and this release reads version {VERSION}; upgrade Icetower",
                rule="group.readable",
            )
        return Group(
            table_uuid=str(document["table-uuid"]),
            ref=str(document["ref"]),
            snapshot_id=int(document["snapshot-id"]),
            appends=tuple(_append_of(append) for append in document["appends"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValidationFailed(
            f"this is no group file of Icetower's ({type(error).__name__}): restore it from a backup; without it, who "
            "appended what in this snapshot is unknown",
            rule="group.readable",
        ) from error


def _append_of(document: dict[str, Any]) -> GroupedAppend:
    key, application = document.get("key"), document.get("application")
    return GroupedAppend(
        principal=str(document["principal"]),
        key=None if key is None else str(key),
        application=None if application is None else (str(application["id"]), int(application["sequence"])),
        fingerprint=str(document["fingerprint"]),
        files=tuple(str(path) for path in document["files"]),
        rows={
            str(path): tuple((int(start), int(count)) for start, count in spans)
            for path, spans in (document.get("rows") or {}).items()
        },
    )


def key_records(group: Group) -> tuple[KeyRecord, ...]:
    """What the group's snapshot stands for: one record for each append that has a key or a number (trap K1)."""
    return tuple(
        KeyRecord(append.principal, group.ref, append.key, append.application, (group.snapshot_id,))
        for append in group.appends
        if append.key is not None or append.application is not None
    )
