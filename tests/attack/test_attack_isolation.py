"""An agent that owns one partition tries to reach what is not its own, through real files and a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from forger import OWNER, SCHEMA, Forger, added, plain
from tower_process import TowerProcess, error_of

from icetower.agent import new_key
from icetower.table.avro_files import _joined, _split  # pyright: ignore[reportPrivateUsage]

Forge = Callable[..., Forger]
MINE, THEIRS = (1, 2), (2, 1)
EVERYTHING = "tables:\n  - {table: NS.*, operations: [create, read, append, alter, drop], partitions: all}\n"


def swapped_header(data: bytes) -> bytes:
    """The partition fields of the header in another order: (2, 1) reads as (1, 2)."""
    header, body = _split(data)
    header["meta"]["partition-spec"] = orjson.dumps(orjson.loads(header["meta"]["partition-spec"])[::-1])
    return _joined(header, body)


def nameless_partition(data: bytes) -> bytes:
    """Partition values without field ids: engines read null, whoever goes by names reads what is written."""
    header, body = _split(data)
    schema = orjson.loads(header["meta"]["avro.schema"])
    for field in schema["fields"]:
        for part in field["type"].get("fields", ()) if isinstance(field["type"], dict) else ():
            if part.get("field-id") == 102:
                for column in part["type"]["fields"]:
                    column["name"] = f"partition_{column.pop('field-id')}"
    header["meta"]["avro.schema"] = orjson.dumps(schema)
    return _joined(header, body)


@pytest.mark.parametrize(
    ("partition", "rewrite"), [(THEIRS, None), (THEIRS, swapped_header), (MINE, nameless_partition)]
)
def test_r5_a_manifests_header_does_not_decide_which_partition_a_file_is_in(
    forge: Forge, partition: tuple[Any, ...], rewrite: Any
) -> None:
    forge().create()
    agent = forge(OWNER)
    assert agent.send(agent.append("mine.parquet")).status_code == 200
    answer = agent.send(agent.append("evil.parquet", partition=partition, rewrite=rewrite))
    assert error_of(answer)["rule"] in ("contract.partitions", "contract.manifest", "manifest.readable")
    assert agent.live() == ["mine.parquet"]


def test_r5_a_deletion_vector_reaches_a_file_wherever_it_is_named_once_more(forge: Forge) -> None:
    admin = forge()
    base = admin.create(3)
    assert admin.send(admin.append("theirs.parquet", partition=(9, 9))).status_code == 200
    agent = forge(OWNER)
    theirs = agent.path(base, "theirs.parquet")
    vector = {"content": 1, "referenced_data_file": theirs, "content_offset": 4, "content_size_in_bytes": 40}
    deletes = (1, [added(agent.path(base, "dv.puffin"), MINE, **vector)])
    pretence = (0, [added(theirs, MINE)])
    in_one_commit = agent.send(agent.snapshot([pretence, deletes], operation="overwrite"))
    assert error_of(in_one_commit)["partitions"] == ["region=9/product=9"]
    assert agent.send(agent.snapshot([pretence])).status_code == 200  # what a tuple says is believed: a stated limit
    in_two = agent.send(agent.snapshot([deletes], operation="delete"))
    assert error_of(in_two)["partitions"] == ["region=9/product=9"]


@pytest.mark.parametrize("name", ["updates", "updated"])
def test_where_files_are_written_is_not_an_agents_to_say_under_an_early_name_either(
    forge: Forge, tmp_path: Path, name: str
) -> None:
    forge().create()
    agent = forge("tables:\n  - {table: NS.t, operations: [alter], partitions: all}\n")
    update = {"action": "set-properties", name: {"write.metadata.path": f"file://{tmp_path}/evil"}}
    assert error_of(agent.commit([], [update]))["rule"] == "contract.location"
    assert list(tmp_path.iterdir()) == []


def test_a_purge_deletes_no_statistics_that_lie_elsewhere(forge: Forge, tmp_path: Path) -> None:
    agent = forge(EVERYTHING)
    agent.create()
    file = {"snapshot-id": 1, "statistics-path": f"file://{tmp_path}/precious", "file-size-in-bytes": 1}
    for part in ("statistics", "partition-statistics"):
        answer = agent.commit([], [{"action": f"set-{part}", part: file}])
        assert error_of(answer)["rule"] == "contract.location"
