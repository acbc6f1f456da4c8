"""Is the simulation sharp? Engines that are broken on purpose, each in one way; some seed must catch each.

What two precautions keep right is broken with both of them: where one alone is missing, the other still holds.

Most are broken at the doors (`Door`, `Commits`), where an engine that makes the mistake is not to be told from one that
does not; the others by a patch of one pure function.
"""

# pyright: reportPrivateUsage=false
# A mutation replaces what a module keeps to itself.
from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from icetower.admission import clauses
from icetower.commit import draft
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.last_look import LastLook
from icetower.commit.safe_refusals import SafeRefusals
from icetower.commit.table_state import TableState
from icetower.errors import CommitConflict, CommitStateUnknown, UpstreamFailed
from icetower.iceberg import metadata as table_metadata
from icetower.rebase import grants as rebase
from icetower.service.commits import Commits
from icetower.service.single_flight import SingleFlight
from icetower.table.keys import Keys
from icetower.upstream.port import Swap, SwapLost, SwapUnknown
from verify.torture.simulate import simulate
from verify.torture.world import Door

SEEDS_MAX = 300
"""A mutation that survives so many seeds is not caught."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to be wrong.

    Attributes:
        patch: while it lasts, every tower is wrong in this way.
        caught_by: invariants, one of which must be the first to break.
        first_seed: where its hunt begins. What it takes for some mistakes to show is rare, and is looked for near where
            it was found.
    """

    name: str
    patch: Callable[[], AbstractContextManager[Any]]
    caught_by: frozenset[str]
    first_seed: int = 0


_SWAP = Door.swap
_WRITE = Door.write
_COMMIT = Commits.commit


def _of_towers(broken: Callable[..., Any], right: Callable[..., Any]) -> Callable[..., Any]:
    """Only towers are broken: an outside writer goes on as it should."""

    async def chosen(self: Door, *args: Any) -> Any:
        return await (broken if self.is_tower else right)(self, *args)

    return chosen


