"""Rows on their way are bounded, for one principal and for all, and counted."""

from __future__ import annotations

import pytest

from icetower.errors import TooManyRequests
from icetower.service.rows_in_flight import RowsInFlight


def test_one_principal_leaves_room_for_others_and_all_leave_none_beyond_the_bound() -> None:
    door = RowsInFlight(100)
    with door.taken("ann", 25, rows=3):
        with pytest.raises(TooManyRequests) as error, door.taken("ann", 1):
            pass
        assert (error.value.rule, error.value.next_step) == ("limit.in-flight", "retry")
        with door.taken("bob", 25), door.taken("cy", 25), door.taken("dan", 24):
            with pytest.raises(TooManyRequests), door.taken("eve", 2):
                pass
            assert door.busiest(2) == [("ann", 25), ("bob", 25)]
            assert door.size_bytes == 99
    assert (door.size_bytes, door.requests, door.rows, door.refused) == (0, 4, 3, 2)
    assert door.busiest(9) == []


def test_what_fails_is_on_its_way_no_more() -> None:
    door = RowsInFlight()
    with pytest.raises(ValueError, match="x"), door.taken("ann", 7):
        raise ValueError("x")
    assert door.size_bytes == 0
