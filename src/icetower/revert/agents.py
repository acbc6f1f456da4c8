"""An agent's commits in a branch's history, and the commit that takes them back. Reads tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icetower.audit.auditor import Options, Source, Walk
from icetower.audit.items import key_of
from icetower.audit.list_reading import ListReader
from icetower.audit.roots import rooted
from icetower.audit.shapes import check_shape
from icetower.audit.wording import called
from icetower.errors import BadRequest, NotFound, ValidationFailed
from icetower.iceberg.manifests import DataFile, Manifest, ManifestFile, read_manifest, read_manifest_list
from icetower.iceberg.metadata import MAIN, ancestors
from icetower.iceberg.records import DELETED
from icetower.protocol.marks import GROUP_FILE, PRINCIPAL, PUBLISHED_BRANCH, REVERTS_OF
from icetower.protocol.snapshots import Snapshot
from icetower.revert.published import Published
from icetower.revert.reverting import Own, Plan, Reverting
from icetower.revert.taking_back import Draft, Drafting
from icetower.revert.unread import Promises, Unread
from icetower.table.groups import Group, Span, read_group
from icetower.table.head import HeadState

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose commits are to be taken back.

    Attributes:
        agent: the principal, as the tower knows it, or a name for several.
        since_ms: those that were committed at this time or later, in milliseconds since 1970.
        principals: those that `agent` stands for; empty: itself.
        only: of those commits, these snapshots alone; None: all.
    """

    agent: str
    since_ms: int
    branch: str = MAIN
    principals: tuple[str, ...] = ()
    only: frozenset[int] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The principals whose commits are meant."""
        return self.principals or (self.agent,)

    def of(self, principal: object) -> bool:
        """Whether this principal's commits are meant."""
        return principal in self.names


@dataclass(frozen=True, slots=True)
class Naming:
    """What a new snapshot needs besides. `new_name`: gives a name that was never used."""

    snapshot_id: int
    now_ms: int
    words: Mapping[str, str]
    new_name: Callable[[], str]


