"""Keys in group files: what is read of them, and when the ledger's word is enough."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity
from icetower.commit import group_keys as group_keys_module
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.group_keys import UNDER_WAY_MS, GroupKeys, commits_of
from icetower.commit.head import Heads
from icetower.commit.retention import YOUNG_MS
from icetower.database import Database
from icetower.errors import KeyMisused, UpstreamFailed
from icetower.iceberg import metadata as table_metadata
from icetower.ledger.histories import Fate, TableName
from icetower.ledger.ledger import SEQUENCE_LIFETIMES, Batch, CommitKey, Ledger
from icetower.protocol.marks import APPLICATION, GROUP_FILE, KEY, PRINCIPAL, REF, SEQUENCE, SOURCE_SNAPSHOT
from icetower.storage.port import ANY_FILE, Bound
from icetower.table.groups import Group, GroupedAppend, group_file_name, snapshot_of_group_file, write_group
from icetower.table.head import HeadState
from icetower.table.keys import Keys, record_of
from tests.commit.engine_world import TABLE
from tests.commit.engine_world import run as run_story
from verify.kit.clock import Clock
from verify.kit.storage import MemoryStorage

T = TypeVar("T")
UUID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
LIFETIME_S = 24 * 3600


def run(work: Coroutine[Any, Any, T]) -> T:
    return run_story(work)


class Storage(MemoryStorage):
    """Counts what is read, and fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.read_paths: list[str] = []
        self.away = False

    async def read(self, path: str, bound: Bound = ANY_FILE) -> bytes:
        self.read_paths.append(path)
        if self.away:
            raise UpstreamFailed(f"{path} cannot be read now")
        return await super().read(path, bound)


class Place:
    """A table of groups, its storage, and a control database that outlives towers."""

    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.storage = Storage()
        self.database = database
        self.snapshots: list[dict[str, Any]] = []
        self.tower()

    def tower(self, *, ledger: bool = True) -> GroupKeys:
        """A tower that has just been started."""
        self.ledger = Ledger(self.database, self.clock, lifetime_s=LIFETIME_S)
        self.keys = GroupKeys(self.storage, self.ledger if ledger else None, self.clock)
        self.storage.read_paths.clear()
        return self.keys

    def group(
        self,
        snapshot_id: int,
        *keys: str,
        uuid: str = UUID,
        application: tuple[str, int] | None = None,
        ref: str = "main",
        marked: bool = True,
    ) -> None:
        """A snapshot for appends by ann under some keys. `marked`: its summary says for which branch."""
        path = f"file:///t/{group_file_name(snapshot_id, 'x')}"
        appends = tuple(GroupedAppend("ann", key, application, "f", ()) for key in keys)
        self.storage.files[path] = write_group(Group(uuid, ref, snapshot_id, appends))
        self.snapshot(snapshot_id, {GROUP_FILE: path, **({REF: ref} if marked else {})})

    def snapshot(self, snapshot_id: int, summary: dict[str, str]) -> None:
        totals = {"added-records": "1", "total-records": "1", "added-data-files": "1", "total-data-files": "1"}
        made = {"snapshot-id": snapshot_id, "timestamp-ms": self.clock.now_ms(), "summary": {**totals, **summary}}
        self.snapshots.append(made)

    @property
    def metadata(self) -> dict[str, Any]:
        return {"table-uuid": UUID, "snapshots": list(self.snapshots)}

    def load(self, before: HeadState | None = None) -> Keys:
        async def story() -> Keys:
            keys = await self.keys.keys_of(self.metadata, before)
            await self.keys.flush()
            return keys

        return run(story())

    def head(self, keys: Keys) -> HeadState:
        return HeadState("file:///t/1.json", self.metadata, indexed=keys)

    @property
    def read_ids(self) -> list[int]:
        return sorted(snapshot_of_group_file(path) or 0 for path in self.storage.read_paths)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    database = Database(f"sqlite:///{tmp_path / 'control.db'}")
    yield Place(database)
    database.close()


