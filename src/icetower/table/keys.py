"""`Keys`: which idempotency keys, and which numbered commits of applications, are in a version of a table (trap K1).

A key belongs to (principal, ref, key), within one table (trap K2). An application may number its commits instead, as
Delta's transaction ids do: the last number that landed for (principal, ref, application) makes every number up to it a
replay; gaps are allowed.

Both are found in snapshot summaries, or in the group file that a summary names. An index is never changed: a commit
makes a new one that shares all but its newest entries with the old one, so that a group can be planned again and again
on the same head. It is a stack of layers; small neighbours are merged, as in a log-structured merge tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from icetower.errors import BadRequest, KeyMisused
from icetower.protocol.marks import APPLICATION, KEY, PRINCIPAL, REF, SEQUENCE

LAYER_MAX = 262_144
"""Entries of a layer that is no longer merged: no commit waits for a larger copy than this."""

ENTRY_BYTES = 180
"""What a key or a number takes besides the characters of its name: in tables, as an object, and the ids that it has."""

CLOCKS_APART_MAX_MS = 10 * 60 * 1000
"""So far a client's clock may be ahead of the tower's; a key that seems to be made later was made later."""

NAME_CHARACTERS_MAX = 255
SEQUENCE_MAX = 2**63 - 1

Owner = str
"""(principal, ref, key) or (principal, ref, application) in one text: its hash is computed once for all layers."""

Landed = tuple[int, tuple[int, ...]]
"""A commit's number and its snapshots."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names under which a write may be sent again.

    Attributes:
        principal: the writer; two writers never share a name.
        ref: the branch or tag that it moves; empty where it moves none.
        key: its idempotency key.
        application: (application, sequence).
    """

    principal: str
    ref: str
    key: str | None
    application: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class KeyRecord(Names):
    """One commit by its names. `snapshots`: those that it became, in order."""

    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A snapshot whose group file is missing or damaged: under which keys its appends came is not known.

    Attributes:
        ref: the branch for which they came; None where its summary doesn't say.
        at_ms: when it was committed.
        path: of the file.
    """

    snapshot_id: int
    ref: str | None
    at_ms: int
    path: str


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    keys: Mapping[Owner, tuple[int, ...]]
    sequences: Mapping[Owner, tuple[Landed, ...]]
    """The highest number first."""
    snapshots: frozenset[int]
    """All that is named above, so that a layer is dropped whole when they have expired."""
    memory_bytes: int

    @staticmethod
    def of(
        keys: Mapping[Owner, tuple[int, ...]],
        sequences: Mapping[Owner, tuple[Landed, ...]],
        snapshots: frozenset[int],
    ) -> _Layer:
        numbers = sum(map(len, sequences.values()))
        characters = sum(map(len, keys)) + sum(map(len, sequences))
        return _Layer(keys, sequences, snapshots, characters + ENTRY_BYTES * (len(keys) + len(sequences) + numbers))

    @property
    def size(self) -> int:
        return len(self.keys) + sum(len(landed) for landed in self.sequences.values())

    def over(self, older: _Layer) -> _Layer:
        """Both in one; where both know a key, this one has the whole of it."""
        sequences = dict(older.sequences)
        for owner, landed in self.sequences.items():
            sequences[owner] = _ordered((*sequences.get(owner, ()), *landed))
        size_bytes = older.memory_bytes + self.memory_bytes
        return _Layer({**older.keys, **self.keys}, sequences, older.snapshots | self.snapshots, size_bytes)

    def without(self, gone: frozenset[int]) -> _Layer:
        keys = {owner: left for owner, ids in self.keys.items() if (left := _left(ids, gone))}
        sequences: dict[Owner, tuple[Landed, ...]] = {}
        for owner, landed in self.sequences.items():
            kept = tuple((number, left) for number, ids in landed if (left := _left(ids, gone)))
            if kept:
                sequences[owner] = kept
        return _Layer.of(keys, sequences, self.snapshots - gone)


