"""PyIceberg and plain HTTP: commits, collisions in a forced order, keys, contracts, several tables at once."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyiceberg.types import StringType

from icetower.agent import keyed, new_key, reads
from verify.exchanges.stage import Stage, fails, rows

NORTH = "tables: [{table: NS.t, operations: [%s], partitions: [{region: north}]%s}]\n"
KEY = "icetower.idempotency-key"


def commits(stage: Stage) -> None:
    stage.table()
    table = stage.catalog().load_table(stage.name())
    stage.step("rows")
    table.append(rows(1, 2))
    table.overwrite(rows(3), overwrite_filter="id == 1")
    table.delete("id == 2")
    table.upsert(rows(3, 4), join_cols=["id"])
    table.append(rows(5, region="south"))
    table.dynamic_partition_overwrite(rows(6, region="south"))
    stage.step("properties and schema")
    with table.transaction() as change:
        change.set_properties({"a": "1", "b": "2"})
    with table.transaction() as change:
        change.remove_properties("b")
    with table.update_schema() as schema:
        schema.add_column("note", StringType())
    with table.update_spec() as spec:
        spec.add_field("id", "identity", "id_part")
    stage.step("branches, tags and expiry")
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_branch(head, "audit").create_tag(head, "start").commit()
    table.append(rows(7), branch="audit")
    table.append(rows(8))
    table.manage_snapshots().remove_tag("start").commit()
    first = table.metadata.snapshots[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    table.manage_snapshots().rollback_to_snapshot(head).commit()
    stage.step("refused for everybody")
    for name, value in (("icetower.misspelt", "1"), ("write.location-provider.impl", "a.B")):
        change = table.transaction().set_properties({name: value})
        fails(change.commit_transaction)
    fails(lambda: table.append(rows(9), snapshot_properties={"icetower.misspelt": "1"}))
    fails(lambda: table.append(rows(9), snapshot_properties={KEY: ""}))
    stage.step("a summary key that is the tower's alone")
    table.append(rows(9), snapshot_properties={"icetower.principal": "other"})


def collisions(stage: Stage) -> None:
    """Two writers with one base; the second commits after the first, in every way."""
    stage.table()
    catalog = stage.catalog()

    stage.step("a stale append, with nothing declared")
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.append(rows(1))
    fails(lambda: other.append(rows(2)))
    stage.step("a stale append that is blind")
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.append(rows(3))
    other.append(rows(4), snapshot_properties=keyed(new_key(), blind=True))
    stage.step("a stale delete, with what it has read declared")
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.append(rows(5, region="south"))
    other.delete("id == 1", snapshot_properties=reads(other, "region = 'north'"))
    stage.step("a stale delete, and another in what it has read")
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.append(rows(6))
    fails(lambda: other.delete("id == 3", snapshot_properties=reads(other, "region = 'north'")))
    stage.step("two deletes of one row")
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.delete("id == 4")
    fails(lambda: other.delete("id == 4", snapshot_properties={"icetower.isolation-level": "snapshot"}))
    stage.step("a stale change of the schema")
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    with one.update_schema() as schema:
        schema.add_column("a", StringType())
    change = other.update_schema()
    change.add_column("b", StringType())
    fails(change.commit)
    stage.step("a stale rollback")
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.append(rows(7))
    first = one.metadata.snapshots[0].snapshot_id
    fails(lambda: other.manage_snapshots().rollback_to_snapshot(first).commit())
    stage.step("a table whose appends are all blind")
    with catalog.load_table(stage.name()).transaction() as declared:
        declared.set_properties({"icetower.blind-appends": "true"})
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.append(rows(8))
    other.append(rows(9))
    stage.step("a strict table")
    with catalog.load_table(stage.name()).transaction() as declared:
        declared.set_properties({"icetower.strict": "true"})
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    one.append(rows(10))
    fails(lambda: other.append(rows(11)))


def retries(stage: Stage) -> None:
    """PyIceberg's own retries on 409."""
    stage.table(
        properties={"commit.retry.num-retries": "3", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}
    )
    catalog = stage.catalog()
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    stage.step("the first")
    one.append(rows(1))
    stage.step("the second, which retries")
    other.append(rows(2))
    one, other = catalog.load_table(stage.name()), catalog.load_table(stage.name())
    stage.step("a delete of what another has deleted")
    one.delete("id == 2")
    fails(lambda: other.delete("id == 2"))