def test_k1_after_a_crash_every_group_file_is_read_that_the_ledger_has_not_heard_of_not_only_the_head_s(
    place: Place,
) -> None:
    for snapshot_id in (1, 2, 3):
        place.group(snapshot_id, f"k{snapshot_id}", application=("app", snapshot_id))
    place.snapshot(4, {KEY: "k4", PRINCIPAL: "ann", REF: "main"})
    keys = place.load()
    assert [keys.find("ann", "main", f"k{n}") for n in (1, 2, 3, 4)] == [(1,), (2,), (3,), (4,)]
    assert keys.sequence("ann", "main", "app") == (3, (3,))
    assert place.read_ids == [1, 2, 3]


def test_k1_after_a_clean_run_none_is_read_and_the_ledger_knows_every_key(place: Place) -> None:
    for snapshot_id in range(1, 101):
        place.group(snapshot_id, f"k{snapshot_id}", application=("app", snapshot_id))
    place.load()
    place.tower()
    place.group(101, "k101")  # landed, and then the crash
    keys = place.load()
    assert place.read_ids == [101]
    assert keys.find("ann", "main", "k101") == (101,)
    assert keys.find("ann", "main", "k1") is None
    for snapshot_id in (1, 100):
        found = run(place.ledger.find_commit(CommitKey(UUID, "main", "ann", f"k{snapshot_id}")))
        assert found is not None
        assert found.snapshots == (snapshot_id,)
    number = run(place.ledger.find_commit(CommitKey(UUID, "main", "ann", "app", numbered=True)))
    assert number is not None
    assert number.sequence == 100


def test_k1_what_landed_here_reaches_the_ledger_without_being_read(place: Place) -> None:
    place.snapshot(1, {})
    before = place.head(Keys())
    place.group(2, "k2")

    async def story() -> None:
        place.keys.landed(place.head(Keys()), before, dict(place.storage.files))
        await place.keys.flush()

    run(story())
    assert place.read_ids == []
    place.tower()
    place.load()
    assert place.read_ids == []
    assert run(place.ledger.find_commit(CommitKey(UUID, "main", "ann", "k2"))) is not None


def test_k4_what_another_tower_brought_meanwhile_is_read_though_the_ledger_has_it_by_now(place: Place) -> None:
    """A commit that asked the ledger before will meet the key in the plan, or land twice."""
    place.group(1, "k1")
    first = place.head(place.load())
    other = GroupKeys(place.storage, place.ledger, place.clock)
    place.group(2, "k2")

    async def theirs() -> None:
        other.landed(place.head(Keys()), first, dict(place.storage.files))
        await other.flush()

    run(theirs())
    place.storage.read_paths.clear()
    keys = place.load(first)
    assert place.read_ids == [2]
    assert (keys.find("ann", "main", "k1"), keys.find("ann", "main", "k2")) == ((1,), (2,))
    # Even where this tower has forgotten what it saw of the table; later, nobody can have asked so long ago.
    place.storage.read_paths.clear()
    assert place.load().find("ann", "main", "k2") == (2,)
    place.clock.time_ms += UNDER_WAY_MS + 1
    place.storage.read_paths.clear()
    place.load()
    assert place.read_ids == []


def test_h1_snapshots_that_went_take_their_keys_along_and_old_group_files_are_not_read(place: Place) -> None:
    place.group(1, "k1", "k1b")
    place.group(2, "k2")
    before = place.head(place.load())
    del place.snapshots[0]
    keys = place.load(before)
    assert (keys.find("ann", "main", "k1"), keys.find("ann", "main", "k2")) == (None, (2,))
    place.tower(ledger=True)
    place.database.run_now(lambda c: c.exec_driver_sql("DELETE FROM ledger_groups"), write=True)
    place.clock.time_ms += LIFETIME_S * SEQUENCE_LIFETIMES * 1000
    place.load()
    assert place.read_ids == []


