"""Publishing: a branch's snapshots are put on another branch, in one swap.

Where nothing came to that branch since the two parted, it is set forward: the snapshots keep their ids. Else they are
validated against what came, as commits are that were written on an old version, and come with new ids, one by one or
as one. The engine decides which of the two, when the publication has its turn, so that no other commit comes between.

A contract may name checks that have to pass before. Checks are jobs outside of the tower. They report a verdict on one
snapshot, and only that very snapshot is published: where the branch must be rebased, its rebased snapshots are put on a
branch of their own first (`stage_of`), are checked there, and the other branch is set forward to them. What comes to it
meanwhile makes that begin anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from icetower.admission import permissions
from icetower.admission.admitted import Admitted, Publication
from icetower.admission.gate import Gate
from icetower.admission.identity import Identity
from icetower.ambient import Ambient
from icetower.commit.engine import Committed, Engine
from icetower.commit.head import Heads
from icetower.commit.replays import Replays
from icetower.contracts.model import Operation
from icetower.contracts.upkeep import Branches
from icetower.errors import CommitConflict, IcetowerError, NotFound
from icetower.iceberg.metadata import MAIN
from icetower.ledger.verdicts import CheckVerdict, Verdicts
from icetower.ledger.writers import Writers
from icetower.observe.events import one_line
from icetower.protocol.marks import PUBLISHED_BRANCH, SOURCE_SNAPSHOT
from icetower.protocol.names import Identifier
from icetower.protocol.publishing import PublishRequest, VerdictReport
from icetower.protocol.updates import Updates
from icetower.publish.comparison import Comparison, branches_of, compare
from icetower.publish.preparing import Reads, asserted, prepared, request_of
from icetower.registry.principals import Principal
from icetower.registry.tokens import contract_revoked, not_authenticated
from icetower.service.attempts import partitions_of
from icetower.service.authors import Authors
from icetower.service.intents import Intents
from icetower.service.journal import Journal
from icetower.service.outcomes import Attempt, Outcomes
from icetower.table.head import HeadState

ROUNDS_MAX = 5
"""So often a publication begins anew where its branch, or the other one, has moved meanwhile."""

OPERATION = "publish"
log = logging.getLogger("icetower")
_AGAIN = frozenset({"requirement.assert-ref-snapshot-id", "publish.moved"})


def stage_of(branch: str) -> str:
    """The branch on which the rebased snapshots of another one wait for checks."""
    return f"{branch}.publish"


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publication.

    Attributes:
        outcome: ``forwarded``: the branch was set forward; ``rebased``: the snapshots came with new ids; ``replayed``:
            it had been published under this key; ``nothing``: nothing was lacking; ``waiting``: for checks.
        snapshots: those that it brought, in order, each with the snapshot of the branch that it stands for.
        picked: snapshots of the branch that a client has picked before, each with that which it became.
        waits_on: the branch and the snapshot that are to be checked.
        checks: the checks that have to pass, each with its verdict, if there is one.
        checked_by: the principals whose verdicts count.
        unchecked: checks that the contracts of the branch's authors ask for, and that have not passed: who published
            it was not held to them.
    """

    outcome: str
    head: HeadState
    snapshots: tuple[tuple[int, int], ...] = ()
    picked: Mapping[int, int] | None = None
    waits_on: tuple[str, int] | None = None
    checks: Mapping[str, CheckVerdict | None] | None = None
    checked_by: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


