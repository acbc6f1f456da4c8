"""What an audit finds, and what it could look at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JSON = Mapping[str, Any]


class Verdict(StrEnum):
    """How sure it is.

    DEFINITE: no order of the commits, one after the other, explains what the table has. POSSIBLE: one does, but only if
    somebody read or wanted something unlikely; what was read is inferred. UNDETERMINABLE: what would tell is gone.
    """

    DEFINITE = "definite"
    POSSIBLE = "possible"
    UNDETERMINABLE = "undeterminable"


class Rule(StrEnum):
    """What can be wrong; the words are in `MEANINGS`."""

    CHAIN = "chain"
    SEQUENCE = "sequence"
    MISSING_MANIFEST = "missing-manifest"
    COUNTS = "counts"
    LOST_FILE = "lost-file"
    SMUGGLED_FILE = "smuggled-file"
    FILE_TWICE = "file-twice"
    NOT_LIVE = "not-live"
    ALTERED_ENTRY = "altered-entry"
    TWO_VECTORS = "two-vectors"
    DROPPED_DELETE = "dropped-delete"
    ROW_BALANCE = "row-balance"
    LOST_UPDATE = "lost-update"
    LOST_DELETE = "lost-delete"
    UNDELETE = "undelete"
    READ_SKEW = "read-skew"
    WRITE_SKEW = "write-skew"
    KEY_TWICE = "key-twice"
    FENCED_HOLDER = "fenced-holder"
    HELD_ROWS = "held-rows"
    BYPASS = "bypass"


MEANINGS: Mapping[Rule, str] = {
    Rule.CHAIN: "the snapshots of a branch do not follow each other",
    Rule.SEQUENCE: "sequence numbers do not rise from commit to commit",
    Rule.MISSING_MANIFEST: "a manifest or manifest list is missing or cannot be read",
    Rule.COUNTS: "a manifest list says other counts than its manifest holds",
    Rule.LOST_FILE: "a live file left the table, and no commit says that it removed it",
    Rule.SMUGGLED_FILE: "a file is in the table, and no commit says that it added it",
    Rule.FILE_TWICE: "a file is live twice, and so are its rows",
    Rule.NOT_LIVE: "a commit says that it removed a file that was not there, or that still is",
    Rule.ALTERED_ENTRY: "an entry was carried over and says something else than before",
    Rule.TWO_VECTORS: "a data file has two deletion vectors: no reader takes that",
    Rule.DROPPED_DELETE: "deletes were dropped while they still applied: rows are back",
    Rule.ROW_BALANCE: "a compaction did not write as many rows as it took away",
    Rule.LOST_UPDATE: "a commit wrote what another had written since it read, and has undone or doubled it",
    Rule.LOST_DELETE: "deletes were committed for a data file that was gone: they delete nothing",
    Rule.UNDELETE: "a row that was deleted is live again",
    Rule.READ_SKEW: "a commit has read parts of several versions of the table",
    Rule.WRITE_SKEW: "commits each have missed what the other wrote: no order of them explains that",
    Rule.KEY_TWICE: "a key is live twice: two commits have added it, and neither had seen the other",
    Rule.FENCED_HOLDER: "a commit came under an intent that had ended: the next holder had committed",
    Rule.HELD_ROWS: "a commit came into rows that another's intent held",
    Rule.BYPASS: "a commit did not come through the tower",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that is wrong.

    Attributes:
        snapshots: ids of those that are part of it, in the order of their commits; the last one made it wrong.
        witness: how one can see it, a sentence each, in an order that can be followed.
        files: paths of the files that it is about, a few.
    """

    rule: Rule
    verdict: Verdict
    snapshots: tuple[int, ...]
    witness: tuple[str, ...]
    files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `icetower audit --json` prints it."""
        return {
            "rule": self.rule.value,
            "verdict": self.verdict.value,
            "snapshots": list(self.snapshots),
            "witness": list(self.witness),
            "files": list(self.files),
        }


@dataclass(frozen=True, slots=True)
class Checked:
    """What an audit covers.

    Attributes:
        table: where its metadata is.
        branch, head: which line of snapshots; the newest one.
        snapshots: how many were checked.
        first: the oldest of them; None where there were none.
        expired: the history before `first` is gone: what led to it is taken as it stands.
        resumed: an earlier audit had checked the history before `first`.
        reads: how many commits say what they have read (``declared``), read nothing (``blind``), changed no row
            (``compaction``), or have read something unknown (``unknown``).
        off_branch: snapshots of the metadata that are on no line of this branch: staged, rolled back, or another's.
        manifests_read: manifests that were opened.
        content: whether data and delete files were opened as well.
        undeterminable: what could not be determined, and why, a sentence each.
    """

    table: str
    uuid: str
    format_version: int
    branch: str
    head: int | None
    snapshots: int = 0
    first: int | None = None
    expired: bool = False
    resumed: bool = False
    reads: Mapping[str, int] = field(default_factory=dict[str, int])
    off_branch: int = 0
    manifests_read: int = 0
    content: bool = False
    undeterminable: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `icetower audit --json` prints it."""
        return {
            "table": self.table,
            "uuid": self.uuid,
            "format_version": self.format_version,
            "branch": self.branch,
            "head": self.head,
            "snapshots": self.snapshots,
            "first": self.first,
            "expired": self.expired,
            "resumed": self.resumed,
            "reads": dict(self.reads),
            "off_branch": self.off_branch,
            "manifests_read": self.manifests_read,
            "content": self.content,
            "undeterminable": list(self.undeterminable),
        }


@dataclass(frozen=True, slots=True)
class Edge:
    """One commit's relation to another, for drawing: ``ww`` (wrote the same), ``rw`` (the first missed what the second
    wrote). Snapshot ids."""

    kind: str
    of: int
    to: int


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of an audit. `edges` are those that a violation stands on."""

    violations: tuple[Violation, ...]
    checked: Checked
    edges: tuple[Edge, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `icetower audit --json` prints it."""
        return {"violations": [each.to_json() for each in self.violations], "checked": self.checked.to_json()}