def expire(
    place: Place, *snapshot_ids: int, head_id: int, after: Mapping[str, int] | None = None, **branches: int
) -> Gatekeeper:
    """What the gatekeeper does before a swap that lets snapshots go.

    `branches`: beside main, and where they stand. `after`: where all refs stand after it, if it moves them too.
    """

    def version(heads: Mapping[str, int], gone: Sequence[int] = ()) -> dict[str, Any]:
        refs = {name: {"snapshot-id": at, "type": "branch"} for name, at in heads.items()}
        left = [snapshot for snapshot in place.snapshots if snapshot["snapshot-id"] not in gone]
        return {**place.metadata, "refs": refs, "snapshots": left, "last-updated-ms": place.clock.now_ms()}

    gate = Gatekeeper(None, place.ledger, place.keys, place.keys.flush)  # type: ignore[arg-type]

    async def story() -> None:
        heads = {"main": head_id, **branches}
        old = HeadState("1.json", version(heads), indexed=await place.keys.keys_of(version(heads), None))
        new = HeadState("2.json", version(heads if after is None else after, snapshot_ids))
        await gate.keep_keys(TABLE, old, new, snapshot_ids)

    run(story())
    place.snapshots = [snapshot for snapshot in place.snapshots if snapshot["snapshot-id"] not in snapshot_ids]
    return gate


@pytest.mark.parametrize("form", ["summary", "group", "group-without-mark"])
@pytest.mark.parametrize(
    ("branches", "fate"),
    [
        ({"b": 3}, Fate.EXPIRED),  # its branch has it: done
        ({"b": 1}, Fate.GONE),  # lost by its branch, while another one has it, where it may be set again
        ({}, Fate.GONE),  # its branch is gone; where it may stand when it is made again, nobody knows
    ],
)
def test_k2_a_key_that_expires_is_done_where_its_own_branch_has_it_then(
    place: Place, form: str, branches: dict[str, int], fate: Fate | None
) -> None:
    place.snapshot(1, {})
    if form == "summary":
        place.snapshot(2, {KEY: "k", PRINCIPAL: "ann", REF: "b"})
    else:
        place.group(2, "k", ref="b", marked=form == "group")
    place.snapshot(3, {})
    for snapshot in place.snapshots[1:]:
        snapshot["parent-snapshot-id"] = snapshot["snapshot-id"] - 1
    expire(place, 2, head_id=3, **branches)
    commit = run(place.ledger.find_commit(CommitKey(UUID, "b", "ann", "k")))
    assert (None if commit is None else run(place.ledger.fate(TableName(UUID, TABLE), commit))) is fate


@pytest.mark.parametrize("form", ["summary", "group"])
@pytest.mark.parametrize(
    ("before", "after", "fate"),
    [
        ({"main": 3, "b": 2}, {"main": 3, "b": 2}, Fate.EXPIRED),
        ({"main": 3, "b": 2}, {"main": 3, "b": 1}, Fate.GONE),  # rolled back, and removed by the same commit
        ({"main": 3, "b": 1}, {"main": 3, "b": 4}, Fate.GONE),  # rolled forward; the swap may be lost
        ({"main": 3, "b": 2}, {"main": 3}, Fate.GONE),  # dropped
        ({"main": 3}, {"main": 3, "b": 4}, Fate.GONE),  # made anew
        ({"main": 3, "b": 1}, {"main": 3, "b": 3}, None),  # it has it neither before nor after
    ],
)
def test_k2_a_key_is_done_or_forgotten_only_where_a_swap_that_moves_its_branch_too_cannot_change_that(
    place: Place, form: str, before: dict[str, int], after: dict[str, int], fate: Fate | None
) -> None:
    """1 ← 2 ← 4, and 1 ← 3: the key's snapshot 2 goes, and where the branch is set to what came after it, 4 stays."""
    place.snapshot(1, {})
    if form == "summary":
        place.snapshot(2, {KEY: "k", PRINCIPAL: "ann", REF: "b"})
    else:
        place.group(2, "k", ref="b")
    for snapshot_id in (3, 4):
        place.snapshot(snapshot_id, {})
    if 4 not in after.values():
        place.snapshots.pop()
    for snapshot in place.snapshots[1:]:
        snapshot["parent-snapshot-id"] = 2 if snapshot["snapshot-id"] == 4 else 1
    expire(place, 2, head_id=before["main"], after=after, **{k: v for k, v in before.items() if k != "main"})
    commit = run(place.ledger.find_commit(CommitKey(UUID, "b", "ann", "k")))
    assert (None if commit is None else run(place.ledger.fate(TableName(UUID, TABLE), commit))) is fate


