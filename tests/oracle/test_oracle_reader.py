"""What the oracle's readers get of a table, case by case as the specification has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from verify.oracle.cases import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY,
    EXISTING,
    POSITIONS,
    Case,
    Column,
    Entry,
    Field,
    File,
    Lies,
    Manifest,
    Snapshot,
)
from verify.oracle.reader import Reader, effect, visible

COLUMNS = (Column(1, "region", "int", "region"), Column(2, "id", "int", "id"))
SPEC = (Field(1000, "region", "identity", 0),)
CASE = Case(0, 3, COLUMNS, (SPEC, (), (Field(1000, "region", "void", 0),)), (), (), 0)
A = File("a", DATA, 0, (1,), ((1, 10), (1, 11), (1, None)))
B = File("b", DATA, 0, (2,), ((2, 10),))


def manifest(*files: File, number: int = 1, status: int = ADDED, lies: Lies | None = None) -> Manifest:
    content = min(files[0].content, 1)
    entries = tuple(Entry(status, file, number, None if status == ADDED else number) for file in files)
    return Manifest(f"m{number}-{content}-{files[0].path}", files[0].spec, content, entries, 1, number, lies or Lies())


def rows(*manifests: Manifest, reader: Reader | None = None, twice: bool = False) -> list[str]:
    """What is read, as path and position."""
    snapshot = Snapshot(1, None, 9, (*manifests, *manifests[:1]) if twice else manifests, "append")
    seen = visible(CASE, snapshot, reader or Reader())
    return sorted(f"{path}{at}" for path, at, *_ in seen.elements())


def positions(*at: int, of: str = "a", **how: object) -> File:
    return replace(File("d", POSITIONS, 0, (1,), (), ((of, at),)), **how)


def equality(*values: tuple[int | None, ...], spec: int = 0, partition: tuple[int | None, ...] = (1,)) -> File:
    return File("e", EQUALITY, spec, partition, values, equality=(1,))


ALL = ["a0", "a1", "a2", "b0"]
DATA_1 = manifest(A, B)
READ = [
    # what, manifests, what is read
    ("data alone", (DATA_1,), ALL),
    ("carried over", (manifest(A, B, status=EXISTING),), ALL),
    ("removed", (manifest(A, status=DELETED), manifest(B)), ["b0"]),
    ("positions of the partition", (DATA_1, manifest(positions(0), number=2)), ["a1", "a2", "b0"]),
    ("positions of another partition", (DATA_1, manifest(positions(0, partition=(2,)), number=2)), ALL),
    ("a reference goes before the partition",
     (DATA_1, manifest(positions(0, partition=(2,), reference="a"), number=2)), ["a1", "a2", "b0"]),
    ("bounds do so, too", (DATA_1, manifest(positions(0, partition=(2,), bounds="a"), number=2)), ["a1", "a2", "b0"]),
    ("a reference to another file", (DATA_1, manifest(positions(0, reference="b"), number=2)), ALL),
    ("positions as old as the data", (DATA_1, manifest(positions(0))), ["a1", "a2", "b0"]),
    ("positions older than the data", (manifest(A, B, number=3), manifest(positions(0), number=2)), ALL),
    ("a vector", (DATA_1, manifest(positions(1, reference="a", vector=True), number=2)), ["a0", "a2", "b0"]),
    ("a vector supersedes positions",
     (DATA_1, manifest(positions(0), number=2), manifest(positions(1, reference="a", vector=True), number=3)),
     ["a0", "a2", "b0"]),
    ("two vectors",
     (DATA_1, manifest(*(positions(1, reference="a", vector=True, path=p) for p in ("v", "w")), number=2)), []),
    ("a vector older than its file",
     (manifest(A, B, number=3), manifest(positions(1, reference="a", vector=True), number=2)), []),
    ("equality deletes", (DATA_1, manifest(equality((10,)), number=2)), ["a1", "a2", "b0"]),
    ("null equals null", (DATA_1, manifest(equality((None,)), number=2)), ["a0", "a1", "b0"]),
    ("equality deletes as old as the data", (DATA_1, manifest(equality((10,)))), ALL),
    ("equality deletes without a partition",
     (DATA_1, manifest(equality((10,), spec=1, partition=()), number=2)), ["a1", "a2"]),
    ("a partition of nothing is none",
     (DATA_1, manifest(equality((10,), spec=2, partition=(None,)), number=2)), ["a1", "a2"]),
    ("listed as empty", (replace(DATA_1, lies=Lies(empty=True)),), []),
    ("listed too short", (replace(DATA_1, lies=Lies(short=True)),), []),
    ("listed as deletes", (replace(DATA_1, lies=Lies(content=1)),), []),
    ("listed under another number",
     (DATA_1, manifest(equality((10,)), lies=Lies(number=5))), ["a1", "a2", "b0"]),
    ("listed under another spec: other files",
     (DATA_1, manifest(positions(0), number=2, lies=Lies(spec=2))), ALL),
]  # fmt: skip


@pytest.mark.parametrize(("what", "manifests", "expected"), READ, ids=[each[0] for each in READ])
def test_what_is_read(what: str, manifests: tuple[Manifest, ...], expected: list[str]) -> None:
    assert rows(*manifests) == expected, what


def test_a_manifest_that_is_listed_twice_is_read_twice() -> None:
    assert rows(DATA_1, twice=True) == sorted(ALL * 2)


def test_a_reader_with_a_filter_passes_over_what_bounds_and_statistics_hide() -> None:
    filtered = Reader(filtered=True)
    narrow = replace(DATA_1, lies=Lies(bounds=((1,),)))
    assert rows(narrow) == ALL
    assert rows(narrow, reader=filtered) == ["a0", "a1", "a2"]
    assert rows(manifest(replace(A, hides=True), B), reader=filtered) == ["b0"]
    nulls = manifest(replace(A, partition=(None,)), lies=Lies(bounds=((1,),)))
    assert rows(nulls, reader=filtered) == []
    hidden = manifest(positions(0), number=2, lies=Lies(bounds=((2,),)))
    assert rows(DATA_1, hidden, reader=filtered) == ALL


def test_a_reader_by_contents_goes_by_what_is_named_inside_alone() -> None:
    """As PyIceberg's: neither the reference nor the partition counts, nor which of several vectors is an entry's."""
    inside = Reader(by_contents=True)
    elsewhere = manifest(positions(0, partition=(2,), reference="b"))
    vectors = manifest(replace(positions(0, reference="a", vector=True), positions=(("a", (0,)), ("b", (0,)))))
    assert rows(DATA_1, elsewhere) == rows(DATA_1, manifest(positions(0, partition=(2,)))) == ALL
    assert rows(DATA_1, elsewhere, reader=inside) == ["a1", "a2", "b0"]
    assert rows(DATA_1, vectors) == ["a1", "a2", "b0"]
    assert rows(DATA_1, vectors, reader=inside) == ["a1", "a2"]
    before, after = (Snapshot(at, None, at, its, "delete") for at, its in ((1, (DATA_1,)), (2, (DATA_1, vectors))))
    assert [(path, at) for path, at, *_ in effect(CASE, before, after).lost] == [("a", 0), ("b", 0)]


def test_an_effect_is_what_any_reader_gains_or_loses() -> None:
    before = Snapshot(1, None, 1, (DATA_1,), "append")
    hidden = Snapshot(2, 1, 2, (replace(DATA_1, path="m", lies=Lies(bounds=((1,),))),), "replace")
    done = effect(CASE, before, hidden)
    assert [(path, at) for path, at, *_ in done.lost] == [("b", 0)]
    assert not done.gained
    assert [path for path, *_ in effect(CASE, None, before).gained] == ["a", "a", "a", "b"]
    moved = Snapshot(2, 1, 2, (manifest(A, replace(B, partition=(1,))),), "replace")
    done = effect(CASE, before, moved)
    assert [(seen[0], seen[4]) for seen in (*done.lost, *done.gained)] == [("b", (2,)), ("b", (1,))]
