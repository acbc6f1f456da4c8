"""Keys of publications that added no snapshot, in a table's properties: whose they are, and how many stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.protocol.marks import PUBLISHED
from icetower.table.keys import KeyRecord
from icetower.table.published import OF_TABLE_MAX, keep, records_in


def kept(record: KeyRecord, properties: Mapping[str, str], *, now_ms: int = 0, until_ms: int = 10) -> dict[str, Any]:
    found = dict(properties)
    for update in keep(record, properties, now_ms=now_ms, until_ms=until_ms):
        found |= update.get("updates", {})
        for name in update.get("removals", ()):
            del found[name]
    return found


def record(key: str | None, snapshot: int = 7, principal: str = "ann") -> KeyRecord:
    return KeyRecord(principal, "main", key, None, (snapshot,))


def test_what_is_kept_is_found_again() -> None:
    properties = kept(record("k"), {"owner": "x"})
    assert properties["owner"] == "x"
    properties = kept(record("k", principal="bob"), properties)
    assert sorted(records_in(properties), key=str) == [record("k"), record("k", principal="bob")]
    assert list(records_in(kept(record("k", 8), kept(record("k"), {})))) == [record("k", 8)]


def test_without_a_key_nothing_is_kept() -> None:
    assert keep(record(None), {}, now_ms=0, until_ms=1) == ()
    assert keep(KeyRecord("ann", "main", "k", None, ()), {}, now_ms=0, until_ms=1) == ()


def test_what_has_lapsed_or_is_one_too_many_goes() -> None:
    properties = kept(record("old"), {}, until_ms=5)
    assert list(records_in(kept(record("new"), properties, now_ms=5))) == [record("new")]
    properties = {}
    for number in range(OF_TABLE_MAX + 10):
        properties = kept(record(str(number)), properties, until_ms=1_000 + number)
    left = {each.key for each in records_in(properties)}
    assert left == {str(number) for number in range(10, OF_TABLE_MAX + 10)}


def test_what_cannot_be_read_says_nothing_and_goes() -> None:
    broken = {f"{PUBLISHED}{at}": value for at, value in enumerate(("", "[]", '{"key": "k"}', '{"until-ms": "x"}'))}
    assert list(records_in(broken)) == []
    assert list(kept(record("k"), broken)) == list(kept(record("k"), {}))
