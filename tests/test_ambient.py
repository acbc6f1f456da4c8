"""Identifiers of the machine's own randomness, of which much is drawn at once."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from icetower.ambient import SystemAmbient


def test_identifiers_are_well_formed_and_none_comes_twice() -> None:
    ambient = SystemAmbient()
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: (ambient.uuid4(), ambient.uuid7(), ambient.snapshot_id()), range(3000)))
    fours, sevens, snapshots = (list(each) for each in zip(*made, strict=True))
    for version, found in ((4, fours), (7, sevens)):
        assert {(uuid.UUID(text).version, uuid.UUID(text).variant) for text in found} == {(version, uuid.RFC_4122)}
        assert len(set(found)) == 3000
    assert len(set(snapshots)) == 3000
    assert all(0 < number < 2**63 for number in snapshots)


def test_a_child_process_does_not_go_on_with_the_bytes_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    ambient = SystemAmbient()
    ambient.uuid4()
    kept = ambient.__dict__["_random"].__dict__.copy()
    expected = ambient.uuid4()
    ambient.__dict__["_random"].__dict__.update(kept)  # as a fork would have copied it
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert ambient.uuid4() != expected