class Keys:
    """The keys of one version of a table. Immutable; `Keys()` is empty."""

    __slots__ = ("_gone", "_layers", "_unreadable")

    def __init__(
        self,
        layers: tuple[_Layer, ...] = (),
        gone: frozenset[int] = frozenset(),
        unreadable: tuple[Unreadable, ...] = (),
    ) -> None:
        self._layers = layers  # the oldest first
        self._gone = gone
        self._unreadable = unreadable

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, about; versions of one table share most of that."""
        return sum(layer.memory_bytes for layer in self._layers)

    @staticmethod
    def of(snapshots: Iterable[Mapping[str, Any]], groups: Mapping[int, Iterable[KeyRecord]] | None = None) -> Keys:
        """The keys of snapshots (JSON): those in their summaries, and those that group files hold, by snapshot id."""
        return Keys().plus(records_of(snapshots, groups or {}))

    def find(self, principal: str, ref: str, key: str) -> tuple[int, ...] | None:
        """The snapshots that were committed under a key and are still there."""
        return self._find(_owner(principal, ref, key)) or None

    def _find(self, owner: Owner) -> tuple[int, ...]:
        for layer in reversed(self._layers):
            found = layer.keys.get(owner)
            if found is not None:
                return _left(found, self._gone)
        return ()

    def sequence(self, principal: str, ref: str, application: str) -> Landed | None:
        """The highest number that has landed for an application, with its snapshots."""
        owner = _owner(principal, ref, application)
        highest: Landed | None = None
        for layer in self._layers:
            for number, ids in layer.sequences.get(owner, ()):
                left = _left(ids, self._gone)
                if left:
                    if highest is None or number > highest[0]:
                        highest = number, left
                    elif number == highest[0]:
                        highest = number, (*highest[1], *left)
                    break
        return highest

    def numbered(self, principal: str, ref: str, application: str, number: int) -> tuple[int, ...] | None:
        """The snapshots that came under this very number of an application, and are still there."""
        owner = _owner(principal, ref, application)
        found = (ids for layer in self._layers for n, ids in layer.sequences.get(owner, ()) if n == number)
        return tuple(i for ids in found for i in _left(ids, self._gone)) or None

    def check_key(self, ref: str, key: str) -> None:
        """Ask this of a key that was not found, before it is called new.

        A key that names the time of its making (a UUID of version 7) after that of an unreadable snapshot, by more than
        clocks are apart, is not in it.

        Raises:
            KeyMisused: it may be the key of a snapshot whose group file cannot be read.
        """
        minted_ms = _minted_ms(key)
        for lost in self._unreadable:
            later = minted_ms is not None and minted_ms > lost.at_ms + CLOCKS_APART_MAX_MS
            if lost.ref in (None, ref) and not later:
                raise _unreadable_group(f"idempotency key {key}", "a new key", lost)

    def check_number(self, ref: str, application: str, last_ms: int | None) -> None:
        """Ask this of a number that is higher than the last one that is known of its application.

        Args:
            last_ms: when that last one landed; None where none is known. What landed before it had lower numbers.

        Raises:
            KeyMisused: it may be the number of a snapshot whose group file cannot be read.
        """
        for lost in self._unreadable:
            if lost.ref in (None, ref) and (last_ms is None or last_ms <= lost.at_ms):
                raise _unreadable_group(f"application {application}", "a key instead of a number", lost)

    def with_unreadable(self, snapshots: Iterable[Unreadable]) -> Keys:
        """With snapshots of which the keys are not known."""
        unreadable = (*self._unreadable, *snapshots)
        return self if unreadable == self._unreadable else Keys(self._layers, self._gone, unreadable)

    def plus(self, items: Iterable[KeyRecord]) -> Keys:
        """With commits that came after. Costs about as much as there are items, not as there are keys."""
        keys: dict[Owner, tuple[int, ...]] = {}
        sequences: dict[Owner, tuple[Landed, ...]] = {}
        snapshots: set[int] = set()
        for item in items:
            snapshots.update(item.snapshots)
            if item.key is not None:
                owner = _owner(item.principal, item.ref, item.key)
                before = keys.get(owner) or self._find(owner)
                keys[owner] = (*before, *(i for i in item.snapshots if i not in before))
                snapshots.update(before)
            if item.application is not None:
                name, number = item.application
                owner = _owner(item.principal, item.ref, name)
                sequences[owner] = _ordered((*sequences.get(owner, ()), (number, item.snapshots)))
        if not keys and not sequences:
            return self
        layers = [*self._layers, _Layer.of(keys, sequences, frozenset(snapshots))]
        while len(layers) > 1 and layers[-2].size <= 2 * layers[-1].size and _mergeable(layers[-2], layers[-1]):
            newest = layers.pop()
            layers[-1] = newest.over(layers[-1])
        # A snapshot that comes back (a table registered anew at an older version) is there again.
        return Keys(tuple(layers), self._gone - snapshots, self._unreadable)

    def without(self, snapshot_ids: Collection[int]) -> Keys:
        """Without snapshots that have expired. What only they stood for is forgotten here; the ledger outlives them."""
        unreadable = tuple(lost for lost in self._unreadable if lost.snapshot_id not in snapshot_ids)
        named = [i for i in snapshot_ids if any(i in layer.snapshots for layer in self._layers)]
        if not named:
            return self if unreadable == self._unreadable else Keys(self._layers, self._gone, unreadable)
        gone = self._gone.union(named)
        layers: list[_Layer] = []
        for layer in self._layers:
            # Cleaned when most of it is dead: each entry is copied about once for that.
            mostly_dead = 2 * len(layer.snapshots & gone) > len(layer.snapshots)
            kept = layer.without(gone) if mostly_dead else layer
            if kept.size:
                layers.append(kept)
        if tuple(layers) != self._layers:
            gone &= frozenset[int]().union(*(layer.snapshots for layer in layers))
        return Keys(tuple(layers), gone, unreadable)


def records_of(
    snapshots: Iterable[Mapping[str, Any]], groups: Mapping[int, Iterable[KeyRecord]]
) -> Iterable[KeyRecord]:
    """What snapshots (JSON) and their group files (records by snapshot id) stand for."""
    for snapshot in snapshots:
        record = record_of(snapshot)
        if record is not None:
            yield record
        yield from groups.get(snapshot["snapshot-id"], ())


def record_of(snapshot: Mapping[str, Any]) -> KeyRecord | None:
    """What a snapshot's own summary stands for. Marks that make no sense are ignored."""
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    key = summary.get(KEY)
    try:
        application = application_sequence(summary.get(APPLICATION), summary.get(SEQUENCE))
    except BadRequest:
        application = None
    if key is None and application is None:
        return None
    principal, ref = str(summary.get(PRINCIPAL, "")), str(summary.get(REF, ""))
    return KeyRecord(principal, ref, None if key is None else str(key), application, (snapshot["snapshot-id"],))