def test_k2_what_a_later_snapshot_would_bring_back_is_not_forgotten(place: Place) -> None:
    """Main was rolled back behind the key's snapshot, and a tag stays at one that came after it."""
    place.snapshot(1, {})
    place.snapshot(2, {KEY: "k", PRINCIPAL: "ann", REF: "main"})
    place.snapshot(3, {})
    place.snapshots[1]["parent-snapshot-id"], place.snapshots[2]["parent-snapshot-id"] = 1, 2
    expire(place, 2, head_id=1, tag=3)
    commit = run(place.ledger.find_commit(CommitKey(UUID, "main", "ann", "k")))
    assert commit is not None
    assert run(place.ledger.fate(TableName(UUID, TABLE), commit)) is Fate.GONE


def test_k2_a_staged_commit_is_done_where_it_was_published_when_it_expired(place: Place) -> None:
    place.snapshot(1, {})
    for snapshot_id in (2, 3, 4):
        place.snapshot(snapshot_id, {KEY: f"k{snapshot_id}", PRINCIPAL: "ann"})
        place.snapshots[-1]["parent-snapshot-id"] = 1
    place.snapshot(5, {SOURCE_SNAPSHOT: "3"})
    place.snapshots[-1]["parent-snapshot-id"] = 2
    expire(place, 2, 3, 4, head_id=5)
    fates = []
    for snapshot_id in (2, 3, 4):
        commit = run(place.ledger.find_commit(CommitKey(UUID, "", "ann", f"k{snapshot_id}")))
        assert commit is not None
        fates.append(run(place.ledger.fate(TableName(UUID, TABLE), commit)))
    assert fates == [Fate.EXPIRED, Fate.EXPIRED, Fate.GONE]  # in the history of main; picked; neither


def test_k2_half_of_a_commit_that_a_rollback_has_left_is_never_done(place: Place) -> None:
    for snapshot_id, name in ((1, {}), (2, {KEY: "k"}), (3, {KEY: "k"}), (4, {})):
        place.snapshot(snapshot_id, {**name, PRINCIPAL: "ann", REF: "main"})
        if snapshot_id > 1:
            place.snapshots[-1]["parent-snapshot-id"] = 2 if snapshot_id == 4 else snapshot_id - 1
    expire(place, 3, head_id=4)  # main was rolled back to 2, between the two
    assert run(place.ledger.torn(UUID, [1, 2, 3, 4])) == {2}
    expire(place, 2, head_id=4)
    commit = run(place.ledger.find_commit(CommitKey(UUID, "main", "ann", "k")))
    assert commit is not None
    assert run(place.ledger.fate(TableName(UUID, TABLE), commit)) is Fate.GONE


def test_k4_a_rerun_hears_of_a_key_that_landed_and_went_while_it_was_under_way(place: Place) -> None:
    """Its tower asked the ledger before the first had landed, and the table tells of it no more."""
    place.snapshot(1, {KEY: "k", APPLICATION: "app", SEQUENCE: "3", PRINCIPAL: "ann", REF: "main"})
    place.snapshot(2, {})
    place.snapshots[1]["parent-snapshot-id"] = 1
    gate = expire(place, 1, head_id=2)

    def rerun(key: str | None, number: int | None = None) -> AdmittedAppend:
        application = None if number is None else ("app", number)
        return AdmittedAppend(Identity.of_append("ann", "main", key, application), TABLE, (), "c", 1, "f", UUID)

    members = [rerun("k"), rerun("new"), rerun(None, 3), rerun(None, 4), rerun("k2", 2)]
    metadata = {**place.metadata, "last-updated-ms": place.clock.now_ms()}
    told = run(gate.landed_meanwhile(HeadState("2.json", metadata), members))
    assert {position: error.rule for position, error in told.items()} == dict.fromkeys((0, 2, 4), "commit.unknown")
    # Where the table still has it the plan has seen it; and nobody has been under way for so long.
    there = {**metadata, "snapshots": [{"snapshot-id": 1, "timestamp-ms": 0}]}
    assert run(gate.landed_meanwhile(HeadState("2.json", there), members)) == {}
    later = {**metadata, "last-updated-ms": place.clock.now_ms() + YOUNG_MS + 1}
    assert run(gate.landed_meanwhile(HeadState("3.json", later), members)) == {}


