"""Reads one manifest list after the other, each by what it has that the last one had not.

The lists of a branch differ by a row or two, and a history of n commits has n of them. The rows that two lists have in
common stand in both as the same bytes, before or after those that differ; comparing bytes takes a thousandth of the
time that decoding them does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from icetower.errors import ValidationFailed
from icetower.iceberg import avro_files
from icetower.iceberg.avro_files import Unpacked
from icetower.iceberg.manifests import list_name, malformed, manifest_file
from icetower.iceberg.records import ManifestFile

_WHAT = "the manifest list"


@dataclass(frozen=True, slots=True)
class ListStep:
    """One list against the one before it.

    Attributes:
        header: what the file says of itself: ``snapshot-id``, ``parent-snapshot-id``, ``sequence-number``, ….
        entered, left: rows of manifests that only the new one, or only the old one names.
        altered: rows of manifests that both name, where the new one says something else: (was, is).
        doubled: manifests that the new one names more than once.
    """

    header: Mapping[str, str]
    entered: tuple[ManifestFile, ...]
    left: tuple[ManifestFile, ...]
    altered: tuple[tuple[ManifestFile, ManifestFile], ...]
    doubled: tuple[str, ...]


class ListReader:
    """Manifest lists in the order of their commits; `rows` are those of the last one."""

    def __init__(self) -> None:
        self.rows: list[ManifestFile] = []
        self._file: Unpacked | None = None
        self._ends: list[int] = []
        self._named: dict[str, int] = {}

    def step(self, data: bytes) -> ListStep:
        """Read the next list. Raises `ValidationFailed`, and then stands where it stood."""
        file = avro_files.unpack(data, what=_WHAT)
        first, last = self._common(file)
        shift = len(file.body) - (self._ends[-1] if self._ends else 0)
        start, end = self._start(first), self._start(last) + shift
        middle, ends = _rows(file, start, end)
        if (ends and ends[-1] != end) or first + len(middle) + len(self.rows) - last != file.count:
            # What looked like the end of the old list was something else.
            first, last, shift = 0, len(self.rows), len(file.body) - (self._ends[-1] if self._ends else 0)
            middle, ends = _rows(file, 0, len(file.body))
            if len(middle) != file.count or (ends and ends[-1] != len(file.body)):
                raise ValidationFailed(f"{_WHAT} has other rows than it says", rule="manifest.readable")
        gone = self.rows[first:last]
        self.rows[first:last] = middle
        self._ends = [*self._ends[:first], *ends, *(end + shift for end in self._ends[last:])]
        self._file = file
        return self._told(file.header, gone, middle)

    def _start(self, row: int) -> int:
        return self._ends[row - 1] if row else 0

    def _common(self, file: Unpacked) -> tuple[int, int]:
        """(n, m): the first n rows of the old list and those from m on are in the new one as they are."""
        old = self._file
        if old is None or old.schema != file.schema:
            return 0, len(self.rows)
        most = min(len(old.body), len(file.body))
        first = bisect_right(self._ends, _same(old.body, file.body, most))
        behind = len(old.body) - min(_same_end(old.body, file.body, most), most - self._start(first))
        return first, bisect_left(self._ends, behind) + 1 if behind else 0

    def _told(self, header: Mapping[str, str], gone: list[ManifestFile], come: list[ManifestFile]) -> ListStep:
        before = {row.path: row for row in gone}
        for row in gone:
            self._named[row.path] -= 1
        entered: dict[str, ManifestFile] = {}
        altered: list[tuple[ManifestFile, ManifestFile]] = []
        doubled: dict[str, None] = {}
        for row in come:
            if self._named.get(row.path):
                doubled[row.path] = None
            elif row.path not in before:
                entered[row.path] = row
            elif before[row.path] != row:
                altered.append((before[row.path], row))
            self._named[row.path] = self._named.get(row.path, 0) + 1
        left = tuple(row for path, row in before.items() if not self._named[path])
        for row in left:
            del self._named[row.path]
        return ListStep(header, tuple(entered.values()), left, tuple(altered), tuple(doubled))


def _rows(file: Unpacked, start: int, end: int) -> tuple[list[ManifestFile], list[int]]:
    rows: list[ManifestFile] = []
    ends: list[int] = []
    try:
        for at, record in avro_files.decode(file, start, end, rename=list_name, what=_WHAT):
            rows.append(manifest_file(record))
            ends.append(at)
    except (KeyError, TypeError, AttributeError) as error:
        raise malformed(_WHAT, error) from error
    return rows, ends


def _same(one: bytes, other: bytes, most: int) -> int:
    """How many bytes at the beginning are the same, up to `most`."""
    low, step = 0, 64
    while low < most:
        high = min(low + step, most)
        if one[low:high] != other[low:high]:
            if high - low == 1:
                return low
            step = (high - low) // 2
            most = high
        else:
            low, step = high, step * 2
    return low


def _same_end(one: bytes, other: bytes, most: int) -> int:
    """How many bytes at the end are the same, up to `most`."""
    low, step = 0, 64
    while low < most:
        high = min(low + step, most)
        if one[len(one) - high : len(one) - low] != other[len(other) - high : len(other) - low]:
            if high - low == 1:
                return low
            step = (high - low) // 2
            most = high
        else:
            low, step = high, step * 2
    return low