class Publishing:
    """One a tower. `key_lifetime_ms`: how long keys are kept."""

    def __init__(
        self,
        gate: Gate,
        engine: Engine,
        heads: Heads,
        replays: Replays,
        writers: Writers,
        outcomes: Outcomes,
        journal: Journal,
        verdicts: Verdicts,
        ambient: Ambient,
        intents: Intents | None = None,
        authors: Authors | None = None,
        *,
        key_lifetime_ms: int,
    ) -> None:
        self._gate = gate
        self._engine = engine
        self._heads = heads
        self._replays = replays
        self._writers = writers
        self._outcomes = outcomes
        self._journal = journal
        self._verdicts = verdicts
        self._ambient = ambient
        self._intents = intents
        self._authors = authors
        self._key_lifetime_ms = key_lifetime_ms

    async def publish(
        self, principal: Principal, table: Identifier, wanted: PublishRequest, key: str | None
    ) -> Published:
        """Publish a branch.

        Args:
            key: of the request's header; one in its body goes before it.

        Raises:
            PublishConflict: some of its snapshots conflict with what came to the other branch.
            CommitConflict: ``publish.check-failed`` or ``publish.unchecked``; or as for any commit.
            IcetowerError: whatever else refuses it; every attempt is logged.
        """
        if principal.ended:
            raise not_authenticated()
        key = wanted.key or key
        attempt = Attempt(principal, [table], OPERATION, self._ambient.monotonic_s(), key, work=key)
        self._outcomes.begin(attempt)
        async with self._outcomes.watched(attempt):
            if principal.revoked:
                raise contract_revoked(f"contract {principal.contract.name} of {principal.name}")
            if not principal.contract.shadow:
                permissions.require(principal, Operation.READ, table)
            identity = Identity.of_append(principal.name, wanted.to, key, None)
            attempt.write(table).identified(identity)
            published, done = await self._rounds(attempt, table, wanted, identity)
        if done is not None:
            self._outcomes.landed(attempt, table, done)
        if published.unchecked:
            log.warning(
                "%s published branch %s of %s to %s without its checks: %s (request %s)",
                principal.name,
                *map(one_line, (wanted.branch, str(table), wanted.to, ", ".join(published.unchecked))),
                attempt.request_id,
            )
        return published

    async def _rounds(
        self, attempt: Attempt, table: Identifier, wanted: PublishRequest, identity: Identity
    ) -> tuple[Published, Committed | None]:
        """Try until no branch moves meanwhile, a few times."""
        for _ in range(ROUNDS_MAX - 1):
            try:
                return await self._round(attempt, table, wanted, identity)
            except CommitConflict as conflict:
                if conflict.rule not in _AGAIN:
                    raise
        return await self._round(attempt, table, wanted, identity)

    async def _round(
        self, attempt: Attempt, table: Identifier, wanted: PublishRequest, identity: Identity
    ) -> tuple[Published, Committed | None]:
        """One try; the answer, and what of it is logged."""
        head = await self._heads.load(table)
        if identity.key is not None:
            before = await self._replays.find(table, head, identity)
            if before is not None:
                return Published("replayed", before.head, _pairs(before)), before
        comparison = branches_of(head, table, wanted.branch, wanted.to)
        if not comparison.lacking:
            return Published("nothing", head, picked=comparison.picked), None
        branches = attempt.principal.contract.branches
        if branches is not None and branches.checks:
            return await self._checked(attempt, table, wanted, identity, head, comparison, branches)
        asked = {} if self._authors is None else await self._authors.checks(comparison.lacking)
        if not wanted.unchecked:
            self._require_checked(wanted, await self._unchecked(asked, head, comparison, comparison.forward))
        held = bool(asked) and not wanted.unchecked
        done = await self._put(attempt, table, wanted, identity, head, comparison, forward_only=held)
        published = _published(done, comparison)
        if published.outcome in ("forwarded", "rebased"):
            forward = published.outcome == "forwarded"
            with suppress(IcetowerError):  # it has landed
                published = replace(published, unchecked=await self._unchecked(asked, head, comparison, forward))
        return published, done

    async def _unchecked(
        self, asked: Mapping[str, Branches], head: HeadState, comparison: Comparison, forward: bool
    ) -> tuple[str, ...]:
        """The checks of the branch's authors that have not passed for what is published.

        Args:
            asked: what their contracts say of branches, by author.
            forward: its snapshots keep their ids; else nobody has seen them before.
        """
        found: dict[str, None] = {}
        for author, branches in asked.items():
            verdicts = await self.verdicts_on(head, comparison.head if forward else None, branches, author)
            found |= {name: None for name, each in verdicts.items() if each is None or not each.passed}
        return tuple(found)

    @staticmethod
    def _require_checked(wanted: PublishRequest, unchecked: Sequence[str]) -> None:
        if unchecked:
            raise CommitConflict(
                f"the contracts of the authors of branch {wanted.branch} name checks that have not passed for what "
                f"would come to {wanted.to}: {', '.join(unchecked)}. Let one of its authors publish it, which says "
                "what is to be checked; or publish it past its checks with `unchecked` (icetower publish --unchecked)",
                rule="publish.unchecked",
                next_step="fix_request",
            )

    async def _checked(
        self,
        attempt: Attempt,
        table: Identifier,
        wanted: PublishRequest,
        identity: Identity,
        head: HeadState,
        comparison: Comparison,
        branches: Branches,
    ) -> tuple[Published, Committed | None]:
        """Publish what has passed its checks; or say what has to be checked."""
        branch, snapshot_id, staged = wanted.branch, comparison.head, comparison
        done: Committed | None = None
        if not comparison.forward:
            branch = stage_of(wanted.branch)
            waiting = _waiting_on(head, branch, comparison)
            if waiting is None:
                require_own_stage(head, branch, wanted.branch, comparison)
                anonymous = replace(identity, key=None)
                stands = (asserted(branch, head.ref(branch)),)
                done = await self._put(attempt, table, wanted, anonymous, head, comparison, stage=branch, also=stands)
                if not done.snapshots:
                    return _published(done, comparison), done
                head = done.head
                waiting = _waiting_on(head, branch, comparison)
                if waiting is None:
                    raise _moved(wanted)
            snapshot_id, staged = waiting.head, waiting
        verdicts = await self.verdicts_on(head, snapshot_id, branches, attempt.principal.name)
        failed = [verdict for verdict in verdicts.values() if verdict is not None and not verdict.passed]
        if failed:
            raise CommitConflict(
                f"branch {wanted.branch} is not published to {wanted.to}: check {failed[0].name} has failed for "
                f"snapshot {snapshot_id}, which {failed[0].principal} reported: {failed[0].details or 'no details'}",
                rule="publish.check-failed",
                snapshot=snapshot_id,
                next_step="fix_request",
            )
        if any(verdict is None for verdict in verdicts.values()):
            by = branches.reporters(attempt.principal.name)
            waits = Published("waiting", head, waits_on=(branch, snapshot_id), checks=verdicts, checked_by=by)
            return waits, done
        also = () if branch == wanted.branch else (asserted(wanted.branch, comparison.head),)
        ready = replace(wanted, branch=branch, squash=False)
        done = await self._put(attempt, table, ready, identity, head, staged, forward_only=True, also=also)
        found_before = done.outcome == "replayed"
        outcome = done.outcome if found_before else "forwarded" if branch == wanted.branch else "rebased"
        return Published(outcome, done.head, _pairs(done), comparison.picked, checks=verdicts), done

    async def _put(
        self,
        attempt: Attempt,
        table: Identifier,
        wanted: PublishRequest,
        identity: Identity,
        head: HeadState,
        comparison: Comparison,
        *,
        stage: str | None = None,
        forward_only: bool = False,
        also: Sequence[Mapping[str, Any]] = (),
    ) -> Committed:
        """Have the gate judge it, and the engine land it."""
        principal = attempt.principal
        refs = head.metadata.get("refs") or {}
        reads = Reads(wanted.filter, wanted.isolation, wanted.blind, wanted.intent, wanted.fence)
        request = request_of(table, comparison, wanted.branch, wanted.to, refs, reads)
        publication = Publication(
            wanted.branch,
            comparison.head,
            comparison.base,
            comparison.onto,
            forward_only,
            wanted.squash,
            stage,
            comparison.copies,
            comparison.numbers,
            self._ambient.now_ms() + self._key_lifetime_ms,
            predicates=wanted.isolation is not None,
        )
        async with self._gate.reading(principal) as reading:
            since_s = attempt.started_s
            admitted = await self._gate.admit(principal, request, identity, head, since_s=since_s, published=True)
            reading.leave()
        member = prepared(admitted, comparison, publication, identity, refs, [dict(each) for each in also])
        async with self._gate.holding(member):
            if self._intents is not None:
                member = await self._intents.admit(member, head.metadata)
            attempt.judged_s = self._ambient.monotonic_s()
            await self._writers.keep(principal.name, [(member.table_uuid or "", table)])
            known = None if comparison.forward else head  # set forward, it adds nothing to its branch
            done = await self._engine.submit(member, known, request=attempt.request_id or "")
        if self._intents is not None:
            self._intents.landed(member, done)
        attempt.updates[table] = member.updates if done.outcome == "direct" else _moves(stage or wanted.to)
        self._journal.remember_commit(member, done)
        attempt.partitions = partitions_of(done.head, _places(member))
        return done

    # -- checks ---------------------------------------------------------------------------------------------------

    async def verdicts_on(
        self, head: HeadState, snapshot_id: int | None, branches: Branches, writer: str
    ) -> Mapping[str, CheckVerdict | None]:
        """The checks of a branch, each with its verdict on a snapshot (`to_check`), if there is one.

        Args:
            branches: of the contract of its writer.
        """
        snapshot = None if snapshot_id is None else head.snapshot(snapshot_id)
        if snapshot is None:
            return dict.fromkeys(branches.checks)
        uuid, by = str(head.metadata["table-uuid"]), branches.reporters(writer)
        found = await self._verdicts.of(uuid, snapshot, by)
        return {name: found.get(name) for name in branches.checks}

    async def report(self, principal: Principal, table: Identifier, report: VerdictReport) -> CheckVerdict:
        """Keep what a check has found of a snapshot.

        Raises:
            ContractViolation: the principal may not read the table.
            NotFound: the table has no such snapshot.
            CommitConflict: ``publish.verdict``: the check has read another one, which had the same id.
        """
        if not principal.contract.shadow:
            permissions.require(principal, Operation.READ, table)
        head = await self._heads.load(table)
        snapshot = head.snapshot(report.snapshot_id)
        if snapshot is None:
            raise NotFound(f"{table} has no snapshot {report.snapshot_id}", rule="snapshot.exists")
        if report.manifest_list not in (None, snapshot.manifest_list):
            raise CommitConflict(
                f"check {report.check} has read another snapshot than {table} has under the id {snapshot.id} now; the "
                f"manifest list of that one is {snapshot.manifest_list}: check it, and report again",
                rule="publish.verdict",
                snapshot=snapshot.id,
                next_step="fix_request",
            )
        uuid = str(head.metadata["table-uuid"])
        return await self._verdicts.report(
            uuid,
            snapshot,
            report.check,
            passed=report.passed,
            details=report.details,
            principal=principal.name,
        )


