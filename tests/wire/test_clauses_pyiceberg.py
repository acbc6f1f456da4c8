"""The clauses of a contract, with PyIceberg over the wire: what each allows, what it refuses, and its revocation."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform
from pyiceberg.typedef import Record

from icetower.agent import DataFile as FileToAppend
from icetower.agent import keyed, new_key
from icetower.errors import BadRequest, Forbidden
from tests.wire.clauses import (
    BY_DAY,
    BY_HOUR,
    BY_REGION,
    FIRST,
    NO_RETRY,
    SCHEMA,
    SNAPSHOT_LEVELS,
    Agent,
    ids,
    in_bucket,
    rows,
)
from verify.kit.tower_process import TowerProcess

Make = Callable[..., Agent]
"""An agent under a contract."""
MakeTable = Callable[..., Table]
"""The table `t` of the test's namespace, as the administrator has it."""


@pytest.fixture
def agent(tower: TowerProcess, namespace: str) -> Make:
    return lambda contract, name="agent": Agent(tower, namespace, contract, name=name)


@pytest.fixture
def table(catalog: Catalog, namespace: str) -> MakeTable:
    def make(spec: PartitionSpec = BY_REGION, *, name: str = "t", **properties: str) -> Table:
        return catalog.create_table(
            f"{namespace}.{name}", schema=SCHEMA, partition_spec=spec, properties=NO_RETRY | properties
        )

    return make


