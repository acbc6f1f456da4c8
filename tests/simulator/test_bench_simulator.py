"""What holds predicted against measured rates: what it makes of its calibration, and when it calls a figure close."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from bench.commits import simulated
from bench.commits.sides import OPTIMISTIC, PREPARED
from icetower_simulator.latencies import PROVIDERS, provider_from

NO_PROCESSOR = {"client_cpu_ms": 0.0, "server_cpu_ms": 0.0, "group_cpu_ms": 0.0, "member_cpu_ms": 0.0}


@pytest.mark.parametrize(
    ("group_ms", "member_ms", "commit_ms", "size"),
    [(16.0, 1.0, 3.0, 60.0), (0.0, 0.0, 5.0, 8.0), (20.0, 2.0, 0.0, 3.0)],
)
def test_processor_time_is_split_by_three_equations(
    group_ms: float, member_ms: float, commit_ms: float, size: float
) -> None:
    of_group_ms = member_ms + group_ms / size
    busy_ms = commit_ms + of_group_ms
    found = simulated.split_cpu(
        alone_ms=group_ms + member_ms + commit_ms, busy_ms=busy_ms, busy_size=size, busy_share=of_group_ms / busy_ms
    )
    assert found == pytest.approx({"server_cpu_ms": commit_ms, "group_cpu_ms": group_ms, "member_cpu_ms": member_ms})


@pytest.mark.parametrize(
    ("alone_ms", "busy_ms", "size", "expected"),
    [(3.0, 4.0, 10.0, (2.0, 0.0, 2.0)), (50.0, 4.0, 1.0, (2.0, 0.0, 2.0)), (100.0, 4.0, 10.0, (2.0, 20.0, 0.0))],
)
def test_processor_time_is_never_negative(
    alone_ms: float, busy_ms: float, size: float, expected: tuple[float, float, float]
) -> None:
    found = simulated.split_cpu(alone_ms=alone_ms, busy_ms=busy_ms, busy_size=size, busy_share=0.5)
    assert tuple(found.values()) == pytest.approx(expected)


def test_the_calls_of_the_benchmarks_storage_are_those_of_its_profile(tmp_path: Path) -> None:
    section = simulated.measure_calls(tmp_path / "calls")
    found = provider_from("bench", tomllib.loads(section)["providers"]["bench"], "output")
    s3 = PROVIDERS["s3"]
    # Measured calls are drawn from the profile, so that their median lies about its own; a busy machine adds to them.
    assert 0.9 * s3.get.median_ms < found.get.median_ms < 2 * s3.get.median_ms
    assert 0.9 * s3.put_base_ms < found.put(0).median_ms < 2 * s3.put_base_ms
    assert found.swap.median_ms < s3.swap.median_ms


@pytest.mark.parametrize("side", [OPTIMISTIC, PREPARED])
def test_a_prediction_is_the_same_each_time_and_knows_both_sides(side: str) -> None:
    provider = PROVIDERS["s3"]
    setup = simulated.setup_of(side, 8, NO_PROCESSOR)
    once, again = (simulated.predicted(setup, provider) for _ in range(2))
    assert once == again
    if side == OPTIMISTIC:
        assert 0 < once[0] < 6
        assert 50 < once[1] < 90
    else:
        assert once[0] > 20
        assert once[1] == 100


def test_the_clients_processor_time_is_found_again_in_their_rate() -> None:
    provider = PROVIDERS["s3"]
    setup = simulated.setup_of(OPTIMISTIC, simulated.SATURATED, NO_PROCESSOR | {"client_cpu_ms": 4.0})
    assert simulated.client_cpu(simulated.predicted(setup, provider)[0], provider) == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize(("found", "close"), [(80.1, True), (79.9, False), (119.9, True), (120.1, False)])
def test_a_rate_is_close_within_a_fifth_by_the_median_of_the_rounds(found: float, close: bool) -> None:
    def one_round(rate: float, real: float) -> dict[str, object]:
        case = {"side": PREPARED, "writers": 8}
        return {
            "predicted": [case | {"commits_per_s": rate, "success_pct": 100.0}],
            "runs": [case | {"writers": 1}, case | {"commits_per_s": real, "success": 1.0}],
        }

    (row,) = simulated.rows_of([one_round(100.0, 300.0), one_round(found, 100.0), one_round(100.0, 50.0)])
    assert row.close is close
    assert simulated.table([row]).rows[0][-1] == ("yes" if close else "NO")
    assert row.to_json()["measured_commits_per_s"] == 100.0
    (none,) = simulated.rows_of([one_round(5.0, 0.0)])
    assert not none.close
    assert math.isinf(none.difference.median)
