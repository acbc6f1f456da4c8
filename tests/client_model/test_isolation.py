"""What engines turn on, held against `../shared`'s table and against the words that cases take."""

from __future__ import annotations

import pytest

from icetower.errors import BadRequest
from icetower.iceberg.validation import Level
from icetower_client_model.isolation import Command, Engine, Flags, flags, known, level_of
from icetower_client_model.operations import Flag, Kind

DATA, DELETES, DELETED = Flag.NO_CONFLICTING_DATA, Flag.NO_CONFLICTING_DELETES, Flag.DELETED_FILES
SI, SERIALIZABLE, NONE = Level.SNAPSHOT, Level.SERIALIZABLE, Level.NONE


@pytest.mark.parametrize(
    ("engine", "command", "kind", "at_snapshot", "serializable_adds"),
    [
        (Engine.SPARK, Command.COPY_ON_WRITE, Kind.OVERWRITE, {DELETES}, {DATA}),
        (Engine.SPARK, Command.UPDATE, Kind.ROW_DELTA, {DELETED, DELETES}, {DATA}),
        (Engine.SPARK, Command.MERGE, Kind.ROW_DELTA, {DELETED, DELETES}, {DATA}),
        (Engine.SPARK, Command.DELETE, Kind.ROW_DELTA, set(), {DATA}),
        (Engine.SPARK, Command.OVERWRITE, Kind.OVERWRITE, {DELETES}, {DATA}),
        (Engine.SPARK, Command.OVERWRITE_PARTITIONS, Kind.REPLACE_PARTITIONS, {DELETES}, {DATA}),
        (Engine.TRINO, Command.UPDATE, Kind.ROW_DELTA, {DELETED, DELETES}, {DATA}),
        (Engine.TRINO, Command.DELETE, Kind.ROW_DELTA, set(), {DATA}),
        (Engine.PYICEBERG, Command.COPY_ON_WRITE, Kind.OVERWRITE, {DELETES}, {DATA}),
    ],
)
def test_what_each_level_turns_on(
    engine: Engine, command: Command, kind: Kind, at_snapshot: set[Flag], serializable_adds: set[Flag]
) -> None:
    low, high = (flags(engine, command, level, 2) for level in (SI, SERIALIZABLE))
    assert (low.kind, set(low.validate)) == (kind, at_snapshot)
    assert set(high.validate) == at_snapshot | serializable_adds
    assert low.start
    assert high.start


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        (Engine.SPARK, Command.APPEND),
        (Engine.SPARK, Command.OVERWRITE),
        (Engine.SPARK, Command.OVERWRITE_PARTITIONS),
        (Engine.SPARK, Command.DELETE_WHERE),
        (Engine.FLINK, Command.UPSERT),
        (Engine.FLINK, Command.OVERWRITE_PARTITIONS),
    ],
)
def test_what_checks_nothing_by_default(engine: Engine, command: Command) -> None:
    found = flags(engine, command, NONE, 2)
    assert found.operation(start=1, conflict_filter=False, references=["A"], sequence_number=1) == {
        "kind": found.kind.value
    }


def test_compaction_keeps_the_sequence_number_and_drops_vectors_in_version_3() -> None:
    two, three = (flags(Engine.SPARK, Command.COMPACTION, SI, version) for version in (2, 3))
    assert two.operation(start=4, sequence_number=4) == {"kind": "rewrite", "start": 4, "sequence_number": 4}
    assert (two.removes_vectors, three.removes_vectors) == (False, True)


def test_an_operation_of_a_case_takes_what_the_engine_sets() -> None:
    update = flags(Engine.SPARK, Command.UPDATE, SERIALIZABLE, 2)
    assert update.operation(start=3, conflict_filter=True, references=["A"], add=["B"]) == {
        "kind": "row-delta",
        "start": 3,
        "conflict_filter": True,
        "references": ["A"],
        "validate": ["deleted-files", "no-conflicting-deletes", "no-conflicting-data"],
        "add": ["B"],
    }


@pytest.mark.parametrize("version", [1, 2, 3])
def test_everything_known_is_answered_and_says_where_it_stands(version: int) -> None:
    found: list[Flags] = [flags(*each, version) for each in known(version)]
    assert len(found) > 10
    assert all(each.source and set(each.validate) <= set(Flag) for each in found)
    assert (Kind.ROW_DELTA in {each.kind for each in found}) == (version >= 2)


@pytest.mark.parametrize(
    ("engine", "command", "level", "version", "words"),
    [
        (Engine.FLINK, Command.MERGE, SI, 2, "flink has no command merge, as far as is known: take one of append"),
        (Engine.SPARK, Command.MERGE, NONE, 2, "spark merge has no level none: take one of snapshot, serializable"),
        (Engine.SPARK, Command.MERGE, SI, 1, "format version 1 has no delete files"),
    ],
)
def test_what_is_not_offered_is_named(engine: Engine, command: Command, level: Level, version: int, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        flags(engine, command, level, version)


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        ({}, SERIALIZABLE),
        ({"write.update.isolation-level": "snapshot"}, SI),
        ({"write.update.isolation-level": "Serializable"}, SERIALIZABLE),
        ({"write.delete.isolation-level": "snapshot"}, SERIALIZABLE),
    ],
)
def test_the_level_that_the_table_sets(properties: dict[str, str], level: Level) -> None:
    assert level_of(properties, Command.UPDATE) is level


def test_a_level_that_nobody_knows() -> None:
    with pytest.raises(
        BadRequest, match=r"write\.merge\.isolation-level is 'none': set it to serializable or snapshot"
    ):
        level_of({"write.merge.isolation-level": "none"}, Command.MERGE)
    with pytest.raises(BadRequest, match="no table property sets a level for compaction"):
        level_of({}, Command.COMPACTION)
