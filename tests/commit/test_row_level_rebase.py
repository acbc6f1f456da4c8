"""Row-level rebase: which deletion vectors have met, and what they become together (R5, C5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.commit.vectors import BYTES_MAX, VECTORS_MAX, Collision, NeedsBlobs, United, among, collisions_of, unite
from icetower.errors import CommitConflict, ValidationFailed
from icetower.iceberg import puffin
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.entries import Files, Live, NeedsFile
from icetower.iceberg.puffin import BlobAt
from icetower.iceberg.records import ADDED, Entry, ManifestFile, key_of, referenced_file
from icetower.iceberg.vectors import BLOB_MAX_BYTES, Vector, as_blob, blob_of, decode
from icetower_client_model.history import branch_head, since
from tests.commit.engine_world import World, outcomes, run
from tests.commit.iceberg_client import SNAPSHOT, Client, create, data

BLIND = {"icetower.blind": "true"}
A, B = data("a1", "a"), data("b1", "b")
PATH = "file:///w/db/t/data/union.puffin"


def vectors(world: World, name: str, rows: Mapping[str, set[int]]) -> list[Touched]:
    """A Puffin file with a vector for each data file, stored."""
    path = f"file:///w/db/t/data/{name}"
    files = {file.file.path.rpartition("/")[2]: file for file in (A, B)}
    blobs = [as_blob(Vector.of(deleted), files[target].file.path) for target, deleted in rows.items()]
    world.storage.files[path], placed = puffin.write(blobs, created_by="client")
    size = len(world.storage.files[path])
    written: list[Touched] = []
    for (target, deleted), blob in zip(rows.items(), placed, strict=True):
        fields = {
            "content": 1,
            "file_path": path,
            "file_format": "PUFFIN",
            "record_count": len(deleted),
            "file_size_in_bytes": size,
            "content_offset": blob.offset,
            "content_size_in_bytes": blob.length_bytes,
            "referenced_data_file": files[target].file.path,
        }
        about = files[target].file
        file = replace(
            about,
            content=1,
            path=path,
            file_format="PUFFIN",
            record_count=len(deleted),
            size_bytes=size,
            referenced_data_file=about.path,
            record=fields,
        )
        written.append(Touched(file, 0, None))
    return written


@dataclass
class Story:
    """What stands in the table when a stale commit is to be rebased."""

    world: World
    change: Change
    steps: tuple[Any, ...]
    files: Files

    def collisions_of(self) -> tuple[Collision, ...]:
        return collisions_of(self.change, self.steps, self.files)

    def unite(self) -> United:
        return unite(self.collisions_of(), self.blob_at, path=PATH)

    def blob_at(self, blob: BlobAt) -> bytes | None:
        return self.world.storage.files[blob.path][blob.offset : blob.offset + blob.length_bytes]


async def tell(
    ours: Mapping[str, set[int]],
    *theirs: Mapping[str, set[int]],
    base: Mapping[str, set[int]] | None = None,
    after: Any = None,
) -> Story:
    """Ann deletes rows on a base; before she commits, Bob has deleted rows too, once or several times."""
    world = World()
    await create(world, 3, **SNAPSHOT)
    ann, bob = Client(world, "ann"), Client(world, "bob")
    await ann.refresh()
    assert await outcomes(await ann.append(A, B, **BLIND)) == ["direct"]
    if base:
        await ann.refresh()
        assert await outcomes(await ann.merge(deletes=vectors(world, "base.puffin", base))) == ["direct"]
    await ann.refresh()
    start = ann.base.ref("main") if ann.base else None
    live = await ann.live()
    mine = await ann.merge(
        deletes=vectors(world, "ours.puffin", ours), supersedes=["base.puffin"] if "base.puffin" in live else []
    )
    before = "base.puffin"
    for at, rows in enumerate(theirs):
        await bob.refresh()
        known = await bob.live()
        name = f"theirs{at}.puffin"
        request = await bob.merge(deletes=vectors(world, name, rows), supersedes=[before] if before in known else [])
        assert await outcomes(request) == ["direct"]
        before = name
    if after is not None:
        await after(await bob.refresh())
    (change,) = (await mine.admitted()).changes
    head = await world.head()
    snapshot = branch_head(head, "main")
    assert snapshot is not None
    steps = tuple(reversed(since(head, snapshot, start)))
    lists = {step["manifest-list"]: await world.manifests.list_at(step["manifest-list"]) for step in steps}
    manifests = {row.path: await world.manifests.manifest_at(row.path) for rows in lists.values() for row in rows}
    return Story(world, change, steps, Files(lists, manifests))


def positions(united: United) -> dict[str, set[int]]:
    """What the Puffin file says of each data file, found as a reader finds it."""
    found: dict[str, set[int]] = {}
    for target, (_, entry) in united.replacement.added.items():
        record = entry.file.record
        blob = united.data[record["content_offset"] :][: record["content_size_in_bytes"]]
        vector = decode(blob, name=target, cardinality=entry.file.record_count)
        found[target.rpartition("/")[2]] = set(vector)
    return found


def test_disjoint_rows_become_one_vector_in_place_of_the_tables() -> None:
    story = run(tell({"a1": {1}, "b1": {5}}, {"a1": {2, 3}}))
    (collision,) = story.collisions_of()
    assert (collision.target, collision.base, collision.superseded) == (A.file.path, None, None)
    united = story.unite()
    assert united.path == PATH
    assert positions(united) == {"a1": {1, 2, 3}}  # the vector for b1 met nobody, and stays the client's own
    ((spec_id, entry),) = united.replacement.added.values()
    assert (spec_id, entry.status, entry.snapshot_id, entry.sequence_number) == (0, ADDED, None, None)
    file = entry.file
    assert (file.content, file.file_format, file.partition) == (1, "PUFFIN", ("a",))
    assert (file.path, file.record["file_path"]) == (PATH, PATH)
    assert (file.record_count, file.record["record_count"]) == (3, 3)
    assert file.size_bytes == file.record["file_size_in_bytes"] == len(united.data)
    assert file.referenced_data_file == file.record["referenced_data_file"] == referenced_file(file) == A.file.path
    (gone,) = united.replacement.removed
    assert gone.file.path.endswith("theirs0.puffin")
    assert gone.sequence_number == story.steps[-1]["sequence-number"]
    (fields,) = puffin.read(united.data, path=PATH)
    assert fields.properties == {"referenced-data-file": A.file.path, "cardinality": "3"}


def test_what_was_deleted_before_both_began_is_in_both_and_stays_deleted() -> None:
    story = run(tell({"a1": {0, 1}}, {"a1": {0, 2}}, {"a1": {0, 2, 3}}, base={"a1": {0}}))
    (collision,) = story.collisions_of()
    assert collision.base is not None
    assert collision.superseded == key_of(collision.base)
    assert collision.theirs.path.endswith("theirs1.puffin")  # the newest, not the first that came
    assert positions(story.unite()) == {"a1": {0, 1, 2, 3}}


def test_several_data_files_share_one_new_puffin_file() -> None:
    story = run(tell({"a1": {1}, "b1": {1}}, {"a1": {2}, "b1": {2}}))
    united = story.unite()
    assert positions(united) == {"a1": {1, 2}, "b1": {1, 2}}
    assert len(united.replacement.removed) == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "base", "words"),
    [
        ({1, 2}, {2, 3}, set[int](), "both delete row 2"),
        ({0, 2}, {0, 2}, {0}, "both delete row 2"),
        ({2}, {0, 3}, {0}, "one of them brings back row 0"),
        ({0, 2}, {3}, {0}, "one of them brings back row 0"),
    ],
)
def test_c5_the_same_rows_and_rows_that_come_back_are_refused(
    ours: set[int], theirs: set[int], base: set[int], words: str
) -> None:
    story = run(tell({"a1": ours}, {"a1": theirs}, base={"a1": base} if base else None))
    with pytest.raises(CommitConflict) as caught:
        story.unite()
    error = caught.value
    assert (error.status, error.rule, error.files) == (409, "conflict.C5", (A.file.path,))
    assert error.snapshot == story.steps[-1]["snapshot-id"]
    assert words in error.message
    assert A.file.path in error.message


def test_who_meets_nobody_is_left_alone() -> None:
    assert run(tell({"a1": {1}}, {"b1": {1}})).collisions_of() == ()
    assert run(tell({"a1": {1}})).collisions_of() == ()
    story = run(tell({"a1": {1}}, {"a1": {2}}))
    assert collisions_of(replace(story.change, names_sibling=True), story.steps, story.files) == ()


def test_a_vector_that_has_gone_again_is_not_met() -> None:
    async def drop(bob: Client) -> None:
        assert await outcomes(await bob.merge(remove=["a1"], add=[data("a2", "a")], supersedes=["theirs0.puffin"])) == [
            "direct"
        ]

    assert run(tell({"a1": {1}}, {"a1": {2}}, after=drop)).collisions_of() == ()


def test_blobs_that_are_not_there_yet_are_asked_for_all_at_once() -> None:
    story = run(tell({"a1": {0, 1}}, {"a1": {0, 2}}, base={"a1": {0}}))
    with pytest.raises(NeedsBlobs) as caught:
        unite(story.collisions_of(), lambda _: None, path=PATH)
    names = {blob.path.rpartition("/")[2] for blob in caught.value.blobs}
    assert names == {"ours.puffin", "theirs0.puffin", "base.puffin"}
    known = {blob: story.blob_at(blob) for blob in caught.value.blobs}
    assert positions(unite(story.collisions_of(), known.get, path=PATH)) == {"a1": {0, 1, 2}}


def test_the_union_of_another_member_of_the_group_is_found_in_the_plan() -> None:
    story = run(tell({"a1": {1}}, {"a1": {2}}))
    first = story.unite()
    ((_, entry),) = first.replacement.added.values()
    (collision,) = story.collisions_of()
    mine = vectors(story.world, "mine.puffin", {"a1": {9}})[0].file
    then = replace(
        collision,
        ours=replace(collision.ours, file=mine),
        theirs=replace(collision.theirs, entry=Entry(ADDED, 1, 1, 1, entry.file)),
    )
    at = blob_of(mine)
    read = {at: story.blob_at(at) or b""}
    united = unite([then], among({first.path: first.data}, read), path="file:///w/db/t/data/second.puffin")
    assert positions(united) == {"a1": {1, 2, 9}}
    with pytest.raises(NeedsBlobs):
        unite([then], among({}, read), path=PATH)


def test_a_vector_that_only_its_client_can_reach_sends_it_back() -> None:
    story = run(tell({"a1": {1}}, {"a1": {2}}))
    own = blob_of(story.collisions_of()[0].ours.file)
    with pytest.raises(CommitConflict, match="cannot be put together") as caught:
        unite(story.collisions_of(), lambda at: b"" if at == own else story.blob_at(at), path=PATH)
    assert caught.value.rule == "conflict.C5"


def test_manifests_that_are_not_there_yet_are_asked_for() -> None:
    story = run(tell({"a1": {1}}, {"a1": {2}}))
    with pytest.raises(NeedsFile):
        collisions_of(story.change, story.steps, Files(story.files.lists, {}))


def test_r5_a_vector_that_lies_is_its_writers_fault_alone() -> None:
    story = run(tell({"a1": {1}}, {"a1": {2}}))
    (collision,) = story.collisions_of()
    ours, theirs = collision.ours.file, collision.theirs.entry.file

    def lying(**changes: Any) -> Collision:
        return replace(collision, ours=replace(collision.ours, file=replace(ours, **changes)))

    def spoiled(**changes: Any) -> Collision:
        entry = replace(collision.theirs.entry, file=replace(theirs, **changes))
        return replace(collision, theirs=replace(collision.theirs, entry=entry))

    elsewhere = {**ours.record, "content_offset": 5}
    huge = {**ours.record, "content_size_in_bytes": BLOB_MAX_BYTES + 1}
    nowhere = {**ours.record, "content_offset": None}
    for wrong in (lying(record_count=7), lying(record=elsewhere), lying(record=huge), lying(record=nowhere)):
        with pytest.raises(ValidationFailed) as caught:
            unite([wrong], story.blob_at, path=PATH)
        assert (caught.value.rule, caught.value.status) == ("vector.readable", 400)
        assert "ours.puffin" in caught.value.message
    for wrong in (
        spoiled(record_count=7),
        spoiled(record={**theirs.record, "content_size_in_bytes": None}),
        spoiled(record={**theirs.record, "key_metadata": b"k"}),
        lying(record={**ours.record, "key_metadata": b"k"}),
        lying(partition=("b",)),
        replace(collision, spec_id=3),
    ):
        with pytest.raises(CommitConflict, match="cannot be put together") as conflict:
            unite([wrong], story.blob_at, path=PATH)
        assert conflict.value.rule == "conflict.C5"


def test_r5_of_two_vectors_for_one_data_file_none_is_lost() -> None:
    story = run(tell({"a1": {1}}, {"a1": {2}}))
    again = vectors(story.world, "again.puffin", {"a1": {3}})[0].file
    ((path, (entry,)),) = story.change.entries_added.items()
    story.change = replace(story.change, entries_added={path: (entry, replace(entry, file=again))})
    with pytest.raises(ValidationFailed, match=r"two deletion vectors for .*a1; merge them"):
        story.collisions_of()


def test_too_many_vectors_and_too_many_bytes_go_back_to_the_client() -> None:
    story = run(tell({"a1": {1}}, {"a1": {2}}))
    (collision,) = story.collisions_of()
    big = {**collision.ours.file.record, "content_size_in_bytes": BLOB_MAX_BYTES}
    many = [
        replace(collision, ours=replace(collision.ours, file=replace(collision.ours.file, path=f"p{at}", record=big)))
        for at in range(BYTES_MAX // BLOB_MAX_BYTES + 1)
    ]
    for collisions in ([collision] * (VECTORS_MAX + 1), many):
        with pytest.raises(CommitConflict) as caught:
            unite(collisions, lambda _: pytest.fail("a blob was asked for"), path=PATH)
        assert caught.value.rule == "rebase.vectors"


ROWS = st.frozensets(st.integers(0, 6))


@given(ROWS, st.lists(ROWS, min_size=1, max_size=3))
def test_whoever_comes_last_has_everybodys_rows_or_is_refused(
    base: frozenset[int], writers: list[frozenset[int]]
) -> None:
    """Each writer read the base; the table ends with the rows of all who were let in, and no row was deleted twice."""
    blobs: dict[BlobAt, bytes] = {}

    def stored(rows: frozenset[int], name: str) -> Touched:
        data_, (blob,) = puffin.write([as_blob(Vector.of(rows), A.file.path)], created_by="c")
        blobs[BlobAt(name, blob.offset, blob.length_bytes)] = data_[blob.offset :][: blob.length_bytes]
        record = {"content_offset": blob.offset, "content_size_in_bytes": blob.length_bytes}
        file = replace(
            A.file,
            content=1,
            path=name,
            file_format="PUFFIN",
            record_count=len(rows),
            referenced_data_file=A.file.path,
            record=record,
        )
        return Touched(file, 0, 1)

    start = stored(base, "base").file
    row = ManifestFile("m", 1, 0, 1, 1, 1, 1, 1, 0, 0, 1, 0, 0, None, None, None)
    table, now = set(base), start
    for at, new in enumerate(writers):
        ours = Entry(ADDED, None, None, None, stored(base | new, f"w{at}").file)
        live = Live(ADDED, at, 1, 1, Entry(ADDED, at, 1, 1, now), row)
        try:
            united = unite([Collision(A.file.path, 0, ours, start, live)], blobs.get, path=f"u{at}")
        except CommitConflict:
            assert (new - base) & (table - base)
            continue
        assert not (new - base) & (table - base)
        table |= new
        ((_, entry),) = united.replacement.added.values()
        now = entry.file
        where = (now.record["content_offset"], now.record["content_size_in_bytes"])
        blobs[BlobAt(now.path, *where)] = united.data[where[0] :][: where[1]]
        assert set(decode(blobs[BlobAt(now.path, *where)], name="u")) == table
