"""Group files: read as they were written, by no other release's rules, and nothing else is taken for one."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import ValidationFailed
from icetower.table.groups import Group, GroupedAppend, group_file_name, key_records, read_group, write_group
from icetower.table.keys import KeyRecord

NAMES = st.text(min_size=1, max_size=20)
APPENDS = st.builds(
    GroupedAppend,
    principal=NAMES,
    key=st.none() | NAMES,
    application=st.none() | st.tuples(NAMES, st.integers(0, 2**63 - 1)),
    fingerprint=NAMES,
    files=st.lists(NAMES, max_size=3).map(tuple),
)
GROUPS = st.builds(
    Group,
    table_uuid=NAMES,
    ref=NAMES,
    snapshot_id=st.integers(1, 2**63 - 1),
    appends=st.lists(APPENDS, max_size=4).map(tuple),
)


@given(GROUPS)
def test_a_group_is_read_as_it_was_written(group: Group) -> None:
    assert read_group(write_group(group)) == group


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff", orjson.dumps({"version": 1}), b'{"version":1,"table-uuid":']
)
def test_what_is_no_group_file_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValidationFailed, match="no group file"):
        read_group(data)


def test_a_later_version_is_not_guessed_at() -> None:
    with pytest.raises(ValidationFailed, match="upgrade"):
        read_group(orjson.dumps({"version": 2}))


def test_k1_a_group_stands_for_the_keys_and_numbers_of_its_appends() -> None:
    appends = (
        GroupedAppend("ann", "k1", None, "f", ("a",)),
        GroupedAppend("bob", None, ("ingest", 7), "f", ("b",)),
        GroupedAppend("cid", None, None, "f", ("c",)),
    )
    assert key_records(Group("u", "main", 5, appends)) == (
        KeyRecord("ann", "main", "k1", None, (5,)),
        KeyRecord("bob", "main", None, ("ingest", 7), (5,)),
    )


def test_icebergs_orphan_removal_passes_over_group_files() -> None:
    """Its `HiddenPathFilter`: names that begin with an underscore or a dot."""
    assert group_file_name(7, "u").startswith("_")
