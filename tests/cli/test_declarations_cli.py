"""A client that does not try again loses appends without a declaration: the tower counts them, one command ends it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest
from pyiceberg.exceptions import CommitFailedException

from icetower.agent import Tower
from icetower.agent.failures import error_of
from icetower.cli.declarations import print_undeclared
from icetower.cli.registry import print_rows
from icetower.cli.terminal import fail
from icetower.errors import Forbidden
from icetower.protocol.declarations import Declaration, command_of
from tests.wire.clauses import NO_RETRY, SCHEMA, ids, rows
from verify.kit.tower_process import TowerProcess, command

CONTRACT = "tables:\n- {table: shop.sales, operations: [append], partitions: all}\n"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    process = TowerProcess(tmp_path_factory.mktemp("declarations") / "data")
    catalog = process.catalog()
    catalog.create_namespace("shop")
    catalog.create_table("shop.sales", SCHEMA, properties=NO_RETRY)
    yield process
    assert process.stop() == 0, process.log.read_text()


@pytest.fixture(scope="module")
def icetower(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("elsewhere")

    def run(*words: str, token: str = tower.secret) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ICETOWER_URI": tower.uri, "ICETOWER_TOKEN": token, "COLUMNS": "300"}
        return subprocess.run(
            command(*words), capture_output=True, text=True, cwd=folder, env=environment, timeout=120, check=False
        )

    return run


def at_the_same_time(tower: TowerProcess, secrets: list[str], first: int) -> int:
    """Every writer loads the table, and then one after the other appends a row; how many of the appends are lost."""
    loaded = [tower.catalog(secret).load_table("shop.sales") for secret in secrets]
    lost = 0
    for number, table in enumerate(loaded, first):
        try:
            table.append(rows(number))
        except CommitFailedException:
            lost += 1
    return lost


def test_the_tower_notices_says_how_and_one_command_ends_it(tower: TowerProcess, icetower: Run) -> None:
    secrets = [tower.principal(f"writer-{n}", CONTRACT) for n in range(3)]
    assert at_the_same_time(tower, secrets, 0) == 2

    (advised,) = {row["declaration"] for row in tower.admin.undeclared()}
    assert advised == "blind-appends"
    assert {row["principal"]: row["refused"] for row in tower.admin.undeclared()} == {"writer-1": 1, "writer-2": 1}
    with Tower(tower.uri, secrets[1]) as agent:
        assert [row["principal"] for row in agent.undeclared()] == ["writer-1"], "an agent sees its own"

    shown = icetower("advise", "--tower")
    assert shown.returncode == 0, shown.stderr
    assert "2 commits would have been rebased if the appends were declared blind" in shown.stdout
    assert "a MERGE or upsert that only inserts is an append, too" in shown.stdout
    (advice,) = [line.strip() for line in shown.stdout.splitlines() if line.startswith("  icetower ")]
    assert advice == "icetower tables set shop.sales --blind-appends"
    as_json = json.loads(icetower("advise", "--tower", "--json").stdout)["undeclared"]
    assert [row["refused"] for row in as_json] == [1, 1]
    log = tower.log.read_text()
    assert "event=undeclared principal=writer-1 table=shop.sales declaration=blind-appends refused=1" in log

    refused = icetower("tables", "set", "shop.sales", "--blind-appends", token=secrets[0])
    assert refused.returncode == 1
    assert "contract" in refused.stderr

    done = icetower(*advice.split()[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "shop.sales: icetower.blind-appends=true"
    assert "a MERGE or upsert that only inserts is an append, too" in done.stdout
    assert at_the_same_time(tower, secrets, 10) == 0
    assert ids(tower.catalog().load_table("shop.sales")) == [0, 10, 11, 12]
    assert sum(row["refused"] for row in tower.admin.undeclared()) == 2
    assert "icetower.blind-appends=true" in icetower("tables", "show", "shop.sales").stdout


def test_what_was_declared_is_taken_back(tower: TowerProcess, icetower: Run) -> None:
    tower.catalog().create_table("shop.stock", SCHEMA)
    icetower("tables", "set", "shop.stock", "--blind-appends", "--isolation", "snapshot", "--strict")
    properties = tower.catalog().load_table("shop.stock").properties
    assert {name for name in properties if "isolation" in name or "icetower" in name} == {
        "icetower.blind-appends", "icetower.strict",
        "write.merge.isolation-level", "write.update.isolation-level", "write.delete.isolation-level",
    }  # fmt: skip
    done = icetower(
        "tables", "set", "shop.stock", "--no-blind-appends", "--isolation", "serializable", "--no-strict", "--json"
    )
    assert set(json.loads(done.stdout)["changed"].values()) == {None}
    properties = tower.catalog().load_table("shop.stock").properties
    assert not [name for name in properties if "isolation" in name or "icetower" in name]
    assert (
        icetower("tables", "set", "shop.stock", "--no-strict").stdout == "shop.stock has these declarations already\n"
    )


def test_what_makes_no_sense_is_said(icetower: Run) -> None:
    assert icetower("tables", "set", "shop.sales").returncode == 2
    missing = icetower("tables", "set", "shop.nowhere", "--strict")
    assert missing.returncode == 1
    assert "shop.nowhere" in missing.stderr
    assert icetower("advise").returncode == 2
    assert icetower("advise", "--tower", "--catalog", "prod").returncode == 2


def test_an_agent_hears_nothing_of_tables_that_it_may_not_see(tower: TowerProcess) -> None:
    secret = tower.principal("stranger", "tables:\n- {table: other.t, operations: [append], partitions: all}\n")
    with Tower(tower.uri, secret) as agent:
        assert agent.undeclared(table="shop.sales") == []
        with pytest.raises(Forbidden):
            agent.bypasses()


def test_a_name_forges_no_line_of_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "icetower contracts revoke prod"
    table = f"mine.a\n{forged}\n\x1b]0;x\x07\u202e"
    row = {"table": table, "principal": "evil", "declaration": "blind-appends", "refused": 2}
    command = command_of(Declaration.BLIND_APPENDS, table)
    print_undeclared([{**row, "first_ms": 0, "last_ms": 0, "command": command}])
    said = {"id": "1", "table": table, "partitions": [f"day=1\n{forged}"]}
    print_rows([said], ("id", "table", "partitions"), as_json=False)
    fail(error_of(404, json.dumps({"error": {"message": f"no {table}", "type": ""}}).encode()).message, 1)
    out, err = capsys.readouterr()
    lines = (out + err).splitlines()
    assert all(line.isprintable() for line in lines)
    assert not any(line.strip(" │").startswith(forged) for line in lines)
    assert out.count(rf"mine.a\n{forged}\n\x1b]0;x\x07\u202e") == 3
    assert rf"no mine.a\n{forged}" in err
