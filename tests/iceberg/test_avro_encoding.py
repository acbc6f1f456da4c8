"""The compiled encoder writes what fastavro writes, to the byte, and refuses what does not fit the schema."""

from __future__ import annotations

import io
from collections.abc import Mapping
from enum import IntEnum
from fractions import Fraction
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from icetower.errors import ValidationFailed
from icetower.iceberg import avro_files
from icetower.iceberg.avro_encoding import encoder

Typed = tuple[Any, st.SearchStrategy[Any]]
"""A schema, and a strategy of values that fit it."""

LONG = st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONG | st.sampled_from([-65, -64, -1, 63, 64, 8191, 8192, -(2**63), 2**63 - 1]),
    "float": st.floats(width=32, allow_nan=False),  # it is not equal to itself
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=200),
}


@st.composite
def typed(draw: st.DrawFn, names: Any, known: list[Typed], depth: int) -> Typed:
    """Any schema that the encoder knows. `names` numbers the named types; `known` are those defined so far."""
    kinds = [*PRIMITIVES, "fixed"] + ["array", "map", "record", "option"] * (depth > 0)
    match draw(st.sampled_from(kinds + ["known"] * bool(known))):
        case "known":
            return draw(st.sampled_from(known))
        case "fixed":
            size, name = draw(st.integers(0, 20)), f"n{next(names)}"
            known.append((name, st.binary(min_size=size, max_size=size)))
            return {"type": "fixed", "name": name, "size": size}, known[-1][1]
        case "array":
            items, values = draw(typed(names, known, depth - 1))
            return {"type": "array", "items": items}, st.lists(values, max_size=4)
        case "map":
            items, values = draw(typed(names, known, depth - 1))
            return {"type": "map", "values": items}, st.dictionaries(st.text(max_size=3), values, max_size=4)
        case "record":
            return draw(records(names, known, depth - 1))
        case "option":
            other, values = draw(typed(names, known, 0) | records(names, known, depth - 1))
            return draw(st.sampled_from([["null", other], [other, "null"]])), st.none() | values
        case kind:
            return draw(st.sampled_from([kind, {"type": kind}])), PRIMITIVES[kind]


@st.composite
def records(draw: st.DrawFn, names: Any, known: list[Typed], depth: int) -> Typed:
    name = f"n{next(names)}"
    fields = [draw(typed(names, known, depth)) for _ in range(draw(st.integers(0, 4)))]
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{at}", "type": kind} for at, (kind, _) in enumerate(fields)],
    }
    known.append((name, st.fixed_dictionaries({f"f{at}": values for at, (_, values) in enumerate(fields)})))
    return schema, known[-1][1]


def encoded(schema: Any, value: Any) -> bytes:
    out = bytearray()
    encoder(fastavro.parse_schema(schema))(out, value)
    return bytes(out)


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_it_writes_what_fastavro_writes_and_reads(data: st.DataObject) -> None:
    schema, values = data.draw(typed(count(), [], 3))
    value = data.draw(values)
    wanted = io.BytesIO()
    fastavro.schemaless_writer(wanted, fastavro.parse_schema(schema), value)
    found = encoded(schema, value)
    assert found == wanted.getvalue()
    read = fastavro.schemaless_reader(io.BytesIO(found), fastavro.parse_schema(schema), None)
    assert read == value


def test_a_record_may_hold_records_of_its_own_type() -> None:
    chain = {"name": "chain", "type": "record", "namespace": "a.b"}
    chain["fields"] = [{"name": "at", "type": "int"}, {"name": "next", "type": ["null", "chain"]}]  # type: ignore[assignment]
    assert encoded(chain, {"at": 1, "next": {"at": 2, "next": {"at": 3}}}) == bytes([2, 2, 4, 2, 6, 0])


class _Colour(IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("int", _Colour.RED, b"\x06"),
        ("float", float("nan"), b"\0\0\xc0\x7f"),
        ("double", 1, b"\0\0\0\0\0\0\xf0?"),
        ("double", Fraction(1), b"\0\0\0\0\0\0\xf0?"),
        ("bytes", bytearray(b"a"), b"\x02a"),
        ({"type": "array", "items": "int"}, (1, 2), b"\x04\x02\x04\0"),
        ({"type": "array", "items": "int"}, range(1, 3), b"\x04\x02\x04\0"),
        ({"type": "map", "values": "int"}, MappingProxyType({"a": 1}), b"\x02\x02a\x02\0"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}, MappingProxyType({"a": 1}), b"\2"),
    ],
    ids=repr,
)
def test_other_classes_that_hold_the_same_are_taken(kind: Any, value: Any, wanted: bytes) -> None:
    assert encoded(kind, value) == wanted


ROW = {"type": "record", "name": "row", "fields": [{"name": "a", "type": "int"}]}
MISFITS = [
    *[(kind, None) for kind in ("boolean", "int", "long", "float", "double", "bytes", "string")],
    *[("int", value) for value in (True, 1.0, "1", b"1", 2**31, -(2**31) - 1, 2**70)],
    *[("long", value) for value in (False, 1.0, "1", 2**63, -(2**63) - 1)],
    *[(kind, value) for kind in ("float", "double") for value in (True, "1.0", b"1", 10**400)],
    ("float", 1e39),
    *[("boolean", value) for value in (0, 1, "true")],
    *[("bytes", value) for value in ("a", 1, [1])],
    *[("string", value) for value in (b"a", 1, "\ud800")],
    *[({"type": "fixed", "name": "f", "size": 2}, value) for value in (b"a", b"abc", "ab", None)],
    *[({"type": "array", "items": "int"}, value) for value in (None, 1, "12", b"12", {1, 2}, {1: 2}, [1, "2"], [None])],
    *[({"type": "array", "items": "string"}, value) for value in ("ab", {"a": 1})],
    *[({"type": "map", "values": "int"}, value) for value in (None, [("a", 1)], {1: 1}, {"a": "1"}, {"\udfff": 1})],
    *[(ROW, value) for value in (None, 1, [1], [("a", 1)], {}, {"b": 1}, {"a": None}, {"a": "1"})],
    ("null", 0),
]