def test_k1_what_the_ledger_has_of_a_group_is_not_read_again_as_it_expires_from_one_of_many_branches(
    place: Place,
) -> None:
    place.group(1, "k1", ref="b")
    place.load()
    place.tower()
    place.snapshot(2, {})
    expire(place, 1, head_id=2, b=1)
    assert place.read_ids == []
    commit = run(place.ledger.find_commit(CommitKey(UUID, "b", "ann", "k1")))
    assert commit is not None
    assert run(place.ledger.fate(TableName(UUID, TABLE), commit)) is Fate.EXPIRED


def known(place: Place, name: str, *, numbered: bool = False) -> tuple[int, ...] | None:
    found = run(place.ledger.find_commit(CommitKey(UUID, "main", "ann", name, numbered=numbered)))
    return None if found is None else found.snapshots


def test_h1_before_snapshots_go_the_ledger_gets_what_it_has_missed_of_their_keys(place: Place) -> None:
    marks = {KEY: "k2", APPLICATION: "app", SEQUENCE: "2", PRINCIPAL: "ann", REF: "main", "spark.app.id": "spark-1"}
    place.group(1, "k1", application=("app", 1))
    place.snapshot(2, marks)
    place.group(3, "k3")
    place.snapshots[1]["parent-snapshot-id"], place.snapshots[2]["parent-snapshot-id"] = 1, 2
    expire(place, 1, 2, head_id=3)
    assert [known(place, name) for name in ("k1", "k2")] == [(1,), (2,)]
    number = run(place.ledger.find_commit(CommitKey(UUID, "main", "ann", "app", numbered=True)))
    assert number is not None
    assert (number.sequence, number.snapshots, number.application_id) == (2, (2,), "spark-1")


def test_k2_what_was_rolled_back_is_forgotten_as_it_expires_and_what_came_before_it_counts_again(place: Place) -> None:
    place.group(1, "k1", application=("app", 1))
    place.group(2, "k2", application=("app", 2))
    place.snapshot(3, {KEY: "k3", APPLICATION: "app", SEQUENCE: "3", PRINCIPAL: "ann", REF: "main"})
    place.snapshots[1]["parent-snapshot-id"], place.snapshots[2]["parent-snapshot-id"] = 1, 2
    place.load()  # the ledger has them all
    place.tower()  # and the next tower reads none of them
    run(place.ledger.remember_commits(commits_of(UUID, [r for r in [record_of(place.snapshots[2])] if r], 3)))
    assert known(place, "app", numbered=True) == (3,)
    expire(place, 2, 3, head_id=1)  # main was rolled back to the first
    assert [known(place, name) for name in ("k1", "k2", "k3")] == [(1,), None, None]
    assert known(place, "app", numbered=True) == (1,)


def test_k2_a_table_created_again_starts_afresh_and_a_copied_group_file_says_nothing_of_it(place: Place) -> None:
    place.group(1, "k1", uuid="another")
    assert place.load().find("ann", "main", "k1") is None


