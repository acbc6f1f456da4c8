"""Decodes only those entries of a rewritten manifest that its predecessors did not contain. Pure.

A commit that removes one file of a manifest writes the manifest anew, and so does one that merges it with others: all
its other entries stand in the new one as the same bytes, run by run, in their order. Comparing bytes costs a thousandth
of decoding them, so that a history costs what its commits changed, however large the manifests are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from icetower.audit.items import Inheriting, Item
from icetower.errors import ValidationFailed
from icetower.iceberg import avro_files
from icetower.iceberg.avro_files import Unpacked
from icetower.iceberg.manifests import Shape, entry_name, entry_of, malformed, shape_of
from icetower.iceberg.records import DELETED, EXISTING, ManifestFile

BODIES_MAX_BYTES = 256 * 1024 * 1024
"""Of manifests, unpacked, against which others are compared."""

SHAPES_MAX = 64
_WHAT = "the manifest"
_RECORDS = attrgetter("records")


@dataclass(eq=False, slots=True)
class Body:
    """A manifest that was read.

    Attributes:
        items: its entries in order.
        length_bytes: of its file.
        file: its bytes; None where they were let go.
        ends: where each entry ends in them.
        breaks: positions of entries that inherit something, so that their bytes mean nothing elsewhere; in order.
        totals: by status, how many entries there are, and how many rows they have.
    """

    row: ManifestFile
    items: list[Item]
    length_bytes: int
    file: Unpacked | None
    ends: list[int]
    breaks: list[int]
    totals: dict[int, tuple[int, int]]

    def start(self, at: int) -> int:
        return self.ends[at - 1] if at else 0


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of an older manifest that a new one has as they are: those from `first` up to, and without, `last`."""

    of: Body
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Read:
    """A new manifest against older ones.

    Attributes:
        runs: what it carries over unchanged.
        fresh: all its other entries.
    """

    body: Body
    runs: tuple[Run, ...]
    fresh: tuple[Item, ...]


class ManifestReader:
    """Reads manifests, and keeps their bytes as long as there is room."""

    def __init__(self, bytes_max: int = BODIES_MAX_BYTES) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Body, int] = OrderedDict()
        self._kept_bytes = 0
        self._shapes: dict[tuple[str, str, bytes], Shape] = {}

    def read(self, data: bytes, row: ManifestFile, older: Sequence[Cursor] = ()) -> Read:
        """Read a manifest. Raises `ValidationFailed`.

        Args:
            older: over the manifests that left with the commit that brought this one. All that the commit brought are
                read with the same cursors, since an entry is carried over once.
        """
        file = avro_files.unpack(data, what=_WHAT)
        try:
            return self._read(file, row, [each for each in older if each.fits(file, row)], len(data))
        except ValidationFailed:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise malformed(_WHAT, error) from error

    def _read(self, file: Unpacked, row: ManifestFile, older: Sequence[Cursor], length_bytes: int) -> Read:
        shape = self._shape(file)
        inheriting = Inheriting.of(row)
        body = Body(row, [], length_bytes, file, [], [], {})
        runs: list[Run] = []
        fresh: list[Item] = []
        position, end = 0, len(file.body)
        while position < end:
            run = next((found for each in older if (found := each.match(file.body, position)) is not None), None)
            if run is not None:
                shift = position - run.of.start(run.first)
                carried = run.of.items[run.first : run.last]
                body.items += carried
                _count(body, EXISTING, len(carried), sum(map(_RECORDS, carried)))
                ends = [at + shift for at in run.of.ends[run.first : run.last]]
                body.ends += ends
                runs.append(run)
                position = ends[-1]
                continue
            after, record = next(avro_files.decode(file, position, end, rename=entry_name, what=_WHAT))
            entry = entry_of(record, shape)
            if not inheriting.says_all(entry):
                body.breaks.append(len(body.items))
            item = inheriting.item(entry)
            fresh.append(item)
            body.items.append(item)
            _count(body, item.status, 1, item.records)
            body.ends.append(after)
            position = after
            for each in older:
                each.passed(item)
        if len(body.items) != file.count or position != end:
            raise ValidationFailed("the manifest has other entries than it says", rule="manifest.readable")
        self._keep(body, end)
        return Read(body, tuple(runs), tuple(fresh))

    def _shape(self, file: Unpacked) -> Shape:
        """All manifests of a spec say the same of their partitions, and working it out costs as much as an entry."""
        key = (file.header.get("partition-spec", ""), file.header.get("partition-spec-id", ""), file.schema)
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            known = self._shapes[key] = shape_of(file.header, avro_files.written_schema(file))
        return known

    def _keep(self, body: Body, size: int) -> None:
        self._kept[body] = size
        self._kept_bytes += size
        while self._kept_bytes > self._bytes_max:
            oldest, freed = self._kept.popitem(last=False)
            oldest.file, oldest.ends = None, []
            self._kept_bytes -= freed

    def forget(self, body: Body) -> None:
        """Let go of a manifest that has left."""
        self._kept_bytes -= self._kept.pop(body, 0)


def _count(body: Body, status: int, files: int, rows: int) -> None:
    files_before, rows_before = body.totals.get(status, (0, 0))
    body.totals[status] = (files_before + files, rows_before + rows)


class Cursor:
    """How far an older manifest was found in those that take its place."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self._at = 0
        self.runs: list[tuple[int, int]] = []

    def fits(self, file: Unpacked, row: ManifestFile) -> bool:
        """Whether entries of both can be compared by their bytes."""
        body = self.body
        if body.file is None or body.file.schema != file.schema:
            return False
        of_one_kind = (body.row.spec_id, body.row.content) == (row.spec_id, row.content)
        same_ids = (body.row.first_row_id is None) == (row.first_row_id is None)
        return of_one_kind and same_ids and len(body.breaks) < len(body.items)

    def match(self, data: bytes, position: int) -> Run | None:
        """The longest run of entries from here on that stands at a position of a new manifest."""
        body = self.body
        if body.file is None:
            return None
        for first in (self._at, self._at + 1):  # the next one may have gone
            if first >= len(body.items):
                return None
            stop_at = bisect_left(body.breaks, first)
            limit = body.breaks[stop_at] if stop_at < len(body.breaks) else len(body.items)
            if limit == first:
                continue
            start, old = body.start(first), body.file.body
            size = body.ends[first] - start
            if old[start : start + size] != data[position : position + size]:
                continue
            most = min(body.ends[limit - 1] - start, len(data) - position)
            same = _same(old, start, data, position, size, most)
            last = bisect_right(body.ends, start + same, first, limit)
            self._at = last
            self.runs.append((first, last))
            return Run(body, first, last)
        return None

    def passed(self, item: Item) -> None:
        """A new manifest has an entry that says something else of the next file."""
        if self._at < len(self.body.items) and self.body.items[self._at].key == item.key:
            self._at += 1

    def left_over(self) -> list[Item]:
        """The live entries that no new manifest has as they were."""
        found: list[Item] = []
        before = 0
        for first, last in [*self.runs, (len(self.body.items), 0)]:
            found += (item for item in self.body.items[before:first] if item.status != DELETED)
            before = last
        return found


def _same(one: bytes, at: int, other: bytes, there: int, known: int, most: int) -> int:
    """How many bytes are the same from two positions on, at least `known` and up to `most`."""
    low, step = known, max(known, 64)
    while low < most:
        high = min(low + step, most)
        if one[at + low : at + high] == other[there + low : there + high]:
            low, step = high, step * 2
        elif high - low == 1:
            return low
        else:
            step, most = (high - low) // 2, high
    return low
