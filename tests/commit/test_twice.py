"""A commit that adds files which are live on its branch already: a replay, or refused; and what it is not asked of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from icetower.admission.admitted import Admitted, AdmittedAppend
from icetower.commit.engine import Committed, Limits
from icetower.commit.last_look import LastLook
from icetower.errors import CommitConflict, ContractViolation, IcetowerError, UpstreamFailed
from icetower.iceberg.listing import Listing
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import administrator
from icetower.storage.port import Bound
from icetower.table import live_paths
from icetower.table.live_paths import LivePaths
from tests.commit.engine_world import TABLE, Request, World, Writer, outcomes, run
from tests.commit.test_engine_twins import service_over
from tests.commit.test_live_files import fast, noted, row

OTHER = Identifier(("db",), "other")
PROMPT = Limits(deadline_s=5, settle_s=1, append_interval_s=0, lately_ms=86_400_000)

WORDS = """
+a        adds the file a          -a         takes it out
fast      by the fast path         >dev       to the branch dev
stale     on the empty table       merge      all older manifests are laid out anew
staged    to no branch             picked     and its summary says of which staged snapshot
anew      in place of all that is there (no parent, and nothing asserted of the branch)
property  and sets a property      then       and another snapshot in the same commit
on1       on the first snapshot, whether staged or not; that the branch stands where it does is asserted
roll 1    main is set to the first snapshot, and nothing else; staged, rolled back or not
dev 1     the same of the branch dev, made where there is none; branch dev: made at the head of main
"""

CASES = """
what                                          | before                            | commit                | outcome         | live

the same files in a new snapshot              | ann +a +b                         | ann +a +b             | replayed 1      | a b
on a stale base                               | ann +a +b                         | ann stale +a +b       | replayed 1      | a b
some of them                                  | ann +a +b                         | ann +b                | replayed 1      | a b
files of two commits                          | ann +a; ann +b                    | ann +b +a             | replayed 1 2    | a b
a key more                                    | ann +a                            | ann +a key            | replayed 1      | a
another principal                             | ann +a                            | bob +a                | 422 file.exists | a
another principal, on a stale base            | ann +a                            | bob stale +a          | 422 file.exists | a
files of two principals                       | ann +a; bob +b                    | ann +a +b             | 422 file.exists | a b
a new one among them                          | ann +a                            | ann +a +b             | 422 file.exists | a
a new one among them, on a stale base         | ann +a                            | ann stale +a +b       | 422 file.exists | a
new files alone                               | ann +a                            | ann +b                | direct          | a b
appended by the fast path                     | ann fast +a; bob fast +b          | ann +a                | replayed 1      | a b
by another, by the fast path                  | ann fast +a; bob fast +b          | ann +a +b             | 422 file.exists | a b
to the fast path                              | ann +a                            | ann fast +a           | replayed 1      | a
to the fast path, another's                   | ann +a                            | bob fast +a           | 422 append.live | a
to the fast path, a new one among them        | ann +a                            | ann fast +a +b        | 422 append.live | a
after a restart                               | ann +a; restart                   | ann +a                | replayed 1      | a
after a restart, by the fast path             | ann fast +a; restart              | ann stale +a          | replayed 1      | a
after manifests were laid out anew            | ann +a; ann +b; eve merge         | ann +a                | replayed 1      | a b
the same, after a restart                     | ann +a; ann +b; eve merge; restart| bob +a                | 422 file.exists | a b
a merge append                                | ann +a; ann +b                    | ann merge +b          | replayed 2      | a b
a merge append of a new one                   | ann +a; ann +b                    | ann merge +c          | direct          | a b c
whose snapshot has expired                    | ann +a; ann +b; expire 1          | ann +a                | 422 file.exists | a b

