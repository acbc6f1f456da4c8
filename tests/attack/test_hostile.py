"""`make hostile` in short (trap A8): generators that know the formats, in process and against a real tower."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.hostile.generate import KINDS, made
from verify.hostile.inside import tried
from verify.hostile.wire import POLITE_TABLES, Wire

COUNT = 40
REQUESTS = 60


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_bytes_are_read_or_refused_as_the_inputs_fault(kind: str) -> None:
    found = [tried(kind, seed) for seed in range(COUNT)]
    assert [failure for _, failure in found if failure is not None] == []
    assert len({outcome for outcome, _ in found}) >= (1 if "delete" in kind or kind in ("list", "vector") else 2)
    assert made(kind, 7) == made(kind, 7), "a seed replays exactly"


def test_hostile_requests_are_never_answered_5xx(tmp_path: Path) -> None:
    attack = Wire(tmp_path)
    try:
        figures, failures = attack.run(0, REQUESTS, 0)
    finally:
        status = attack.stop()
    assert failures == []
    assert sum(figures["statuses"].values()) == REQUESTS
    assert 0 < figures["largest RSS, MiB"] < 1024
    assert figures["polite commits"] >= POLITE_TABLES, "each polite agent commits, whatever the others send"
    assert status == 0
