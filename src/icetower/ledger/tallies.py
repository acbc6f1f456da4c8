"""What attempts come to: counts, and sketches of how long they took, as one small document for a window. Pure.

The definitions are those of `system.agent_write_metrics` (docs/metrics.md). Counts are exact. Percentiles come from a
sketch: a histogram whose buckets grow by 2^(1/32), so that a percentile is off by at most 1.1 %, two sketches are added
bucket by bucket, and a bucket ends at each power of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from icetower.ledger.attempts import PARTITION_CHARACTERS_MAX, Attempt, Outcome

WINDOW_S = 300
WINDOW_MS = WINDOW_S * 1000

BUCKETS_PER_DOUBLING = 32
RELATIVE_ERROR = 0.011
"""At most so far a percentile is from the one of all values."""

_GROWTH = 2 ** (1 / BUCKETS_PER_DOUBLING)
_MIDDLE = 2 / (_GROWTH + 1)
_LOWEST = -320
"""The bucket of everything up to 2^-10 ms, what is negative included: it counts as 0."""
_HIGHEST = 1_280
"""2^40 ms are 35 years: an agent may say that it decided in 1970."""

HOT_KEPT = 16
HOT_SHOWN = 5
_CONFLICT_WEIGHT = 8
"""A partition with conflicts is kept before one with that many more attempts."""

_LANDED = frozenset({Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED})
_KEY_IN_USE = frozenset({"key.per-write", "key.transaction", "key.rolled-back", "key.gone", "key.registered-anew"})
"""A refusal by one of these says that the same key has been committed before."""


def is_commit(attempt: Attempt) -> bool:
    """Whether an attempt counts: a change that is no commit does not, and a read does not."""
    return attempt.outcome is not Outcome.DONE and attempt.operation != "read"


def has_landed(attempt: Attempt) -> bool:
    return attempt.outcome in _LANDED


def write_id(attempt: Attempt) -> str | None:
    """Equal for all tries of one write, where it can be told."""
    return attempt.key_hash or attempt.work


def may_be_first(attempt: Attempt) -> bool:
    """Whether this can be the first try of its write, as far as it says itself."""
    known = write_id(attempt) is not None and attempt.outcome is not Outcome.REPLAYED
    return known and attempt.rule not in _KEY_IN_USE


def window_of(at_ms: int) -> int:
    """The window of a time, by its start in milliseconds."""
    return at_ms - at_ms % WINDOW_MS


def bucket_of(ms: float) -> int:
    """The bucket of a duration: it ends at 2^(bucket / 32) ms."""
    if ms <= 0:
        return _LOWEST
    return max(_LOWEST, min(math.ceil(BUCKETS_PER_DOUBLING * math.log2(ms)), _HIGHEST))


class Sketch:
    """A histogram of durations in milliseconds, with their sum."""

    __slots__ = ("buckets", "sum_ms")

    def __init__(self, buckets: dict[int, int] | None = None, sum_ms: float = 0.0) -> None:
        self.buckets: dict[int, int] = {} if buckets is None else buckets
        self.sum_ms = sum_ms

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def add(self, ms: float, bucket: int | None = None) -> None:
        """Count a duration; `bucket` is that of `bucket_of`, for who knows it already."""
        bucket = bucket_of(ms) if bucket is None else bucket
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.sum_ms += ms

    def merge(self, other: Sketch, *, sign: int = 1) -> None:
        """Add another one; with `sign` -1 take it away again."""
        for bucket, count in other.buckets.items():
            left = self.buckets.get(bucket, 0) + sign * count
            if left > 0:
                self.buckets[bucket] = left
            else:
                self.buckets.pop(bucket, None)
        self.sum_ms += sign * other.sum_ms

    def percentile(self, share: float) -> float | None:
        """The percentile for a share from 0 to 1, interpolated between two values as Spark does; None of nothing."""
        count = self.count
        if not count:
            return None
        place = share * (count - 1)
        lower = self._value_at(math.floor(place))
        upper = self._value_at(math.ceil(place))
        return lower + (upper - lower) * (place - math.floor(place))

    def at_most(self, power: int) -> int:
        """How many were at most 2^power ms: exact, since a bucket ends there."""
        return sum(count for bucket, count in self.buckets.items() if bucket <= power * BUCKETS_PER_DOUBLING)

    def _value_at(self, place: int) -> float:
        """The value at a place of the order, from 0."""
        passed, found = 0, _LOWEST
        for found in sorted(self.buckets):
            passed += self.buckets[found]
            if passed > place:
                break
        return 0.0 if found <= _LOWEST else _GROWTH**found * _MIDDLE

    def to_list(self) -> list[float]:
        """The sum, then bucket and count in turn."""
        flat: list[float] = [round(self.sum_ms, 3)]
        for pair in self.buckets.items():
            flat += pair
        return flat

    @classmethod
    def from_list(cls, flat: list[Any]) -> Sketch:
        if not flat:
            return cls()
        return cls(dict(zip(flat[1::2], flat[2::2], strict=True)), float(flat[0]))


_COUNTS = (
    "attempts",
    "landed",
    "refused",
    "conflicts",
    "unknown",
    "replayed",
    "first_tries",
    "first_try_landed",
)
_BY_OUTCOME = {
    Outcome.DIRECT: "landed",
    Outcome.REBASED: "landed",
    Outcome.APPENDED: "landed",
    Outcome.REFUSED: "refused",
    Outcome.CONFLICT: "conflicts",
    Outcome.UNKNOWN: "unknown",
    Outcome.REPLAYED: "replayed",
}
_SUMS = ("metadata_versions", "manifests", "metadata_bytes")


@dataclass(frozen=True, slots=True)
class Counted:
    """What of an attempt is counted, worked out once for all the tallies that it goes into.

    Attributes:
        ended: the count of its outcome.
        first: it is the first try of its write.
        versions: its share of a metadata version.
    """

    ended: str
    landed: bool
    first: bool
    versions: float | None
    manifests: float | None
    metadata_bytes: int | None
    latency_ms: float
    latency_bucket: int
    end_to_end_ms: float | None
    end_to_end_bucket: int
    partitions: tuple[str, ...]

    @classmethod
    def of(cls, attempt: Attempt, at_ms: int, *, first: bool) -> Counted:
        end_to_end_ms = None if attempt.decided_ms is None else float(at_ms - attempt.decided_ms)
        return cls(
            _BY_OUTCOME[attempt.outcome],
            attempt.outcome in _LANDED,
            first,
            1 / attempt.group_size if attempt.group_size else None,
            attempt.manifests,
            attempt.metadata_bytes,
            attempt.latency_ms,
            bucket_of(attempt.latency_ms),
            end_to_end_ms,
            _LOWEST if end_to_end_ms is None else bucket_of(end_to_end_ms),
            tuple(_clean(name) for name in attempt.partitions),
        )


def _clean(partition: str) -> str:
    """A name that can be written as UTF-8."""
    clean = partition if partition.isascii() else partition.encode("utf-8", "replace").decode()
    return clean[:PARTITION_CHARACTERS_MAX]


@dataclass(slots=True)
class Tally:
    """Attempts of one window, or since ever.

    Attributes:
        metadata_versions, manifests, metadata_bytes: of those that landed; None where none of these says.
        latency: of those that landed. `end_to_end`: from the agent's decision until they were in the table.
        hot: partition → attempts and conflicts, of the partitions with most.
    """

    attempts: int = 0
    landed: int = 0
    refused: int = 0
    conflicts: int = 0
    unknown: int = 0
    replayed: int = 0
    first_tries: int = 0
    first_try_landed: int = 0
    metadata_versions: float | None = None
    manifests: float | None = None
    metadata_bytes: int | None = None
    latency_max_ms: float | None = None
    latency: Sketch = field(default_factory=Sketch)
    end_to_end: Sketch = field(default_factory=Sketch)
    hot: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    @property
    def retries(self) -> int:
        """Tries that ended so that their client writes again, or has done so."""
        return self.conflicts + self.unknown + self.replayed

    def add(self, one: Counted, *, partitions: bool = True) -> None:
        """Count an attempt, and, with `partitions`, those that it names."""
        self.attempts += 1
        if one.landed:
            self._land(one)
        else:
            setattr(self, one.ended, getattr(self, one.ended) + 1)
        if one.first:
            self.first_tries += 1
            self.first_try_landed += one.landed
        if partitions:
            for name in one.partitions:
                self._touch(name, one.ended == "conflicts")

    def _land(self, one: Counted) -> None:
        self.landed += 1
        if one.versions is not None:
            self.metadata_versions = (self.metadata_versions or 0.0) + one.versions
        if one.manifests is not None:
            self.manifests = (self.manifests or 0.0) + one.manifests
        if one.metadata_bytes is not None:
            self.metadata_bytes = (self.metadata_bytes or 0) + one.metadata_bytes
        self.latency.add(one.latency_ms, one.latency_bucket)
        if self.latency_max_ms is None or one.latency_ms > self.latency_max_ms:
            self.latency_max_ms = one.latency_ms
        if one.end_to_end_ms is not None:
            self.end_to_end.add(one.end_to_end_ms, one.end_to_end_bucket)

    def _touch(self, name: str, in_conflict: bool) -> None:
        found = self.hot.get(name)
        if found is None:
            attempts = 0
            if len(self.hot) >= HOT_KEPT:
                # "Space saving": the newcomer takes the count of the one that gives way, so that it may be too high,
                # and a partition with many attempts is never missed.
                coldest = min(self.hot, key=lambda each: _heat(self.hot[each]))
                attempts = self.hot.pop(coldest)[0]
            found = self.hot[name] = [attempts, 0]
        found[0] += 1
        found[1] += in_conflict

    def merge(self, other: Tally, *, sign: int = 1, partitions: bool = True) -> None:
        """Add another one, with `partitions` those that it names, too.

        With `sign` -1 take it away again, but for its maximum and its partitions.
        """
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))
        for name in _SUMS:
            more = getattr(other, name)
            if more is not None:
                setattr(self, name, (getattr(self, name) or 0) + sign * more)
        self.latency.merge(other.latency, sign=sign)
        self.end_to_end.merge(other.end_to_end, sign=sign)
        if sign > 0:
            if other.latency_max_ms is not None:
                self.latency_max_ms = max(self.latency_max_ms or 0.0, other.latency_max_ms)
            for name, (attempts, conflicts) in other.hot.items() if partitions else ():
                found = self.hot.setdefault(name, [0, 0])
                found[0] += attempts
                found[1] += conflicts
            if len(self.hot) > HOT_KEPT:
                for name in sorted(self.hot, key=lambda each: _heat(self.hot[each]), reverse=True)[HOT_KEPT:]:
                    del self.hot[name]

    def hottest(self, most: int = HOT_SHOWN) -> list[dict[str, Any]]:
        """The partitions with most conflicts, and among equals with most attempts."""
        ordered = sorted(self.hot.items(), key=lambda each: (-each[1][1], -each[1][0], each[0]))[:most]
        return [{"partition": name, "attempts": pair[0], "conflicts": pair[1]} for name, pair in ordered]

    def forget(self, text: str) -> bool:
        """Let go of the partitions whose names contain a text. Whether there were any."""
        named = [name for name in self.hot if text in name]
        for name in named:
            del self.hot[name]
        return bool(named)

    # ---------------------------------------------------------------------------------------------- shown, and kept

    def to_row(self) -> dict[str, Any]:
        """As the control API shows it."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        found["retries"] = self.retries
        found["commit_success_rate"] = ratio(self.landed, self.attempts)
        found["retry_rate"] = ratio(self.retries, self.landed)
        found["first_try_success_rate"] = ratio(self.first_try_landed, self.first_tries)
        found |= {name: getattr(self, name) for name in _SUMS}
        for name, sketch in (("latency", self.latency), ("end_to_end", self.end_to_end)):
            for share in (50, 99):
                found[f"{name}_p{share}_ms"] = self._bounded(name, sketch.percentile(share / 100))
        found["latency_max_ms"] = self.latency_max_ms
        found["hot_partitions"] = self.hottest()
        return found

    def _bounded(self, name: str, ms: float | None) -> float | None:
        """The middle of the highest bucket may lie above the highest value."""
        if ms is None or name != "latency" or self.latency_max_ms is None:
            return ms
        return min(ms, self.latency_max_ms)

    def to_json(self) -> str:
        """As it is kept: fields that are 0 or empty are left out."""
        found: dict[str, Any] = {name: value for name in _COUNTS if (value := getattr(self, name))}
        for name in (*_SUMS, "latency_max_ms"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.latency.buckets:
            found["latency"] = self.latency.to_list()
        if self.end_to_end.buckets:
            found["end_to_end"] = self.end_to_end.to_list()
        if self.hot:
            found["hot"] = self.hot
        return orjson.dumps(found).decode()

    @classmethod
    def from_json(cls, text: str) -> Tally:
        """What `to_json` gave; fields of a later version are left out."""
        found: dict[str, Any] = orjson.loads(text)
        latency, end_to_end = found.pop("latency", []), found.pop("end_to_end", [])
        known = {name: found[name] for name in (*_COUNTS, *_SUMS, "latency_max_ms", "hot") if name in found}
        return cls(**known, latency=Sketch.from_list(latency), end_to_end=Sketch.from_list(end_to_end))


def ratio(part: float, whole: float) -> float | None:
    """A share; None of nothing."""
    return part / whole if whole else None


def _heat(pair: list[int]) -> int:
    return pair[0] + _CONFLICT_WEIGHT * pair[1]


def summed(tallies: Iterable[Tally]) -> Tally:
    """Several as one."""
    found = Tally()
    for each in tallies:
        found.merge(each)
    return found


def row_of(principal: str, table: str, window_ms: int | None, tally: Tally) -> Mapping[str, Any]:
    """A row of `GET /icetower/v1/metrics`; `window_ms` None: since ever."""
    when = {} if window_ms is None else {"window_ms": window_ms}
    return {"principal": principal, "table": table, **when, **tally.to_row()}
