"""What attackers have tried at `/mcp`, and what agents were told wrong: against a real tower."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icetower.agent import DataFile, Tower, new_key
from tests.mcp.clients import connected, live
from tests.mcp.conftest import BY_REGION, CONTRACT, SCHEMA, Shop
from verify.kit.tower_process import TowerProcess

ROW = {"id": 1, "region": "eu", "at": None, "price": "1.00", "note": "a"}
SECRET = "a row of somebody else"


def plain(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def renamed_in_manifest(shop: Shop, path: str) -> None:
    """Overwrite the newest manifest of the table, in place, by one that names another file."""
    table = shop.catalog.load_table(shop.table)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = plain(snapshot.manifests(table.io)[0].manifest_path)
    reader = fastavro.reader(io.BytesIO(manifest.read_bytes()))
    records: list[Any] = [*reader]
    records[0]["data_file"]["file_path"] = path
    kept = {name: value for name, value in reader.metadata.items() if not name.startswith("avro.")}
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema or {}, records, metadata=kept)
    manifest.write_bytes(out.getvalue())


def test_no_manifest_leads_to_the_files_of_others(shop: Shop) -> None:
    token = shop.agent("eu")
    shop.catalog.create_table(f"{shop.space}.secrets", SCHEMA, partition_spec=BY_REGION)
    others = shop.catalog.load_table(f"{shop.space}.secrets")
    others.append(pa.Table.from_pylist([{**ROW, "price": None, "note": SECRET}], SCHEMA.as_arrow()))
    [task] = others.scan().plan_files()

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            written = await agent.call("append_rows", table=shop.table, rows=[ROW])
            status = await agent.call("commit_status", table=shop.table, key=written["key"])
            own = next(iter(shop.catalog.load_table(shop.table).scan().plan_files())).file.file_path
            link = plain(own).with_name("link.parquet")
            link.symlink_to(plain(task.file.file_path))
            for path in (task.file.file_path, "/etc/passwd", "http://127.0.0.1:1/x", f"{own}/../../x", str(link)):
                renamed_in_manifest(shop, path)
                text = await agent.text("query_rows", table=shop.table)
                assert SECRET not in text
                refused = await agent.call("query_rows", table=shop.table)
                assert refused["refusal"]["rule"] == ("file.kind" if path == str(link) else "mcp.location"), refused
                row = {**ROW, "price": "2.00"}
                upserted = await agent.call("upsert_rows", table=shop.table, rows=[row])
                assert not upserted["ok"]
                reverted = await agent.call("revert_my_commit", table=shop.table, snapshot=status["snapshot"])
                assert SECRET not in json.dumps([upserted, reverted])

    live(story)


def test_a_file_that_unpacks_to_gigabytes_ends_its_own_call_alone(shop: Shop) -> None:
    token = shop.agent("eu")
    tower = Tower(shop.tower.uri, token)
    place = tower.new_data_file(shop.table)
    path = plain(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = 200_000
    large = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 1_000_000]))
    columns = {"id": pa.array(range(rows), pa.int64()), "region": pa.array(["eu"] * rows), "note": large}
    ids = {"id": "1", "region": "2", "note": "5"}
    fields = [
        pa.field(name, column.type, nullable=name != "id", metadata={"PARQUET:field_id": ids[name]})
        for name, column in columns.items()
    ]
    table = pa.Table.from_arrays([*columns.values()], schema=pa.schema(fields))
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 2_000_000
    tower.append(shop.table, [DataFile(place, rows, path.stat().st_size, {"region": "eu"})], key=new_key())

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            await agent.call("query_rows", table=shop.table, where="id < 0")
            before = memory_bytes(shop.tower.process.pid)
            refused = await agent.call("query_rows", table=shop.table)
            assert refused["refusal"]["rule"] == "mcp.memory", refused
            assert memory_bytes(shop.tower.process.pid) < before + 200 * 2**20
            narrow = await agent.call("query_rows", table=shop.table, columns=["id"], limit=1)
            assert narrow["returned"] == 1, narrow

    live(story)


def test_files_that_never_end_hold_nobody_up(shop: Shop) -> None:
    token = shop.agent("eu")
    shop.put({"id": 1, "region": "eu"})
    for task in shop.catalog.load_table(shop.table).scan().plan_files():
        path = plain(task.file.file_path)
        path.unlink()
        os.mkfifo(path)

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            for _ in range(6):
                refused = await agent.call("query_rows", table=shop.table)
                assert refused["refusal"]["rule"] == "file.kind", refused
            assert (await agent.call("whoami"))["ok"]

    live(story)


def test_rows_of_very_many_columns_are_refused_at_once(shop: Shop) -> None:
    token = shop.agent("eu")
    rows = [{f"{at:x}": 1 for at in range(row, row + 500)} for row in range(0, 50_000, 500)]

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            refused = await agent.call("append_rows", table=shop.table, rows=[{f"{at:x}": 1 for at in range(5_000)}])
            assert refused["refusal"]["rule"] == "mcp.arguments"
            refused = await agent.call("append_rows", table=shop.table, rows=rows)
            assert (refused["outcome"], refused["refusal"]["rule"]) == ("refused", "mcp.arguments")

    live(story)


def test_a_call_made_again_says_whether_its_rows_stand(shop: Shop) -> None:
    """Three histories after which the same call came back with "they were there already", and they were not."""
    token = shop.agent("eu")

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:

            async def put(tool: str, **more: Any) -> dict[str, Any]:
                return await agent.call(tool, table=shop.table, rows=[{**ROW, **more}])

            first = await put("upsert_rows", price="1.00")
            assert (await put("upsert_rows", price="1.00"))["outcome"] == "already_written"
            assert (await put("upsert_rows", price="2.00"))["outcome"] == "written"
            third = await put("upsert_rows", price="1.00")
            assert (third["ok"], third["outcome"]) == (False, "written_before"), third
            assert third["refusal"]["rule"] == "mcp.written-before"
            assert "1 commit has landed" in third["summary"]
            assert "batch" in third["summary"]
            status = await agent.call("commit_status", table=shop.table, key=first["key"])
            assert (status["landed"], status["commits_since"]) == (True, 1)
            assert "since" in status["summary"]
            again = await agent.call("upsert_rows", table=shop.table, rows=[{**ROW, "price": "1.00"}], batch="2")
            assert again["outcome"] == "written"

            added = await put("append_rows", id=2)
            assert (await put("delete_rows", id=2))["outcome"] == "written"
            assert (await put("append_rows", id=2))["outcome"] == "written_before"
            assert [row[0] for row in shop.rows()] == [1]

            added = await put("append_rows", id=3)
            status = await agent.call("commit_status", table=shop.table, key=added["key"])
            assert "do not write it again" in status["summary"]
            assert (await agent.call("revert_my_commit", table=shop.table, snapshot=status["snapshot"]))["ok"]
            status = await agent.call("commit_status", table=shop.table, key=added["key"])
            assert "do not write it again" not in status["summary"]
            assert status["commits_since"] == 1
            assert (await put("append_rows", id=3))["outcome"] == "written_before"
            assert [row[0] for row in shop.rows()] == [1]

    live(story)


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("upsert_rows", {"rows": [ROW, {**ROW, "note": "b"}]}, "row 2 and row 1 have the same key"),
        ("upsert_rows", {"rows": [{**ROW, "id": None}]}, "row 1, column id: null does not fit"),
        ("upsert_rows", {"rows": [{**ROW, "at": None}], "keys": ["at"]}, "row 1 has no value of the key column at"),
        ("upsert_rows", {"rows": [ROW], "keys": ["nope"]}, "no value of the key column nope"),
        ("delete_rows", {"rows": [{"id": 1}], "keys": ["region"]}, "no value of the key column region"),
        ("upsert_rows", {"rows": [{"id": 1, "region": "eu"}]}, "these lack"),
        ("upsert_rows", {"rows": [{k: v for k, v in ROW.items() if k != "note"}, {**ROW, "id": 2}]}, "same columns"),
        ("append_rows", {"rows": [{"region": "eu"}]}, "lack the column id"),
        ("append_rows", {"rows": [{"id": 1.5, "region": "eu"}]}, "1.5 does not fit"),
        ("append_rows", {"rows": [{"nope": 1}]}, "no column"),
    ],
)
def test_mistakes_of_the_caller_are_refused_and_not_unknown(
    shop: Shop, tool: str, arguments: dict[str, Any], says: str
) -> None:
    token = shop.agent("eu")

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            refused = await agent.call(tool, table=shop.table, **arguments)
            assert (refused["ok"], refused["outcome"], refused["refusal"]["rule"]) == (
                False,
                "refused",
                "mcp.arguments",
            )
            assert says in refused["refusal"]["message"]

    live(story)
    assert shop.rows() == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("query_rows", {"filter": "region == 'eu'"}),
        ("summarize_rows", {"group_by": ["region"]}),
        ("declare_intent", {"filter": "id in (1, 2)"}),
        ("delete_rows", {"rows": [{"id": 1}], "key": ["id"], "dry_run": True}),
    ],
)
def test_an_argument_that_a_tool_does_not_have_is_refused(shop: Shop, tool: str, arguments: dict[str, Any]) -> None:
    """Left out, it would be believed to count: all rows are answered, all that is owned is held."""
    token = shop.agent("eu")

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            refused = await agent.call(tool, table=shop.table, **arguments)
            assert (refused["ok"], refused["refusal"]["rule"]) == (False, "mcp.arguments")
            said = refused["refusal"]["message"]
            assert any(f"'{each}' is no argument of {tool}, which takes table, " in said for each in arguments), said

    live(story)
    assert shop.tower.admin.intents(table=shop.table)["intents"] == []


@pytest.mark.parametrize("name", ["a{}", " [type={}"])
def test_names_that_no_tool_has_are_not_all_looked_at(shop: Shop, name: str) -> None:
    """Each had an error of its own, which were made and searched on the event loop: half a minute for everybody."""
    token = shop.agent("eu")
    many = {name.format(number): 1 for number in range(20_000)} | {" [type=" * 50_000: 1}

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            refused = await agent.call("query_rows", table=shop.table, **many)
            assert (refused["ok"], refused["refusal"]["rule"]) == (False, "mcp.arguments")
            assert len(json.dumps(refused)) < 4_000

    live(story)


def test_doubled_rows_of_the_table_are_no_unknown_outcome(shop: Shop) -> None:
    token = shop.agent("eu")
    shop.put({"id": 1, "region": "eu"}, {"id": 1, "region": "eu"})

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            refused = await agent.call("upsert_rows", table=shop.table, rows=[ROW])
            assert (refused["outcome"], refused["refusal"]["rule"]) == ("refused", "mcp.arguments"), refused

    live(story)


def test_a_table_that_cannot_be_written_is_no_unknown_outcome(shop: Shop) -> None:
    contract = CONTRACT.replace("    blind_appends: true\n", "")
    shop.catalog.drop_table(shop.table)
    shop.catalog.create_table(shop.table, SCHEMA, partition_spec=BY_REGION, properties={"format-version": "3"})
    token = shop.agent("eu", contract)

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            written = await agent.call("append_rows", table=shop.table, rows=[ROW])  # the tower writes any format
            assert written["outcome"] == "written"
            refused = await agent.call("upsert_rows", table=shop.table, rows=[{**ROW, "note": None}])
            assert (refused["outcome"], refused["refusal"]["rule"]) == ("refused", "mcp.arguments"), refused

    live(story)


def test_a_dry_run_of_a_delete_says_that_files_are_rewritten(shop: Shop) -> None:
    token = shop.agent("eu", CONTRACT.replace("append, overwrite, delete", "delete"))

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            found = await agent.call("check_write", table=shop.table, operation="delete", partitions=["region=eu"])
            assert found["allowed"]
            assert "overwrite, and would be refused" in found["summary"]

    live(story)


def test_a_commit_of_several_snapshots_is_taken_back_whole_or_not_at_all(shop: Shop) -> None:
    shared = CONTRACT.replace("[{{region: [{region}]}}]", "all")
    first, second = shop.agent("first", shared), shop.agent("second", shared)

    def found() -> list[tuple[int, str]]:
        rows = shop.catalog.load_table(shop.table).scan().to_arrow().to_pylist()
        return sorted((row["id"], str(row["price"])) for row in rows)

    async def story() -> None:
        async with (
            connected("sdk-http", shop.tower, first) as other,
            connected("sdk-http", shop.tower, second) as agent,
        ):
            rows = [{**ROW, "id": at, "price": f"{at}.00"} for at in (1, 2)]
            await other.call("append_rows", table=shop.table, rows=rows)
            before = found()
            rows = [{**ROW, "id": at, "price": "9.00"} for at in (1, 3)]
            written = await agent.call("upsert_rows", table=shop.table, rows=rows)
            assert written["outcome"] == "written", written
            after = found()
            own = [str(each.snapshot_id) for each in shop.catalog.load_table(shop.table).metadata.snapshots][1:]
            assert len(own) > 1
            for snapshot in own:
                answer = await agent.call("revert_my_commit", table=shop.table, snapshot=snapshot)
                now = found()
                assert now == (before if answer["ok"] else after), answer
                if answer["ok"]:
                    assert set(answer["taken_back"]) == set(own)
                    break
            # Its own commit alone, over its own rows, goes whole.
            mine = [{**ROW, "id": at, "price": "5.00"} for at in (10, 11)]
            await agent.call("append_rows", table=shop.table, rows=mine)
            before = found()
            rows = [{**ROW, "id": at, "price": "6.00"} for at in (10, 12)]
            written = await agent.call("upsert_rows", table=shop.table, rows=rows)
            status = await agent.call("commit_status", table=shop.table, key=written["key"])
            answer = await agent.call("revert_my_commit", table=shop.table, snapshot=status["snapshot"])
            assert answer["ok"], answer
            assert len(answer["taken_back"]) > 1
            assert all(snapshot in agent.questions[-1] for snapshot in answer["taken_back"])
            assert found() == before

    live(story)


def children(pid: int) -> list[int]:
    """The processes below one."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                below = int(stat.parent.name)
                found += [below, *children(below)]
    return found


