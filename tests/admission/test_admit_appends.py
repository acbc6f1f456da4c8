"""Appends by the fast path: what is asked before a file is opened, and what may be said when it was."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from icetower.admission.appends import AppendFacts, admitted, check_proofs, fingerprint, key_of
from icetower.admission.gate import APPEND_CHECKS, ask
from icetower.admission.identity import Identity
from icetower.contracts.document import load
from icetower.errors import IcetowerError
from icetower.files.footers import Verified
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.manifests import DataFile
from icetower.iceberg.record_sizes import PARTITION_VALUE_MAX_BYTES
from icetower.protocol.appends import AppendRequest, FileDescriptor
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal, administrator
from icetower.table.head import HeadState

TABLE = Identifier(("db",), "t")
COLUMNS = [
    ("id", "long"),
    ("day", "date"),
    ("at", "timestamp"),
    ("price", "decimal(9, 2)"),
    ("name", "string"),
    ("flag", "boolean"),
    ("x", "double"),
    ("u", "uuid"),
    ("blob", "binary"),
    ("ns", "timestamptz_ns"),
]


def head(*partitions: tuple[str, str], **properties: str) -> HeadState:
    """A table partitioned by (column, transform)."""
    ids = {name: n for n, (name, _) in enumerate(COLUMNS, 1)}
    metadata = table_metadata.new_table(
        uuid="u-1",
        location="file:///w/t",
        schema={
            "type": "struct",
            "fields": [{"id": ids[name], "name": name, "type": kind, "required": False} for name, kind in COLUMNS],
        },
        spec={
            "fields": [
                {"name": f"{name}_{transform.split('[')[0]}", "transform": transform, "source-id": ids[name]}
                for name, transform in partitions
            ]
        },
        sort_order=None,
        properties={"format-version": "3", **properties},
        now_ms=1_000,
    )
    return HeadState("file:///w/t/metadata/00000-a.metadata.json", metadata)


def agent(*rules: str) -> Principal:
    text = "version: 1\nagent: ann\ntables:\n" + "".join(
        f"  - {{table: db.t, operations: [append], write_location: table{r}}}\n" for r in rules
    )
    return Principal("ann", load(text, source="test"), 3)


def descriptor(name: str = "a.parquet", partition: Any = (), **changed: Any) -> FileDescriptor:
    given = {"path": f"file:///w/t/data/{name}", "record_count": 1, "size_bytes": 100, "spec_id": None} | changed
    return FileDescriptor(partition=partition, sort_order_id=None, nan_value_counts={}, **given)


def request(*files: FileDescriptor, ref: str = "main", key: str | None = None, **given: Any) -> AppendRequest:
    return AppendRequest(ref, files or (descriptor(),), key, given.get("application"))


def asked(
    principal: Principal, what: AppendRequest, *, table: HeadState | None = None, key: str | None = None
) -> AppendFacts:
    identity = Identity.of_append(principal.name, what.ref, key_of(what, key), what.application)
    facts = AppendFacts(principal, TABLE, table or head(), what, identity, now_ms=0)
    ask(APPEND_CHECKS, facts)
    return facts


def refusal(principal: Principal, what: AppendRequest, **given: Any) -> tuple[int, str]:
    with pytest.raises(IcetowerError) as refused:
        asked(principal, what, **given)
    return refused.value.status, refused.value.rule


def found(asked: AppendFacts, *unproven: str) -> list[Verified]:
    return [
        Verified(DataFile(0, c.path, "PARQUET", c.partition, 1, 100, None, None, {}), c.spec.spec_id, unproven)
        for c in asked.claims
    ]


ADMIN = administrator("root")
EVERYWHERE = agent(", partitions: all")


def test_what_the_engine_is_handed() -> None:
    what = request(descriptor("a"), descriptor("b"), key="k", application=("ingest", 7))
    done = asked(EVERYWHERE, what)
    member = admitted(done, found(done))
    assert (member.principal, member.contract, member.contract_version) == ("ann", "ann", 3)
    assert (member.ref, member.key, member.application, member.table_uuid) == ("main", "k", ("ingest", 7), "u-1")
    assert [(t.file.path, t.spec_id, t.sequence_number) for t in member.files] == [
        ("file:///w/t/data/a", 0, None),
        ("file:///w/t/data/b", 0, None),
    ]


def test_a_fingerprint_stands_for_the_files_in_whatever_order() -> None:
    assert fingerprint(["a", "b"]) == fingerprint(["b", "a"]) != fingerprint(["a", "c"])


def test_keys_of_header_and_body_are_one() -> None:
    assert asked(ADMIN, request(key="k")).identity.key == "k"
    assert asked(ADMIN, request(), key="h").identity.key == "h"
    assert asked(ADMIN, request(key="k"), key="k").identity.key == "k"
    assert refusal(ADMIN, request(key="k"), key="h") == (422, "key")


def test_a_contract_may_require_a_key_or_a_number() -> None:
    strict = agent(", partitions: all, require_key: true")
    assert refusal(strict, request()) == (403, "contract.key")
    assert asked(strict, request(key="k")).identity.key == "k"
    assert asked(strict, request(application=("a", 1))).identity.key is None


def test_only_granted_tables_and_operations() -> None:
    other = Principal("bob", load("version: 1\nagent: bob\ntables: []\n", source="test"), 1)
    assert refusal(other, request()) == (403, "contract.table")
    reads = Principal("bob", load("version: 1\nagent: bob\nreads: [db.t]\n", source="test"), 1)
    assert refusal(reads, request()) == (403, "contract.operation")


def test_only_owned_partitions() -> None:
    table = head(("day", "identity"), ("id", "bucket[4]"))
    owner = agent(", partitions: [{day_identity: 2017-01-02, id_bucket: [0, 1]}]")
    mine = descriptor("a", {"day_identity": "2017-01-02", "id_bucket": 1})
    other = descriptor("b", {"day_identity": "2017-01-02", "id_bucket": 2})
    assert [claim.partition for claim in asked(owner, request(mine), table=table).claims] == [(17168, 1)]
    assert refusal(owner, request(mine, other), table=table) == (403, "contract.partitions")
    assert refusal(owner, request()) == (403, "contract.undecided")


def test_only_the_tables_own_places() -> None:
    outside = request(descriptor(path="file:///w/other/a.parquet"))
    assert refusal(EVERYWHERE, outside) == (403, "contract.location")
    assert refusal(EVERYWHERE, request(descriptor(path="file:///w/t/../u/a"))) == (403, "contract.location")
    assert asked(ADMIN, outside).claims[0].path == "file:///w/other/a.parquet"
    elsewhere = head(**{"write.data.path": "file:///w/other"})
    assert asked(EVERYWHERE, outside, table=elsewhere).claims[0].path == "file:///w/other/a.parquet"


def test_one_file_once() -> None:
    assert refusal(ADMIN, request(descriptor("a"), descriptor("b"), descriptor("a"))) == (400, "append.repeated")


SPELLINGS = """\
file:///w/t                    file:///w/t/data/a.parquet            yes
file:///w/t                    /w/t/data/a.parquet                   no
file:///w/t                    file:/w/t/data/a.parquet              no
file:///w/t                    file://localhost/w/t/data/a.parquet   no
file:///w/t                    file:////w/t/data/a.parquet           no
file:///w/t                    file:///w/t//data/a.parquet           no
file:///w/t                    file:///w//t/data/a.parquet           no
file:///w/t                    file:///w/t/./data/a.parquet          no
file:///w/t                    file:///w/t/data/../data/a.parquet    no
file:///w/t                    file:///w/t/data/                     no
file:///w/t                    file:///w/t/data/a.parquet?x=1        no
file:///w/t                    file:///w/t/data/a.parquet#f          no
file:///w/t                    file:///w/t/data/..a/.b/c...parquet   yes
file:///w/t                    file:///w/other/a.parquet             yes
file:///w/t                    /w/other/a.parquet                    no
file:///w/t                    file:/w/other/a.parquet               no
file:///w/t                    file:///w/other//a.parquet            no
file:///w/t                    s3://b/t/a.parquet                    yes
file:///w/t                    s3a://b/t/a.parquet                   no
file:///w/t/                   file:///w/t/data/a.parquet            yes
file:///w//t                   file:///w//t/data/a.parquet           yes
/w/t                           /w/t/data/a.parquet                   yes
/w/t                           file:///w/t/data/a.parquet            no
/w/t                           /w/other/a.parquet                    yes
file:/w/t                      file:/w/t/data/a.parquet              yes
file:/w/t                      file:///w/t/data/a.parquet            no
file:/w/t                      file:/w/other/a.parquet               yes
s3://b/t                       s3://b/t/data/a.parquet               yes
s3://b/t                       s3a://b/t/data/a.parquet              no
s3://b/t                       s3n://b/t/data/a.parquet              no
s3://b/t                       s3://b/t//data/a.parquet              no
s3://b/t                       s3://b/t/a.parquet?versionId=1        no
s3://b/t                       s3a://c/t/a.parquet                   no
s3://b/t                       file:///w/other/a.parquet             yes
s3://b/t                       S3://c/t/a.parquet                    no
s3a://b/t                      s3a://b/t/data/a.parquet              yes
s3a://b/t                      s3://b/t/data/a.parquet               no
s3a://b/t                      s3a://c/a.parquet                     yes
"""


@pytest.mark.parametrize("line", SPELLINGS.splitlines())
def test_one_file_has_one_spelling(line: str) -> None:
    location, path, fine = line.split()
    metadata = head().metadata | {"location": location}
    table = HeadState(f"{location}/metadata/00000-a.metadata.json", metadata)
    if fine == "yes":
        assert asked(ADMIN, request(descriptor(path=path)), table=table)
    else:
        assert refusal(ADMIN, request(descriptor(path=path)), table=table) == (400, "append.path")
        assert refusal(EVERYWHERE, request(descriptor(path=path)), table=table)[0] in (400, 403)


def test_the_innermost_place_says_how_a_file_is_spelled() -> None:
    table = head(**{"write.data.path": "/w/t/data"})
    assert asked(EVERYWHERE, request(descriptor(path="/w/t/data/a.parquet")), table=table)
    assert refusal(EVERYWHERE, request(descriptor()), table=table) == (400, "append.path")
    assert asked(EVERYWHERE, request(descriptor(path="file:///w/t/old/a.parquet")), table=table)


def test_only_branches() -> None:
    table = head()
    snapshot = {"snapshot-id": 5, "timestamp-ms": 2_000, "manifest-list": "l", "summary": {"operation": "append"}}
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot | {"sequence-number": 1, "first-row-id": 0, "added-rows": 0}},
        {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 5},
        {"action": "set-snapshot-ref", "ref-name": "audit", "type": "branch", "snapshot-id": 5},
    ]
    table = HeadState("l", table_metadata.apply(table.metadata, updates, now_ms=2_000))
    assert asked(ADMIN, request(ref="audit"), table=table).request.ref == "audit"
    assert refusal(ADMIN, request(ref="v1"), table=table) == (400, "append.branch")
    assert refusal(ADMIN, request(ref="none"), table=table) == (400, "append.branch")
    assert asked(ADMIN, request(), table=table).request.ref == "main"  # which is not there yet


def test_encrypted_tables_are_left_to_those_who_have_the_key() -> None:
    assert refusal(ADMIN, request(), table=head(**{"encryption.key-id": "k"})) == (400, "append.encrypted")


def test_r5_a_contract_may_ask_for_proof_of_partitions() -> None:
    table = head(("id", "bucket[4]"))
    strict = agent(", partitions: all, prove_partitions: true")
    what = request(descriptor(partition=[1]))
    done = asked(strict, what, table=table)
    check_proofs(strict, TABLE, done.claims, found(done))
    with pytest.raises(IcetowerError) as refused:
        check_proofs(strict, TABLE, done.claims, found(done, "id_bucket"))
    assert (refused.value.status, refused.value.rule) == (403, "append.unproven")
    assert refused.value.partitions == ("id_bucket=1",)
    for trusting in (EVERYWHERE, ADMIN):
        believed = asked(trusting, what, table=table)
        check_proofs(trusting, TABLE, believed.claims, found(believed, "id_bucket"))


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        (("id", "identity"), 7, 7),
        (("id", "identity"), None, None),
        (("id", "identity"), "7", ...),
        (("id", "identity"), True, ...),
        (("id", "identity"), 2**63, ...),
        (("id", "bucket[4]"), 3, 3),
        (("id", "bucket[4]"), 4, ...),
        (("id", "bucket[4]"), -1, ...),
        (("day", "identity"), "2017-01-02", 17168),
        (("day", "identity"), 17168, 17168),
        (("day", "identity"), "yesterday", ...),
        (("at", "day"), "2017-01-02", 17168),
        (("at", "hour"), 412032, 412032),
        (("at", "hour"), "2017-01-02", ...),
        (("at", "month"), 564, 564),
        (("at", "identity"), "2017-01-02T00:00:01.5", 1_483_315_201_500_000),
        (("at", "identity"), "2017-01-02T00:00:01+00:00", ...),
        (("price", "identity"), "1.5", Decimal("1.50")),
        (("price", "identity"), "1.555", ...),
        (("price", "identity"), 1.5, ...),
        (("price", "identity"), "12345678.00", ...),
        (("name", "identity"), "x/y=z", "x/y=z"),
        (("name", "truncate[2]"), "ab", "ab"),
        (("name", "identity"), 1, ...),
        (("flag", "identity"), False, False),
        (("flag", "identity"), 0, ...),
        (("x", "identity"), 1, 1.0),
        (("x", "identity"), 1.5, 1.5),
        (("u", "identity"), "f79c3e09-677c-4bbd-a479-3f349cb785e7", bytes.fromhex("f79c3e09677c4bbda4793f349cb785e7")),
        (("blob", "identity"), "00ff", b"\x00\xff"),
        (("blob", "identity"), "zz", ...),
        (("ns", "day"), "2017-01-02", 17168),
        (("ns", "identity"), 5, ...),
        (("id", "void"), None, None),
        (("id", "void"), 1, ...),
        (("id", "identity"), {"a": 1}, ...),
    ],
)
def test_partition_values_in_icebergs_json_form(source: tuple[str, str], given: Any, expected: Any) -> None:
    table = head(source)
    if expected is ...:
        assert refusal(ADMIN, request(descriptor(partition=[given])), table=table) == (400, "append.partition")
        return
    (claim,) = asked(ADMIN, request(descriptor(partition=[given])), table=table).claims
    assert claim.partition == (expected,)
    assert type(claim.partition[0]) is type(expected)


@pytest.mark.parametrize(
    "partition",
    [
        (),
        {},
        {"day_identity": "2017-01-02"},
        ["2017-01-02"],
        ["2017-01-02", 1, 2],
        {"day_identity": None, "b": 1, "id_bucket": 0},
    ],
)
def test_a_partition_has_the_fields_of_its_spec(partition: Any) -> None:
    table = head(("day", "identity"), ("id", "bucket[4]"))
    assert refusal(ADMIN, request(descriptor(partition=partition)), table=table) == (400, "append.partition")


def test_a_field_that_was_removed_may_be_left_out() -> None:
    table = head(("id", "void"), ("day", "identity"))
    (claim,) = asked(ADMIN, request(descriptor(partition={"day_identity": 5})), table=table).claims
    assert claim.partition == (None, 5)


def test_a_spec_must_be_one_of_the_tables() -> None:
    assert refusal(ADMIN, request(descriptor(spec_id=4))) == (400, "append.partition")


@pytest.mark.parametrize("principal", [EVERYWHERE, ADMIN], ids=["agent", "chief"])
def test_a_partition_value_is_bounded_whoever_names_it(principal: Principal) -> None:
    by_name = head(("name", "identity"))
    asked(principal, request(descriptor(partition=["x" * PARTITION_VALUE_MAX_BYTES])), table=by_name)
    long = descriptor("b", ["x" * (PARTITION_VALUE_MAX_BYTES + 1)])
    with pytest.raises(IcetowerError) as refused:
        asked(principal, request(descriptor("a", ["x"]), long), table=by_name)
    error = refused.value
    assert (error.status, error.rule, error.next_step) == (400, "limit.record", "fix_request")
    assert error.files == ("file:///w/t/data/b",)
    assert "name_identity" in error.message
    assert "xxxx" not in error.message
