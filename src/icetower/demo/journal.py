"""An agent's journal: JSON lines that it writes itself, before and after each commit.

The reconciliation believes these journals and the source, never the server's log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

READY = "ready"
SENT = "sent"
ACKNOWLEDGED = "acknowledged"
REFUSED = "refused"
FAILED = "failed"
REPEATED = "repeated"
REPEAT_FAILED = "repeat_failed"
STRAYED = "strayed"
DONE = "done"
"""The events. `FAILED`: one sending of a batch; the agent sends it again. `REPEATED`: a batch that had been
acknowledged was sent once more and accepted. `STRAYED`: a batch outside the agent's contract was accepted."""


def runs_of(row_ids: Any) -> list[list[int]]:
    """Sorted row ids as closed runs: [1, 2, 3, 7] → [[1, 3], [7, 7]]."""
    if len(row_ids) == 0:
        return []
    breaks = np.flatnonzero(np.diff(row_ids) != 1)
    firsts = row_ids[np.concatenate(([0], breaks + 1))]
    lasts = row_ids[np.concatenate((breaks, [len(row_ids) - 1]))]
    return [[int(first), int(last)] for first, last in zip(firsts, lasts, strict=True)]


def ids_of(runs: list[list[int]]) -> Any:
    """The row ids (int64) of closed runs."""
    parts = [np.arange(first, last + 1, dtype=np.int64) for first, last in runs]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


class Journal:
    """Appends entries to one file; each is in the file when `write` returns, so that a killed agent finds it again."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"event": event, **fields}) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def entries(path: Path) -> Iterator[Mapping[str, Any]]:
    """The complete entries of a journal; a line that its writer did not finish is not there."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def acknowledged_batches(path: Path) -> frozenset[int]:
    return frozenset(entry["batch"] for entry in entries(path) if entry["event"] == ACKNOWLEDGED)


def acknowledged_rows(paths: list[Path]) -> Any:
    """Row ids (int64, sorted) of all acknowledged batches of some journals, as often as they were acknowledged."""
    parts = [ids_of(entry["rows"]) for path in paths for entry in entries(path) if entry["event"] == ACKNOWLEDGED]
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
