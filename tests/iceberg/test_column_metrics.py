"""Metrics modes and bounds, as Iceberg's `MetricsConfig` and `UnicodeUtil` have them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from icetower.iceberg.column_metrics import (
    COUNTS,
    DEFAULT,
    FULL,
    NONE,
    Mode,
    lower_bound,
    modes_of,
    parse_mode,
    upper_bound,
)


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "schema-id": 0, "fields": list(fields)}


def column(column_id: int, name: str, kind: Any = "string") -> dict[str, Any]:
    return {"id": column_id, "name": name, "type": kind, "required": False}


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("none", NONE),
        ("Counts", COUNTS),
        ("FULL", FULL),
        ("truncate(5)", Mode(counts=True, bounds=True, length=5)),
        (" truncate(16) ", DEFAULT),
        ("truncate(0)", COUNTS),
        ("nonsense", COUNTS),
    ],
)
def test_modes_by_name(text: str, mode: Mode) -> None:
    assert parse_mode(text, COUNTS) == mode


def test_every_column_of_a_small_table_has_the_default() -> None:
    nested = column(2, "s", {"type": "struct", "fields": [column(3, "x")]})
    assert modes_of(schema(column(1, "a"), nested), {}) == {1: DEFAULT, 2: DEFAULT, 3: DEFAULT}


def test_the_tables_own_words() -> None:
    properties = {
        "write.metadata.metrics.default": "counts",
        "write.metadata.metrics.column.b": "full",
        "write.metadata.metrics.column.s.x": "none",
        "write.metadata.metrics.column.gone": "full",
    }
    nested = column(3, "s", {"type": "struct", "fields": [column(4, "x")]})
    found = modes_of(schema(column(1, "a"), column(2, "b"), nested), properties)
    assert (found[1], found[2], found[4]) == (COUNTS, FULL, NONE)


def test_of_a_wide_table_the_first_columns_have_statistics_and_those_it_is_sorted_by() -> None:
    wide = schema(*(column(n, f"c{n}") for n in range(1, 151)))
    order = [{"source-id": 120, "transform": "identity"}, {"source-id": 121, "transform": "bucket[4]"}]
    found = modes_of(wide, {}, order)
    assert [n for n in found if found[n] == DEFAULT] == [*range(1, 101), 120]
    assert {found[n] for n in range(101, 151) if n != 120} == {NONE}
    few = modes_of(wide, {"write.metadata.metrics.max-inferred-column-defaults": "2"})
    assert [n for n in few if few[n] == DEFAULT] == [1, 2]


def test_statistics_are_given_to_plain_columns_before_nested_ones() -> None:
    nested = column(1, "s", {"type": "struct", "fields": [column(2, "x"), column(3, "y")]})
    found = modes_of(schema(nested, column(4, "a")), {"write.metadata.metrics.max-inferred-column-defaults": "2"})
    assert [n for n in found if found[n] == DEFAULT] == [2, 4]


@given(st.text(max_size=8), st.integers(1, 6))
def test_texts_are_cut_as_pyiceberg_cuts_them(text: str, length: int) -> None:
    assert lower_bound(text, "string", length) == text[:length].encode()
    theirs = truncate_upper_bound_text_string(text, length)
    ours = upper_bound(text, "string", length)
    assert ours == (None if theirs is None else theirs.encode())


@given(st.binary(max_size=8), st.integers(1, 6))
def test_bytes_are_cut_as_pyiceberg_cuts_them(data: bytes, length: int) -> None:
    assert lower_bound(data, "binary", length) == data[:length]
    assert upper_bound(data, "binary", length) == truncate_upper_bound_binary_string(data, length)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.integers(1, 6))
def test_a_text_lies_within_its_cut_bounds(text: str, length: int) -> None:
    lower, upper = lower_bound(text, "string", length), upper_bound(text, "string", length)
    assert lower <= text.encode()
    assert upper is None or upper >= text.encode()


def test_an_upper_bound_steps_over_surrogates_and_gives_up_at_the_end() -> None:
    assert upper_bound("\ud7ff\ud7ff!", "string", 2) == "\ud7ff\ue000".encode()
    assert upper_bound("a\U0010ffff!", "string", 2) == b"b"
    assert upper_bound("\U0010ffff\U0010ffff", "string", 1) is None
    assert upper_bound(b"\xff\xff", "binary", 1) is None


def test_only_texts_and_binary_values_are_cut() -> None:
    assert upper_bound(b"x" * 20, "fixed[20]", 4) == b"x" * 20
    assert lower_bound(b"x" * 16, "uuid", 4) == b"x" * 16
    assert lower_bound(258, "long", 1) == b"\x02\x01\0\0\0\0\0\0"
    assert upper_bound(-1, "date", 1) == b"\xff\xff\xff\xff"
    assert upper_bound("abc", "string", None) == b"abc"
