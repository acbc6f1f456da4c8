"""Trap A8: a metadata file that is long, or may be long when it is unpacked, is read away from the event loop."""

from __future__ import annotations

import asyncio
import gzip
import threading
from typing import Any

import orjson
import pytest

from icetower.commit import head as module
from icetower.commit.head import ON_LOOP_BYTES, Heads
from icetower.files.parsing import Parsing
from icetower.recent import Budget
from tests.commit.test_cache_budget import metadata
from verify.kit.storage import MemoryStorage

FEW, MANY = 2, 3_000


@pytest.mark.parametrize(
    ("snapshots", "packed", "away"), [(FEW, False, False), (MANY, False, True), (FEW, True, True), (MANY, True, True)]
)
def test_where_a_metadata_file_is_parsed(
    monkeypatch: pytest.MonkeyPatch, snapshots: int, packed: bool, away: bool
) -> None:
    threads, parse = list[threading.Thread](), module.table_metadata.parse

    def noted(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return parse(*args, **options)

    monkeypatch.setattr(module.table_metadata, "parse", noted)
    data = orjson.dumps(metadata(0, snapshots))
    assert (len(data) > ON_LOOP_BYTES) is (snapshots == MANY)
    storage = MemoryStorage()
    storage.files["s3://bucket/0.metadata.json"] = gzip.compress(data) if packed else data
    heads = Heads(None, storage, parsing=Parsing(Budget()))  # type: ignore[arg-type]
    head = asyncio.run(heads.at("s3://bucket/0.metadata.json"))
    assert len(head.snapshots) == snapshots
    assert [thread is not threading.main_thread() for thread in threads] == [away]
