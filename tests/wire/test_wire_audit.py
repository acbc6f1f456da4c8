"""`icetower audit` and `icetower revert` at a running tower, with PyIceberg's own writes in the table."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from icetower.agent import DataFile, Tower, having_read, keyed, new_key
from verify.kit.tower_process import TowerProcess, command

WRITES_ALL = """\
tables:
  - table: {namespace}.*
    partitions: all
    operations: [append, overwrite, delete]
"""


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def typed(tower: TowerProcess, *words: str, token: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        "ICETOWER_TOKEN": token or tower.secret,
        "ICETOWER_URI": tower.uri,
        "PATH": "/usr/bin:/bin",
        "COLUMNS": "160",
    }
    return subprocess.run(command(*words), env=environment, capture_output=True, text=True, timeout=60)


def typed_at_a_terminal(tower: TowerProcess, *words: str, answer: str) -> tuple[int, str]:
    """The exit status, and what the terminal showed; the first question gets the answer."""
    ours, theirs = pty.openpty()
    environment = {"ICETOWER_TOKEN": tower.secret, "ICETOWER_URI": tower.uri, "PATH": "/usr/bin:/bin", "TERM": "dumb"}
    process = subprocess.Popen(command(*words), env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while True:
            try:
                some = os.read(ours, 4096)
            except OSError:  # its end was closed
                break
            asked = b"[y/N]" in shown
            shown += some
            if b"[y/N]" in shown and not asked:
                os.write(ours, f"{answer}\n".encode())
        return process.wait(60), shown.decode()
    finally:
        process.kill()
        os.close(ours)


@pytest.fixture
def agents(tower: TowerProcess, namespace: str) -> dict[str, Catalog]:
    """Two agents that may write everything in the namespace."""
    names = [f"{namespace}-{who}" for who in ("ann", "bob")]
    contract = WRITES_ALL.format(namespace=namespace)
    return {name[-3:]: tower.catalog(tower.principal(name, contract)) for name in names}


def ids(catalog: Catalog, table: str) -> list[int]:
    return sorted(catalog.load_table(table).scan().to_arrow()["id"].to_pylist())


def test_a_sound_table_and_who_went_around_the_tower(
    tower: TowerProcess, catalog: Catalog, namespace: str, agents: dict[str, Catalog]
) -> None:
    table = f"{namespace}.sales"
    catalog.create_table(table, schema=rows(1).schema)
    for who, number in (("ann", 1), ("bob", 2)):
        agents[who].load_table(table).append(rows(number), snapshot_properties=keyed(new_key()))
    loaded = agents["ann"].load_table(table)
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    words = keyed(new_key()) | having_read(snapshot.snapshot_id, {"type": "eq", "term": "id", "value": 1})
    loaded.overwrite(rows(1, 3), "id = 1", snapshot_properties=words)
    done = typed(tower, "audit", table, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    checked = json.loads(done.stdout)["checked"]
    assert checked["reads"]["declared"] == checked["snapshots"] - 2
    around = around_the_tower(tower, table)
    around.append(rows(9))
    done = typed(tower, "audit", table, "--json")
    assert done.returncode == 3
    (violation,) = json.loads(done.stdout)["violations"]
    assert (violation["rule"], violation["verdict"]) == ("bypass", "definite")
    assert violation["snapshots"] == [around.metadata.current_snapshot_id]
    assert typed(tower, "audit", table, "--no-tower").returncode == 0


def test_a_running_tower_notices_who_went_around_it(
    tower: TowerProcess, catalog: Catalog, namespace: str, agents: dict[str, Catalog]
) -> None:
    table = f"{namespace}.sales"
    catalog.create_table(table, schema=rows(1).schema)
    agents["ann"].load_table(table).append(rows(1))
    around = around_the_tower(tower, table)
    around.append(rows(9), snapshot_properties={"engine-name": "pyiceberg\x1b[31m", "user": "eve"})
    agents["ann"].load_table(table).append(rows(2))  # the tower comes upon it
    agents["bob"].load_table(table).append(rows(3))
    found = [each for each in tower.admin.bypasses() if each["table"] == table]
    (bypass,) = found
    assert bypass["snapshot-id"] == around.metadata.current_snapshot_id
    assert (bypass["operation"], bypass["origin"]) == ("append", {"engine": "pyiceberg [31m", "user": "eve"})
    assert bypass["partitions"] == ["(unpartitioned)"]
    line = next(line for line in tower.log.read_text().splitlines() if f"snapshot={bypass['snapshot-id']} " in line)
    assert f"event=bypass table={table} " in line
    assert "\x1b" not in line
    with tower.client(tower.admin.rotate_principal(f"{namespace}-ann")) as agent:
        assert agent.get("/icetower/v1/bypasses").status_code == 403


def around_the_tower(tower: TowerProcess, table: str) -> Any:
    """The table as the catalog behind the tower has it."""
    from pyiceberg.catalog.sql import SqlCatalog

    (database,) = tower.data.glob("*catalog*.db")
    return SqlCatalog("icetower", uri=f"sqlite:///{database}").load_table(table)


def test_what_an_agent_wrote_is_taken_back(
    tower: TowerProcess, catalog: Catalog, namespace: str, agents: dict[str, Catalog], tmp_path: Path
) -> None:
    table = f"{namespace}.sales"
    catalog.create_table(table, schema=rows(1).schema)
    agents["bob"].load_table(table).append(rows(1, 2, 3))
    agents["ann"].load_table(table).append(rows(100, 101))
    agents["ann"].load_table(table).delete("id = 2")
    agents["bob"].load_table(table).append(rows(4))
    assert ids(catalog, table) == [1, 3, 4, 100, 101]
    asked = ("revert", table, "--agent", f"{namespace}-ann", "--since", "1h")
    unsaid = typed(tower, *asked)
    assert unsaid.returncode == 3, unsaid.stderr
    assert f"by {namespace}-bob" in unsaid.stdout
    assert "may have read what the agent wrote" in unsaid.stdout
    assert "--assume-unread" in unsaid.stdout
    asked = (*asked, "--assume-unread")
    dry = typed(tower, *asked, "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    plan = json.loads(dry.stdout)
    assert (len(plan["snapshots"]), plan["committed"], plan["refused"]) == (2, None, False)
    assert ids(catalog, table) == [1, 3, 4, 100, 101]
    snapshots = len(catalog.load_table(table).snapshots())
    done = typed(tower, *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Taken back by snapshot" in done.stdout
    assert ids(catalog, table) == [1, 2, 3, 4]
    assert len(catalog.load_table(table).snapshots()) == snapshots + 1
    assert typed(tower, "audit", table).returncode == 0
    again = typed(tower, *asked)
    assert again.returncode == 0
    assert "Nothing of it is left" in again.stdout


def test_at_a_terminal_a_revert_shows_what_it_would_do_and_asks(
    tower: TowerProcess, catalog: Catalog, namespace: str, agents: dict[str, Catalog]
) -> None:
    table = f"{namespace}.sales"
    catalog.create_table(table, schema=rows(1).schema)
    agents["ann"].load_table(table).append(rows(1))
    asked = ("revert", table, "--agent", f"{namespace}-ann", "--since", "1h")
    status, shown = typed_at_a_terminal(tower, *asked, answer="n")
    assert status == 2, shown
    assert shown.index("to remove") < shown.index("Take this back? [y/N]") < shown.index("nothing was taken back")
    assert ids(catalog, table) == [1]
    status, shown = typed_at_a_terminal(tower, *asked, answer="y")
    assert status == 0, shown
    assert "Taken back by snapshot" in shown
    assert ids(catalog, table) == []


def test_one_commit_of_an_agent_is_taken_back_by_its_snapshot(
    tower: TowerProcess, catalog: Catalog, namespace: str, agents: dict[str, Catalog]
) -> None:
    table = f"{namespace}.sales"
    catalog.create_table(table, schema=rows(1).schema)
    written: list[int] = []
    for who, number in (("ann", 1), ("ann", 2), ("bob", 3), ("ann", 4)):
        agents[who].load_table(table).append(rows(number))
        written.append(catalog.load_table(table).metadata.current_snapshot_id or 0)
    asked = ("revert", table, "--agent", f"{namespace}-ann", "--assume-unread")
    of_another = typed(tower, *asked, "--snapshot", str(written[2]))
    assert (of_another.returncode, "in these snapshots" in of_another.stdout) == (0, True), of_another.stderr
    unknown = typed(tower, *asked, "--snapshot", "7")
    assert (unknown.returncode, "no snapshot 7" in unknown.stderr) == (2, True)
    done = typed(tower, *asked, "--snapshot", str(written[1]), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["snapshots"] == [written[1]]
    assert ids(catalog, table) == [1, 3, 4]
    done = typed(tower, *asked, "--snapshot", str(written[0]), "--snapshot", str(written[3]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ids(catalog, table) == [3]
    assert typed(tower, "audit", table).returncode == 0


def test_r11_what_contracts_say_of_reads_is_heard(tower: TowerProcess, catalog: Catalog, namespace: str) -> None:
    """Trap R11: an append whose writer says nothing stands in the way, unless its contract does."""
    table = f"{namespace}.sales"
    catalog.create_table(table, schema=rows(1).schema)
    for who, number, words in (("ann", 1, ""), ("bob", 2, "    blind_appends: true\n")):
        principal = tower.principal(f"{namespace}-{who}", WRITES_ALL.format(namespace=namespace) + words)
        tower.catalog(principal).load_table(table).append(rows(number))
    done = typed(tower, "revert", table, "--agent", f"{namespace}-ann", "--since", "1h")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ids(catalog, table) == [2]


def test_who_has_built_on_it_is_named(
    tower: TowerProcess, catalog: Catalog, namespace: str, agents: dict[str, Catalog]
) -> None:
    table = f"{namespace}.sales"
    catalog.create_table(table, schema=rows(1).schema)
    agents["ann"].load_table(table).append(rows(1, 2, 3))
    agents["bob"].load_table(table).delete("id = 2")
    done = typed(tower, "revert", table, "--agent", f"{namespace}-ann", "--since", "1h", "--json")
    assert done.returncode == 3, done.stderr
    said = json.loads(done.stdout)
    built = catalog.load_table(table).metadata.current_snapshot_id
    assert built in [each["snapshot"] for each in said["dependencies"]]
    assert any("replaced" in each["why"] for each in said["dependencies"])
    assert ids(catalog, table) == [1, 3]
    people = typed(tower, "revert", table, "--agent", f"{namespace}-ann", "--since", "1h")
    assert (people.returncode, "Nothing is taken back:" in people.stdout) == (3, True)


def test_an_agents_part_of_a_group_of_appends(
    tower: TowerProcess, catalog: Catalog, namespace: str, agents: dict[str, Catalog]
) -> None:
    """By the fast path one snapshot may stand for several agents."""
    import pyarrow.parquet as pq

    from icetower.agent import Tower

    table = f"{namespace}.sales"
    made = catalog.create_table(table, schema=rows(1).schema)
    field = pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
    for who, number in (("ann", 1), ("bob", 2)):
        name = f"{namespace}-{who}"
        folder = Path(made.location().removeprefix("file://")) / "data" / name
        folder.mkdir(parents=True)
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table([[number]], schema=pa.schema([field])), path)
        secret = tower.admin.rotate_principal(name)
        with Tower(tower.uri, secret) as sdk:
            sdk.append(table, [DataFile.of_parquet(path, uri=path.as_uri())], key=new_key())
    assert ids(catalog, table) == [1, 2]
    done = typed(tower, "revert", table, "--agent", f"{namespace}-ann", "--since", "1h")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ids(catalog, table) == [2]


def test_an_agent_is_a_principal_or_a_contract_and_a_name_that_nobody_knows_is_said_so(
    tower: TowerProcess, catalog: Catalog, namespace: str
) -> None:
    table, contract = f"{namespace}.sales", f"{namespace}-loader"
    catalog.create_table(table, schema=rows(1).schema)
    blind = WRITES_ALL.format(namespace=namespace) + "    blind_appends: true\n"
    tower.admin.apply_contract(f"version: 1\nagent: {contract}\n{blind}")
    members = [f"{namespace}-{number}" for number in (1, 2)]
    secrets = [tower.admin.create_principal(each, contract) for each in members]
    for number, secret in enumerate(secrets, 1):
        tower.catalog(secret).load_table(table).append(rows(number))
    found = json.loads(typed(tower, "commits", "--agent", contract, "--json").stdout)
    assert [row["principal"] for row in found] == [*reversed(members)]
    reverting = ("revert", table, "--since", "1h", "--agent")
    done = typed(tower, *reverting, contract)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 commits of {contract} ({members[0]} and {members[1]}): " in done.stdout
    assert ids(catalog, table) == []
    for words, said in (
        ((*reverting, f"{contract[:-1]}"), f"no principal and no contract {contract[:-1]}; did you mean {contract}?"),
        (("commits", "--agent", f"{contract[:-1]}"), f"did you mean {contract}?"),
        (("commits", "--table", f"{namespace}.nope"), f"there is no table {namespace}.nope"),
        (("commits", "--table", "nope"), "there is no table nope"),
        (("plan", "--log", f"{namespace}.nope"), f"there is no table {namespace}.nope"),
    ):
        wrong = typed(tower, *words)
        assert (wrong.returncode, wrong.stdout) == (1, ""), words
        assert said in wrong.stderr
    quiet = typed(
        tower, "commits", "--table", table, "--since", "2026-01-01T00:00Z", "--agent", members[0], "--refused"
    )
    assert quiet.returncode == 0, quiet.stderr  # they are there, and have done nothing of the kind
    theirs = typed(tower, "commits", "--agent", members[0], token=secrets[1])
    assert (theirs.returncode, "only administrators" in theirs.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--agent", "ann", "--since", "soon"), 2, "is not a time"),
        (("--agent", "ann", "--since", "2026-13-01"), 2, "is not a time"),
        (("--agent", "ann", "--since", "1h", "--catalog", "prod"), 2, "through a REST catalog"),
        (("--agent", "ann", "--since", "1h"), 1, "shop.nothing"),
        (("--agent", "ann"), 2, "--since a time, or --snapshot"),
    ],
)
def test_a_revert_that_is_used_wrongly(tower: TowerProcess, words: tuple[str, ...], status: int, told: str) -> None:
    done = typed(tower, "revert", "shop.nothing", *words)
    assert done.returncode == status, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_advice_names_whose_the_appends_of_the_fast_path_are(tower: TowerProcess, namespace: str) -> None:
    table = f"{namespace}.sales"
    with tower.catalog().create_table(table, pa.schema([("store", pa.int64())])).update_spec() as spec:
        spec.add_identity("store")
    names = [f"{namespace}-{who}" for who in ("ann", "bob")]
    for store, name in enumerate(names):
        rule = f"{{table: {table}, operations: [append], partitions: all, blind_appends: true}}"
        with Tower(tower.uri, tower.principal(name, f"tables: [{rule}]\n")) as agent:
            place = agent.new_data_file(table)
            file = Path(place.removeprefix("file://"))
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(tower.catalog().load_table(table).schema().as_arrow().empty_table(), file)
            agent.append(table, [DataFile.of_parquet(place, partition={"store": store})])
    done = typed(tower, "advise", tower.catalog().load_table(table).metadata_location, "--json")
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each["partitions"] for each in json.loads(done.stdout)["writers"]}
    assert found == {name: [[str(store)]] for store, name in enumerate(names)}
