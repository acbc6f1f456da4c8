"""Both engines wait by the same numbers."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from icetower.demo import java_classes, slow_io
from icetower.demo.latency import PROFILES, S3


def test_java_reads_every_number_of_the_profile_and_no_other() -> None:
    source = resources.files("icetower.demo").joinpath("SlowFileIO.java").read_text(encoding="utf-8")
    given = java_classes.properties("s3", Path("attempts"))
    assert given["io-impl"] == "icetower.demo.SlowFileIO"
    numbers = {name: float(value) for name, value in given.items() if name.startswith("latency.")}
    assert {f"latency.{name}" for name in re.findall(r'number\("([^"]+)"\)', source)} == set(numbers)
    assert sorted(numbers.values()) == sorted(
        (S3.get_median_ms, S3.get_sigma, S3.put_base_ms, S3.put_ms_per_mib, S3.put_sigma, S3.floor_ms)
    )


def test_without_latency_both_engines_keep_their_usual_file_io() -> None:
    assert slow_io.properties("none", 1) == {}
    assert not {name for name in java_classes.properties("none", Path("a")) if name.startswith(("latency", "io-impl"))}


def test_attempts_of_commits_are_read_in_order(tmp_path: Path) -> None:
    file = tmp_path / "attempts"
    assert java_classes.attempts_counted(file) == []
    file.write_text("1\n3\n")
    assert java_classes.attempts_counted(file) == [1, 3]


def test_every_choice_of_the_command_is_a_profile() -> None:
    from icetower.cli.demo import StorageLatency

    assert {choice.value for choice in StorageLatency} == set(PROFILES)
