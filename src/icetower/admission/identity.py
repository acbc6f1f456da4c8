"""The identity of a write: by what a commit is known when it is sent again.

Its idempotency key, the number that its application gave it, or the ids of its snapshots. Everything that asks whether
a commit has landed before asks by this. A streaming sink need not know of it: how far it is stands in the summaries of
its commits, and is a number of an application like any other (`table.sinks`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from icetower.contracts.model import KeyWay
from icetower.errors import BadRequest, ContractViolation, KeyMisused
from icetower.protocol.marks import APPLICATION, KEY, SEQUENCE
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal
from icetower.table.keys import KeyRecord, Names, application_sequence
from icetower.table.sinks import Mark, mark_of_commit

KEY_CHARACTERS_MAX = 255

JSON = Mapping[str, Any]
Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Identity(Names):
    """By what one write is known: its names, and the ids of its snapshots.

    Attributes:
        snapshots: its snapshots as sent (JSON); none for an append by the fast path, whose snapshot is the tower's.
        ways: in which of the ways that contracts name its key came.
        moves: the refs that it sets to snapshots of its own: (ref, snapshot id).
        is_append: whether it is an append by the fast path.
        mark: how far its sink is, where the number is the sink's own.
    """

    snapshots: tuple[Snapshot, ...] = ()
    ways: frozenset[KeyWay] = frozenset()
    moves: tuple[tuple[str, int], ...] = ()
    is_append: bool = False
    mark: Mark | None = None

    @classmethod
    def of_commit(cls, principal: str, updates: Updates, key: str | None, application: tuple[str, int] | None) -> Self:
        """The identity of a commit.

        Args:
            key, application: as the request's headers have them; those in the snapshots' summaries go before them.

        Raises:
            KeyMisused: the snapshots of the commit carry different keys, or numbers.
            BadRequest: a key or a number that makes no sense.
        """
        snapshots = updates.snapshots
        summaries = [snapshot.summary for snapshot in snapshots]
        # Without a snapshot there is no summary that the key could be in.
        in_summary = not summaries or any(KEY in summary for summary in summaries)
        key, application = key_of(summaries, key), number_of(summaries, application)
        ref = updates.target_ref or ""
        named = application is not None or any(KEY in summary for summary in summaries)
        mark = None if named or not ref else mark_of_commit(snapshots)
        if mark is not None:
            application = mark.application, mark.number
        ways = ways_of(key, application, in_summary=in_summary)
        key = mark.key if key is None and mark is not None else key
        ids = {snapshot.id for snapshot in snapshots}
        moves = tuple(move for move in updates.moves if move[1] in ids)
        return cls(principal, ref, key, application, snapshots, ways, moves, mark=mark)

    @classmethod
    def of_append(cls, principal: str, ref: str, key: str | None, application: tuple[str, int] | None) -> Self:
        """The identity of an append by the fast path, whose key is in its body or its header."""
        ways = ways_of(key, application, in_summary=key is not None)
        return cls(principal, ref, key, application, (), ways, is_append=True)

    @property
    def is_traceable(self) -> bool:
        """Whether the table is to show that it has landed. A commit without a snapshot leaves no trace."""
        return self.is_append or bool(self.snapshots)

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return tuple(snapshot.id for snapshot in self.snapshots)

    @property
    def work(self) -> Hashable:
        """The same from one try of a client to the next; None where nothing identifies the write."""
        return self.key or self.application or self.snapshot_ids or None

    @property
    def in_flight(self) -> frozenset[str]:
        """By what it is known among the commits to its table that are under way: the ids of its snapshots.

        An append by the fast path has none: it is known by its key, and by its number.
        """
        if not self.is_append:
            return frozenset(map(str, self.snapshot_ids))
        given = [name for name in (self.key, self.application) if name is not None]
        return frozenset(repr((self.principal, self.ref, name)) for name in given)

    @property
    def asked_by(self) -> frozenset[str]:
        """By what it is known to those who ask whether it is under way: its key, its number, its snapshots."""
        given = [name for name in (self.key, self.application) if name is not None]
        return frozenset((*map(str, self.snapshot_ids), *(f"of {self.principal!r} {self.ref!r} {n!r}" for n in given)))

    def landed_as(self, snapshots: tuple[int, ...]) -> KeyRecord:
        """Its names, beside the snapshots that it became."""
        return KeyRecord(self.principal, self.ref, self.key, self.application, snapshots)


def key_of(summaries: Sequence[Summary], requested: str | None) -> str | None:
    """The key of a commit: that of its snapshots' summaries, else the one that came with the request.

    Raises:
        KeyMisused: the snapshots carry different keys.
        BadRequest: a key that is empty, unprintable or too long.
    """
    keys = {str(summary[KEY]) for summary in summaries if KEY in summary}
    if len(keys) > 1:
        raise KeyMisused(f"the snapshots of one commit carry different values of {KEY}; give them one", rule="key")
    key = keys.pop() if keys else requested
    if key is not None and not (0 < len(key) <= KEY_CHARACTERS_MAX and key.isprintable()):
        raise BadRequest(
            f"the idempotency key is empty, has unprintable characters or more than {KEY_CHARACTERS_MAX}; "
            "a UUID does well",
            rule="key",
            next_step="new_key",
        )
    return key


def number_of(summaries: Sequence[Summary], requested: tuple[str, int] | None) -> tuple[str, int] | None:
    """(application, sequence) of a commit: of its snapshots' summaries, else what came with the request.

    Raises:
        KeyMisused: the snapshots carry different ones.
        BadRequest: one without the other, or one that makes no sense.
    """
    marked = [summary for summary in summaries if APPLICATION in summary or SEQUENCE in summary]
    numbers = {application_sequence(summary.get(APPLICATION), summary.get(SEQUENCE)) for summary in marked}
    if len(numbers) > 1:
        raise KeyMisused(
            f"the snapshots of one commit carry different values of {APPLICATION} and {SEQUENCE}; give them one",
            rule="key.sequence",
        )
    return numbers.pop() if numbers else requested


_WAYS = {
    KeyWay.HEADER: "send the header Idempotency-Key (a UUID of version 7)",
    KeyWay.SUMMARY: f"set the snapshot property {KEY}",
    KeyWay.SEQUENCE: f"number the commits ({APPLICATION}, {SEQUENCE})",
}


def ways_of(key: str | None, application: tuple[str, int] | None, *, in_summary: bool) -> frozenset[KeyWay]:
    """In which of the ways that contracts name a commit's key came. One in the summary is the request's, too."""
    found = {
        KeyWay.HEADER: key is not None,
        KeyWay.SUMMARY: key is not None and in_summary,
        KeyWay.SEQUENCE: application is not None,
    }
    return frozenset(way for way, came in found.items() if came)


def application_of(summary: Summary) -> str | None:
    """The running application that a snapshot's summary names (trap K3)."""
    application = summary.get("spark.app.id") or summary.get("app-id")
    return str(application) if application else None


def check_key(principal: Principal, table: Identifier, ways: frozenset[KeyWay]) -> None:
    """Raises `ContractViolation` where the contract requires a key, and none came in one of the ways that it names."""
    contract = principal.contract
    if not contract.requires_key(table):
        return
    asked = frozenset(KeyWay) if contract.idempotency is None else contract.idempotency.how
    if not ways & asked:
        how = [words for way, words in _WAYS.items() if way in asked]
        takes_keys = not asked.isdisjoint((KeyWay.HEADER, KeyWay.SUMMARY))
        raise ContractViolation(
            f"contract {contract.name} requires an idempotency key for every commit to {table}: {', or '.join(how)}",
            rule="contract.key",
            next_step="new_key" if takes_keys else "fix_request",
        )
