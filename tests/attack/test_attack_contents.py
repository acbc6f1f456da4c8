"""Delete files of an agent's own partition that name others' data files inside, where only PyIceberg looks (R5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icetower.iceberg.manifests import DATA, DELETED, read_manifest
from verify.kit.forger import OWNER, Forger, added, plain
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
Furnish = Callable[[int], tuple[Forger, dict[str, Any], str, str]]
MINE, THEIRS = (1, 2), (9, 9)
SCHEMA_IDS = (("region", "1"), ("product", "2"))


@pytest.fixture
def furnish(forge: Forge, tower: TowerProcess, namespace: str) -> Furnish:
    """A table of a format version with two files, as PyIceberg has written them: an agent's, and somebody else's."""

    def make(version: int) -> tuple[Forger, dict[str, Any], str, str]:
        admin = forge()
        admin.create(2)
        rows = pa.table({"region": pa.array([1, 1, 9], pa.int32()), "product": pa.array([2, 2, 9], pa.int32())})
        tower.catalog().load_table(f"{namespace}.t").append(rows)
        upgrade = {"action": "upgrade-format-version", "format-version": version}  # PyIceberg writes no version 3
        assert admin.commit([], [upgrade]).status_code == 200
        base = admin.load()
        entries = [
            entry.file
            for row in admin.rows(base, base["current-snapshot-id"])
            for entry in read_manifest(plain(row.path).read_bytes()).entries
            if entry.status != DELETED
        ]
        paths = {file.partition: file.path for file in entries}
        return admin, base, paths[MINE], paths[THEIRS]

    return make


def sent(who: Forger, base: dict[str, Any], *deletes: Any, data: Any = ()) -> httpx2.Response:
    groups = [(1, deletes), *([(DATA, data)] if data else [])]
    return who.send(who.snapshot(groups, base=base, operation="overwrite" if data else "delete"))


def products(tower: TowerProcess, namespace: str) -> list[int]:
    return sorted(tower.catalog().load_table(f"{namespace}.t").scan().to_arrow()["product"].to_pylist())


@pytest.mark.parametrize("version", [2, 3])
def test_r5_pyiceberg_deletes_from_whatever_is_named_inside(
    furnish: Furnish, tower: TowerProcess, namespace: str, version: int
) -> None:
    """Why it is looked into: a reader that goes by what stands in a delete file, wherever that is listed."""
    admin, base, mine, theirs = furnish(version)
    if version == 2:
        deletes = admin.position_deletes(base, "d.parquet", [(mine, 0), (theirs, 0)], MINE)
    else:
        deletes = admin.vector(base, "d.puffin", mine, [0], MINE, beside=[theirs])
    assert sent(admin, base, deletes).status_code == 200  # who owns everything says where
    assert products(tower, namespace) == [2]


def test_r5_an_agents_position_deletes_name_nobody_elses_files(
    forge: Forge, furnish: Furnish, tower: TowerProcess, namespace: str
) -> None:
    _, base, mine, theirs = furnish(2)
    agent = forge(OWNER)
    strays = agent.position_deletes(base, "strays.parquet", [(mine, 0), (theirs, 0)], MINE)
    told = error_of(sent(agent, base, strays))
    assert (told["rule"], told["partitions"]) == ("contract.partitions", ["region=9/product=9"])
    assert "strays.parquet names data files there" in told["message"]

    # That it refers to another, or that the file is the agent's own too, is no way around.
    referring = agent.position_deletes(base, "r.parquet", [(mine, 0), (theirs, 0)], MINE, referenced_data_file=mine)
    assert error_of(sent(agent, base, referring))["rule"] == "contract.partitions"
    assert error_of(sent(agent, base, strays, data=[added(theirs, MINE)]))["rule"] == "contract.partitions"

    # What cannot be looked into is refused, and why.
    for lie in ({"size_bytes": 99}, {"file_format": "ORC"}, {"file_path": agent.path(base, "nowhere.parquet")}):
        closed = agent.position_deletes(base, "closed.parquet", [(mine, 0)], MINE, **lie)
        told = error_of(sent(agent, base, closed))
        assert (told["rule"], told["next_step"]) == ("contract.contents", "fix_request"), lie
        assert "no Parquet or Puffin file" in told["message"]

    assert products(tower, namespace) == [2, 2, 9]
    own = agent.position_deletes(base, "own.parquet", [(mine, 0)], MINE)
    assert sent(agent, base, own).status_code == 200
    assert products(tower, namespace) == [2, 9]


def test_r5_an_agents_vectors_lie_beside_nobody_elses(
    forge: Forge, furnish: Furnish, tower: TowerProcess, namespace: str
) -> None:
    _, base, mine, theirs = furnish(3)
    agent = forge(OWNER)
    stray = agent.vector(base, "stray.puffin", mine, [0], MINE, beside=[theirs])
    assert error_of(sent(agent, base, stray))["rule"] == "contract.partitions"
    # A footer that nobody finds where the file is said to end.
    shorter = agent.vector(base, "s.puffin", mine, [0], MINE, beside=[theirs], size_bytes=stray.file.size_bytes - 1)
    assert error_of(sent(agent, base, shorter))["rule"] == "contract.contents"
    many = [f"{theirs}{at}" for at in range(2_000)]  # a footer longer than what is read at first
    for beside, rule in ((many, "contract.undecided"), ([mine] * 2_000 + [theirs], "contract.partitions")):
        answer = sent(agent, base, agent.vector(base, f"{rule}.puffin", mine, [0], MINE, beside=beside))
        assert error_of(answer)["rule"] == rule
    own = agent.vector(base, "own.puffin", mine, [0], MINE, beside=[mine] * 2_000)
    assert sent(agent, base, own).status_code == 200
    assert products(tower, namespace) == [2, 9]


@pytest.mark.parametrize("version", [2, 3])
def test_r5_that_a_file_is_encrypted_is_not_believed_of_one_that_anybody_can_open(
    forge: Forge, furnish: Furnish, tower: TowerProcess, namespace: str, version: int
) -> None:
    """PyIceberg looks at no key metadata."""
    _, base, mine, theirs = furnish(version)
    agent = forge(OWNER)

    def deletes(name: str, *strays: str) -> Any:
        if version == 3:
            return agent.vector(base, name, mine, [0], MINE, beside=strays, key_metadata=b"k")
        return agent.position_deletes(base, name, [(each, 0) for each in (mine, *strays)], MINE, key_metadata=b"k")

    assert error_of(sent(agent, base, deletes("strays", theirs)))["rule"] == "contract.partitions"
    assert products(tower, namespace) == [2, 2, 9]
    assert sent(agent, base, deletes("own")).status_code == 200
    assert products(tower, namespace) == [2, 9]


def test_r5_an_agents_deletes_name_no_file_that_came_after_their_base_or_has_yet_to_come(
    forge: Forge, furnish: Furnish, tower: TowerProcess, namespace: str
) -> None:
    """PyIceberg deletes rows of whatever is named, older or younger than the delete file."""
    admin, base, mine, _ = furnish(2)
    agent = forge(OWNER + "    read_scope: owned\n")
    newer = admin.path(base, "newer.parquet")
    kinds = [pa.field(name, pa.int32(), metadata={"PARQUET:field_id": at}) for name, at in SCHEMA_IDS]
    row = pa.table([pa.array([9], pa.int32()), pa.array([7], pa.int32())], schema=pa.schema(kinds))
    pq.write_table(row, plain(newer))
    strays = agent.position_deletes(base, "strays.parquet", [(mine, 0), (newer, 0)], MINE)
    told = error_of(sent(agent, base, strays))
    assert (told["rule"], newer in told["message"]) == ("contract.undecided", True)

    data = added(newer, (9, 7), size_bytes=plain(newer).stat().st_size)
    assert admin.send(admin.snapshot([(DATA, [data])], base=base)).status_code == 200
    assert error_of(sent(agent, base, strays))["rule"] == "contract.undecided"  # on its old base, to be rebased
    assert error_of(sent(agent, admin.load(), strays))["rule"] == "contract.partitions"
    assert products(tower, namespace) == [2, 2, 7, 9]
    honest = agent.position_deletes(base, "honest.parquet", [(mine, 0)], MINE)
    assert sent(agent, base, honest).status_code == 200
    assert products(tower, namespace) == [2, 7, 9]


def test_r5_in_shadow_mode_it_is_noted_and_goes_on(forge: Forge, furnish: Furnish, tower: TowerProcess) -> None:
    _, base, mine, theirs = furnish(2)
    agent = forge("mode: shadow\n" + OWNER)
    strays = agent.position_deletes(base, "strays.parquet", [(mine, 0), (theirs, 0)], MINE)
    assert sent(agent, base, strays).status_code == 200
    (report,) = tower.admin.shadow_report(f"{agent.namespace}-1")
    assert [(each["rule"], each["count"]) for each in report["refusals"]] == [("contract.partitions", 1)]
