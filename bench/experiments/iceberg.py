"""The runs of the experiments on Iceberg itself: every writer must meet with the verdict that the model gave it.

Only runs without `Operation.precise_deletes`, which Iceberg doesn't have. The whole outcome is compared, as in the
differential test: verdicts and their words, snapshots, manifests, entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench.experiments.single_run import RunResult, Setup
from bench.experiments.table import as_json
from icetower.iceberg.validation import Conflict
from icetower_client_model.replay import replay
from verify.differential.compare import difference, message
from verify.differential.oracle import Oracle


def disagreements(oracle: Oracle, runs: Iterable[tuple[Setup, int]]) -> Iterator[tuple[int, str | None]]:
    """For each run, in order: how many writers it had, and where Iceberg's answer differs from ours (None: nowhere)."""
    courses: list[RunResult] = []

    def played() -> Iterator[Mapping[str, Any]]:
        for setup, seed in runs:
            result = RunResult(setup, seed)
            result.run()
            courses.append(result)
            yield as_json(result.table.case)

    for number, outcome in enumerate(oracle.run_many(played())):
        result = courses[number]
        yield len(result.verdicts), _difference(result, outcome)


def _difference(result: RunResult, outcome: Mapping[str, Any]) -> str | None:
    if "error" in outcome:
        return f"Iceberg cannot be asked: {outcome['error']}"
    for writer, conflict in result.verdicts.items():
        ours, theirs = _said(conflict), outcome["verdicts"][str(writer)]
        if ours != message(theirs.get("message") or theirs["verdict"]):
            return f"writer {writer}: Iceberg says {theirs}, the experiment {ours}"
    return difference(outcome, replay(result.table.case))


def _said(conflict: Conflict | None) -> str:
    return "committed" if conflict is None else message(conflict.message)
