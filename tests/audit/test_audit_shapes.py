"""Metadata and manifests that somebody has tampered with: a finding or a refusal by name, and never a traceback."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from icetower.audit.advice import advise
from icetower.audit.auditor import Options, Walk
from icetower.audit.page import page
from icetower.audit.shapes import check_shape
from icetower.errors import IcetowerError, ValidationFailed
from icetower.iceberg.metadata import ancestors, parse
from icetower.iceberg.partitions import spec_of
from icetower.protocol.names import Identifier
from icetower.revert.agents import Agent, Wanted
from icetower.table.head import HeadState
from verify.histories.memory import MemoryFiles
from verify.histories.serial import World

STRANGE: list[Any] = [None, -1, 0, "x", "", [], {}, True, 1.5, "\x1b[31m<script>", [None], {"a": None}]


def places(part: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a JSON document."""
    inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, value in inside:
        yield (*way, name)
        yield from places(value, (*way, name))


def tampered(metadata: Any, files: dict[str, bytes], chance: random.Random) -> None:
    if chance.random() < 0.75:
        *way, last = chance.choice(list(places(metadata)))
        of = metadata
        for name in way:
            of = of[name]
        if isinstance(of, dict) and chance.random() < 0.25:
            del of[last]
        else:
            of[last] = copy.deepcopy(chance.choice(STRANGE))
    else:
        path = chance.choice(sorted(files))
        data = bytearray(files[path])
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        files[path] = bytes(data)


async def looked_at(metadata: Any, files: MemoryFiles) -> None:
    """All that is made of a history."""
    head = HeadState("x", parse(json.dumps(metadata).encode()))
    walk = Walk(head, files, Options(content=True))
    report = await walk.run()
    json.dumps(report.to_json())
    newest = head.ref("main")
    page(report, [] if newest is None else [*ancestors(head.metadata, newest)][::-1])
    advise(Identifier.parse("a.b"), walk.line.commits, spec_of(head.metadata, head.metadata["default-spec-id"]))
    await Agent(head, files, Wanted("ann", 0)).plan()


def test_whatever_is_tampered_with() -> None:
    refused = 0
    for seed in range(200):
        chance = random.Random(seed)
        world = World(seed % 7, 1 + seed % 3)
        for _ in range(6):
            world.author = chance.choice(("ann", "bob"))
            world.commit_any()
        table = world.table()
        metadata, files = json.loads(json.dumps(table.head.metadata)), dict(table.files.files)
        tampered(metadata, files, chance)
        try:
            asyncio.run(looked_at(metadata, MemoryFiles(files)))
        except IcetowerError:
            refused += 1
    assert 20 < refused < 180


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"snapshots": {}}, "'snapshots' is not a list"),
        ({"snapshots": [7]}, "a part of 'snapshots' is not an object"),
        ({"snapshots": [{"snapshot-id": "1", "timestamp-ms": 1}]}, "'snapshot-id' of snapshot 0 is not a number"),
        ({"snapshots": [{"snapshot-id": True, "timestamp-ms": 1}]}, "'snapshot-id' of snapshot 0 is not a number"),
        ({"snapshots": [{"snapshot-id": 1 << 64, "timestamp-ms": 1}]}, "'snapshot-id' of snapshot 0 is not a number"),
        ({"snapshots": [{"snapshot-id": 1}]}, "'timestamp-ms' of snapshot 0 is not a number"),
        ({"snapshots": [{"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": 3}]}, "'manifest-list' of snapshot 0"),
        ({"snapshots": [{"snapshot-id": 1, "timestamp-ms": 1, "summary": []}]}, "'summary' is not an object"),
        ({"snapshots": [{"snapshot-id": 1, "timestamp-ms": 1, "summary": {"operation": 1}}]}, "'operation' in the"),
        ({"snapshots": [{"snapshot-id": 1, "timestamp-ms": 1, "summary": {"user": {}}}]}, "'user' in the summary"),
        ({"refs": {"main": 3}}, "the reference 'main' is not an object"),
        ({"properties": {"a": 1}}, "the table's property 'a' is not a text"),
        ({"partition-specs": [{"fields": [{"name": {}}]}]}, "'name' of a field of 'partition-specs' is not a text"),
        ({"snapshot-log": [{}]}, "'snapshot-id' of the log of snapshots is not a number"),
    ],
)
def test_what_is_no_metadata_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        check_shape(given)
    assert told in refused.value.message


def test_what_is_odd_and_harmless_is_taken() -> None:
    """Counts as numbers, and fields that are null, as some clients write them."""
    summary = {"operation": "append", "added-records": 3, "x": True}
    check_shape({"snapshots": [{"snapshot-id": 1, "timestamp-ms": 1, "summary": summary, "parent-snapshot-id": None}]})
    check_shape({"snapshots": None, "refs": None, "current-snapshot-id": None})
