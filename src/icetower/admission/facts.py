"""The facts of a commit that its checks go by, each computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from icetower.admission.identity import Identity
from icetower.admission.operations import RETENTION, operations_of, targets_of
from icetower.admission.targets import Places, known_places
from icetower.contracts.check import Touch
from icetower.contracts.model import Contract, Operation
from icetower.contracts.terms import Layout
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.change import Change, ListDiff
from icetower.iceberg.partitions import PartitionSpec, spec_of
from icetower.iceberg.records import DataFile
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal
from icetower.table.client_properties import NO_CODE, Allowed

JSON = Mapping[str, Any]

_NO_FILES = ListDiff((), (), (), ())

_SHAPING = frozenset(
    {
        "assign-uuid",
        "upgrade-format-version",
        "add-schema",
        "set-current-schema",
        "add-spec",
        "set-default-spec",
        "add-sort-order",
        "set-default-sort-order",
        "set-location",
        "set-properties",
        "remove-properties",
    }
)
"""Updates that a table's schemas, specs and locations come from; they stand for themselves, without the snapshots."""


@dataclass(frozen=True)
class Facts:
    """One commit by one principal.

    Attributes:
        base: the table's metadata as it stands; None where the commit creates the table.
        requirements, updates: as sent, without the properties that the principal alone was given with the table.
        identity: by what the commit is known when it is sent again.
        now_ms: milliseconds since 1970, for what contracts own relative to ``now``.
        location: for a table being created, where the catalog wants it; None: wherever the commit says.
        client_code: values of properties by which clients may load code.
        changes: what its snapshots add and remove, in order. Before its manifests are read: its snapshots, without
            any files.
        places: where data files lie that its delete files reach into, as `targets.locate` found them.
        published: its files are in the table already, on another branch.
    """

    principal: Principal
    table: Identifier
    base: JSON | None
    requirements: Sequence[JSON]
    updates: Updates
    identity: Identity
    now_ms: int
    location: str | None = None
    client_code: Allowed = field(default_factory=lambda: NO_CODE)
    changes: Sequence[Change] = ()
    places: Places = field(default_factory=dict[str, Any])
    published: bool = False

    @property
    def contract(self) -> Contract:
        return self.principal.contract

    def unread(self) -> Facts:
        """The same, as far as the request alone tells: its snapshots stand for changes without files."""
        changes = [
            Change(snapshot, _NO_FILES, (), (), {}, {}, (), names_sibling=False) for snapshot in self.updates.snapshots
        ]
        return self.with_files(changes, {})

    def with_files(self, changes: Sequence[Change], places: Places) -> Facts:
        """The same, with what was read of the commit."""
        found = replace(self, changes=changes, places=places)
        if "after" in self.__dict__:
            found.__dict__["after"] = self.after
        return found

    def on(self, base: JSON) -> Facts:
        """The same commit, on another version of the table."""
        return replace(self, base=base)

    @property
    def depends_on_head(self) -> bool:
        """Whether it does anything to the table but to move branches from where it asserts that they stand."""
        if self.base is None:
            return False
        asserted = {each.get("ref") for each in self.requirements if each["type"] == "assert-ref-snapshot-id"}
        return not all(
            update["action"] == "add-snapshot"
            or (
                update["action"] == "set-snapshot-ref"
                and update["ref-name"] in asserted
                and all(update.get(setting) is None for setting in RETENTION)
            )
            for update in self.updates
        )

    @cached_property
    def after(self) -> JSON:
        """The table with the commit's own schemas, specs and properties, which its files may use already."""
        own = [update for update in self.updates if update["action"] in _SHAPING]
        if not own and self.base is not None:
            return self.base
        return table_metadata.apply(self.base, own, now_ms=0)

    @cached_property
    def layout(self) -> Layout:
        """How the table is partitioned after the commit."""
        return Layout.of(self.after)

    @cached_property
    def summaries(self) -> list[Mapping[str, str]]:
        """The summaries of the commit's snapshots."""
        return [change.snapshot.summary for change in self.changes]

    @cached_property
    def operations(self) -> frozenset[Operation]:
        """Everything that the commit does to the table."""
        return operations_of(self.base, self.requirements, self.updates, self.changes)

    @cached_property
    def added(self) -> list[DataFile]:
        """The data and delete files that the commit adds."""
        return [touched.file for change in self.changes for touched in change.added]

    @cached_property
    def touches(self) -> tuple[list[Touch], list[str]]:
        """As of `touches_of`."""
        return touches_of(self.after, self.changes, self.places)

    def grants_everywhere(self, operation: Operation) -> bool:
        """Whether the contract grants an operation on all partitions of the table."""
        return self.contract.grants_everywhere(frozenset({operation}), self.table)


def touches_of(metadata: JSON, changes: Sequence[Change], places: Places) -> tuple[list[Touch], list[str]]:
    """The partitions that changes touch, and the paths of data files that deletes reach into and that have no place.

    Deletes that go reach into theirs as those that come do: rows come back there.
    """
    specs: dict[int, PartitionSpec] = {}
    counted: Counter[tuple[int, tuple[Any, ...], bool, int]] = Counter()
    lost: dict[str, None] = {}
    own = known_places(changes)
    for change in changes:
        for files, adds in ((change.added, True), (change.removed, False)):
            for touched in files:
                counted[touched.spec_id, touched.file.partition, adds, touched.file.content] += 1
                for target in targets_of(touched.file):
                    reached = {*own.get(target, ()), *places.get(target, ())}
                    for place in reached:
                        counted[*place, adds, touched.file.content] += 1
                    # What goes and was about a file that is not there any more brings back nothing.
                    if not reached and (adds or target not in places):
                        lost.setdefault(target)
    touches: list[Touch] = []
    for (spec_id, partition, adds, content), files_count in counted.items():
        if spec_id not in specs:
            specs[spec_id] = spec_of(metadata, spec_id)
        touches.append(Touch(specs[spec_id], partition, adds, content, files_count))
    return touches, list(lost)
