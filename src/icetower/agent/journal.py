"""The keys of what an agent has begun to send and has not seen land, kept in a file over crashes.

    {"begin": key, "act": "append", "table": "shop.prices", "rows": fingerprint, "most": 10000, "to": "shop.prices", …}
    {"move": key, "from": 3, "to": "shop.prices_deltas"}
    {"end": key}

A line is on the disk before its rows are sent. The same call with the same rows gets the key back that stands there
without an end, whether the process died since or the answer was lost; then the tower knows whether they have landed.
The file holds no rows. It is written anew, and replaced in one step, when most of its lines are of the past.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from icetower.agent.keys import new_key
from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import UsageError

PENDING_MAX = 10_000
"""Sends without an end that a journal keeps."""

DEAD_LINES_MAX = 1_000
"""Lines of the past, beyond as many as live ones, after which the file is written anew."""

_VERSION = {"icetower-journal": 1}


@dataclass(frozen=True, slots=True)
class Pending:
    """Rows that were begun to be sent, and of which it is not known that they have landed.

    Attributes:
        act: what is done with them: ``append``, ``upsert``, ``delete``, ``overwrite_partition``.
        table: ``namespace.table``.
        rows: their fingerprint.
        most: so many of them may go into one request.
        ways: the tables that they were written to (the log or delta table, or the table itself), each with the number
            of the first request that went there, from 0 on.
        at_ms: when it was begun, in milliseconds since 1970.
        again: whether the key was there before this call.
    """

    key: str
    act: str
    table: str
    rows: str
    most: int
    ways: tuple[tuple[int, str], ...]
    at_ms: int
    again: bool = False

    def way(self, number: int) -> str:
        """The table that a request was written to."""
        return [to for first, to in self.ways if first <= number][-1]

    def moved(self, number: int, to: str) -> Pending:
        return replace(self, ways=(*(each for each in self.ways if each[0] < number), (number, to)))


class Journal:
    """A journal, for one process at a time. Threads may share it.

    Args:
        path: of the file; it is made where there is none. ``path.lock`` is made beside it.
        pending_max: so many sends may be without an end.

    Raises:
        UsageError: another process has it, it is damaged, or it cannot be read or written.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, ambient: Ambient | None = None, pending_max: int = PENDING_MAX
    ) -> None:
        self.path = Path(path)
        self._ambient = ambient or SystemAmbient()
        self._pending_max = pending_max
        self._mutex = threading.Lock()  # of what is in memory; nothing blocks within
        self._disk = threading.Lock()
        self._live: dict[str, Pending] = {}
        self._held: set[str] = set()
        self._dead_lines = 0
        self._file: BinaryIO | None = None
        self._lock = self._guarded(lambda: _locked(self.path))
        try:
            self._guarded(self._read)
            self._guarded(self._rewrite)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have it. What is pending stays so."""
        with self._disk:
            self._drop_file()
            self._lock.close()

    # -- of a send ------------------------------------------------------------------------------------------------

    def claim(self, act: str, table: str, rows: str, key: str | None = None) -> Pending | None:
        """What was begun with these rows before and has no end; until it is released, no other call gets its key.

        Args:
            key: of the caller's own; None: that of any such rows.

        Raises:
            UsageError: other rows were begun under the key.
        """
        asked = (act, table, rows)
        with self._mutex:
            if key is not None:
                found = self._live.get(key)
                if found is not None and (found.act, found.table, found.rows) != asked:
                    raise UsageError(
                        f"{self.path}: the key {key} stands for other rows, whose answer is not there yet ({found.act} "
                        f"on {found.table}); give these a key of their own"
                    )
            else:
                mine = (each for each in self._live.values() if (each.act, each.table, each.rows) == asked)
                found = next((each for each in mine if each.key not in self._held), None)
            if found is None:
                return None
            self._held.add(found.key)
        return replace(found, again=True)

    def fresh(self, act: str, table: str, rows: str, most: int, to: str, key: str | None = None) -> Pending:
        """Rows that are begun, under the caller's key or a new one, which no other call gets until it is released.

        Raises:
            UsageError: too many sends have no end.
        """
        with self._mutex:
            if len(self._live) >= self._pending_max:
                raise UsageError(
                    f"{self.path}: {len(self._live)} sends have no end, and a journal keeps {self._pending_max}; send "
                    "their rows again, or look into the tables and forget them"
                )
            found = Pending(key or new_key(self._ambient), act, table, rows, most, ((0, to),), self._ambient.now_ms())
            self._held.add(found.key)
        return found

    def begin(self, pending: Pending) -> None:
        """The rows are about to be sent: their key is on the disk when this returns. It blocks."""
        with self._disk:
            self._guarded(lambda: self._write(_begun(pending)))
            with self._mutex:
                self._live[pending.key] = pending

    def moved(self, pending: Pending, number: int, to: str) -> Pending:
        """From this request on, which is not where the others are, the rows go to another table. It blocks."""
        found = pending.moved(number, to)
        with self._disk:
            self._guarded(lambda: self._write(_move(found.key, number, to)))
            with self._mutex:
                self._dead_lines += 1
                if found.key in self._live:
                    self._live[found.key] = replace(found, again=False)
        return found

    def ended(self, pending: Pending) -> None:
        """The rows are in the table, or it is known that they are not and never will be under this key. It blocks."""
        with self._disk:
            self._end(pending.key)

    def release(self, pending: Pending) -> None:
        """Nobody sends these rows any more; whoever sends them next gets the key, unless they have an end."""
        with self._mutex:
            self._held.discard(pending.key)

    # -- for people -----------------------------------------------------------------------------------------------

    def pending(self) -> tuple[Pending, ...]:
        """What was begun and has no end, oldest first."""
        with self._mutex:
            return tuple(self._live.values())

    def forget(self, key: str) -> None:
        """End a send of which somebody knows whether its rows are in the table."""
        with self._disk:
            if key not in self._live:
                raise UsageError(f"{self.path} has no send under the key {key}")
            self._end(key)

    # -- the file -------------------------------------------------------------------------------------------------

    def _end(self, key: str) -> None:
        with self._mutex:
            if self._live.pop(key, None) is None:
                return
            self._dead_lines += 2
        try:
            self._write({"end": key})
        except OSError:
            # The rows are in the table, whatever the disk does. The next send writes the whole file anew, or fails.
            self._drop_file()

    def _write(self, line: Mapping[str, Any]) -> None:
        """Returns when the line is on the disk. After a failure the next line finds the file written anew."""
        if self._file is None or self._dead_lines > DEAD_LINES_MAX + len(self._live):
            self._rewrite()
        file = self._file
        assert file is not None
        try:
            file.write(_line(line))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            self._drop_file()
            raise

    def _drop_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _rewrite(self) -> None:
        """Write the file anew with what has no end, and put it in the place of the old one in one step."""
        self._drop_file()
        fresh = self.path.with_name(f"{self.path.name}.new")
        with fresh.open("wb") as file:
            file.write(_line(_VERSION) + b"".join(map(_line, _lines(self._live.values()))))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        _sync_folder(self.path.parent)
        self._file, self._dead_lines = self.path.open("ab"), 0

    def _read(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        lines = data.split(b"\n")
        read = [_parsed(line) for line in lines]
        last = max((at for at, line in enumerate(read) if line is not None), default=-1)
        if data and (last < 0 or read[0] != _VERSION):
            raise UsageError(f"{self.path} is no journal of an agent, or one of another version; name another file")
        for number, line in enumerate(read[: last + 1], 1):
            if line is None:  # the last line alone may be torn
                raise UsageError(f"{self.path}: line {number} is damaged; restore the file, or name another one")
            self._apply(line, number)

    def _apply(self, line: Mapping[str, Any], number: int) -> None:
        try:
            if "begin" in line:
                key = str(line["begin"])
                given = (str(line["act"]), str(line["table"]), str(line["rows"]))
                self._live[key] = Pending(
                    key, *given, int(line["most"]), ways=((0, str(line["to"])),), at_ms=int(line["at"])
                )
            elif "move" in line and line["move"] in self._live:
                key = str(line["move"])
                self._live[key] = self._live[key].moved(int(line["from"]), str(line["to"]))
            elif "end" in line:
                self._live.pop(str(line["end"]), None)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{self.path}: line {number} is damaged; restore the file, or name another one") from error

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except OSError as error:
            raise UsageError(f"the journal {self.path} cannot be used: {error.strerror or error}") from error


def _begun(pending: Pending) -> dict[str, Any]:
    return {
        "begin": pending.key,
        "act": pending.act,
        "table": pending.table,
        "rows": pending.rows,
        "most": pending.most,
        "to": pending.ways[0][1],
        "at": pending.at_ms,
    }


def _move(key: str, number: int, to: str) -> dict[str, Any]:
    return {"move": key, "from": number, "to": to}


def _lines(pending: Iterable[Pending]) -> Iterator[dict[str, Any]]:
    for each in pending:
        yield _begun(each)
        yield from (_move(each.key, number, to) for number, to in each.ways[1:])


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # it has no such call
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _locked(path: Path) -> BinaryIO:
    """The open lock file. Raises `UsageError` where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f"{path.name}.lock").open("ab")
    try:
        _lock(file)
    except BlockingIOError:
        file.close()
        raise UsageError(f"{path} is the journal of another agent that runs; each needs a journal of its own") from None
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: BinaryIO) -> None:
    try:
        import fcntl
    except ImportError:
        _lock_on_windows(file)
        return
    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_on_windows(file: BinaryIO) -> None:
    import importlib

    locking: ModuleType = importlib.import_module("msvcrt")
    try:
        file.seek(0)
        locking.locking(file.fileno(), locking.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError from error
