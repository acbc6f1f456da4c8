"""Branches published over the wire: PyIceberg and the SDK write them, and every reader finds what it should."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError
from pyiceberg.table import Table

from icetower import Agent, AsyncAgent
from icetower.agent import Tower, keyed, new_key
from icetower.cli.branches import remove_stale
from icetower.contracts.document import load
from icetower.errors import CommitConflict, Forbidden, IcetowerError, NotFound, PublishConflict
from icetower.protocol.marks import PUBLISHED_BRANCH, PUBLISHED_OF
from tests.pages.page_blocks import blocks_of
from verify.kit.tower_process import SCHEMA, TowerProcess, command

CONTRACT = """owner: a@example.com
tables:
  - {{table: {0}.t, operations: [overwrite], partitions: all}}
  - {{table: {0}.t, operations: [refs], partitions: [{{region: [eu]}}]}} # it creates branches, and moves none of others
"""
SNAPSHOT = {f"write.{each}.isolation-level": "snapshot" for each in ("delete", "update", "merge")}


@pytest.fixture
def table(tower: TowerProcess, catalog: Catalog, namespace: str) -> Table:
    with tower.client() as http:
        http.post(
            f"/v1/namespaces/{namespace}/tables",
            json={"name": "t", "schema": SCHEMA, "properties": SNAPSHOT},
        ).raise_for_status()
    return catalog.load_table((namespace, "t"))


def rows(*ids: int, region: str = "eu") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "region": [region] * len(ids)})


def name_of(table: Table) -> str:
    return ".".join(table.name())


def ids(table: Table, branch: str = "main") -> list[int]:
    """What PyIceberg reads, also by the totals that engines answer ``count(*)`` from."""
    table.refresh()
    ref = table.metadata.refs[branch]
    found = sorted(table.scan(snapshot_id=ref.snapshot_id).to_arrow()["id"].to_pylist())
    snapshot = table.snapshot_by_id(ref.snapshot_id)
    assert snapshot is not None
    assert snapshot.summary is not None
    deleted = int(snapshot.summary["total-position-deletes"] or 0)
    assert int(snapshot.summary["total-records"] or 0) - deleted == len(found)
    return found


def append(table: Table, *given: int, branch: str = "main", blind: bool = True) -> int:
    table.refresh().append(rows(*given), snapshot_properties=keyed(new_key(), blind=blind), branch=branch)
    return table.refresh().metadata.refs[branch].snapshot_id


# -- PyIceberg --------------------------------------------------------------------------------------------------------


def test_set_forward_rebased_and_published_again(tower: TowerProcess, table: Table) -> None:
    name = name_of(table)
    base = append(table, 1)
    table.manage_snapshots().create_branch(base, "dev").commit()
    first = append(table, 2, branch="dev")
    done = tower.admin.publish(name, "dev", key=new_key())
    assert (done.outcome, done.snapshot, done.snapshots) == ("forwarded", first, ((first, first),))
    assert ids(table) == [1, 2]
    second, third = append(table, 3, branch="dev"), append(table, 4, branch="dev")
    append(table, 9)
    key = new_key()
    done = tower.admin.publish(name, "dev", key=key)
    assert done.outcome == "rebased"
    assert [source for _, source in done.snapshots] == [second, third]
    assert ids(table) == [1, 2, 3, 4, 9]
    assert ids(table, "dev") == [1, 2, 3, 4]
    append(table, 5, branch="dev")
    again = tower.admin.publish(name, "dev", key=key)
    assert (again.outcome, again.snapshots[-1]) == ("replayed", done.snapshots[-1])
    assert ids(table) == [1, 2, 3, 4, 9]
    assert tower.admin.publish(name, "dev", key=new_key(), keep="squash").outcome == "rebased"
    assert tower.admin.publish(name, "dev", key=new_key()).outcome == "nothing"
    assert ids(table) == [1, 2, 3, 4, 5, 9]


def test_overwrites_and_deletes_of_pyiceberg(tower: TowerProcess, table: Table) -> None:
    name = name_of(table)
    table.append(rows(1, 2, 3))
    table.append(rows(7))
    table.manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    table.refresh().delete("id == 2", branch="dev")
    append(table, 5, branch="dev")
    append(table, 9)
    done = tower.admin.publish(name, "dev", key=new_key(), isolation="snapshot", keep="squash")
    assert len(done.snapshots) == 1
    assert ids(table) == [1, 3, 5, 7, 9]
    # The same files on both sides: each snapshot hears what stands against it.
    table.refresh().delete("id == 7", branch="dev")
    table.refresh().delete("id == 7")
    with pytest.raises(PublishConflict) as refused:
        tower.admin.publish(name, "dev", key=new_key(), isolation="snapshot")
    (conflict,) = refused.value.conflicts
    assert conflict.source == table.refresh().metadata.refs["dev"].snapshot_id
    assert conflict.snapshot == table.metadata.refs["main"].snapshot_id
    assert conflict.rule == refused.value.rule
    assert conflict.files
    assert ids(table) == [1, 3, 5, 9]


def test_what_is_refused(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = name_of(table)
    append(table, 1)
    with pytest.raises(NotFound, match="no branch dev") as missing:
        tower.admin.publish(name, "dev", key=new_key())
    assert missing.value.rule == "branch.exists"
    with tower.client() as http:
        path = f"/v1/namespaces/{namespace}/tables/t/publish"
        for body in ({}, {"branch": "main"}, {"branch": "a", "keep": "some"}, {"branch": "a", "reads": {}}):
            assert http.post(path, json=body).status_code == 400, body
    table.manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    append(table, 2, branch="dev")
    reader = tower.principal(f"{namespace}_reader", f"owner: a@example.com\ntables: []\nreads: ['{namespace}.*']")
    stranger = tower.principal(f"{namespace}_stranger", "owner: a@example.com\ntables: []")
    for secret in (reader, stranger):
        with Tower(tower.uri, secret) as theirs, pytest.raises(Forbidden):
            theirs.publish(name, "dev", key=new_key())
    assert ids(table) == [1]


def test_over_a_restart_and_on_two_towers(start_tower: Callable[..., TowerProcess], tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    (tmp_path / "icetower.toml").write_text(f'[upstream]\nuri = "{uri}"\nwarehouse = "file://{tmp_path}/warehouse"\n')
    config = ("--config", str(tmp_path / "icetower.toml"))
    one, two = start_tower(*config, data="one"), start_tower(*config, data="two")
    table = one.catalog()
    table.create_namespace("s")
    with one.client() as http:
        http.post("/v1/namespaces/s/tables", json={"name": "t", "schema": SCHEMA}).raise_for_status()
    made = table.load_table("s.t")
    made.manage_snapshots().create_branch(append(made, 1), "dev").commit()
    append(made, 2, branch="dev")
    forward, rebased = new_key(), new_key()
    assert one.admin.publish("s.t", "dev", key=forward).outcome == "forwarded"
    append(made, 3, branch="dev")
    append(made, 9)
    assert one.admin.publish("s.t", "dev", key=rebased).outcome == "rebased"
    # The other one has a control database of its own: the table tells.
    for key in (forward, rebased):
        assert two.admin.publish("s.t", "dev", key=key).outcome == "replayed"
    assert two.admin.publish("s.t", "dev", key=new_key()).outcome == "nothing"
    assert ids(made) == [1, 2, 3, 9]


def test_what_main_has_is_not_brought_again_however_it_came_there(tower: TowerProcess, table: Table) -> None:
    """Also where main's files were rewritten since, so that no file shows that the rows are there."""
    name = name_of(table)
    append(table, 1)
    table.manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    first = append(table, 2, branch="dev")
    table.refresh().manage_snapshots().create_branch(first, "sibling").commit()
    append(table, 3, branch="dev")
    append(table, 4, branch="sibling")
    append(table, 9)
    publish = partial(tower.admin.publish, name)
    assert publish("dev", key=new_key()).outcome == "rebased"
    assert publish("main", to="dev", key=new_key()).outcome == "rebased"  # brings the branch up to date
    assert ids(table, "dev") == [1, 2, 3, 9]
    table.refresh().overwrite(table.refresh().scan().to_arrow())
    assert publish("sibling", key=new_key()).outcome == "rebased"
    append(table, 5, branch="dev")
    assert publish("dev", key=new_key()).outcome == "rebased"
    assert ids(table) == [1, 2, 3, 4, 5, 9]
    assert publish("dev", key=new_key()).outcome == "nothing"


