"""Is the simulation sharp? An engine that is broken in any of these ways is caught by one of the first seeds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from verify.torture.chunks import pool
from verify.torture.mutations import MUTATIONS, SEEDS_MAX, Caught, hunt


@pytest.fixture(scope="module")
def hunts() -> Iterator[list[Future[Caught]]]:
    """All hunts, in processes of their own: a broken engine stays where it was broken."""
    with pool() as workers:
        yield [workers.submit(hunt, number, SEEDS_MAX) for number in range(len(MUTATIONS))]


@pytest.mark.sharp
@pytest.mark.parametrize("number", range(len(MUTATIONS)), ids=[mutation.name for mutation in MUTATIONS])
def test_a_broken_engine_is_caught(number: int, hunts: list[Future[Caught]]) -> None:
    caught = hunts[number].result()
    assert caught.seed is not None, f"{caught.name}: survived {SEEDS_MAX} seeds"
