"""A head that was written over in storage, by who may write to its table's place: others' files stay what they are."""

from __future__ import annotations

import orjson
import pytest

from icetower.commit.steps import is_own_metadata_file
from icetower.protocol.names import Identifier
from tests.commit.engine_world import World, run

OTHER = Identifier(("db",), "other")
DELETING = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}


@pytest.mark.parametrize("forged", ["location", "write.metadata.path", "both above"])
def test_a_forged_head_has_nothing_of_another_table_deleted_or_written_beside(forged: str) -> None:
    async def story() -> None:
        world = World()
        mine = await world.create(**DELETING)
        others = await world.create(table=OTHER)
        path = mine.location
        document = orjson.loads(world.storage.files[path])
        folder = others.location.rpartition("/")[0]
        if forged == "location":
            document["location"] = others.metadata["location"]
        elif forged == "write.metadata.path":
            document["properties"]["write.metadata.path"] = folder
        else:
            document["properties"]["write.metadata.path"] = "file:///w"
        document["metadata-log"] = [{"metadata-file": others.location, "timestamp-ms": 1}]
        world.storage.files[path] = orjson.dumps(document)

        def beside() -> list[str]:
            return sorted(name for name in world.storage.files if name.startswith(folder) and name.endswith(".json"))

        before = beside()
        world.restart()
        for value in ("1", "2", "3"):
            request = await (await world.writer().refresh()).append()
            request.updates = [{"action": "set-properties", "updates": {"k": value}}]
            request.requirements = []
            assert (await request.send()).outcome == "direct"
        head = await world.head()
        assert head.metadata["properties"]["k"] == "3"
        assert head.location.rpartition("/")[0] == path.rpartition("/")[0]
        assert beside() == before
        assert (await world.heads.load(OTHER)).location == others.location

    run(story())


def test_metadata_goes_where_a_commit_says_and_old_versions_are_deleted() -> None:
    async def story() -> None:
        world = World()
        first = await world.create(**DELETING)

        async def change(**properties: str) -> str:
            request = await (await world.writer().refresh()).append()
            request.updates = [{"action": "set-properties", "updates": properties}]
            request.requirements = []
            return (await request.send()).head.location

        second = await change(k="1")
        third = await change(k="2")
        assert first.location not in world.storage.files  # two versions on, it is out of the log
        fourth = await change(**{"write.metadata.path": "file:///elsewhere/m"})
        fifth = await change(k="3")
        assert {path.rpartition("/")[0] for path in (fourth, fifth)} == {"file:///elsewhere/m"}
        assert {second, third} <= world.storage.files.keys()  # nobody deletes where metadata went before
        await change(k="4")
        await change(k="5")
        assert fourth not in world.storage.files

    run(story())


def test_only_metadata_files_in_the_folder_itself_are_a_tables_own() -> None:
    metadata = {"location": "s3://b/t", "properties": {}}
    assert is_own_metadata_file("s3a://b/t/metadata/00001-u.metadata.json", metadata)
    for path in (
        "s3://b/t/metadata/sub/00001-u.metadata.json",
        "s3://b/t/metadata/../metadata/00001-u.metadata.json",
        "s3://b/t/00001-u.metadata.json",
        "s3://b/t/metadata/snap-1.avro",
    ):
        assert not is_own_metadata_file(path, metadata)
