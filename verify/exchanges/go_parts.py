"""iceberg-go: namespaces, tables, commits, collisions in a forced order, contracts."""

from __future__ import annotations

from icetower.agent import keyed
from verify.exchanges.stage import Stage, rows

ADMIN = "admin"


def connected(stage: Stage) -> None:
    driver = stage.driver
    stage.step("connect")
    driver.does(do="connect", **{"as": ADMIN, "token": stage.tower.secret})
    stage.step("with a credential, and a wrong one")
    secret = stage.agent("tables: [{table: NS.*, operations: [append], partitions: all}]\n")
    driver.does(do="connect", **{"as": "agent", "credential": f"{stage.ns}-agent:{secret}"})
    driver.fails(do="connect", **{"as": "stranger", "credential": "nobody:wrong"})


def go_tables(stage: Stage) -> None:
    def does(do: str, name: str, **act: object) -> None:
        stage.driver.does(do=do, name=name, **{"as": ADMIN}, **act)

    def fails(do: str, name: str, **act: object) -> None:
        stage.driver.fails(do=do, name=name, **{"as": ADMIN}, **act)

    inner = f"{stage.ns}.inner"
    stage.step("namespaces")
    does("create namespace", inner, properties={"owner": "dana"})
    fails("create namespace", inner)
    does("namespaces", stage.ns)
    does("namespace properties", inner)
    fails("namespace properties", f"{stage.ns}.other")
    does("update namespace", inner, properties={"a": "1"}, removals=["owner"])
    does("namespace exists", inner)
    does("namespace exists", f"{stage.ns}.other")
    does("drop namespace", inner)
    fails("drop namespace", inner)
    stage.step("tables")
    does("create", stage.name(), properties={"a": "1"})
    fails("create", stage.name())
    fails("create", stage.name("bad"), properties={"icetower.misspelt": "1"})
    fails("create", "elsewhere.t")
    does("tables", stage.ns)
    does("exists", stage.name())
    does("exists", stage.name("other"))
    fails("load", stage.name("other"))
    stage.step("rename, register, drop")
    does("rename", stage.name(), to=stage.name("moved"))
    fails("rename", stage.name(), to=stage.name("again"))
    fails("register", stage.name("moved"), to=stage.name("moved"))
    does("drop", stage.name("moved"))
    fails("drop", stage.name("moved"))
    does("create", stage.name("last"))
    does("purge", stage.name("last"))


def go_commits(stage: Stage) -> None:
    driver = stage.driver
    stage.table(properties={"schema.name-mapping.default": NAMES})
    stage.table("other")
    act = {"as": ADMIN, "name": stage.name(), "region": "north"}
    stage.step("rows")
    driver.does(do="append", ids=[1, 2], **act)
    driver.does(do="overwrite", ids=[3, 4], **act)
    driver.does(do="delete", ids=[3], **act)
    stage.step("keys")
    driver.does(do="append", ids=[5], properties=keyed("once"), **act)
    driver.does(do="append", ids=[5], properties=keyed("once"), **act)
    driver.fails(do="append", ids=[6], properties={"icetower.misspelt": "1"}, **act)
    stage.step("properties, schema, rollback")
    driver.does(do="properties", properties={"a": "1"}, **act)
    driver.fails(do="properties", properties={"icetower.misspelt": "1"}, **act)
    driver.does(do="column", to="note", **act)
    driver.does(do="rollback", **act)
    stage.step("two tables")
    driver.does(do="two tables", to=stage.name("other"), properties={"b": "2"}, **act)
    driver.fails(do="two tables", to=stage.name("other"), properties={"icetower.misspelt": "2"}, **act)


def go_collisions(stage: Stage) -> None:
    driver = stage.driver
    table = stage.table(properties={"schema.name-mapping.default": NAMES})
    act = {"as": ADMIN, "name": stage.name(), "region": "north"}

    def between() -> None:
        table.refresh().append(rows(9, region="south"))

    for name, properties in (
        ("nothing declared", {}),
        ("blind", {"icetower.blind": "true"}),
        ("keyed", keyed("one")),
    ):
        stage.step(f"a stale append, {name}")
        stage.recorder.before_commit("t", between)
        driver.act(do="append", ids=[1], properties=properties, **act)
    stage.step("a stale delete")
    stage.recorder.before_commit("t", between)
    driver.act(do="delete", ids=[1], **act)
    stage.step("a delete of what another has deleted")
    stage.recorder.before_commit("t", lambda: table.refresh().delete("region == 'north'"))
    driver.act(do="delete", ids=[0], **act)
    stage.step("on a handle that was loaded before")
    driver.does(do="load", hold=True, **act)
    between()
    driver.act(do="append", ids=[2], **act)


def go_contracts(stage: Stage) -> None:
    driver = stage.driver
    stage.table(properties={"schema.name-mapping.default": NAMES})
    contract = "tables: [{table: NS.t, operations: [append], partitions: [{region: north}], write_location: table}]\n"
    driver.does(do="connect", **{"as": "bound", "token": stage.agent(contract)})
    act = {"as": "bound", "name": stage.name()}
    stage.step("inside")
    driver.does(do="append", ids=[1], region="north", **act)
    stage.step("outside")
    driver.fails(do="append", ids=[1], region="south", **act)
    driver.fails(do="delete", ids=[1], region="north", **act)
    driver.fails(do="properties", properties={"a": "1"}, **act)
    driver.fails(do="drop", **act)
    driver.fails(do="create", **{"as": "bound", "name": stage.name("new")})
    driver.fails(do="load", **{"as": "bound", "name": stage.name("other")})
    stage.step("revoked")
    stage.tower.admin.revoke_contract(f"{stage.ns}-agent")
    driver.fails(do="load", **act)


NAMES = '[{"field-id":1,"names":["id"]},{"field-id":2,"names":["region"]}]'
"""iceberg-go sets it where it is missing, with its overwrites and deletions."""

PARTS = (connected, go_tables, go_commits, go_collisions, go_contracts)