def _moves(branch: str) -> Updates:
    """What is logged of a publication whose snapshots the tower makes."""
    return Updates([{"action": "set-snapshot-ref", "ref-name": branch, "type": "branch"}])


def to_check(head: HeadState, branch: str) -> int | None:
    """The snapshot that `main` would be set to if a branch were published now; None: that is not made yet. Pure."""
    try:
        comparison = branches_of(head, Identifier(("",), ""), branch, MAIN)
    except (CommitConflict, NotFound):
        return None
    if comparison.forward:
        return comparison.head
    waiting = _waiting_on(head, stage_of(branch), comparison)
    return None if waiting is None else waiting.head


def _waiting_on(head: HeadState, stage: str, comparison: Comparison) -> Comparison | None:
    """The staged snapshots of all that the branch has, on the very head of the other branch; None: there are none."""
    at = head.ref(stage)
    last = None if at is None else head.snapshot(at)
    if at is None or last is None or PUBLISHED_BRANCH not in last.summary:
        return None
    try:
        staged = compare(head.snapshots.get, at, comparison.onto)
        left = compare(head.snapshots.get, comparison.head, at).lacking
    except CommitConflict:  # of another time: they have no snapshot in common any more
        return None
    return staged if staged.forward and not left else None


def require_own_stage(head: HeadState, stage: str, branch: str, comparison: Comparison) -> None:
    """Raises `CommitConflict` where something else than staged snapshots of the branch would be put off its place.

    The tower's own stage stands at a snapshot that the tower has made of the branch's, also after that was published.
    A ref that stands elsewhere is somebody else's, though no commit is lost where it is moved.
    """
    at = head.ref(stage)
    if at is None:
        return
    last = head.snapshot(at)
    own = () if last is None else (last,)
    with suppress(CommitConflict):
        own = (*own, *compare(head.snapshots.get, at, comparison.onto).own)
    is_branch = head.metadata["refs"][stage].get("type") == "branch"
    if not (is_branch and own) or any(snapshot.summary.get(PUBLISHED_BRANCH) != branch for snapshot in own):
        raise CommitConflict(
            f"the snapshots of {branch} have to wait for checks on branch {stage}, and there is a {stage} already that "
            f"the tower has not made for them; publish or remove {stage} first, or give {branch} another name",
            rule="publish.stage",
            snapshot=at,
            next_step="fix_request",
        )


