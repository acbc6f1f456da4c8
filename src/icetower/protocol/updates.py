"""`Updates`: the updates of a commit, by what they say; and what its requirements say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from icetower.protocol.snapshots import Snapshot

JSON = Mapping[str, Any]


class Updates(tuple[JSON, ...]):
    """The updates of a commit as they were sent, in order, as the REST specification has them (JSON).

    What a commit is asked several times is found once.
    """

    def of(self, *actions: str) -> Iterator[JSON]:
        """Those with one of some actions."""
        return (update for update in self if update["action"] in actions)

    @property
    def actions(self) -> frozenset[str]:
        return frozenset(update["action"] for update in self)

    @property
    def change_schema_only(self) -> bool:
        """Whether they give the table another schema, and have nothing to do with snapshots."""
        actions = self.actions
        return "set-current-schema" in actions and not any("snapshot" in action for action in actions)

    @cached_property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The snapshots that they add, in order."""
        return tuple(Snapshot(update["snapshot"]) for update in self.of("add-snapshot"))

    @cached_property
    def moves(self) -> tuple[tuple[str, int], ...]:
        """The refs that they set, each with the snapshot that it is set to, in order."""
        return tuple((update["ref-name"], update["snapshot-id"]) for update in self.of("set-snapshot-ref"))

    @cached_property
    def target_ref(self) -> str | None:
        """The first ref that they set: the branch that the commit writes to. None where they set none."""
        return next((ref for ref, _ in self.moves), None)

    @property
    def removed_refs(self) -> frozenset[str]:
        """The refs that they remove."""
        return frozenset(update["ref-name"] for update in self.of("remove-snapshot-ref"))

    @cached_property
    def removed_snapshots(self) -> tuple[int, ...]:
        """The ids of the snapshots that they remove."""
        return tuple(i for update in self.of("remove-snapshots") for i in update["snapshot-ids"])

    @property
    def assigned_uuid(self) -> str:
        """The uuid that they give to the table; empty where they give none."""
        return next((str(update["uuid"]) for update in self.of("assign-uuid")), "")


def creates(requirements: Sequence[JSON]) -> bool:
    """Whether a commit creates its table."""
    return any(requirement["type"] == "assert-create" for requirement in requirements)
