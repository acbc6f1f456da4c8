"""Deletion vectors of ours are read by Iceberg's Java library, and its are read by us."""

from __future__ import annotations

import os
import random
import subprocess
from itertools import groupby
from pathlib import Path

import pytest

from icetower.iceberg import puffin
from icetower.iceberg.vectors import Vector, as_blob, decode, encode, merge
from tools import java
from verify.differential.oracle import classpath

pytestmark = pytest.mark.java

SOURCE = Path(__file__).with_name("Vectors.java")
TIMEOUT_S = 300
SHAPES: list[set[int]] = [
    {0},
    {1, 5, 9},
    set(range(70_000)),
    set(range(0, 140_000, 2)),
    {3, 2**32 + 3, 2**34 + 1},
    set(range(2**32 - 5_000, 2**32 + 5_000)),
    set(random.Random(5).sample(range(1_000_000), 20_000)),
]


def ask(*questions: str) -> list[str]:
    """What Iceberg answers to each."""
    command = [str(java.find(jdk=True)), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
    command += ["-cp", os.pathsep.join(map(str, classpath())), str(SOURCE)]
    done = subprocess.run(command, input="\n".join(questions), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def runs(positions: set[int]) -> str:
    """Positions as a list of runs."""
    grouped = groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0])
    ends = [(group[0][1], group[-1][1]) for _, pairs in grouped for group in [list(pairs)]]
    return ",".join(f"{first}-{last}" for first, last in ends)


def test_iceberg_reads_what_we_write_and_finds_the_union_in_it(tmp_path: Path) -> None:
    path = tmp_path / "ours.puffin"
    base, ours, theirs = {1, 2, 2**32}, {1, 2, 2**32, 7, 70_000}, {1, 2, 2**32, 8, 2**33 + 5}
    union = merge(Vector.of(ours), Vector.of(base), Vector.of(theirs))
    assert isinstance(union, Vector)
    vectors = [union, *(Vector.of(shape) for shape in SHAPES)]
    data, blobs = puffin.write([as_blob(v, f"file:///t/{at}.parquet") for at, v in enumerate(vectors)], created_by="us")
    path.write_bytes(data)
    questions = [
        f"read {path} file:///t/{at}.parquet {blob.offset} {blob.length_bytes} {len(vector)}"
        for at, (vector, blob) in enumerate(zip(vectors, blobs, strict=True))
    ]
    *read, footer = ask(*questions, f"footer {path}")
    assert [[int(at) for at in line.split(",")] for line in read] == [list(vector) for vector in vectors]
    assert {int(at) for at in read[0].split(",")} == ours | theirs
    assert footer.split() == [
        f"deletion-vector-v1:[2147483645]:-1:-1:{blob.offset}:{blob.length_bytes}:null:"
        f"{{cardinality={len(vector)},referenced-data-file=file:///t/{at}.parquet}}"
        for at, (vector, blob) in enumerate(zip(vectors, blobs, strict=True))
    ]


def test_we_read_what_iceberg_writes_and_write_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.puffin"
    wanted = {f"{at}.parquet": shape for at, shape in enumerate(SHAPES)}
    (answer,) = ask(f"write {path} " + " ".join(f"{name}={runs(shape)}" for name, shape in wanted.items()))
    data = path.read_bytes()
    blobs = {blob.properties["referenced-data-file"]: blob for blob in puffin.read(data, path=str(path))}
    assert set(blobs) == set(wanted)
    for words in answer.split():
        name, offset, length, count = words.split(":")
        blob = blobs[name]
        assert (blob.offset, blob.length_bytes, blob.type) == (int(offset), int(length), "deletion-vector-v1")
        assert (blob.snapshot_id, blob.sequence_number, blob.codec) == (-1, -1, None)
        raw = data[blob.offset : blob.offset + blob.length_bytes]
        vector = decode(raw, name=name, cardinality=int(count))
        assert set(vector) == wanted[name]
        if max(wanted[name]) < 2**32:  # beyond, Iceberg writes an empty bitmap for every key that it skips
            assert encode(vector) == raw