def local(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


# -- clause 1: which tables, and what to do with them -----------------------------------------------------------------


def test_clause_tables(agent: Make, table: MakeTable, catalog: Catalog, namespace: str) -> None:
    own, other = table(), table(name="other")
    catalog.create_namespace(f"{namespace}_hidden")
    bound = agent("tables: [{table: T, operations: [append], partitions: all}]\n")
    seen = bound.catalog
    # It sees its tables, and nothing of others.
    assert (namespace,) in seen.list_namespaces()
    assert (f"{namespace}_hidden",) not in seen.list_namespaces()
    assert seen.list_tables(namespace) == [(namespace, "t")]
    for call in (
        lambda: seen.load_table(f"{namespace}.other"),
        lambda: seen.load_table(f"{namespace}.not_there"),
        lambda: seen.list_tables(f"{namespace}_hidden"),
        lambda: seen.drop_table(f"{namespace}.t"),
        lambda: seen.rename_table(f"{namespace}.t", f"{namespace}.u"),
        lambda: seen.create_table(f"{namespace}.u", SCHEMA),
        lambda: seen.create_namespace(f"{namespace}_new"),
    ):
        with pytest.raises(ForbiddenError, match="contract"):
            call()
    # It appends, and does nothing else.
    bound.table().append(rows(1))
    bound.refused("contract.operation", lambda: bound.table().delete("id == 1"), "doesn't grant")
    bound.refused(
        "contract.operation", lambda: bound.table().transaction().set_properties(a="b").commit_transaction(), "alter"
    )
    refused = bound.told("POST", f"/v1/namespaces/{namespace}/tables/other", json={"requirements": [], "updates": []})
    assert (refused["code"], refused["rule"], refused["next_step"]) == (403, "contract.table", "ask_owner")
    bound.ends(lambda: bound.table().append(rows(2)))
    assert (ids(own), ids(other)) == ([1, 2], [])


# -- clause 2: which partitions ---------------------------------------------------------------------------------------

JANUARY = "{from: 2017-01-01, to: 2017-02-01}"


@pytest.mark.parametrize(
    "terms", ["at_day: {} | id_bucket: {}", "day(at): {} | 'bucket(4, id)': {}"], ids=["fields", "columns"]
)
def test_clause_partitions(agent: Make, table: MakeTable, terms: str) -> None:
    """By the names of partition fields, and by what these are of."""
    own = table(BY_DAY)
    days, buckets = terms.split(" | ")
    mine, theirs = in_bucket(1), in_bucket(2)
    bound = agent(
        "tables:\n  - table: NS.t\n    operations: [overwrite]\n    partitions:\n"
        f"      - {days.format(JANUARY)}\n        {buckets.format('[0, 1]')}\n"
    )
    for day in (0, 30.9):
        bound.table().append(rows(mine, day=day))
    for id_, day, told in ((mine, 31, "2017-02-01"), (mine, -1, "2016-12-31"), (theirs, 0, "id_bucket=2")):
        bound.refused("contract.partitions", lambda id_=id_, day=day: bound.table().append(rows(id_, day=day)), told)
    # What it removes is judged as what it adds.
    own.refresh().append(rows(theirs))
    bound.refused("contract.partitions", lambda: bound.table().delete(f"id == {theirs}"), "id_bucket=2")
    bound.refused("contract.partitions", lambda: bound.table().overwrite(rows(mine)), "id_bucket=2")
    bound.table().delete(f"id == {mine}")
    bound.ends(lambda: bound.table().append(rows(mine)))
    assert ids(own) == sorted([mine, theirs])


def test_clause_partitions_except(agent: Make, table: MakeTable) -> None:
    own = table(BY_DAY)
    bound = agent(
        f"tables:\n  - table: NS.t\n    operations: [append]\n    partitions: [{{day(at): {JANUARY}}}]\n"
        "    except: [{day(at): 2017-01-15}, {day(at): {from: 2017-01-20}, 'bucket(4, id)': 2}]\n"
    )
    bound.table().append(rows(in_bucket(2), day=13))
    bound.table().append(rows(in_bucket(1), day=20))
    for id_, day in ((in_bucket(1), 14), (in_bucket(2), 20)):
        bound.refused("contract.partitions", lambda id_=id_, day=day: bound.table().append(rows(id_, day=day)))
    bound.ends(lambda: bound.table().append(rows(in_bucket(3), day=1)))
    assert len(ids(own)) == 3


def test_clause_partitions_relative_to_now(agent: Make, table: MakeTable) -> None:
    own = table(BY_HOUR)
    bound = agent(
        "tables:\n  - table: NS.t\n    operations: [append]\n    pattern: scheduler\n"
        "    partitions: [{at_hour: {from: now, to: now+2h}}]\n"
    )

    def send(hours: int) -> None:
        bound.table().append(rows(hours, at=dt.datetime.now(dt.UTC).replace(tzinfo=None) + dt.timedelta(hours=hours)))

    for hours in (-2, 3):
        bound.refused("contract.slot", lambda hours=hours: send(hours), "at_hour=")
    bound.ends(lambda: send(1))
    assert ids(own) == [1]


def test_clause_partitions_after_the_tables_spec_evolved(agent: Make, table: MakeTable) -> None:
    """Rows are owned, and not names of partitions: an hour tells its day, and nothing tells nothing."""
    own = table(BY_DAY)
    bound = agent(f"tables:\n  - {{table: T, operations: [append], partitions: [{{day(at): {JANUARY}}}]}}\n")
    with own.update_spec() as change:
        change.remove_field("at_day")
        change.add_field("at", HourTransform(), "at_hour")
    bound.table().append(rows(1, day=3.5))
    bound.refused("contract.partitions", lambda: bound.table().append(rows(2, day=31)), "at_hour=2017-02-01-00")
    with own.update_spec() as change:
        change.remove_field("at_hour")
        change.add_identity("region")
    bound.refused("contract.undecided", lambda: bound.table().append(rows(3)), "has no field of the column at")
    with own.update_spec() as change:
        change.remove_field("region")
        change.add_field("at", "day", "day_again")
    bound.ends(lambda: bound.table().append(rows(4)))
    assert ids(own) == [1, 4]


# -- clause 4: idempotency --------------------------------------------------------------------------------------------


def test_clause_idempotency(agent: Make, table: MakeTable, tower: TowerProcess) -> None:
    own = table()
    clause = "tables: [{table: T, operations: [append], partitions: all}]\nidempotency: {required: true"
    bound = agent(clause + ", how: [summary, sequence], window: 1h}\n")
    bound.refused("contract.key", lambda: bound.table().append(rows(1)), "icetower.idempotency-key")
    by_header = tower.catalog(bound.secret, **{"header.Idempotency-Key": new_key()}).load_table(f"{bound.namespace}.t")
    bound.refused("contract.key", lambda: by_header.append(rows(1)), "icetower.application")
    key = keyed(new_key())
    for _ in range(2):
        bound.table().append(rows(2), snapshot_properties=key)
    numbered = {"icetower.application": "nightly", "icetower.sequence": "7"}
    for _ in range(2):
        bound.table().append(rows(3), snapshot_properties=numbered)
    assert [outcome for outcome, _ in bound.attempts()][2:] == ["direct", "replayed"] * 2

    bound.change(clause + ", how: [header]}\n")
    by_header.refresh()
    by_header.append(rows(4))
    bound.refused("contract.key", lambda: bound.table().append(rows(5)), "Idempotency-Key")
    bound.ends(lambda: bound.table().append(rows(6), snapshot_properties=keyed(new_key())))
    assert ids(own) == [2, 3, 4, 6]
    # The tower keeps keys for a day.
    with pytest.raises(BadRequest) as long:
        bound.change(clause + ", window: 2d}\n")
    assert (long.value.rule, long.value.next_step) == ("contract.window", "fix_request")
    bound.change(clause + ", window: 24h}\n")


def test_clause_idempotency_what_has_landed_is_told_so_whatever_is_owned_by_now(agent: Make, table: MakeTable) -> None:
    """A slot passes, partitions change hands: sent again, a commit and an append are done all the same."""
    own = table()
    granted = "tables: [{table: T, operations: [append], partitions: [{region: %s}], write_location: table}]\n"
    bound = agent(granted % "north")
    path = local(own.location()) / "data" / "landed.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(rows(1).cast(schema_to_pyarrow(own.schema())), path)
    file, key, marks = FileToAppend.of_parquet(path, partition={"region": "north"}), new_key(), keyed(new_key())
    with bound.sdk() as sdk:
        assert sdk.append(f"{bound.namespace}.t", [file], key=key).outcome == "appended"
        bound.table().append(rows(2), snapshot_properties=marks)
        bound.change(granted % "south")
        assert sdk.append(f"{bound.namespace}.t", [file], key=key).outcome == "replayed"
        bound.table().append(rows(2), snapshot_properties=marks)
        with pytest.raises(Forbidden):
            sdk.append(f"{bound.namespace}.t", [file], key=new_key())
    assert bound.attempts()[-2:] == [("replayed", None), ("refused", "contract.partitions")]
    assert ids(own) == [1, 2]


# -- clause 5: orphans, by where an agent's files lie -----------------------------------------------------------------


def places(table: Table) -> set[str]:
    """The directories of live files, below the table's."""
    data = local(table.location()) / "data"
    found = table.refresh().inspect.files()["file_path"].to_pylist()
    return {local(path).relative_to(data).parts[0] for path in found}


def test_clause_write_location(agent: Make, table: MakeTable, tower: TowerProcess, namespace: str) -> None:
    own = table(**{"schema.name-mapping.default": SCHEMA.name_mapping.model_dump_json()})
    clause = "tables: [{table: T, operations: [append, delete, overwrite], partitions: all}]\n"
    one, two = agent(clause, "one"), agent(clause, "two")
    free = agent(clause.replace("partitions", "write_location: table, partitions"), "free")
    reader = agent("reads: [NS.*]\n", "reader")
    url = f"/v1/namespaces/{namespace}/tables/t"
    told: dict[str, Any] = {}
    for who in (one, two, free, reader):
        with tower.client(who.secret) as http:
            answer = http.get(url)
            properties = answer.json()["metadata"]["properties"]
            told[who.name] = (properties.get("write.data.path"), answer.headers["etag"])
            assert http.get(url, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    data = f"{own.location()}/data"
    assert [path for path, _ in told.values()] == [f"{data}/{one.name}", f"{data}/{two.name}", None, None]
    assert len({etag for _, etag in told.values()}) == 4

    # Its files go there by themselves, those that a commit's answer leads to included.
    writing = one.table()
    writing.append(rows(1))
    assert writing.metadata.properties["write.data.path"] == f"{data}/{one.name}"
    writing.append(rows(2))
    two.table().overwrite(rows(3, 4), "id == 2")
    assert places(own) == {one.name, two.name}
    free.table().append(rows(5))
    assert places(own) == {one.name, two.name, "region=north"}
    assert "write.data.path" not in own.refresh().properties

    # A file elsewhere is refused: in another's place, beside the places, and outside of the table.
    source = local(own.refresh().inspect.files()["file_path"].to_pylist()[0])

    def add(name: str, who: Agent = one) -> None:
        path = local(own.location()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.read_bytes())
        who.table().add_files([f"file://{path}"], check_duplicate_files=False)

    for name in (f"data/{two.name}/x.parquet", "data/x.parquet", "x.parquet", "../outside.parquet"):
        one.refused("contract.location", lambda name=name: add(name), "doesn't lie under")
    free.refused("contract.location", lambda: add("../outside.parquet", free), "where the table's go")
    add("x.parquet", free)
    one.ends(lambda: add(f"data/{one.name}/deep/down/y-{new_key()}.parquet"))


def test_clause_write_location_of_a_table_that_is_created_with_its_rows(
    agent: Make, catalog: Catalog, namespace: str
) -> None:
    """A staged creation hears its place, and sends it back with the table's properties; the table keeps none of it."""
    bound = agent("tables: [{table: T, operations: [create, append], partitions: all}]\n")
    with bound.catalog.create_table_transaction(f"{namespace}.t", SCHEMA, properties={"a": "b"}) as creation:
        assert creation.table_metadata.properties["write.data.path"].endswith(f"/data/{bound.name}")
        creation.append(rows(1))
    created = catalog.load_table(f"{namespace}.t")
    assert (created.properties["a"], ids(created), places(created)) == ("b", [1], {bound.name})
    assert "write.data.path" not in created.properties
    bound.ends(lambda: bound.table().append(rows(2)))


# -- clause 6: revocation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [0, 2])
def test_clause_retries(agent: Make, table: MakeTable, attempts: int) -> None:
    """PyIceberg sends a commit as often as the contract says, whatever the table says, which stays as it is."""
    own = table(**{"commit.retry.num-retries": "9"})
    clause = f"retries: {{attempts: {attempts}, min_wait: 1ms, max_wait: 5ms}}\n"
    bound = agent("tables: [{table: T, operations: [append], partitions: all}]\n" + clause)
    theirs = bound.table()
    assert theirs.properties["commit.retry.num-retries"] == str(attempts)
    assert theirs.properties["write.distribution-mode"] == "hash"
    send, sent = theirs.catalog.commit_table, list[int]()

    def overtaken(*arguments: Any, **options: Any) -> Any:
        sent.append(1)
        own.refresh().append(rows(9))
        return send(*arguments, **options)

    theirs.catalog.commit_table = overtaken  # type: ignore[method-assign]
    with pytest.raises(CommitFailedException):
        theirs.append(rows(1))
    assert len(sent) == attempts + 1
    kept = own.refresh().properties
    assert (kept["commit.retry.num-retries"], "write.distribution-mode" in kept) == ("9", False)


def test_clause_revocation(agent: Make, table: MakeTable) -> None:
    """By whom the contract names, without a word to anybody else; what is under way elsewhere goes on."""
    own = table()
    granted = "tables: [{table: T, operations: [append], partitions: all}]\n"
    oncall = agent("reads: [nothing.*]\n", "oncall")
    wild = agent(granted + f"revocation: {{by: [{oncall.name}]}}\n", "wild")
    good = agent(granted, "good")
    handles = {who.name: who.table() for who in (wild, good)}
    for handle in handles.values():
        handle.refresh().append(rows(1))
    with oncall.sdk() as person:
        with pytest.raises(Forbidden):
            person.revoke_contract(good.name)
        person.revoke_contract(wild.name)
    with pytest.raises(ForbiddenError, match="was revoked"):
        handles[wild.name].append(rows(2))
    with pytest.raises(ForbiddenError, match="was revoked"):
        wild.table()
    handles[good.name].refresh().append(rows(3))
    assert ids(own) == [1, 1, 3]


# -- operations, isolation, pattern, quotas, proof, words -------------------------------------------------------------


def stale(bound: Agent, other: Table, id_: int, *, region: str = "south", own: str = "north") -> tuple[str, str | None]:
    """How an append ends on a table that has moved since it was loaded."""
    handle = bound.table()
    other.refresh().append(rows(100 + id_, region=region))
    try:
        handle.append(rows(id_, region=own))
    except Exception as error:  # noqa: BLE001 - what became of it is told by the log
        assert "409" in str(error) or "moved on" in str(error) or "conflicts" in str(error), error  # noqa: PT017
    return bound.attempts()[-1]


GRANTED = "tables: [{table: T, operations: [append], partitions: all"
WORDS = [
    # the clause, the table's own levels, how a stale append ends, and what follows from others' rows in its region
    ("", {}, ("conflict", "rebase.not-blind")),
    ("", SNAPSHOT_LEVELS, ("rebased", None)),
    (", isolation: snapshot", {}, ("rebased", None)),
    (", isolation: serializable", SNAPSHOT_LEVELS, ("conflict", "rebase.not-blind")),
    (", blind_appends: true", {}, ("rebased", None)),
    (", blind_appends: true, strict: true", {}, ("conflict", "rebase.strict")),
    (", read_scope: owned", {}, ("conflict", "conflict.C1")),  # it owns every partition
]


@pytest.mark.parametrize(("clause", "properties", "outcome"), WORDS, ids=map(str, range(len(WORDS))))
def test_clauses_isolation_blind_appends_strict_and_read_scope(
    agent: Make, table: MakeTable, clause: str, properties: dict[str, str], outcome: tuple[str, str | None]
) -> None:
    """A stale append goes in by the contract's word, and is held up by it."""
    own = table(**properties)
    own.append(rows(0))
    bound = agent(f"{GRANTED}{clause}}}]\n")
    assert stale(bound, own, 1) == outcome
    bound.change(f"{GRANTED}}}]\n")  # the word is taken back
    assert stale(bound, own, 2) == (("rebased", None) if properties else ("conflict", "rebase.not-blind"))
    bound.ends(lambda: bound.table().append(rows(3)))
    assert 3 in ids(own)


def test_clause_read_scope(agent: Make, table: MakeTable) -> None:
    """Rows that came into its own partitions stand against it, and those in others don't."""
    own = table()
    own.append(rows(0))
    bound = agent("tables:\n  - {table: T, operations: [append], partitions: [{region: north}], read_scope: owned}\n")
    assert stale(bound, own, 1, region="south") == ("rebased", None)
    assert stale(bound, own, 2, region="north") == ("conflict", "conflict.C1")
    (newest,) = bound.tower.admin.commits(limit=1, refused=True)
    assert (newest["rule"], newest["partitions"]) == ("conflict.C1", ["region=north"])
    (line,) = [line for line in bound.tower.log.read_text().splitlines() if newest["request_id"] in line]
    assert "event=conflict" in line
    assert 'partitions="region=north"' in line
    bound.refused("contract.partitions", lambda: bound.table().append(rows(3, region="south")))
    bound.ends(lambda: bound.table().append(rows(4)))


def test_clause_pattern(agent: Make, table: MakeTable) -> None:
    """A mediator's agents append to the log; how their rows come into the table from there, Spark's tests show."""
    own, log = table(), table(name="t_wal")
    bound = agent(
        "tables:\n  - {table: T, operations: [append], partitions: all, pattern: mediator}\n"
        "  - {table: NS.t_wal, operations: [append], partitions: all}\n"
    )
    bound.table("t_wal").append(rows(1))
    bound.refused("contract.pattern", lambda: bound.table().append(rows(1)), "write-ahead log alone")
    bound.ends(lambda: bound.table("t_wal").append(rows(2)))
    assert (ids(own), ids(log)) == ([], [1, 2])


def test_clause_quotas(agent: Make, table: MakeTable, tower: TowerProcess) -> None:
    own = table(**{"write.parquet.compression-codec": "uncompressed"})
    bound = agent(f"{GRANTED}, quotas: {{files_per_commit: 2, bytes_per_commit: 8KiB}}}}]\n")

    def regions(*names: str) -> pa.Table:
        return pa.concat_tables([rows(1, region=region) for region in names])

    bound.table().append(regions("a", "b"))
    bound.refused("contract.quota", lambda: bound.table().append(regions("a", "b", "c")), "3 files.*2 .files_per")
    bound.refused("contract.quota", lambda: bound.table().append(rows(*range(2_000))), "bytes_per_commit")
    bound.change(f"{GRANTED}, quotas: {{commits_per_minute: 2}}}}]\n")
    bound.table().append(rows(2))
    bound.table().append(rows(3))
    before_ms = bound.tower.admin.commits(limit=1)[0]["at_ms"]
    bound.refused("contract.quota", lambda: bound.table().append(rows(4)), "commits_per_minute")
    again = bound.told("POST", f"/v1/namespaces/{bound.namespace}/tables/t", json={"requirements": [], "updates": []})
    assert (again["code"], again["next_step"]) == (409, "wait_until")
    assert before_ms + 30_000 < again["wait_until_ms"] <= before_ms + 61_000
    bound.change(f"{GRANTED}}}]\n")
    bound.ends(lambda: bound.table().append(rows(5)))
    assert ids(own) == [1, 1, 2, 3, 5]


def test_a9_clause_quotas_count_what_pyiceberg_sends_again_by_itself_once(agent: Make, table: MakeTable) -> None:
    """Two appends under a quota of two, each refused first because its base is stale."""
    own = table(**{"commit.retry.num-retries": "4", "commit.retry.min-wait-ms": "1"})
    bound = agent(f"{GRANTED}, quotas: {{commits_per_minute: 2}}}}]\n")
    for id_ in (1, 2):
        stale = bound.table()
        own.refresh().append(rows(100 + id_, region="south"))
        stale.append(rows(id_))
    assert bound.attempts() == [("conflict", "rebase.not-blind"), ("direct", None)] * 2
    assert ids(own) == [1, 2, 101, 102]
    bound.refused("contract.quota", lambda: bound.table().append(rows(3)), "commits_per_minute")
    assert {outcome for outcome, rule in bound.attempts() if rule == "contract.quota"} == {"refused"}


FIELDS = (
    "content",
    "file_path",
    "file_format",
    "partition",
    "record_count",
    "file_size_in_bytes",
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
    "split_offsets",
)


def test_clause_prove_partitions(agent: Make, table: MakeTable) -> None:
    """A partition that the file's own statistics contradict, or do not prove, is refused."""
    own = table(BY_DAY)
    granted = "tables:\n  - {table: T, operations: [append], partitions: [{day(at): 2017-01-01}]"
    bound = agent(f"{granted}, prove_partitions: true}}\n")

    def send(written: Any, **lies: Any) -> None:
        handle = bound.table()
        (file,) = _dataframe_to_data_files(handle.metadata, written, handle.io)
        told = {name: getattr(file, name) for name in FIELDS}
        lying = DataFile.from_args(_table_format_version=2, **(told | lies))
        lying.spec_id = handle.metadata.default_spec_id
        with handle.transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
            producer.append_data_file(lying)

    send(rows(1, 1, 1))
    lie = Record((FIRST - dt.datetime(1970, 1, 1)).days, 1)  # noqa: DTZ001
    bound.refused("append.partition", lambda: send(rows(in_bucket(1), day=5), partition=lie), "at_day")
    bound.refused("append.unproven", lambda: send(rows(in_bucket(1), in_bucket(1, nth=1))), "id_bucket")
    bound.change(f"{granted}}}\n")
    send(rows(in_bucket(1), day=5), partition=lie)  # believed: a lie that nobody asked to have proven
    send(rows(in_bucket(1), in_bucket(1, nth=1)))
    bound.ends(lambda: bound.table().append(rows(9)))
    assert len(ids(own)) == 3 + 1 + 2 + 1


def test_clause_prove_partitions_of_a_table_that_is_created_with_its_rows(agent: Make, namespace: str) -> None:
    """By the specs that it is created with."""
    bound = agent("tables: [{table: NS.*, operations: [create, append], partitions: all, prove_partitions: true}]\n")

    def create(name: str, *row_ids: int) -> None:
        with bound.catalog.create_table_transaction(f"{namespace}.{name}", SCHEMA, partition_spec=BY_DAY) as creation:
            creation.append(rows(*row_ids))

    two = (in_bucket(1), in_bucket(1, nth=1))
    bound.refused("append.unproven", lambda: create("unproven", *two), "id_bucket", name="unproven")
    create("proven", two[0])
    assert bound.catalog.list_tables(namespace) == [(namespace, "proven")]
    bound.ends(lambda: bound.table("proven").append(rows(two[1])))
