"""What the clients of a run know: what each wanted, what it sent, and what it was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from icetower.protocol.names import Identifier

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One snapshot as its client means it.

    Attributes:
        parent: the snapshot that it was written on.
        adds: data files → rows.
        removes: data files that must be live before it and are not after it.
        number: the data sequence number that added files keep (compaction); None: the snapshot's own.
        list_path: the manifest list that the client wrote.
        scope: the partition that it says it has read, and that nothing may have come into meanwhile; None: it doesn't.
    """

    snapshot_id: int
    parent: int | None
    adds: Mapping[str, int]
    removes: frozenset[str]
    number: int | None
    list_path: str
    scope: int | None = None


@dataclass(eq=False, slots=True)
class Attempt:
    """One commit as it was sent, perhaps more than once.

    Attributes:
        own: manifests and manifest lists that its client wrote for it, and deletes when it hears 409.
        moves: refs that it sets to snapshots that are there already, and where it asserts them to stand.
        expires: snapshots that it removes.
        files: data files of an append by the fast path → (partition, rows).
        effect: whether a table shows that it landed, where it adds no snapshot.
        refused: its client was told 409: it must never be in the table.
        unknown: its client was once told that nobody can tell.
    """

    intent: Intent
    requirements: list[JSON]
    updates: list[JSON]
    steps: tuple[Step, ...] = ()
    own: tuple[str, ...] = ()
    moves: Mapping[str, int] = field(default_factory=dict[str, int])
    expires: frozenset[int] = frozenset()
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    partitioned: bool = False
    effect: Callable[[Mapping[str, Any]], bool] | None = None
    refused: bool = False
    unknown: bool = False


@dataclass(eq=False, slots=True)
class Bundle:
    """What must land together: a transaction's intents."""

    intents: list[Intent] = field(default_factory=list["Intent"])


@dataclass(eq=False, slots=True)
class Intent:
    """What somebody wants to happen to one table, once.

    Attributes:
        state: ``open``; then ``acked``, ``refused``, ``maybe`` (nobody could tell, and its client gave up) or
            ``skipped`` (there was nothing to do).
        in_flight: requests that were sent and have not ended.
        loose: whether a client hung up on a request that its tower may still have in hand.
        application: (application, sequence), where its commits are numbered.
    """

    number: int
    who: str
    kind: str
    table: Identifier
    ref: str = "main"
    key: str | None = None
    blind: bool = False
    outside: bool = False
    bundle: Bundle | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    state: str = "open"
    in_flight: int = 0
    loose: bool = False
    application: tuple[str, int] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing of it can be sent or under way any more."""
        return self.state != "open" and self.in_flight == 0 and not self.loose

    @property
    def known_again(self) -> bool:
        """Whether a tower knows it again when it is written anew."""
        return self.key is not None or self.application is not None

    def __str__(self) -> str:
        return f"#{self.number} {self.kind} by {self.who}"