@pytest.mark.parametrize("admin", [False, True])
def test_nothing_is_left_out_for_what_a_client_forges(
    tower: TowerProcess, table: Table, namespace: str, admin: bool
) -> None:
    """A snapshot that says it was picked, or published, must be so; Iceberg's own picks are."""
    name = name_of(table)
    append(table, 1)
    table.manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    theirs = (
        table
        if admin
        else tower.catalog(tower.principal(f"{namespace}_w", CONTRACT.format(namespace))).load_table(name)
    )
    first, second = append(theirs, 2, branch="dev"), append(theirs, 3, branch="dev")
    append(table, 9)
    forged = {"source-snapshot-id": str(first)}
    copied = {PUBLISHED_BRANCH: "dev", PUBLISHED_OF: f"{first},{second}"}
    for words in (forged, {"source-snapshot-id": "7"}, {"source-snapshot-id": "x"}, copied, forged | copied):
        with pytest.raises(
            (BadRequestError, ForbiddenError), match=r"summary\.picked|written by the tower alone|picked from"
        ):
            theirs.refresh().append(rows(8), snapshot_properties=keyed(new_key(), blind=True) | words)
    with theirs.refresh().transaction() as transaction:  # as `cherrypick_snapshot`
        (task,) = (
            each for each in theirs.scan(snapshot_id=first).plan_files() if _added(theirs, first, each.file.file_path)
        )
        with transaction.update_snapshot(
            snapshot_properties=keyed(new_key(), blind=True) | forged
        ).fast_append() as picked:
            picked.append_data_file(task.file)
    done = tower.admin.publish(name, "dev", key=new_key())
    assert [source for _, source in done.snapshots] == [second]
    assert ids(table) == [1, 2, 3, 9]


