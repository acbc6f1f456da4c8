"""How snapshots, files and partitions are called in witnesses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from icetower.audit.items import Item
from icetower.counting import counted
from icetower.iceberg.partitions import PartitionSpec, partition_name
from icetower.protocol.marks import PRINCIPAL
from icetower.protocol.snapshots import Snapshot
from icetower.table.origins import application_of
from icetower.texts import printable

JSON = Mapping[str, Any]
FILES_SHOWN = 3
TEXT_SHOWN = 200


def called(snapshot: JSON) -> str:
    """``snapshot 3 (overwrite by spark app-7, 2026-11-21 10:00:00)``."""
    about = [Snapshot(snapshot).operation or "no operation"]
    writer = writer_of(snapshot)
    if writer:
        about[0] += f" by {writer}"
    at = time_of(snapshot)
    return f"snapshot {snapshot['snapshot-id']} ({', '.join(about if at is None else (*about, at))})"


def writer_of(snapshot: JSON) -> str:
    """Who made it, as far as its summary says: principal, engine, application."""
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    words = (summary.get(PRINCIPAL), summary.get("engine-name"), application_of(summary))
    return " ".join(shown(word) for word in dict.fromkeys(words) if word)


def time_of(snapshot: JSON) -> str | None:
    """When it was committed, in UTC."""
    try:
        return datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC).isoformat(sep=" ", timespec="seconds")[:19]
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None


def shown(word: object) -> str:
    """What others have written, in one line and not too long."""
    text = printable(str(word))
    return text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + "…"


def name(path: str) -> str:
    """The last part of a path."""
    return shown(path.rpartition("/")[2])


def names(items: Iterable[Item]) -> str:
    """Files by name, a few."""
    every = list(dict.fromkeys(name(item.path) for item in items))
    return listed(every)


def listed(words: Sequence[str]) -> str:
    """A few of them, and how many more there are."""
    more = len(words) - FILES_SHOWN
    return ", ".join(words[:FILES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def rows(count: int) -> str:
    return counted(count, "row")


def partition_of(item: Item, specs: Mapping[int, PartitionSpec]) -> str:
    """``partition day=2026-11-21``, or ``the table`` where it has none."""
    return place_name(item.spec_id, item.partition, specs)


def place_name(spec_id: int, partition: Sequence[Any], specs: Mapping[int, PartitionSpec]) -> str:
    """The same of a partition without a file."""
    spec = specs.get(spec_id)
    if spec is None or len(spec.fields) != len(partition):
        return f"a partition of spec {spec_id}"
    return f"partition {shown(partition_name(spec, partition))}" if spec.fields else "the table"