def read_scope(stage: Stage) -> None:
    """Two agents with a partition each, which read their own partitions only."""
    stage.table()
    contract = "tables: [{table: NS.t, operations: [overwrite], partitions: [{region: %s}], read_scope: owned}]\n"
    north, south = (stage.agent(contract % each, each) for each in ("north", "south"))
    one = stage.catalog(north).load_table(stage.name())
    other = stage.catalog(south).load_table(stage.name())
    stage.step("the one")
    one.overwrite(rows(1), overwrite_filter="region == 'north'")
    stage.step("the other, stale")
    other.overwrite(rows(2, region="south"), overwrite_filter="region == 'south'")
    stage.step("two of one agent")
    again = stage.catalog(north).load_table(stage.name())
    one.refresh().append(rows(3))
    fails(lambda: again.delete("id == 1"))
    stage.step("the other's partition")
    fails(lambda: one.refresh().append(rows(4, region="south")))


def keys(stage: Stage) -> None:
    stage.table(properties={"icetower.blind-appends": "true"})
    catalog = stage.catalog()
    key = keyed(new_key())
    stage.step("once, and again")
    catalog.load_table(stage.name()).append(rows(1), snapshot_properties=key)
    catalog.load_table(stage.name()).append(rows(1), snapshot_properties=key)
    stage.step("one application, two writes under a key")
    table = catalog.load_table(stage.name())
    table.append(rows(2), snapshot_properties=keyed("session") | {"app-id": "one"})
    fails(lambda: table.append(rows(3), snapshot_properties=keyed("session") | {"app-id": "one"}))
    stage.step("numbered")
    for number in ("1", "2", "2", "1"):
        numbers = {"icetower.application": "app", "icetower.sequence": number}
        catalog.load_table(stage.name()).append(rows(4), snapshot_properties=numbers)
    fails(lambda: catalog.load_table(stage.name()).append(rows(4), snapshot_properties={"icetower.sequence": "3"}))
    stage.step("rolled back")
    table = catalog.load_table(stage.name())
    before = table.metadata.current_snapshot_id
    assert before is not None
    table.append(rows(5), snapshot_properties=keyed("gone"))
    table.manage_snapshots().rollback_to_snapshot(before).commit()
    fails(lambda: catalog.load_table(stage.name()).append(rows(5), snapshot_properties=keyed("gone")))
    stage.step("by the header")
    path = f"/v1/namespaces/{stage.ns}/tables/t"
    with stage.http() as http:
        change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
        other = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "2"}}]}
        header = {"Idempotency-Key": new_key()}
        http.post(path, json=change, headers=header)
        http.post(path, json=change, headers=header)
        http.post(path, json=other, headers=header)
        http.post(path, json=other, headers={"Idempotency-Key": "no uuid"})
        made = {"namespace": [stage.ns, "made"], "properties": {}}
        header = {"Idempotency-Key": new_key()}
        http.post("/v1/namespaces", json=made, headers=header)
        http.post("/v1/namespaces", json=made, headers=header)
        header = {"Idempotency-Key": new_key()}
        http.delete(f"/v1/namespaces/{stage.ns}%1Fmade", headers=header)
        http.delete(f"/v1/namespaces/{stage.ns}%1Fmade", headers=header)


def contracts(stage: Stage) -> None:
    stage.table()
    stage.table("other")
    stage.agent("tables: [{table: NS.t, operations: [append], partitions: [{region: [south]}]}]\n", "neighbour")
    table = stage.catalog(stage.agent(NORTH % ("append", ", quotas: {files_per_commit: 1}"))).load_table(stage.name())
    stage.step("its own partition")
    table.append(rows(1))
    stage.step("another's partition, and one that is nobody's")
    fails(lambda: table.append(rows(2, region="south")))
    fails(lambda: table.append(rows(2, region="west")))
    stage.step("another operation")
    fails(lambda: table.delete("id == 1"))
    stage.step("too many files")
    fails(lambda: table.append(rows(1).cast(table.schema().as_arrow()), snapshot_properties={"icetower.ref": "x"}))
    change = table.transaction()
    change.append(rows(3))
    change.append(rows(4))
    fails(change.commit_transaction)
    stage.step("shared things")
    for name in ("write.parquet.compression-codec", "location", "s3.endpoint", "history.expire.max-snapshot-age-ms"):
        other = table.transaction().set_properties({name: "1"})
        fails(other.commit_transaction)
    head = table.metadata.current_snapshot_id
    assert head is not None
    fails(lambda: table.manage_snapshots().create_tag(head, "mine").commit())
    fails(lambda: table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit())
    fails(lambda: table.update_schema().add_column("x", StringType()).commit())
    stage.step("a key is required")
    must = stage.catalog(stage.agent("idempotency: {required: true}\n" + NORTH % ("append", ""), "keyed"))
    fails(lambda: must.load_table(stage.name()).append(rows(5)))
    must.load_table(stage.name()).append(rows(5), snapshot_properties=keyed(new_key()))
    stage.step("a table that it does not name")
    fails(lambda: must.load_table(stage.name("other")))
    stage.step("revoked, and restored")
    stage.tower.admin.revoke_contract(f"{stage.ns}-keyed")
    fails(lambda: must.load_table(stage.name()))
    stage.tower.admin.restore_contract(f"{stage.ns}-keyed")
    must.load_table(stage.name())


