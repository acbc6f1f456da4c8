"""`publish_branch`: all that a branch has goes on another one, in one commit. All of it blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.agent.publishing import Keep, PublishedBranch
from icetower.errors import PublishConflict
from icetower.mcp.answers import refused
from icetower.mcp.results import LISTED_MAX, PublishedSnapshots, SnapshotRefused, clean
from icetower.mcp.tables import Desk, wrong
from icetower.mcp.writing import key_of

_SAID = {
    "forwarded": "published: the snapshots have kept their ids",
    "rebased": "published, under new ids",
    "replayed": "it had been published before",
    "nothing": "nothing was lacking",
    "waiting": "nothing was published: checks have to pass first",
}
_FOUND = {None: "not reported", True: "passed", False: "failed"}


def publish(desk: Desk, table: str, branch: str, to: str, keep: Keep, isolation: str | None) -> PublishedSnapshots:
    """Publish a branch. Equal calls while it stands where it does are done once."""
    metadata: Mapping[str, Any] = desk.tower.load(table)["metadata"]
    ref = (metadata.get("refs") or {}).get(branch)
    if ref is None or ref.get("type") != "branch":
        raise wrong("branch", f"is {clean(branch)!r}, and the table has no such branch")
    key = key_of(desk.me.principal, table, f"publish {branch} to {to}", [], [str(ref["snapshot-id"])], "")
    try:
        done = desk.tower.publish(table, branch, key=key, to=to, keep=keep, isolation=isolation)
    except PublishConflict as error:
        answer = refused(PublishedSnapshots, error, table=clean(table))
        return answer.model_copy(update={"conflicts": [_refused(each) for each in error.conflicts[:LISTED_MAX]]})
    return _answer(table, done)


def _refused(conflict: Any) -> SnapshotRefused:
    return SnapshotRefused(
        source=str(conflict.source),
        rule=conflict.rule,
        message=clean(conflict.message),
        files=[clean(path) for path in conflict.files[:LISTED_MAX]],
        partitions=[clean(name) for name in conflict.partitions[:LISTED_MAX]],
    )


def _answer(table: str, done: PublishedBranch) -> PublishedSnapshots:
    return PublishedSnapshots(
        summary=_SAID.get(done.outcome, done.outcome),
        table=clean(table),
        outcome=done.outcome,
        snapshots=[str(at) for at, _ in done.snapshots[:LISTED_MAX]],
        to_check=None if done.waits_on is None else str(done.waits_on[1]),
        checks={clean(verdict.check): _FOUND[verdict.passed] for verdict in done.checks},
        unchecked=[clean(name) for name in done.unchecked],
    )