def _written(kind: Any, record: Mapping[str, Any]) -> bytes:
    fields = [{"name": "first", "type": "int"}, {"name": "x", "type": kind}]
    return avro_files.write({"type": "record", "name": "r", "fields": fields}, [{"first": 1}, record], {})


@pytest.mark.parametrize(("kind", "value"), MISFITS, ids=lambda part: ascii(part)[:40])
def test_what_does_not_fit_is_refused_required_or_not(kind: Any, value: Any) -> None:
    kinds = [kind] if kind == "null" or value is None else [kind, ["null", kind], [kind, "null"]]
    for shape in kinds:
        schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": shape}]}
        with pytest.raises(ValidationFailed, match=r"doesn't fit the Avro schema of r \(ValueError: x: ") as caught:
            avro_files.write(schema, [{"x": value}], {})
        assert caught.value.rule == "manifest.writable"


@pytest.mark.parametrize("kind", ["boolean", "int", "string", ROW, {"type": "array", "items": "int"}], ids=repr)
def test_a_missing_field_is_null_and_refused_where_there_is_no_null(kind: Any) -> None:
    def written(shape: Any) -> bytes:
        schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": shape}]}
        return avro_files.write(schema, [{}], {})

    assert next(iter(fastavro.reader(io.BytesIO(written(["null", kind]))))) == {"x": None}
    with pytest.raises(ValidationFailed, match="x: null is not a"):
        written(kind)


@pytest.mark.parametrize(
    "kind",
    [
        ["int", "string"],
        ["null", "int", "string"],
        ["null"],
        [],
        "nothing",
        {"type": "enum", "name": "e", "symbols": ["A"]},
        {"type": "fixed", "name": "f"},
        {"type": "record", "name": "s", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]},
    ],
    ids=repr,
)
def test_a_schema_that_is_not_known_is_refused(kind: Any) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    with pytest.raises(ValidationFailed) as caught:
        avro_files.write(schema, [{"x": 1}], {})
    assert caught.value.rule == "manifest.writable"


def test_what_its_own_reader_would_not_take_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": {"type": "array", "items": "bytes"}}]}

    def refusal(*records: dict[str, Any], header: str = "") -> str | None:
        try:
            data = avro_files.write(schema, records, {"key": header})
        except ValidationFailed as error:
            return error.rule
        assert avro_files.read(data, rename=lambda _, name: name, what="it").records == list(records)
        return None

    long = {"x": [b"x" * (avro_files.RECORD_MAX_BYTES - 6)]}
    assert refusal(long, {"x": []}, long) is None
    assert refusal({"x": []}, {"x": [b"x" * (avro_files.RECORD_MAX_BYTES - 5)]}) == "manifest.writable"
    assert refusal(header="x" * avro_files.HEADER_MAX_BYTES) == "manifest.writable"
    monkeypatch.setattr(avro_files, "MEMORY_MAX_BYTES", 4 * avro_files.RECORD_MEMORY_BYTES)
    assert refusal(*[{"x": []}] * 4) is None
    assert refusal(*[{"x": []}] * 5) == "manifest.writable"
    assert refusal({"x": [b""] * 14}) == "manifest.writable"


@pytest.mark.parametrize("header", [{"key": "\ud800"}, {"\ud800": "value"}, {"key": 1}])
def test_a_header_that_is_no_text_is_refused(header: Any) -> None:
    with pytest.raises(ValidationFailed) as caught:
        avro_files.write(ROW, [{"a": 1}], header)
    assert caught.value.rule == "manifest.writable"


WIDE = {
    "type": "record",
    "name": "wide",
    "fields": [{"name": "at", "type": "long", "field-id": 1}, {"name": "text", "type": "string", "field-id": 2}],
}


@pytest.mark.parametrize("rows", [0, 1, 5_000])
def test_a_file_of_several_blocks_is_read_by_every_reader(rows: int, tmp_path: Path) -> None:
    records = [{"at": at, "text": "x" * (at % 100)} for at in range(rows)]
    header = {"schema-id": "7", "größe": "ü"}
    raw = avro_files.write(WIDE, iter(records), header)
    assert raw == avro_files.write(WIDE, records, dict(header))
    assert raw.startswith(b"Obj\x01")

    ours = avro_files.read(raw, rename=lambda _, name: name, what="the file")
    assert (ours.records, ours.schema) == (records, WIDE)
    assert ours.header == {**header, "avro.codec": "deflate"}

    blocks = list(fastavro.block_reader(io.BytesIO(raw)))
    assert [record for block in blocks for record in block] == records
    assert len(blocks) == (rows > 0) + 4 * (rows > 1)

    (tmp_path / "f.avro").write_bytes(raw)
    with AvroFile(PyArrowFileIO().new_input(str(tmp_path / "f.avro"))) as theirs:
        assert [(row[0], row[1]) for row in theirs] == [(record["at"], record["text"]) for record in records]