def _moved(wanted: PublishRequest) -> CommitConflict:
    return CommitConflict(
        f"{wanted.to} has moved on while {wanted.branch} was rebased; ask again",
        rule="publish.moved",
        next_step="retry",
    )


def _published(done: Committed, comparison: Comparison) -> Published:
    if done.outcome == "rebased" and not done.snapshots:  # none of them changes a file
        return Published("nothing", done.head, picked=comparison.picked)
    outcomes = {"direct": "forwarded", "rebased": "rebased"}
    return Published(outcomes.get(done.outcome, done.outcome), done.head, _pairs(done), comparison.picked)


def _pairs(done: Committed) -> tuple[tuple[int, int], ...]:
    """The snapshots of an answer, each with the snapshot of the branch that it stands for."""
    found: list[tuple[int, int]] = []
    for snapshot_id in done.snapshots:
        snapshot = done.head.snapshot(snapshot_id)
        copied = snapshot is not None and PUBLISHED_BRANCH in snapshot.summary
        source = int(snapshot.summary[SOURCE_SNAPSHOT]) if copied and snapshot is not None else snapshot_id
        found.append((snapshot_id, source))
    return tuple(found)


def _places(member: Admitted) -> list[tuple[int, tuple[Any, ...]]]:
    touched = [each for change in member.changes for each in (*change.added, *change.removed)]
    return [(each.spec_id, each.file.partition) for each in touched]
