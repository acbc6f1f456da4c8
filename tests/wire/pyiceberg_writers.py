"""Writers for processes of their own: PyIceberg as its users run it, counting what it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from icetower.agent import Tower

ATTEMPTS_MAX = 60

_start: Barrier | None = None


def initialise(start: Barrier) -> None:
    """In each process, once: what they wait at so that all are under way together."""
    global _start
    _start = start


@dataclass
class Work:
    """What a writer was told by the tower: its part of the ground truth.

    Attributes:
        acknowledged: ids of rows whose commit was acknowledged, or key → value for writers that change rows.
        statuses: of every commit request that was sent, in order.
    """

    acknowledged: Any
    statuses: list[int] = field(default_factory=list[int])


def _table(uri: str, token: str, name: str, statuses: list[int]) -> Table:
    catalog = load_catalog("tower", **Tower(uri, token).pyiceberg_properties())
    table = catalog.load_table(name)
    end = "/tables/" + name.rpartition(".")[2]

    def note(response: Any, *_: Any, **__: Any) -> None:
        if response.request.method == "POST" and response.request.path_url.endswith(end):
            statuses.append(response.status_code)

    catalog._session.hooks["response"].append(note)  # type: ignore[attr-defined]
    return table


def _wait_for_all(together: bool) -> None:
    if together:
        assert _start is not None
        _start.wait(60)


def append(uri: str, token: str, name: str, writer: int, commits: int, *, together: bool = True) -> Work:
    """Append rows of its own, two a commit, always on the handle that it has."""
    work = Work([])
    table = _table(uri, token, name, work.statuses)
    _wait_for_all(together)
    for number in range(commits):
        ids = [writer * 10_000 + 2 * number, writer * 10_000 + 2 * number + 1]
        table.append(pa.table({"id": ids, "owner": [f"w{writer}"] * 2, "value": [number] * 2}))
        work.acknowledged += ids
    return work


def _until_acknowledged(table: Table, write: Callable[[], Any]) -> None:
    for _ in range(ATTEMPTS_MAX):
        try:
            write()
        except (CommitFailedException, ValidationException):  # certain not to have landed: look again, write again
            table.refresh()
        else:
            return
    raise AssertionError(f"{ATTEMPTS_MAX} attempts were refused")


def overwrite(uri: str, token: str, name: str, writer: int, commits: int, *, together: bool = True) -> Work:
    """Replace its own rows by new ones; PyIceberg sends several snapshots a commit."""
    work = Work({})
    table = _table(uri, token, name, work.statuses)
    _wait_for_all(together)
    for number in range(commits):
        rows = pa.table(
            {"id": [writer * 10_000 + n for n in range(3)], "owner": [f"w{writer}"] * 3, "value": [number] * 3}
        )
        _until_acknowledged(table, lambda rows=rows: table.overwrite(rows, EqualTo("owner", f"w{writer}")))
        work.acknowledged = {writer * 10_000 + n: number for n in range(3)}
    return work


def upsert(uri: str, token: str, name: str, writer: int, commits: int, *, together: bool = True) -> Work:
    """Update and add rows under its own keys; PyIceberg sends several snapshots a commit."""
    work = Work({})
    table = _table(uri, token, name, work.statuses)
    _wait_for_all(together)
    for number in range(commits):
        keys = [writer * 10_000 + n for n in range(number + 2)]
        rows = pa.table({"id": keys, "owner": [f"w{writer}"] * len(keys), "value": [number] * len(keys)})
        _until_acknowledged(table, lambda rows=rows: table.upsert(rows, join_cols=["id"]))
        work.acknowledged |= dict.fromkeys(keys, number)
    return work