def _added(table: Table, snapshot_id: int, path: str) -> bool:
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    manifests = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot_id]
    return any(entry.data_file.file_path == path for each in manifests for entry in each.fetch_manifest_entry(table.io))


# -- contracts and checks ---------------------------------------------------------------------------------------------


def test_checks_pass_for_the_very_snapshot_that_is_published(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = name_of(table)
    ci = tower.principal(f"{namespace}_ci", f"owner: a@example.com\ntables: []\nreads: ['{namespace}.*']")
    checks = f"branches: {{checks: [counts], checked_by: [{namespace}_ci]}}\n"
    writer = tower.principal(f"{namespace}_writer", CONTRACT.format(namespace) + checks)
    theirs = tower.catalog(writer).load_table(name)
    append(table, 1)
    theirs.refresh().manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    append(theirs, 2, branch="dev")
    key = new_key()
    with Tower(tower.uri, writer) as agent, Tower(tower.uri, ci) as job:
        waiting = agent.publish(name, "dev", key=key)
        head = table.refresh().metadata.refs["dev"].snapshot_id
        assert (waiting.outcome, waiting.waits_on, waiting.done) == ("waiting", ("dev", head), False)
        assert [(each.check, each.passed) for each in waiting.checks] == [("counts", None)]
        assert waiting.checked_by == (f"{namespace}_ci",)
        agent.report_check(name, head, "counts", passed=True)  # its own word counts for nothing here
        assert agent.publish(name, "dev", key=key).outcome == "waiting"
        append(table, 9)
        staged = agent.publish(name, "dev", key=key)
        assert staged.waits_on is not None
        branch, at = staged.waits_on
        assert (branch, staged.outcome) == ("dev.publish", "waiting")
        assert ids(table, branch) == [1, 2, 9]
        assert ids(table) == [1, 9]
        assert agent.publish(name, "dev", key=key).waits_on == (branch, at), "it is staged once"
        job.report_check(name, at, "counts", passed=False, details="two rows are missing")
        with pytest.raises(CommitConflict, match="two rows are missing") as failed:
            agent.publish(name, "dev", key=key)
        assert (failed.value.rule, failed.value.snapshot) == ("publish.check-failed", at)
        job.report_check(name, at, "counts", passed=True, details="all there")
        append(table, 10)  # what was checked is not what main would be now
        anew = agent.publish(name, "dev", key=key)
        assert anew.outcome == "waiting"
        assert anew.waits_on is not None
        assert anew.waits_on != (branch, at)
        other = append(table, 666, branch=branch)  # somebody's commit to the branch on which they wait
        append(table, 11)
        with pytest.raises(CommitConflict) as others:
            agent.publish(name, "dev", key=key)
        assert (others.value.rule, others.value.snapshot) == ("publish.stage", other)
        assert 666 in ids(table, branch)
        table.refresh().manage_snapshots().remove_branch(branch).commit()
        anew = agent.publish(name, "dev", key=key)
        assert anew.waits_on is not None
        job.report_check(name, anew.waits_on[1], "counts", passed=True)
        done = agent.publish(name, "dev", key=key)
        assert (done.outcome, done.snapshot) == ("rebased", anew.waits_on[1])
        assert ids(table) == [1, 2, 9, 10, 11]
        assert agent.publish(name, "dev", key=key).outcome == "replayed"
        assert agent.publish(name, "dev", key=new_key()).outcome == "nothing"
        with pytest.raises(NotFound) as missing:
            job.report_check(name, 17, "counts", passed=True)
        assert missing.value.rule == "snapshot.exists"
    assert ids(table) == [1, 2, 9, 10, 11]


def test_a_verdict_counts_for_no_other_snapshot_under_the_same_id(
    tower: TowerProcess, table: Table, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, own = name_of(table), 4_444_444_444_444_444_444
    monkeypatch.setattr("pyiceberg.table.metadata.TableMetadataCommonFields.new_snapshot_id", lambda _: own)
    ci = tower.principal(f"{namespace}_ci", f"owner: a@example.com\ntables: []\nreads: ['{namespace}.*']")
    checks = f"branches: {{checks: [counts], checked_by: [{namespace}_ci]}}\n"
    contract = f"owner: a@example.com\ntables: [{{table: {namespace}.t, operations: [overwrite], partitions: all}}]\n"
    writer = tower.principal(f"{namespace}_writer", contract + checks)
    with Agent(tower.uri, token=tower.secret) as admin:
        admin.append(name, [{"id": 1, "region": "eu"}])

    def branch(*given: int) -> str:
        head = table.refresh().metadata.refs["main"].snapshot_id
        table.manage_snapshots().create_branch(head, "dev").commit()
        table.refresh().append(rows(*given), branch="dev")
        found = table.refresh().snapshot_by_id(own)
        assert found is not None
        return found.manifest_list

    with Tower(tower.uri, writer) as agent, Tower(tower.uri, ci) as job:
        read = branch(2)
        job.report_check(name, own, "counts", passed=True, manifest_list=read)
        table.manage_snapshots().remove_branch("dev").commit()
        table.maintenance.expire_snapshots().by_id(own).commit()
        other = branch(666)
        waiting = agent.publish(name, "dev", key=new_key(), blind=True)
        assert (waiting.outcome, waiting.waits_on) == ("waiting", ("dev", own))
        assert ids(table) == [1]
        with pytest.raises(CommitConflict) as late:  # it has read the one that was removed
            job.report_check(name, own, "counts", passed=True, manifest_list=read)
        assert (late.value.rule, late.value.snapshot) == ("publish.verdict", own)
        job.report_check(name, own, "counts", passed=True, manifest_list=other)
        assert agent.publish(name, "dev", key=new_key(), blind=True).outcome == "forwarded"


def test_a_branch_that_is_named_like_a_stage_is_not_moved(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = name_of(table)
    writer = tower.principal(f"{namespace}_w", CONTRACT.format(namespace) + "branches: {checks: [counts]}\n")
    old = append(table, 1)
    for branch in ("dev", "dev.publish"):
        table.refresh().manage_snapshots().create_branch(old, branch).commit()
    append(table, 2, branch="dev")
    append(table, 9)
    with Tower(tower.uri, writer) as agent, pytest.raises(CommitConflict) as refused:
        agent.publish(name, "dev", key=new_key())
    assert (refused.value.rule, refused.value.snapshot) == ("publish.stage", old)
    assert table.refresh().metadata.refs["dev.publish"].snapshot_id == old


@pytest.mark.parametrize("rebased", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_whoever_publishes_past_the_checks_of_the_authors_says_so(
    tower: TowerProcess, table: Table, namespace: str, rebased: bool, fast: bool
) -> None:
    name = name_of(table)
    writer = tower.principal(f"{namespace}_w", CONTRACT.format(namespace) + "branches: {checks: [counts]}\n")
    theirs = tower.catalog(writer).load_table(name)
    append(table, 1)
    theirs.refresh().manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    with Agent(tower.uri, token=writer) as agent:
        if fast:
            agent.branch(name, "dev").append([{"id": 2, "region": "eu"}])
        else:
            append(theirs, 2, branch="dev")
    if rebased:
        append(table, 9)
    else:
        with Tower(tower.uri, writer) as job:
            at = table.refresh().metadata.refs["dev"].snapshot_id
            job.report_check(name, at, "counts", passed=False)
    [branch] = json.loads(icetower(tower, "branches", name, "--json").stdout)
    assert (branch["name"], branch["principal"]) == ("dev", f"{namespace}_w")
    before = table.refresh().metadata.refs["main"].snapshot_id
    said = icetower(tower, "publish", name, "dev", "--json")
    assert (said.returncode, "publish.unchecked" in said.stderr + said.stdout) == (1, True)
    assert table.refresh().metadata.refs["main"].snapshot_id == before
    said = icetower(tower, "publish", name, "dev", "--unchecked", "--json")
    assert (said.returncode, json.loads(said.stdout)["unchecked"]) == (0, ["counts"])
    assert "published without the checks" in said.stderr
    assert [
        line for line in tower.log.read_text().splitlines() if name in line and "without its checks: counts" in line
    ]
    append(theirs, 3, branch="dev")
    if not rebased:
        at = table.refresh().metadata.refs["dev"].snapshot_id
        with Tower(tower.uri, writer) as job:
            job.report_check(name, at, "counts", passed=True)
        done = tower.admin.publish(name, "dev", key=new_key())
        assert (done.outcome, done.unchecked) == ("forwarded", ())


def test_a_contract_counts_for_all_snapshots_of_the_branch(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = name_of(table)
    append(table, 1)
    table.manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    granted = f"{{table: {namespace}.t, operations: [append], partitions: all, write_location: table}}"
    appends = f"owner: a@example.com\ntables: [{granted}]\n"
    writer = tower.principal(f"{namespace}_appends", appends)
    append(table, 2, branch="dev")
    table.refresh().delete("id == 1", branch="dev")
    with Tower(tower.uri, writer) as agent:
        with pytest.raises(Forbidden) as refused:
            agent.publish(name, "dev", key=new_key())
        assert refused.value.rule == "contract.operation"
        assert ids(table) == [1]
    logged = tower.admin.commits(limit=1, table=name)[0]
    assert (logged["operation"], logged["outcome"], logged["rule"]) == ("publish", "refused", "contract.operation")


def test_what_another_has_made_keeps_its_author(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = name_of(table)
    append(table, 1)
    writer = tower.principal(f"{namespace}_w", CONTRACT.format(namespace))
    theirs = tower.catalog(writer).load_table(name)
    theirs.manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    append(theirs, 2, branch="dev")
    append(table, 9)
    tower.admin.publish(name, "dev", key=new_key())
    head = table.refresh().current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (head.summary["icetower.author"], head.summary["icetower.principal"]) == (f"{namespace}_w", "admin")
    assert head.summary[PUBLISHED_BRANCH] == "dev"


# -- many at once -----------------------------------------------------------------------------------------------------


def test_agents_publish_while_others_write(tower: TowerProcess, table: Table) -> None:
    """Every row is there once, whatever came between; and what is published comes in one piece."""
    name = name_of(table)
    append(table, 0)
    agents, rounds = 4, 3

    def work(number: int) -> int:
        published = 0
        with Agent(tower.uri, tower.secret) as agent:
            for round_ in range(rounds):
                first = 1_000 * (number + 1) + 10 * round_
                if number == agents - 1:
                    agent.append(name, [{"id": first, "region": "main"}])
                    continue
                branch = agent.branch(name, f"agent-{number}")
                branch.append([{"id": first, "region": "a"}])
                branch.append([{"id": first + 1, "region": "b"}])
                done = branch.publish(keep="each" if round_ else "squash")
                assert done.outcome in ("forwarded", "rebased")
                published += 1
        return published

    with ThreadPoolExecutor(agents) as threads:
        assert sum(threads.map(work, range(agents))) == (agents - 1) * rounds
    expected = {0} | {1_000 * agents + 10 * round_ for round_ in range(rounds)}
    for number in range(agents - 1):
        expected |= {1_000 * (number + 1) + 10 * round_ + n for round_ in range(rounds) for n in (0, 1)}
    assert ids(table) == sorted(expected)
    numbers = [snapshot.sequence_number or 0 for snapshot in table.snapshots()]
    assert len(set(numbers)) == len(numbers)


# -- the SDK, and the commands ----------------------------------------------------------------------------------------


def test_the_agent_of_the_page(tower: TowerProcess, catalog: Catalog) -> None:
    catalog.create_namespace_if_not_exists("shop")
    with tower.client() as http:
        http.post("/v1/namespaces/shop/tables", json={"name": "sales", "schema": SCHEMA}).raise_for_status()
    made = catalog.load_table("shop.sales")
    append(made, 7)
    (block, *_) = [block for block in blocks_of("docs/branches.md") if block.language == "python"]
    text = block.text.replace("http://127.0.0.1:8181", tower.uri)
    exec(compile(text, block.place, "exec"), {"secret": tower.secret})
    assert ids(made) == [1, 2, 7]
    catalog.drop_table("shop.sales")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_agents_of_either_kind(tower: TowerProcess, table: Table, asynchronous: bool) -> None:
    name = name_of(table)
    append(table, 1)

    async def in_a_loop() -> Any:
        async with AsyncAgent(tower.uri, tower.secret) as agent:
            branch = await agent.branch(name, "dev")
            await branch.append([{"id": 2, "region": "eu"}])
            return await branch.publish()

    if asynchronous:
        done = asyncio.run(in_a_loop())
    else:
        with Agent(tower.uri, tower.secret) as agent:
            branch = agent.branch(name, "dev")
            branch = agent.branch(name, "dev")  # it is there
            branch.append([{"id": 2, "region": "eu"}])
            done = branch.publish()
            with pytest.raises(IcetowerError):
                agent.publish(name, "nothing-of-this-name")
    assert done.outcome == "forwarded"
    assert ids(table) == [1, 2]


def test_maintenance_removes_what_contracts_let_go(
    tower: TowerProcess, table: Table, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICETOWER_TOKEN", tower.secret)
    name, base = name_of(table), append(table, 1)
    for branch in ("dev", "kept"):
        table.refresh().manage_snapshots().create_branch(base, branch).commit()
        append(table, 2, branch=branch)
    contract = load("version: 1\nagent: a\nbranches: {retain: 1ms}\n", source="test")
    kept = load("version: 1\nagent: a\nbranches: {checks: [c]}\n", source="test")
    assert remove_stale(tower.uri, [name], {"admin": kept}) == []
    assert remove_stale(tower.uri, [name], {"somebody": contract}) == []
    found = remove_stale(tower.uri, [name, f"{namespace}.gone"], {"admin": contract})
    assert found == [(name, "dev"), (name, "kept")]
    assert list(table.refresh().metadata.refs) == ["main"]


def test_the_commands(tower: TowerProcess, table: Table, namespace: str) -> None:
    name = name_of(table)
    append(table, 1)
    retain = "branches: {retain: 1ms}\n"
    writer = tower.principal(f"{namespace}_stale", CONTRACT.format(namespace) + retain)
    theirs = tower.catalog(writer).load_table(name)
    theirs.manage_snapshots().create_branch(table.refresh().metadata.refs["main"].snapshot_id, "dev").commit()
    append(theirs, 2, branch="dev")
    append(table, 9)
    done = icetower(tower, "publish", name, "dev", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["outcome"], len(said["snapshots"])) == (0, "rebased", 1)
    assert "has all that dev has" in icetower(tower, "publish", name, "dev").stdout
    (found,) = json.loads(icetower(tower, "branches", name, "--json").stdout)
    assert (found["name"], found["principal"], found["stale"], found["lacking"]) == (
        "dev",
        f"{namespace}_stale",
        True,
        0,
    )
    assert "removed" in icetower(tower, "branches", name, "--remove").stdout
    assert "dev" not in table.refresh().metadata.refs
    at = str(table.metadata.refs["main"].snapshot_id)
    assert icetower(tower, "report-check", name, at, "counts", "--passed").returncode == 0
    assert icetower(tower, "publish", name, "dev").returncode == 1


def icetower(tower: TowerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, "--uri", tower.uri),
        env={"ICETOWER_TOKEN": tower.secret, "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