removed since                                 | ann +a; bob -a                    | ann +a                | direct          | a
rolled back                                   | ann +b; ann +a; roll 1            | ann +a                | direct          | a b
rolled back, and brought forward              | ann +b; ann +a; roll 1; roll 2    | ann +a                | replayed 2      | a b
on another branch                             | ann +a; branch dev; ann >dev +b   | ann +b                | direct          | a b
on this one, which began with it              | ann +a; branch dev                | bob >dev +a           | 422 file.exists | a
staged                                        | ann +a                            | ann staged +a         | direct          | a
staged, and picked                            | ann staged +a; ann +b             | ann picked +a         | direct          | a b
picked twice                                  | ann staged +a; ann picked +a      | bob picked +a         | 422 file.exists | a
picked twice at once                          | ann staged +a; ann picked +a      | ann stale picked +a   | 409             | a
in place of what is there                     | ann +a                            | ann anew +a           | direct          | a
set to a staged one                           | ann +a; ann staged +a             | roll 2                | 422 file.exists | a
set to a staged one, after a restart          | ann +a; ann staged +a; restart    | roll 2                | 422 file.exists | a
staged by another                             | ann +a; bob staged +a +b          | roll 2                | 422 file.exists | a
staged, of a file by the fast path            | ann fast +a; ann staged +a        | roll 2                | 422 file.exists | a
staged, of new files alone                    | ann +a; ann staged +b             | roll 2                | direct          | a b
staged on an older head                       | ann +a; ann staged +a; ann +b     | roll 2                | 422 file.exists | a b
staged on an older head, of new files         | ann +a; ann staged +b; ann +c     | roll 2                | direct          | a b
staged on a staged one                        | ann +a; ann staged +b; ann on2 staged +b | roll 3         | 422 file.exists | a
staged on one that has it                     | ann +a; ann staged +a; ann on2 staged +c | roll 3         | 422 file.exists | a
staged on a staged one, of new files          | ann +a; ann staged +b; ann on2 staged +c | roll 3         | direct          | a b c
staged, and taken out and put back            | ann +a; ann staged -a; ann on2 staged +a | roll 3         | direct          | a
staged, and another taken out                 | ann +a; ann +b; ann staged -b +a  | roll 3                | 422 file.exists | a b
staged, and manifests laid out anew           | ann +a; ann +b; ann staged merge +c | roll 3              | direct          | a b c
a commit on a staged one                      | ann +a; ann staged +a             | ann on2 +c            | 422 file.exists | a
a commit on a staged one, of what that has    | ann +a; ann staged +b             | ann on2 +b            | 422 file.exists | a
a commit on a staged one, of new files        | ann +a; ann staged +b             | ann on2 +c            | direct          | a b c
a branch made at a staged one                 | ann +a; ann staged +a             | dev 2                 | 422 file.exists | a
a branch made at a staged one, of new files   | ann +a; ann staged +b             | dev 2                 | direct          | a
set forward to a branch                       | ann +a; branch dev; ann >dev +b   | roll 2                | direct          | a b
set back, where a file came again meanwhile   | ann +a; ann -a; ann +a            | roll 1                | direct          | a
set back and forward again                    | ann +a; ann +b; roll 1            | roll 2                | direct          | a b
taken out and put back                        | ann +a +b                         | bob -a then +a        | direct          | a b
put in and taken out again                    | ann +b                            | bob +a then -a        | direct          | b
a file that is there, and another taken out   | ann +a +b                         | ann -a +b             | 422 file.exists | a b
by the second snapshot of a commit            | ann +b                            | ann +a then +b        | 422 file.exists | b
by two snapshots of one commit                | ann +b                            | ann +a then +a        | 422 file.exists | b
manifests alone                               | ann +a; ann +b                    | eve merge             | direct          | a b
an append that sets a property                | ann +a                            | ann +a property       | 422 file.exists | a
one that sets what is set                     | ann +a property                   | ann +a property       | replayed 1      | a
"""  # noqa: E501


def cases() -> list[tuple[str, ...]]:
    lines = [line for line in CASES.splitlines() if line and not line.startswith("what ")]
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines]


class Story:
    """Steps at one table. Snapshots are counted in the order in which they came."""

    def __init__(self) -> None:
        self.world = World(limits=PROMPT)
        self.snapshots: list[int] = []

    async def begin(self, version: int) -> None:
        self.empty = await self.world.create(version)

    async def step(self, words: str) -> str:
        who, *rest = words.split()
        if who == "restart":
            self.world.restart()
            return ""
        if who in ("roll", "dev", "expire", "branch"):
            return await self._refs(who, rest[0])
        head = await self.world.head()
        known = set(head.snapshots)
        try:
            done = await self._send(who, rest)
        except IcetowerError as error:
            return f"{error.status}" if error.status == 409 else f"{error.status} {error.rule}"
        self.snapshots += [i for i in (await self.world.head()).snapshots if i not in known]
        which = (str(self.snapshots.index(i) + 1) for i in done.snapshots if done.outcome == "replayed")
        return " ".join((done.outcome, *which))

    async def _send(self, who: str, words: Sequence[str]) -> Committed:
        world = self.world
        if "fast" in words:
            names = [word[1:] for word in words if word[0] == "+"]
            return await world.engine.submit(await fast(world, *names, by=who), await world.head())
        writer = world.writer(who)
        if "stale" in words:
            writer.base = self.empty
        else:
            await writer.refresh()
        at = list(words).index("then") if "then" in words else len(words)
        on = next((self.snapshots[int(word[2:]) - 1] for word in words if word[:2] == "on"), None)
        parent = None if on is None else dict((await world.head()).snapshots[on])
        request = await self._request(writer, words[:at], parent=parent)
        if words[at:]:
            parent = request.snapshot
            second = await self._request(writer, words[at + 1 :], parent=parent, rows=request.rows)
            request = request.then(second)
            request.updates = [update for update in request.updates if update["action"] == "add-snapshot"] + [
                update for update in second.updates if update["action"] == "set-snapshot-ref"
            ]
        if "property" in words:
            request.updates.append({"action": "set-properties", "updates": {"a": "b"}})
        if "anew" in words:
            request.snapshot.pop("parent-snapshot-id", None)
        return await request.send()

    async def _request(self, writer: Writer, words: Sequence[str], *, parent: Any = None, rows: Any = None) -> Request:
        add = [word[1:] for word in words if word[0] == "+"]
        remove = [word[1:] for word in words if word[0] == "-"]
        ref: str | None = next((word[1:] for word in words if word[0] == ">"), "main")
        summary = {"source-snapshot-id": str(self.snapshots[0])} if "picked" in words else {}
        anew = "anew" in words
        return await writer.snapshot(
            add=add,
            remove=remove,
            merge="merge" in words,
            operation="overwrite" if remove else "append" if add else "replace",
            summary=summary,
            ref=None if "staged" in words else ref,
            assert_ref=not anew,
            parent=parent,
            parent_rows=() if anew else rows,
            key="k" if "key" in words else None,
            sequence_number=None if rows is None else parent["sequence-number"] + 1,
        )

    async def _refs(self, what: str, name: str) -> str:
        head = await self.world.head()
        update: dict[str, Any] = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
        if what == "branch":
            update |= {"ref-name": name, "snapshot-id": head.ref("main")}
        elif what in ("roll", "dev"):
            update |= {"ref-name": {"roll": "main"}.get(what, what), "snapshot-id": self.snapshots[int(name) - 1]}
        else:
            update = {"action": "remove-snapshots", "snapshot-ids": [self.snapshots[int(name) - 1]]}
        requirements = [{"type": "assert-table-uuid", "uuid": head.metadata["table-uuid"]}]
        return (await outcomes(Request(self.world.writer("eve"), TABLE, requirements, [update], ())))[0]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("what", "before", "commit", "outcome", "live"), cases(), ids=[row[0] for row in cases()])
def test_k5_a_file_that_is_live_is_not_added_again(
    what: str, before: str, commit: str, outcome: str, live: str, version: int
) -> None:
    async def story() -> None:
        place = Story()
        await place.begin(version)
        for words in before.split(";"):
            said = await place.step(words.strip())
            assert not said[:1].isdigit(), (what, words, said)
        assert await place.step(commit) == outcome, what
        assert await place.world.live() == live.split(), what

    run(story())


def test_two_commits_of_one_group_add_a_file_once() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        writers = [await world.writer(name).refresh() for name in ("ann", "ann", "bob")]
        requests = [await writer.append("a", summary={"icetower.blind": "true"}) for writer in writers]
        assert await ends(world, [await request.admitted() for request in requests]) == [
            "direct",
            "replayed",
            "422 file.exists",
        ]
        assert await world.live() == ["a"]

    run(story())


def test_a_commit_and_an_append_of_one_group_add_a_file_once() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        members: list[Admitted | AdmittedAppend] = [await fast(world, "a"), await fast(world, "a", by="bob")]
        members.append(await (await (await world.writer().refresh()).append("a")).admitted())
        assert await ends(world, members) == ["replayed", "422 append.live", "direct"]
        assert await world.live() == ["a"]

    run(story())


async def ends(world: World, members: Sequence[Admitted | AdmittedAppend]) -> list[str]:
    done = await asyncio.gather(*(world.engine.submit(member) for member in members), return_exceptions=True)
    return [
        each.outcome if isinstance(each, Committed) else f"{each.status} {each.rule}"
        for each in done
        if isinstance(each, Committed | IcetowerError)
    ]


TRANSACTIONS = [
    # files of the two tables     outcome                                live in the other table
    (("a", "a"), ["replayed", "replayed"], ["a"]),
    (("a", "b"), "422 file.exists", ["a"]),
    (("b", "a"), "422 file.exists", ["a"]),
    (("b", "b"), ["direct", "direct"], ["a", "b"]),
]


@pytest.mark.parametrize(("files", "outcome", "live"), TRANSACTIONS)
def test_a_transaction_is_done_where_all_of_its_files_are_there(
    files: tuple[str, str], outcome: list[str] | str, live: list[str]
) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        for table in (TABLE, OTHER):
            await world.create(table=table)
            await (await (await world.writer().refresh(table)).append("a", table=table)).send()
        members: list[Admitted] = []
        for table, name in zip((TABLE, OTHER), files, strict=True):
            members.append(await (await (await world.writer().refresh(table)).append(name, table=table)).admitted())
        try:
            found: list[str] | str = [each.outcome for each in await world.engine.submit_together(members)]
        except IcetowerError as error:
            found = f"{error.status} {error.rule}"
        assert found == outcome
        assert await world.live(OTHER) == live

    run(story())


def test_a_dry_run_says_the_same() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        await (await (await world.writer().refresh()).append("a")).send()
        again = await (await (await world.writer().refresh()).append("a")).admitted()
        planned, _ = await world.engine.would(again)
        assert [len(each) for each in (planned.accepted, planned.replayed, planned.refused)] == [0, 1, 0]
        other = await (await (await world.writer("bob").refresh()).append("a")).admitted()
        planned, _ = await world.engine.would(other)
        assert [each.error.rule for each in planned.refused] == ["file.exists"]

    run(story())


# -- what is read for it ----------------------------------------------------------------------------------------------


def test_commits_read_nothing_of_what_this_tower_has_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        read = noted(monkeypatch)
        for number in range(12):
            writer = await world.writer().refresh()
            await (await writer.append(f"a{number}", f"b{number}")).send()
            writer = await world.writer().refresh()
            await (await writer.snapshot(add=(f"c{number}",), remove=(f"a{number}",), operation="overwrite")).send()
            await (await (await world.writer().refresh()).snapshot(merge=number % 3 == 0, operation="replace")).send()
        assert read == []

    run(story())


def test_after_a_start_only_manifests_that_came_lately_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(limits=Limits(deadline_s=5, settle_s=1, lately_ms=60_000))
        await world.create()
        await (await (await world.writer().refresh()).append("old")).send()
        world.clock.time_ms += 60_001
        for number in range(3):
            await (await (await world.writer().refresh()).append(f"new{number}")).send()
        world.restart()
        read = noted(monkeypatch)
        requests = [await (await world.writer().refresh()).append("new1")]
        requests.append(await (await world.writer().refresh()).append("old"))
        assert [(await request.send()).outcome for request in requests] == ["replayed", "direct"]
        assert len(read) == 3
        assert sorted(await world.live()) == ["new0", "new1", "new2", "old", "old"], "what is older is not looked for"

    run(story())


def test_what_cannot_be_read_stops_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        await (await (await world.writer().refresh()).append("a")).send()
        world.restart()
        request = await (await world.writer().refresh()).append("b")
        admitted = await request.admitted()
        reads: list[str] = []
        read = world.storage.read

        async def failing(path: str, bound: Bound) -> bytes:
            if path.endswith("-m0.avro"):
                reads.append(path)
                raise UpstreamFailed("the storage fails")
            return await read(path, bound)

        monkeypatch.setattr(world.storage, "read", failing)
        assert (await world.engine.submit(admitted)).outcome == "direct"
        assert len(reads) == 1
        monkeypatch.undo()
        assert (await (await (await world.writer().refresh()).append("c")).send()).outcome == "direct"
        assert await world.live() == ["a", "b", "c"]

    run(story())


def test_a_branch_that_is_set_back_or_to_another_branch_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        place = Story()
        await place.begin(2)
        for words in ("ann +a", "branch dev", "ann >dev +b", "ann staged +a", "restart"):
            await place.step(words)
        read = noted(monkeypatch)
        done = [await place.step(words) for words in ("roll 2", "roll 1", "roll 2", "branch more", "dev 1", "dev 2")]
        assert done == ["direct"] * 6
        assert read == []
        assert await place.step("roll 3") == "422 file.exists"
        assert len(read) == 2, "what the staged snapshot has added, and what came lately below it"

    run(story())


def test_below_a_staged_snapshot_only_manifests_are_read_that_came_not_long_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        place = Story()
        place.world.limits = Limits(deadline_s=5, settle_s=1, lately_ms=60_000)
        place.world.restart()
        await place.begin(2)
        await place.step("ann +a")
        place.world.clock.time_ms += 60_001
        for words in ("ann +b", "ann staged +a", "ann staged +b"):
            await place.step(words)
        place.world.clock.time_ms += 600_000
        for words in ("ann +c", "restart"):
            await place.step(words)
        read = noted(monkeypatch)
        assert [await place.step(f"roll {number}") for number in (4, 3)] == ["422 file.exists", "direct"]
        assert len(read) == 4, "of each, its own and one below"
        assert await place.world.live() == ["a", "a", "b"], "what is older is not looked for"

    run(story())


def test_what_cannot_be_read_of_a_staged_snapshot_does_not_hold_up_its_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        place = Story()
        await place.begin(2)
        for words in ("ann +a", "ann staged +a", "restart"):
            await place.step(words)
        read = place.world.storage.read

        async def failing(path: str, bound: Bound) -> bytes:
            if path.endswith("-m0.avro"):
                raise UpstreamFailed("the storage fails")
            return await read(path, bound)

        monkeypatch.setattr(place.world.storage, "read", failing)
        assert await place.step("roll 2") == "direct"

    run(story())


def test_k5_a_snapshot_is_staged_and_its_branch_set_to_it_in_one_group() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        await (await (await world.writer().refresh()).append("a")).send()
        for names, outcome, live in ((("a",), "422 file.exists", ["a"]), (("b",), "direct", ["a", "b"])):
            staged = await (await world.writer().refresh()).snapshot(add=names, ref=None)
            update = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
            uuid = (await world.head()).metadata["table-uuid"]
            requirements: list[dict[str, Any]] = [{"type": "assert-table-uuid", "uuid": uuid}]
            updates: list[dict[str, Any]] = [{**update, "snapshot-id": staged.snapshot_id}]
            move = Request(world.writer("eve"), TABLE, requirements, updates, ())
            assert await outcomes(staged, move) == ["direct", outcome]
            assert await world.live() == live

    run(story())


def test_the_newest_manifests_are_read_for_commits_and_no_more_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_paths, "LATELY_MANIFESTS_MAX", 3)
    monkeypatch.setattr(live_paths, "LATELY_FILES_MAX", 5)
    live, listing = LivePaths(), Listing.of([row("m4", 1), row("m3"), row("m2"), row("m1", 1), row("m0", 1)])
    assert names(live, listing) == ["m4", "m3", "m2"]
    live.add("m4", ["x"])
    assert names(live, listing) == ["m3", "m2"]
    live.pass_over([row("m2")])
    assert names(live, listing) == ["m3"]
    assert names(live, listing.prepend([row("m5", 9)])) == ["m3"], "too many files in one"
    assert names(live, listing.prepend([row("m6", 1)])) == ["m3", "m6"]


def test_a_manifest_is_asked_about_once() -> None:
    live, listing, asked = LivePaths(), Listing.of([row("m1"), row("m0")]), list[str]()

    def came_lately(each: Any) -> bool:
        asked.append(each.path)
        return False

    for _ in range(3):
        assert live.unread_lately(listing, came_lately) == []
    assert asked == ["m1", "m0"]
    assert live.holding(listing, "x") == []


def names(live: LivePaths, listing: Listing) -> list[str]:
    return [each.path for each in live.unread_lately(listing, lambda _: True)]


# -- refused for another reason ---------------------------------------------------------------------------------------


def test_k5_what_is_turned_away_without_a_plan_is_not_told_409_for_files_that_are_live() -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        await (await (await world.writer("ann").refresh()).append("a")).send()
        look = LastLook(world.heads, world.engine.live, look_s=1)
        late = CommitConflict("late", rule="queue.deadline")
        for names, rule in ((("a",), "file.exists"), (("b", "a"), "file.exists"), (("b",), "queue.deadline")):
            member = await (await (await world.writer("bob").refresh()).append(*names)).admitted()
            answer = await look.answer(member, late)
            assert isinstance(answer, IcetowerError)
            assert answer.rule == rule

    run(story())


REFUSED = [
    # files        mode of the refusal         answer
    (("+a",), "contract.quota", "504 commit.unknown"),
    (("+b", "+a"), "contract.quota", "504 commit.unknown"),
    (("+b",), "contract.quota", "403 contract.quota"),
    (("+a",), "conflict", "422 file.exists"),
]


@pytest.mark.parametrize(("words", "by", "answer"), REFUSED)
def test_k5_a_commit_refused_for_another_reason_is_told_nothing_upon_which_live_files_are_deleted(
    words: tuple[str, ...], by: str, answer: str, tmp_path: Path
) -> None:
    async def story() -> None:
        world = World(limits=PROMPT)
        await world.create()
        tower, commits = service_over(world, tmp_path)
        first = await (await world.writer("ann").refresh()).append("a", summary={"icetower.blind": "true"})
        await commits.commit(administrator("ann"), _request(first), None)
        names = [word[1:] for word in words]
        again = await (await world.writer("ann").refresh()).append(*names)
        admit, refusals = commits._gate.admit, []  # pyright: ignore[reportPrivateUsage]

        async def refuse(*given: Any, **named: Any) -> Any:
            await admit(*given, **named)
            refusals.append(by)
            if by == "conflict":
                raise CommitConflict("stale", rule="conflict")
            raise ContractViolation("too many", rule=by)

        commits._gate.admit = refuse  # type: ignore[method-assign]
        with pytest.raises(IcetowerError) as refused:
            await commits.commit(administrator("ann"), _request(again), None)
        assert f"{refused.value.status} {refused.value.rule}" == answer
        assert refusals == [by]
        await tower.close()

    run(story())


def _request(made: Request) -> CommitRequest:
    return CommitRequest(made.table, tuple(made.requirements), Updates(made.updates))