def shadow(stage: Stage) -> None:
    stage.table()
    name = f"{stage.ns}-agent"
    table = stage.catalog(stage.agent("mode: shadow\n" + NORTH % ("append", ""))).load_table(stage.name())
    stage.step("inside and outside of its contract")
    table.append(rows(1))
    table.append(rows(2, region="south"))
    table.delete("id == 1")
    table.transaction().set_properties({"a": "b"}).commit_transaction()
    with stage.sdk() as admin:
        stage.step("the report")
        admin.shadow_report(name)
        stage.step("enforced")
        stage.tower.admin.apply_contract(
            f"version: 1\nagent: {name}\n" + (NORTH % ("append", "")).replace("NS", stage.ns)
        )
        fails(lambda: table.append(rows(3, region="south")))
        admin.shadow_report(name)


def several_tables(stage: Stage) -> None:
    tables = [stage.table(name) for name in ("t", "other")]

    def change(name: str, at: int, *requirements: Mapping[str, object]) -> dict[str, object]:
        update = {"action": "set-properties", "updates": {"number": str(at)}}
        return {
            "identifier": {"namespace": [stage.ns], "name": name},
            "requirements": [*requirements],
            "updates": [update],
        }

    path = "/v1/transactions/commit"
    with stage.http() as http:
        stage.step("both")
        uuid = {"type": "assert-table-uuid", "uuid": str(tables[0].metadata.table_uuid)}
        http.post(path, json={"table-changes": [change("t", 1, uuid), change("other", 1)]})
        stage.step("one of them stale")
        wrong = {"type": "assert-table-uuid", "uuid": str(tables[1].metadata.table_uuid)}
        http.post(path, json={"table-changes": [change("t", 2, wrong), change("other", 2)]})
        stage.step("one of them missing, one twice, none")
        http.post(path, json={"table-changes": [change("t", 2), change("missing", 2)]})
        http.post(path, json={"table-changes": [change("t", 2), change("t", 3)]})
        http.post(path, json={"table-changes": []})
        stage.step("again under its key")
        header = {"Idempotency-Key": new_key()}
        for _ in range(2):
            http.post(path, json={"table-changes": [change("t", 4), change("other", 4)]}, headers=header)
    contract = "tables: [{table: NS.t, operations: [alter], partitions: all}]\n"
    with stage.http(stage.agent(contract)) as http:
        stage.step("as an agent, of one of them")
        http.post(path, json={"table-changes": [change("t", 5), change("other", 5)]})
        http.post(path, json={"table-changes": [change("t", 5)]})


def malformed(stage: Stage) -> None:
    """Commits that no library sends."""
    table = stage.table()
    path = f"/v1/namespaces/{stage.ns}/tables/t"
    base = {"snapshot-id": 1, "parent-snapshot-id": table.metadata.current_snapshot_id, "sequence-number": 2}
    added = base | {"timestamp-ms": 1, "manifest-list": f"{table.location()}/metadata/none.avro"}
    whole = added | {"summary": {"operation": "append"}, "schema-id": 0}
    updates: list[dict[str, object]] = [
        {"action": "no-such-update"},
        {"action": "set-properties"},
        {"action": "add-snapshot", "snapshot": added},
        {"action": "add-snapshot", "snapshot": whole},
        {"action": "add-snapshot", "snapshot": whole | {"manifest-list": "file:///elsewhere/none.avro"}},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 12345},
        {"action": "remove-snapshots", "snapshot-ids": [table.metadata.current_snapshot_id]},
        {"action": "set-current-schema", "schema-id": 7},
        {"action": "assign-uuid", "uuid": "0"},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "set-location", "location": "s3://elsewhere/t"},
    ]
    requirements: list[dict[str, object]] = [
        {"type": "no-such-requirement"},
        {"type": "assert-create"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5},
        {"type": "assert-current-schema-id", "current-schema-id": 9},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 9},
        {"type": "assert-default-spec-id", "default-spec-id": 9},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 9},
        {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"},
    ]
    with stage.http() as http:
        for update in updates:
            stage.step(f"update {update['action']}")
            http.post(path, json={"requirements": [], "updates": [update]})
        fine = {"action": "set-properties", "updates": {"a": "1"}}
        for requirement in requirements:
            stage.step(f"requirement {requirement['type']}")
            http.post(path, json={"requirements": [requirement], "updates": [fine]})
        stage.step("bodies")
        for body in (b"", b"{", b"[]", b"{}", json.dumps({"updates": "x"}).encode(), b'{"updates": [1]}'):
            http.post(path, content=body, headers={"Content-Type": "application/json"})
        http.post(path.replace("/t", "/missing"), json={"requirements": [], "updates": [fine]})


PARTS = (commits, collisions, retries, read_scope, keys, contracts, shadow, several_tables, malformed)
