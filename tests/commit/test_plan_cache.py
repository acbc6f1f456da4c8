"""What a table's worker keeps of what its groups have read is bounded by the memory that it takes."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.commit.steps import PlanCache
from icetower.files.changes import Manifests
from icetower.iceberg.manifests import ADDED, DATA, DataFile, Entry, Manifest, ManifestFile
from icetower.iceberg.puffin import BlobAt
from icetower.recent import Budget
from verify.kit.storage import MemoryStorage

KIB = 1024


def manifest(columns: int) -> Manifest:
    statistics = {"value_counts": [{"key": column, "value": 1} for column in range(columns)]}
    file = DataFile(DATA, "a", "PARQUET", (), 1, 100, None, None, statistics)
    return Manifest((Entry(ADDED, None, None, None, file),) * 10, 0, (), {}, 0, 2)


ROW = ManifestFile("m", 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, (), None, None)
READ: dict[str, tuple[dict[str, Any], bool]] = {
    # what was read, and whether it is too much for 64 KiB
    "little": ({"lists": {"l": (ROW,) * 10}, "manifests": {"m": manifest(0)}}, False),
    "a wide manifest": ({"manifests": {"m": manifest(100)}}, True),
    "a long list": ({"lists": {"l": (ROW,) * 100}}, True),
    "a large vector": ({"blobs": {BlobAt("p", 0, 65 * KIB): bytes(65 * KIB)}}, True),
    "long paths": ({"targets": {"p": frozenset(f"{n}" * 10 * KIB for n in range(7))}}, True),
}


@pytest.mark.parametrize("what", READ)
def test_a_worker_forgets_everything_where_it_has_become_too_much(what: str) -> None:
    read, much = READ[what]
    cache, manifests = PlanCache(Budget(256 * KIB)), Manifests(MemoryStorage())
    cache.add(*(read.get(part, {}) for part in ("lists", "manifests", "blobs", "targets")))
    before = cache.sources(manifests)
    cache.trim()
    after = cache.sources(manifests)
    assert (after == before) is not much
    assert (
        cache.sources(manifests) == PlanCache().sources(manifests) if much else before != PlanCache().sources(manifests)
    )
