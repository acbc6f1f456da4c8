"""`make soak`: its judgement can fail, and its short form (trap A8): agents over tables by both ways of writing."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from bench.commits.operations import Operation
from verify.soak import served
from verify.soak.judgement import GROWTH_BYTES, MIB, RSS_MAX_BYTES, Fairness, Memory, rows_faults
from verify.soak.run import Case, soaked


def growing(*, from_mib: float, to_mib: float) -> Memory:
    """A run of 100 s whose memory grows evenly."""
    samples = [(at / 1.0, int(MIB * (from_mib + (to_mib - from_mib) * at / 100))) for at in range(101)]
    return Memory.of(samples, 0.0, 100.0)


def writes(p95_s: dict[int, float], count: int = 40) -> list[Operation]:
    """As many writes of each principal, all of which take the same time."""
    return [
        Operation(who * 1_000 + at, float(at), at + lasted_s, "ok", writer=who)
        for who, lasted_s in p95_s.items()
        for at in range(count)
    ]


def test_memory_that_stays_is_flat_and_memory_that_grows_is_not() -> None:
    assert growing(from_mib=300, to_mib=300).faults() == []
    (fault,) = growing(from_mib=130, to_mib=800).faults()
    assert fault.startswith("memory grew in the second half")
    grown_first = [(at / 1.0, min(at, 50) * 4 * MIB) for at in range(101)]
    assert Memory.of(grown_first, 0.0, 100.0).faults() == []


def test_small_movements_are_no_growth_and_slow_leaks_are() -> None:
    of_half = 3 / 2  # its ends are the middles of sixths: a third of the run apart
    assert growing(from_mib=100, to_mib=100 + 0.9 * of_half * GROWTH_BYTES / MIB).flat
    assert not growing(from_mib=100, to_mib=100 + 4 * of_half * GROWTH_BYTES / MIB).flat


def test_memory_over_its_bound_is_a_fault_though_it_is_flat() -> None:
    over = RSS_MAX_BYTES / MIB + 1
    (fault,) = growing(from_mib=over, to_mib=over).faults()
    assert "over 1024" in fault


def test_a_run_without_samples_is_not_judged() -> None:
    with pytest.raises(ValueError, match="too short"):
        Memory.of([], 0.0, 10.0)


def test_a_principal_that_waits_three_times_as_long_is_a_fault() -> None:
    alike = dict.fromkeys(range(1, 11), 0.5)
    assert Fairness.of(writes(alike)).faults(10) == []
    (fault,) = Fairness.of(writes(alike | {7: 1.5})).faults(10)
    assert fault.startswith("principal 7 ")


def test_too_few_writes_are_no_verdict() -> None:
    (fault,) = Fairness.of(writes(dict.fromkeys(range(10), 0.5), count=5)).faults(10)
    assert "only 0 of 10" in fault


def test_missing_and_doubled_rows_are_faults() -> None:
    done = [*writes({1: 0.1}, count=3), Operation(1_003, 0.0, 1.0, "TimeoutError", writer=1)]
    assert rows_faults("t", done, Counter([1_000, 1_001, 1_002])) == []
    assert rows_faults("t", done, Counter([1_000, 1_001, 1_002, 1_003])) == []  # nobody knows of the last one
    assert len(rows_faults("t", done, Counter([1_000, 1_000, 1_001]))) == 2


def test_a_process_knows_its_own_memory() -> None:
    pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[0])
    assert 0 < served.rss_bytes() <= pages * os.sysconf("SC_PAGESIZE")
    assert served.counted()["dict"] > 0


def test_a_short_soak_loses_nothing_and_sees_the_towers_memory(tmp_path: Path) -> None:
    case = Case(agents=24, tables=4, seconds=5.0, think_s=0.1, history=20, young_s=1.0, cache_bytes=32 * MIB)
    found = soaked(case, tmp_path)
    assert found["lost"] == []
    assert found["writes"] >= 2 * case.agents
    last = found["memory_samples"][-1]
    assert 0 < last["counted_bytes"] <= case.cache_bytes
    assert last["counted_bytes"] == sum(last["caches"].values()) + last["held"]
    assert found["snapshots_max"] <= 3 * case.history