def application_sequence(application: object, sequence: object) -> tuple[str, int] | None:
    """An application's name and the number of its commit, as they came over the wire; None where neither did.

    Raises `BadRequest`: one without the other, a name that is empty, unprintable or longer than
    `NAME_CHARACTERS_MAX`, a number that is not a whole one from 0 to `SEQUENCE_MAX`.
    """
    if application is None and sequence is None:
        return None
    if not isinstance(application, str) or not (0 < len(application) <= NAME_CHARACTERS_MAX):
        raise _misnumbered(f"{APPLICATION} is missing, empty or longer than {NAME_CHARACTERS_MAX} characters")
    if not application.isprintable():
        raise _misnumbered(f"{APPLICATION} has unprintable characters")
    text = str(sequence) if isinstance(sequence, str | int) and not isinstance(sequence, bool) else ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if not 0 <= number <= SEQUENCE_MAX:
        raise _misnumbered(f"{SEQUENCE} is {sequence!r}, not a whole number from 0 to {SEQUENCE_MAX}")
    return application, number


def _misnumbered(what: str) -> BadRequest:
    return BadRequest(f"{what}; an application that numbers its commits sends both", rule="key.sequence")


def _minted_ms(key: str) -> int | None:
    """When a UUID of version 7 was made, as its maker's clock went, in milliseconds since 1970; None for other keys."""
    try:
        made = UUID(key)
    except ValueError:
        return None
    return made.int >> 80 if made.version == 7 else None


def _unreadable_group(what: str, instead: str, lost: Unreadable) -> KeyMisused:
    return KeyMisused(
        f"whether a commit under {what} has landed is unknown: the group file {lost.path}, which says what "
        f"snapshot {lost.snapshot_id} stands for, is missing or damaged. Restore it and restart the server, or let the "
        f"snapshot expire; until then look for the rows, and if they are missing, write them under {instead}",
        rule="key.unreadable",
        snapshot=lost.snapshot_id,
        files=(lost.path,),
        next_step="ask_owner",
    )


def _owner(principal: str, ref: str, name: str) -> Owner:
    return f"{len(principal)}:{len(ref)}:{principal}{ref}{name}"


def _left(ids: tuple[int, ...], gone: frozenset[int]) -> tuple[int, ...]:
    return ids if not gone else tuple(i for i in ids if i not in gone)


def _ordered(landed: Iterable[Landed]) -> tuple[Landed, ...]:
    """The highest number first; a number that came in several snapshots once, with all of them."""
    together: dict[int, tuple[int, ...]] = {}
    for number, ids in landed:
        before = together.get(number, ())
        together[number] = (*before, *(i for i in ids if i not in before))
    return tuple(sorted(together.items(), reverse=True))


def _mergeable(older: _Layer, newer: _Layer) -> bool:
    return older.size + newer.size <= LAYER_MAX