@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff", b'{"version":99}'])
def test_a_group_file_that_is_missing_or_damaged_keeps_nobody_from_the_table(place: Place, data: bytes | None) -> None:
    place.group(1, "k1")
    place.group(2, "k2")
    path = f"file:///t/{group_file_name(1, 'x')}"
    whole = place.storage.files.pop(path)
    if data is not None:
        place.storage.files[path] = data
    keys = place.load()
    assert (keys.find("ann", "main", "k1"), keys.find("ann", "main", "k2")) == (None, (2,))
    with pytest.raises(KeyMisused, match=f"{path}.*Restore it") as told:
        keys.check_key("main", "k1")
    assert (told.value.rule, told.value.snapshot, told.value.files) == ("key.unreadable", 1, (path,))
    assert run(place.ledger.kept_groups(UUID, [1, 2])) == {2}
    before = place.head(keys)
    place.group(3, "k3")
    with pytest.raises(KeyMisused):  # the next version knows no more
        place.load(before).check_key("main", "k1")
    del place.snapshots[0]
    place.load(before).check_key("main", "k1")  # with its snapshot it is nobody's any more
    place.snapshots[:0] = before.metadata["snapshots"][:1]
    place.storage.files[path] = whole
    place.tower()
    assert place.load().find("ann", "main", "k1") == (1,)


def test_a_group_file_that_cannot_be_read_now_costs_the_load(place: Place) -> None:
    place.group(1, "k1")
    place.storage.away = True
    with pytest.raises(UpstreamFailed):
        place.load()


def test_without_a_ledger_every_file_is_read_some_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_keys_module, "READ_AT_ONCE", 3)
    for snapshot_id in range(1, 21):
        place.group(snapshot_id, f"k{snapshot_id}")
    most = busy = 0
    inner = place.storage.read

    async def read(path: str, *_: Any) -> bytes:
        nonlocal most, busy
        busy += 1
        most = max(most, busy)
        await place.clock.sleep(0.001)
        data = await inner(path)
        busy -= 1
        return data

    monkeypatch.setattr(place.storage, "read", read)
    place.tower(ledger=False)
    assert place.load().find("ann", "main", "k20") == (20,)
    assert place.read_ids == list(range(1, 21))
    assert most == 3


def test_heads_carry_what_is_known_of_a_table_from_version_to_version(place: Place) -> None:
    place.group(1, "k1")
    heads = Heads(_Pointer(), place.storage, ledger=place.ledger, ambient=place.clock)  # type: ignore[arg-type]
    full = table_metadata.new_table(
        uuid=UUID,
        location="file:///t",
        schema={"type": "struct", "fields": []},
        spec=None,
        sort_order=None,
        properties={},
        now_ms=1,
    )

    def write(location: str) -> None:
        snapshots = [{**s, "sequence-number": i, "manifest-list": "file:///l"} for i, s in enumerate(place.snapshots)]
        full["snapshots"] = snapshots
        place.storage.files[location] = table_metadata.serialise(full)

    write("file:///t/metadata/v1.metadata.json")
    first = run(heads.at("file:///t/metadata/v1.metadata.json"))
    place.group(2, "k2")
    write("file:///t/metadata/v2.metadata.json")
    place.storage.read_paths.clear()
    second = run(heads.at("file:///t/metadata/v2.metadata.json"))
    assert place.storage.read_paths == ["file:///t/metadata/v2.metadata.json", f"file:///t/{group_file_name(2, 'x')}"]
    assert [head.keys.find("ann", "main", "k1") for head in (first, second)] == [(1,), (1,)]
    assert [head.keys.find("ann", "main", "k2") for head in (first, second)] == [None, (2,)]


class _Pointer:
    """An upstream that nobody asks."""


def test_a_flush_waits_for_what_came_before_it_however_much_comes_later(place: Place) -> None:
    write, written = place.ledger.write, list[int]()

    async def story() -> None:
        async def busy(batch: Batch) -> None:
            await write(batch)
            written.extend(group.snapshot_id for group in batch.groups)
            number = 100 + len(written)  # at once, for ever: on a busy server something always waits
            place.group(number, f"k{number}")
            place.keys.landed(place.head(Keys()), None, place.storage.files)

        place.ledger.write = busy  # type: ignore[method-assign]
        place.group(1, "k1")
        place.keys.landed(place.head(Keys()), None, place.storage.files)
        await asyncio.wait_for(place.keys.flush(), 30)
        assert 1 in written
        assert place.keys._left < place.keys._came, "others wait still"
        place.ledger.write = write  # type: ignore[method-assign]
        await place.keys.flush()

    run(story())