class Agent:
    """An agent's part in a branch's history. Raises `ValidationFailed` where the metadata is none.

    Args:
        head: the table.
    """

    def __init__(self, head: HeadState, source: Source, wanted: Wanted) -> None:
        check_shape(head.metadata)
        self._head = head
        self._source = source
        self._wanted = wanted
        self._walk: Walk | None = None

    async def plan(self, promises: Promises | None = None) -> Plan:
        """What one commit would take back, and what stands against it.

        Args:
            promises: the contracts of those who write to the table, where they are known.

        Raises:
            BadRequest: there is no such branch, or it is not known what a commit did, for whom, or which there were.
            NotFound: a manifest is gone.
        """
        chain = self._chain()
        await self._check_known(chain[0])
        written = await self._own(chain)
        reverts = _taken_back_before(chain, written, self._wanted)
        own: dict[int, Own | None] = written | reverts
        if not own:
            return Plan((), (), (), ())
        parent = Snapshot(chain[min(own)]).parent_id
        walk = self._walk = Walk(self._head, self._source, Options(self._wanted.branch, after=parent, whole=True))
        await walk.run()
        shift = len(chain) - len(walk.line.commits)
        blind = next((c for c in walk.line.commits[max(min(own) - shift, 0) :] if c.delta.blind), None)
        if blind is not None:
            raise BadRequest(
                f"what {called(blind.snapshot)} did cannot be determined: a manifest or manifest list is gone "
                "(icetower audit names it)",
                rule="revert.blind",
            )
        chosen = {position - shift: files for position, files in own.items()}
        before = frozenset(snapshot["snapshot-id"] for snapshot in chain[: min(own)])
        unread = Unread(self._head.metadata, before, promises)
        known = (walk.line, walk.live_files, walk.cycles, unread, chosen, self._head.format_version)
        plan = await walk.ask(lambda: Reverting(*known).plan())
        return replace(plan, reverts=tuple(chain[at]["snapshot-id"] for at in sorted(reverts)))

    async def _check_known(self, oldest: JSON) -> None:
        """No commit since that time has expired: it would stay, and the revert would say that all was taken back."""
        if oldest["timestamp-ms"] < self._wanted.since_ms:
            return
        parent = Snapshot(oldest).parent_id
        path = oldest.get("manifest-list")
        if parent is None and path is not None:
            try:
                step = ListReader().step(await self._source.read(path))
            except (NotFound, ValidationFailed) as error:
                raise BadRequest(
                    f"what came before {called(oldest)} cannot be determined: its manifest list is gone or cannot be "
                    "read",
                    rule="revert.blind",
                ) from error
            parent = Snapshot(rooted(oldest, step, self._head.snapshots)).parent_id
        if parent is not None:
            raise BadRequest(
                f"what {self._wanted.agent} has committed since then cannot be determined: history begins with "
                f"{called(oldest)}, and its parent has expired. Name a time after that snapshot",
                rule="revert.expired",
            )

    def _chain(self) -> list[JSON]:
        head_id = self._head.ref(self._wanted.branch)
        if head_id is None:
            raise BadRequest(f"the table has no branch {self._wanted.branch!r}", rule="revert.branch")
        if self._head.metadata.get("refs", {}).get(self._wanted.branch, {}).get("type") == "tag":
            raise BadRequest(
                f"{self._wanted.branch!r} is a tag, and tags don't move: name a branch", rule="revert.branch"
            )
        chain: list[JSON] = []
        chain.extend(ancestors(self._head.metadata, head_id))
        chain.reverse()
        return chain

    async def _own(self, chain: list[JSON]) -> dict[int, Own | None]:
        """The agent's commits by position; of a group of appends, the files and the rows that are its own."""
        own: dict[int, Own | None] = {}
        for at, snapshot in enumerate(chain):
            only = self._wanted.only
            if snapshot["timestamp-ms"] < self._wanted.since_ms or (
                only is not None and snapshot["snapshot-id"] not in only
            ):
                continue
            summary: Mapping[str, Any] = snapshot.get("summary") or {}
            if GROUP_FILE in summary:
                mine = await self._own_of_group(snapshot)
                if mine:
                    own[at] = mine
            elif self._wanted.of(summary.get(PRINCIPAL)):
                own[at] = None
            elif PUBLISHED_BRANCH in summary:
                found = await self.published.own(snapshot)
                if found is not None:
                    own[at] = None if isinstance(found, str) else found
        return own

    @property
    def published(self) -> Published:
        """Whose the rebased snapshots are."""
        return Published(self._head.snapshots, self._wanted.of, self._own_of_group, self._rows, self._manifest)

    async def _own_of_group(self, snapshot: JSON) -> Own:
        return _own_files(await self._group(snapshot, str(snapshot["summary"][GROUP_FILE])), self._wanted)

    async def _rows(self, snapshot: JSON) -> tuple[ManifestFile, ...]:
        return read_manifest_list(await self._source.read(snapshot["manifest-list"]))

    async def _group(self, snapshot: JSON, path: str) -> Group:
        """Who appended what. Raises `BadRequest`: any of the files may be the agent's."""
        try:
            return read_group(await self._source.read(path))
        except (NotFound, ValidationFailed) as error:
            gone = "is gone" if isinstance(error, NotFound) else f"cannot be read ({error.message})"
            raise BadRequest(
                f"{called(snapshot)} holds appends of the fast path, and the group file that names their principals "
                f"{gone}: restore {path} from a backup, or name a time after this snapshot",
                rule="revert.group",
            ) from error

    async def draft(self, plan: Plan, naming: Naming) -> Draft:
        """The commit of a plan that nothing stands against. Raises `NotFound`."""
        assert self._walk is not None, "a plan comes first"
        assert not any(each.certain for each in plan.dependencies)
        head, branch = self._head, self._wanted.branch
        parent = head.snapshots[head.ref(branch) or 0]
        rows = await self._rows(parent)
        wanted = {item.key for item in plan.remove}
        holding = [
            path
            for path, body in self._walk.live_files.held.items()
            if any(item.key in wanted and item.status != DELETED for item in body.items)
        ]
        manifests = {path: await self._manifest(path) for path in holding}
        restored: dict[str, DataFile] = {}
        for path in dict.fromkeys(item.manifest for item in plan.restore):
            restored |= {key_of(entry.file): entry.file for entry in (await self._manifest(path)).entries}
        return Drafting(
            head,
            branch,
            rows,
            manifests,
            restored,
            naming.snapshot_id,
            naming.now_ms,
            {REVERTS_OF: ",".join(self._wanted.names), **naming.words},
            naming.new_name,
        ).draft(plan)

    async def _manifest(self, path: str) -> Manifest:
        return read_manifest(await self._source.read(path))


def _own_files(group: Group, wanted: Wanted) -> Own:
    """The files of a group in which an agent has rows: all of them, or at which positions (rows at the door)."""
    mine = [each for each in group.appends if wanted.of(each.principal)]
    own: dict[str, tuple[Span, ...] | None] = {path: None for each in mine for path in each.files}
    of_others = {path for each in group.appends if each not in mine for path in each.rows}
    for path in dict.fromkeys(path for each in mine for path in each.rows):
        spans = sorted(span for each in mine for span in each.rows.get(path, ()))
        own[path] = tuple(spans) if path in of_others else None
    return own


def _taken_back_before(chain: list[JSON], own: Mapping[int, object], wanted: Wanted) -> dict[int, None]:
    """Commits that have taken some of it back already belong to it, and so do those that took these back, and so on.

    What took back another principal's rows of the same snapshots is somebody else's commit.

    Raises `BadRequest`.
    """
    ids = {str(chain[at]["snapshot-id"]) for at in own}
    whole = {str(chain[at]["snapshot-id"]) for at, files in own.items() if files is None}
    found: dict[int, None] = {}
    for at, snapshot in enumerate(chain):
        summary: Mapping[str, Any] = snapshot.get("summary") or {}
        named = Snapshot(snapshot).reverts
        if not named & ids or at in own:
            continue
        theirs = REVERTS_OF in summary and not any(map(wanted.of, str(summary[REVERTS_OF]).split(",")))
        if theirs and not named <= whole:  # a published snapshot is taken back by its author's name or its publisher's
            continue
        if named - ids:
            raise BadRequest(
                f"{called(snapshot)} has taken some of it back already, together with other commits, such as "
                f"{min(named - ids)[:40]}: name an earlier time",
                rule="revert.again",
            )
        found[at] = None
        ids.add(str(snapshot["snapshot-id"]))
        whole.add(str(snapshot["snapshot-id"]))  # whoever takes it back
    return found