def _door(**broken: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    rights = {"swap": _SWAP, "write": _WRITE}
    chosen: dict[str, Any] = {name: _of_towers(function, rights[name]) for name, function in broken.items()}
    return lambda: mock.patch.multiple(Door, **chosen)


def _function(owner: Any, **broken: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.multiple(owner, **broken)


def _and_nobody_looks(owner: Any, **broken: Any) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def both() -> Generator[None]:
        with (
            mock.patch.multiple(owner, **broken),
            mock.patch.multiple(LastLook, answer=_refused_without_a_look),
            mock.patch.multiple(SafeRefusals, of=_refused_as_it_is),
        ):
            yield

    return both


async def _refused_without_a_look(self: LastLook, member: Any, refusal: Any) -> Any:
    del self, member
    return refusal


async def _refused_as_it_is(self: SafeRefusals, refusal: Any, commits: Any) -> Any:
    del self, commits
    return refusal


# ── At the doors ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _unknown_is_lost(self: Door, swaps: Sequence[Swap]) -> None:
    try:
        await _SWAP(self, swaps)
    except SwapUnknown as unknown:
        raise SwapLost(swaps[0].identifier, swaps[0].expected) from unknown


async def _files_go_after_unknown(self: Door, swaps: Sequence[Swap]) -> None:
    try:
        await _SWAP(self, swaps)
    except SwapUnknown:
        await self.delete_many([swap.new for swap in swaps])
        raise


async def _does_not_compare(self: Door, swaps: Sequence[Swap]) -> None:
    await _SWAP(self, [replace(swap, expected=self.world.heads[swap.identifier]) for swap in swaps])


async def _one_by_one(self: Door, swaps: Sequence[Swap]) -> None:
    for swap in swaps:
        await _SWAP(self, [swap])


async def _done_before_it_landed(self: Door, swaps: Sequence[Swap]) -> None:
    began_s = self.world.now_s()

    def land() -> None:
        try:
            self.world.land("later", swaps, began_s)
        except SwapLost:
            self.world.tell("later", "lost")

    asyncio.get_running_loop().call_later(0.3, land)


async def _write_errors_are_ignored(self: Door, path: str, data: bytes) -> None:
    try:
        await _WRITE(self, path, data)
    except UpstreamFailed:
        return


async def _nobody_is_revoked(self: Gatekeeper, members: Sequence[Any]) -> dict[int, Any]:
    del self, members
    return {}


async def _unknown_is_answered_409(self: Commits, *request: Any) -> Any:
    try:
        return await _COMMIT(self, *request)
    except CommitStateUnknown as unknown:
        raise CommitConflict("try again") from unknown


async def _everybody_on_their_own(self: SingleFlight[Any], name: Any, request: Any, work: Callable[[], Any]) -> Any:
    del self, name, request
    return await work(), False


async def _moves_are_only_answered(self: Commits, principal: Any, request: Any, *more: Any) -> Any:
    if {update["action"] for update in request.updates} == {"set-snapshot-ref"}:
        return await self._heads.load(request.identifier)
    return await _COMMIT(self, principal, request, *more)


# ── In the plan ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_place_always(self: Any, change: Any, parent: Any, number: int, merged: Any) -> Any:
    del merged, self
    own = tuple(draft._renumbered(row, number) for row in change.diff.added)
    return parent.without([row.path for row in change.diff.removed if row.path in parent]).prepend(own), own, change


_ASSIGN, _LOG = draft.assign_row_ids, table_metadata.with_log


@contextmanager
def _claimed_totals() -> Generator[None]:
    with mock.patch.multiple(draft, COUNTED=frozenset(), summary_totals=lambda *_: {}):
        yield


def _without_log(metadata: Any, *, previous: Any, previous_location: Any) -> tuple[Any, tuple[str, ...]]:
    del previous, previous_location
    return metadata, ()


def _log_goes_too(metadata: Any, *, previous: Any, previous_location: Any) -> tuple[Any, tuple[str, ...]]:
    logged, _ = _LOG(metadata, previous=previous, previous_location=previous_location)
    return logged, tuple(entry["metadata-file"] for entry in logged["metadata-log"])


def _found_nowhere(*_: Any) -> None:
    return None


def _mutation(
    name: str, patch: Callable[[], AbstractContextManager[Any]], *caught_by: str, first_seed: int = 0
) -> Mutation:
    return Mutation(name, patch, frozenset(caught_by), first_seed)


MUTATIONS = (
    _mutation("an unknown swap counts as lost", _door(swap=_unknown_is_lost), "files.kept"),
    _mutation(
        "a last look does not wait for swaps on their way",
        _function(Door, settled_location=Door.location),
        "files.whole",
        first_seed=6800,  # another tower must refuse what the first one took: its answer hangs on what it has seen
    ),
    _mutation("files are discarded after an unknown swap", _door(swap=_files_go_after_unknown), "files.kept"),
    _mutation("the swap does not compare", _door(swap=_does_not_compare), "log.kept"),
    _mutation("a transaction lands table by table", _door(swap=_one_by_one), "commit.together"),
    _mutation("a commit is acknowledged before it landed", _door(swap=_done_before_it_landed), "commit.acked"),
    _mutation("errors of writes are ignored", _door(write=_write_errors_are_ignored), "files.whole"),
    _mutation("the late check is skipped", _function(Gatekeeper, still_admits=_nobody_is_revoked), "commit.revoked"),
    _mutation("partitions are not asked for", _function(clauses, _require_clear=lambda *_: None), "contract.kept"),
    _mutation(
        "an unknown outcome is answered 409",
        _function(Commits, commit=_unknown_is_answered_409),
        "commit.refused",
        "files.kept",
        "answers.agree",
    ),
    _mutation(
        "twins are on their own",
        _and_nobody_looks(SingleFlight, run=_everybody_on_their_own),
        "answers.agree",
        "commit.acked",  # one of two hears that it has failed, and deletes what the other has committed
        first_seed=2400,  # a storage that is slow for one of two, for as long as the other may wait
    ),
    _mutation(
        "what was sent twice is withdrawn like any other",
        _and_nobody_looks(TableState, twice=lambda *_: False),
        "commit.refused",
        "answers.agree",
        "files.whole",
        first_seed=200,
    ),
    _mutation(
        "a rollback is answered and not done", _function(Commits, commit=_moves_are_only_answered), "commit.acked"
    ),
    _mutation("keys are not looked up", _function(Keys, find=_found_nowhere), "commit.once"),
    _mutation(
        "requirements are not checked", _function(table_metadata, failed_requirements=lambda *_: []), "parent.chain"
    ),
    _mutation(
        "every append is believed to be blind",
        _function(rebase, known_blind=lambda summary, declared: summary.get("operation") == "append"),
        "rebase.allowed",
    ),
    _mutation("declared scopes are not checked", _function(rebase, objections=lambda *_: ()), "rebase.scope"),
    _mutation(
        "manifests that have moved are named all the same",
        _function(draft._Finisher, _rows=_in_place_always),
        "content.exact",
        "commit.once",
    ),
    _mutation(
        "a rebased manifest keeps its number", _function(draft, _renumbered=lambda row, _: row), "sequence.grows"
    ),
    _mutation(
        "row ids begin at 0 for every snapshot",
        _function(draft, assign_row_ids=lambda listing, _: _ASSIGN(listing, 0)),
        "rows.apart",
    ),
    _mutation("totals are the client's", _claimed_totals, "totals.right"),
    _mutation("the metadata log is left out", _function(table_metadata, with_log=_without_log), "log.kept"),
    _mutation("files of the log are deleted", _function(table_metadata, with_log=_log_goes_too), "files.kept"),
)


@dataclass(frozen=True, slots=True)
class Caught:
    """What became of a mutation: the seed that caught it, and what it broke first; None where it survived."""

    name: str
    seed: int | None
    invariant: str | None
    expected: bool


def hunt(number: int, seeds_max: int = SEEDS_MAX) -> Caught:
    """Run seeds until one catches a mutation, by its number in the table."""
    mutation = MUTATIONS[number]
    with ExitStack() as stack:
        stack.enter_context(mutation.patch())
        for seed in range(mutation.first_seed, mutation.first_seed + seeds_max):
            names = [violation.name for violation in simulate(seed).violations]
            found = next((name for name in names if name in mutation.caught_by), None)
            if found is not None:
                return Caught(mutation.name, seed, found, True)
    return Caught(mutation.name, None, None, False)
