"""Validation of a commit: the isolation levels at which it is checked, and the conflict that refuses it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from icetower.iceberg.deletes import Place


class Level(StrEnum):
    """How much is checked. NONE: no check that an engine could leave out."""

    NONE = "none"
    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A commit that a rule refuses.

    Attributes:
        rule: its id, such as ``C1``.
        error: the exception that Iceberg throws, by its simple name.
        message: Iceberg's own text.
        paths: the files in the way, or missing.
        snapshots: ids of the snapshots that brought or took them, where that is known.
        places: their partitions, where these are known.
    """

    rule: str
    error: str
    message: str
    paths: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
