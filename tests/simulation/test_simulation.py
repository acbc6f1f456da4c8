"""The deterministic simulation: thousands of seeds, each a run of the real engine through faults, crashes and rivals.

A failing seed is replayed exactly by ``python -m verify.torture.run --seed N``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from verify.torture.chunks import Summary, pool, run_seeds
from verify.torture.judge import INVARIANTS
from verify.torture.simulate import simulate

SEEDS, SHORT = 2_000, 200
"""`make verify` runs all of them, `make test` the first ones."""
CHUNK = 100
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def chunks(request: pytest.FixtureRequest) -> Iterator[dict[int, Future[Summary]]]:
    """The first chunks, or all where the long run is asked for, at work in as many processes as there are cores."""
    here = [item for item in request.session.items if item.path == request.path]
    seeds = SEEDS if any(item.get_closest_marker("sharp") for item in here) else SHORT
    with pool() as workers:
        yield {start: workers.submit(run_seeds, range(start, start + CHUNK)) for start in range(0, seeds, CHUNK)}


STARTS = [
    *range(0, SHORT, CHUNK),
    *(pytest.param(start, marks=pytest.mark.sharp) for start in range(SHORT, SEEDS, CHUNK)),
]


@pytest.mark.parametrize("start", STARTS)
def test_no_seed_breaks_an_invariant(start: int, chunks: dict[int, Future[Summary]]) -> None:
    summary = chunks[start].result()
    assert summary.seeds == CHUNK
    assert not summary.failures, summary.as_text()


@pytest.mark.parametrize(
    ("seeds", "faults_min", "checks_min"), [(SHORT, 1, 10), pytest.param(SEEDS, 20, 50, marks=pytest.mark.sharp)]
)
def test_every_fault_and_every_invariant_is_met(
    seeds: int, faults_min: int, checks_min: int, chunks: dict[int, Future[Summary]]
) -> None:
    """A simulation in which nothing goes wrong, or nothing is looked at, would pass as well."""
    whole = Summary()
    for start in range(0, seeds, CHUNK):
        whole.add(chunks[start].result())
    met = {name for name, times in whole.counts.items() if times >= faults_min}
    assert met >= {
        "slow", "read fails", "write fails", "write torn", "write answer lost", "delete fails", "location fails",
        "swap fails", "swap unknown landed", "swap unknown not landed", "swap unknown late", "swap odd", "crashes",
        "commits acked", "commits refused", "commits maybe", "commits outside", "committed direct", "committed rebased",
        "committed replayed", "committed appended", "duplicates sent", "resends", "files expired", "revocations",
        "504 commit.unknown", "401 authentication",
    }  # fmt: skip
    assert {name for name, times in whole.checked.items() if times >= checks_min} == set(INVARIANTS)


def test_every_invariant_is_documented() -> None:
    page = (ROOT / "docs" / "torture.md").read_text()
    for name in INVARIANTS:
        assert f"`{name}`" in page, name


def test_a_seed_gives_the_same_trace_to_the_byte() -> None:
    for seed in (3, 41):
        first, second = simulate(seed), simulate(seed)
        assert "\n".join(first.trace).encode() == "\n".join(second.trace).encode()
        assert len(first.trace) > 50


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    """Whatever the order in which sets of strings come there."""
    told = {
        subprocess.run(
            [sys.executable, "-m", "verify.torture.run", "--seed", "41"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {("\n".join([*simulate(41).trace, "seed 41: no invariant was broken", ""])).encode()}
