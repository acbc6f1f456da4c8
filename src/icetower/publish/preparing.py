"""From a branch's snapshots to a commit that the gate can judge, and the engine can put on another branch. Pure.

The gate is asked as if the snapshots were sent anew for the other branch: their manifests are read again, and the
contract of who publishes them counts. What their summaries say of the branch on which they were made (keys, numbers,
marks of the tower, versions of the branch that were read) is not said of the other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icetower.admission.admitted import Admitted, Publication
from icetower.admission.identity import Identity
from icetower.iceberg.change import Change
from icetower.protocol.commits import CommitRequest
from icetower.protocol.marks import (
    APPLICATION,
    BLIND,
    FILTER,
    GROUP_FILE,
    INTENT,
    INTENT_FENCE,
    ISOLATION,
    KEY,
    LEASES,
    OF_THE_TOWER,
    PUBLISHED_WAP,
    READ_SNAPSHOT,
    SEQUENCE,
    SOURCE_SNAPSHOT,
)
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.publish.comparison import Comparison
from icetower.rebase.blindness import known_blind

JSON = dict[str, Any]

OF_THE_BRANCH = OF_THE_TOWER | {
    KEY,
    APPLICATION,
    SEQUENCE,
    SOURCE_SNAPSHOT,
    PUBLISHED_WAP,
    INTENT,
    INTENT_FENCE,
    LEASES,
}
"""Words of a summary that hold for the branch on which the snapshot was made."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What who publishes says of the branch's snapshots, where they don't say it themselves.

    Attributes:
        filter: what they have read, as Iceberg's expression JSON.
        isolation: the level that they are owed.
        blind: those that only add data depend on nothing that was read.
        intent, fence: the intent under which they are published; under which they were made counts no more.
    """

    filter: str | None = None
    isolation: str | None = None
    blind: bool = False
    intent: str | None = None
    fence: int | None = None

    @property
    def under(self) -> dict[str, str]:
        """The intent, in the words of a summary."""
        if self.intent is None:
            return {}
        return {INTENT: self.intent} | ({} if self.fence is None else {INTENT_FENCE: str(self.fence)})


def request_of(
    table: Identifier, comparison: Comparison, branch: str, to: str, refs: Mapping[str, JSON], reads: Reads
) -> CommitRequest:
    """The commit that the gate is asked about: the snapshots that the other branch lacks, as if they were new there."""
    known = {str(snapshot.id) for snapshot in comparison.own} | {str(comparison.base)}
    summaries = _with_reads([_summary(each, known) for each in comparison.lacking], reads)
    pairs = zip(comparison.lacking, summaries, strict=True)
    added = [
        {"action": "add-snapshot", "snapshot": {**each, "summary": summary | reads.under}} for each, summary in pairs
    ]
    # The first of them goes where its own parent stands, as far as the gate is concerned: it moves the branch forward.
    parents = {snapshot.id: snapshot.parent_id for snapshot in comparison.lacking}
    first: int | None = comparison.lacking[-1].id
    for _ in parents:
        first = parents.get(first, first) if first is not None else None
    return CommitRequest(
        table,
        (asserted(to, first), asserted(branch, comparison.head)),
        Updates((*added, moved(refs, to, comparison.lacking[-1].id))),
    )


def prepared(
    admitted: Admitted,
    comparison: Comparison,
    publication: Publication,
    identity: Identity,
    refs: Mapping[str, JSON],
    also: Sequence[JSON] = (),
) -> Admitted:
    """The commit as the engine takes it: on the snapshot at which the branches parted.

    Args:
        refs: of the table.
        also: further requirements.
    """
    requirements = (asserted(identity.ref, comparison.base), asserted(publication.branch, publication.head), *also)
    # To the last of them, which need not be the branch's: so they are found in the line of what is moved.
    updates = Updates((moved(refs, identity.ref, comparison.lacking[-1].id),))
    return replace(
        admitted,
        identity=identity,
        requirements=requirements,
        updates=updates,
        changes=_in_a_row(admitted.changes, comparison),
        publication=publication,
    )


def asserted(ref: str, snapshot_id: int | None) -> JSON:
    """The requirement that a ref stands there."""
    return {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": snapshot_id}


def moved(refs: Mapping[str, Mapping[str, Any]], name: str, snapshot_id: int) -> JSON:
    """The update that sets a branch to a snapshot, and leaves all else that is said of it."""
    settings = {key: value for key, value in refs.get(name, {}).items() if key not in ("snapshot-id", "type")}
    return {"action": "set-snapshot-ref", "ref-name": name, "type": "branch", "snapshot-id": snapshot_id, **settings}


def _summary(snapshot: Snapshot, known: set[str]) -> dict[str, str]:
    summary = {name: value for name, value in snapshot.summary.items() if name not in OF_THE_BRANCH}
    if summary.get(READ_SNAPSHOT) in known:
        del summary[READ_SNAPSHOT]
    if GROUP_FILE in snapshot.summary:  # appends by the fast path, which have read nothing (trap R1)
        summary[BLIND] = "true"
    return summary


def _with_reads(summaries: Sequence[dict[str, str]], reads: Reads) -> list[dict[str, str]]:
    """The summaries with one declaration of what was read, which covers each of theirs.

    One commit declares one scope. Of several filters that is any row of any of them, and the stricter level. A snapshot
    that says nothing, and is not known to be blind, may have read everything: beside one that is owed serializable
    isolation all of them are held to that; else nothing is declared, and the table or the contract has to.
    """
    found = [_with_own(summary, reads) for summary in summaries]
    said = [(own.get(FILTER), own[ISOLATION].lower()) for own in found if ISOLATION in own]
    if not said or (len(set(said)) == 1 and len(said) == len(found)):
        return found
    silent = any(ISOLATION not in own and not known_blind(own, declared=False) for own in found)
    serializable = any(level != "snapshot" for _, level in said)
    filters = [text for text, _ in said]
    words: dict[str, str] = {}
    if serializable:
        scope = None if silent or None in filters else _any_of([text for text in filters if text is not None])
        words = {ISOLATION: "serializable", FILTER: scope or "true"}
    elif not silent:
        words = {ISOLATION: "snapshot"}
    dropped = {FILTER, ISOLATION, BLIND} if words else {FILTER, ISOLATION}
    return [{name: value for name, value in own.items() if name not in dropped} | words for own in found]


def _with_own(summary: dict[str, str], reads: Reads) -> dict[str, str]:
    """One summary, with what who publishes says where it says nothing itself."""
    own = dict(summary)
    if reads.blind and own.get("operation") == "append" and not {BLIND, FILTER, ISOLATION} & own.keys():
        own[BLIND] = "true"
    if reads.isolation is not None and ISOLATION not in own and not known_blind(own, declared=False):
        own[ISOLATION] = reads.isolation
        if reads.filter is not None:
            own[FILTER] = reads.filter
    return own


def _any_of(filters: Sequence[str]) -> str:
    """One filter, as JSON, for the rows that any of these is about."""
    texts = list(dict.fromkeys(filters))
    found = texts[0]
    for text in texts[1:]:
        found = f'{{"type": "or", "left": {found}, "right": {text}}}'
    return found


def _in_a_row(changes: Sequence[Change], comparison: Comparison) -> tuple[Change, ...]:
    """The changes one after the other from the base on, where some between them are left out.

    Data that a compaction on the branch has numbered as of a snapshot of the branch gets another number, so that it
    does not keep out of the way of deletes that came to the other branch meanwhile.
    """
    on_branch = {snapshot.sequence_number for snapshot in comparison.own} - {0}
    parent = comparison.base
    found: list[Change] = []
    for change in changes:
        fields: JSON = {name: value for name, value in change.snapshot.items() if name != "parent-snapshot-id"}
        if parent is not None:
            fields["parent-snapshot-id"] = parent
        added = tuple(
            replace(touched, sequence_number=None) if touched.sequence_number in on_branch else touched
            for touched in change.added
        )
        found.append(replace(change, snapshot=Snapshot(fields), added=added))
        parent = change.snapshot.id
    return tuple(found)