def is_there(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has asked about yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tower_stops_whatever_its_calls_do(tmp_path: Path) -> None:
    """A call that does not go on is ended with its tower, and so is the server that it was forked from."""
    tower = TowerProcess(tmp_path / "data")
    tower.catalog().create_namespace("s")
    tower.catalog().create_table("s.prices", SCHEMA, partition_spec=BY_REGION)
    token = Shop(tower, tower.catalog(), "s").agent("eu")

    async def story() -> None:
        async with connected("sdk-http", tower, token) as agent:
            await agent.call("query_rows", table="s.prices")
            idle = {*children(tower.process.pid)}
            call = asyncio.create_task(agent.call("query_rows", table="s.prices"))
            while not (new := {*children(tower.process.pid)} - idle):  # noqa: ASYNC110 - the process says nothing
                await asyncio.sleep(0.001)
            for pid in new:
                os.kill(pid, signal.SIGSTOP)
            assert await asyncio.to_thread(tower.stop) == 0
            while any(map(is_there, idle | new)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            with suppress(Exception):
                await call

    try:
        live(story)
    finally:
        if tower.process.poll() is None:
            tower.process.kill()
            tower.process.wait()


@pytest.mark.parametrize("blind", [True, False], ids=["fast path", "commit"])
def test_values_of_every_kind_come_back_as_they_were_sent(shop: Shop, blind: bool) -> None:
    name = f"{shop.space}.kinds"
    inner = StructType(NestedField(11, "x", LongType()), NestedField(12, "y", DecimalType(9, 2)))
    fields = (
        NestedField(1, "uuid", UUIDType(), required=True), NestedField(2, "time", TimeType()),
        NestedField(3, "struct", inner),
        NestedField(4, "list", ListType(13, DecimalType(9, 2), element_required=False)),
        NestedField(5, "map", MapType(14, StringType(), 15, LongType(), value_required=False)),
        NestedField(6, "tz", TimestamptzType()), NestedField(7, "bin", BinaryType()),
        NestedField(8, "fixed", FixedType(2)),
        NestedField(9, "double", DoubleType()), NestedField(10, "day", DateType()),
    )  # fmt: skip
    shop.catalog.create_table(name, Schema(*fields, identifier_field_ids=[1]))
    contract = CONTRACT.replace("prices", "kinds").replace("[{{region: [{region}]}}]", "all")
    token = shop.agent("eu", contract if blind else contract.replace("    blind_appends: true\n", ""))
    row: dict[str, Any] = {
        "uuid": "12345678-1234-5678-1234-567812345678", "time": "03:04:05.000006", "struct": {"x": 1, "y": "1.50"},
        "list": ["1.00", None], "map": {"a": 1}, "tz": "2017-01-02T03:04:05+00:00", "bin": "base64:aGk=",
        "fixed": "base64:aGk=", "double": 0.1, "day": "2017-01-02",
    }  # fmt: skip

    async def story() -> None:
        async with connected("sdk-http", shop.tower, token) as agent:
            written = await agent.call("append_rows", table=name, rows=[row])
            assert written["outcome"] == "written", written
            [found] = (await agent.call("query_rows", table=name))["untrusted"]["rows"]
            assert found == {**row, "map": [["a", 1]]}
            for number, key in enumerate(("day", "tz", "time", "bin", "fixed", "double", "uuid", "list")):
                other = "bin" if key == "double" else "double"
                value = "base64:aGo=" if key == "double" else float(number)
                upserted = await agent.call("upsert_rows", table=name, rows=[{**row, other: value}], keys=[key])
                if upserted["ok"]:
                    row[other] = value
                else:
                    assert (upserted["outcome"], upserted["refusal"]["rule"]) == ("refused", "mcp.arguments"), upserted
                    assert key not in ("day", "double")
                [found] = (await agent.call("query_rows", table=name))["untrusted"]["rows"]
                assert found[other] == row[other]

    live(story)
