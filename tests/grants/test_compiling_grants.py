"""Contracts → grants, as tables; and what is said that Polaris does not enforce."""

from __future__ import annotations

import pytest

from icetower.contracts.document import load
from icetower.contracts.grants import Grants, compile_grants
from icetower.contracts.model import ADMINISTRATOR, Contract
from icetower.contracts.write_settings import properties_of, written_patterns
from icetower.errors import BadRequest
from icetower.protocol.names import Identifier


def contract(agent: str, clauses: str) -> Contract:
    return load(f"version: 1\nagent: {agent}\n{clauses}", source=f"{agent}.yaml")


def of(*contracts: Contract, by_namespace: bool = False) -> Grants:
    return compile_grants(contracts, (), catalog="prod", by_namespace=by_namespace)


def told(grants: Grants) -> list[str]:
    """Each role as a line for each grant."""
    return [f"{role.name}: {grant.privilege} ON {grant.securable}" for role in grants.roles for grant in role.grants]


THE_GUIDE = [
    contract("pricing_agent", "tables: [{table: pricing.product_prices, operations: [overwrite], partitions: all}]"),
    contract("inventory_agent", "tables: [{table: inventory.stock_movements, operations: [append], partitions: all}]"),
    contract(
        "recommendation_agent", "tables: [{table: recommendations.clicks, operations: [append], partitions: all}]"
    ),
]


def test_the_roles_of_the_guide() -> None:
    """Step 2: three roles, TABLE_WRITE_DATA on a namespace each, and a principal with exactly one role."""
    grants = of(*THE_GUIDE, by_namespace=True)
    assert told(grants) == [
        "pricing_writer: TABLE_WRITE_DATA ON namespace pricing",
        "inventory_writer: TABLE_WRITE_DATA ON namespace inventory",
        "recommendation_writer: TABLE_WRITE_DATA ON namespace recommendations",
    ]
    assert [role.principals for role in grants.roles] == [
        ("pricing_agent",), ("inventory_agent",), ("recommendation_agent",)
    ]  # fmt: skip


OPERATIONS = [
    # pattern         operations                      grants
    ("a.t",           "read",                         ["TABLE_READ_DATA ON table a.t"]),
    ("a.*",           "read",                         ["TABLE_READ_DATA ON namespace a"]),
    ("a.b.**",        "read",                         ["TABLE_READ_DATA ON namespace a.b"]),
    ("'**'",          "read",                         ["TABLE_READ_DATA ON the catalog"]),
    ("a.t",           "append",                       ["TABLE_WRITE_DATA ON table a.t"]),
    ("a.t",           "read, overwrite, delete",      ["TABLE_WRITE_DATA ON table a.t"]),
    ("a.t",           "replace, alter, refs",         ["TABLE_WRITE_DATA ON table a.t"]),
    ("a.t",           "create",                       ["TABLE_CREATE ON namespace a"]),
    ("'**'",          "create, register",             ["TABLE_CREATE ON the catalog"]),
    ("a.t",           "drop, rename",                 ["TABLE_DROP ON table a.t"]),
    ("a.t",           "alter, refs",                  ["TABLE_READ_DATA ON table a.t",
                                                       "TABLE_WRITE_PROPERTIES ON table a.t"]),
    ("a.t",           "refs",                         ["TABLE_READ_DATA ON table a.t",
                                                       "TABLE_REMOVE_SNAPSHOTS ON table a.t",
                                                       "TABLE_REMOVE_SNAPSHOT_REF ON table a.t",
                                                       "TABLE_SET_SNAPSHOT_REF ON table a.t"]),
    ("a.*",           "append, create, drop",         ["TABLE_CREATE ON namespace a", "TABLE_DROP ON namespace a",
                                                       "TABLE_WRITE_DATA ON namespace a"]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "operations", "wanted"), OPERATIONS)
def test_an_operation_gets_the_least_that_does(pattern: str, operations: str, wanted: list[str]) -> None:
    grants = of(contract("x", f"tables: [{{table: {pattern}, operations: [{operations}], partitions: all}}]"))
    assert [line.partition(": ")[2] for line in told(grants)] == wanted


def test_what_another_grant_covers_is_not_granted_again() -> None:
    entries = "{table: a.t, operations: [append], partitions: all}, {table: b.t, operations: [drop]}"
    clauses = f"tables: [{entries}]\nreads: [a.*, a.b.*, b.**]"
    assert told(of(contract("x", clauses))) == [
        "x_writer: TABLE_READ_DATA ON namespace a",
        "x_writer: TABLE_READ_DATA ON namespace b",
        "x_writer: TABLE_WRITE_DATA ON table a.t",
        "x_writer: TABLE_DROP ON table b.t",
    ]


NAMES = [
    # agent              clauses                                            role
    ("pricing_agent",    "tables: [{table: a.t, operations: [append], partitions: all}]", "pricing_writer"),
    ("pricing_agent",    "tables: [{table: a.t, operations: [append]}]",    "pricing_reader"),
    ("pricing_agent",    "tables: [{table: a.t, operations: [drop]}]",      "pricing_writer"),
    ("audit_agent",      "reads: ['**']",                                   "audit_reader"),
    ("audit",            "tables: [{table: a.t, operations: [read]}]",      "audit_reader"),
    ("agent",            "reads: []",                                       "agent_reader"),
    ("agent_agent",      "reads: [a.*]",                                    "agent_reader"),
    ("pricing_agent_2",  "tables: [{table: a.*, operations: [create]}]",    "pricing_agent_2_writer"),
]  # fmt: skip


@pytest.mark.parametrize(("agent", "clauses", "role"), NAMES)
def test_a_role_is_named_after_the_agent_and_what_it_does(agent: str, clauses: str, role: str) -> None:
    assert [role.name for role in of(contract(agent, clauses)).roles] == [role]


PRICING, INVENTORY, _ = THE_GUIDE
NAMESAKE = contract("pricing", "tables: [{table: a.t, operations: [drop]}]")
REFUSED = [
    # contracts             bindings                                what is said
    ([PRICING, INVENTORY],  ["p=pricing_agent",
                             "p=inventory_agent"],                  "twice, to pricing_agent and to inventory_agent"),
    ([PRICING],             ["p=pricing_agent"] * 2,                "p is bound twice"),
    ([PRICING, INVENTORY],  ["inventory_agent=pricing_agent"],      "inventory_agent is bound twice"),
    ([PRICING],             ["p=price_agent"],                      "none of the contracts given: pricing_agent"),
    ([PRICING],             ["../p=pricing_agent"],                 "'../p' is no name of a principal"),
    ([PRICING, PRICING],    [],                                     "pricing_agent is given twice"),
    ([PRICING, NAMESAKE],   [],                                     "share the role pricing_writer"),
    ([ADMINISTRATOR],       [],                                     "the administrator's contract is not compiled"),
]  # fmt: skip


@pytest.mark.parametrize(("contracts", "bindings", "said"), REFUSED)
def test_what_cannot_be_compiled_is_refused(contracts: list[Contract], bindings: list[str], said: str) -> None:
    pairs = [(name, contract) for name, _, contract in (binding.partition("=") for binding in bindings)]
    with pytest.raises(BadRequest, match=said):
        compile_grants(contracts, pairs, catalog="prod")


@pytest.mark.parametrize("catalog", ["", "x" * 257, " SYSTEM$x"])
def test_a_catalog_has_a_name_that_polaris_takes(catalog: str) -> None:
    with pytest.raises(BadRequest, match="is no name of a catalog"):
        compile_grants([PRICING], (), catalog=catalog)


def test_principals_are_those_bound_or_else_called_as_the_agent_is() -> None:
    pairs = [("pricing-1", "pricing_agent"), ("pricing-2", "pricing_agent")]
    grants = compile_grants([PRICING, INVENTORY], pairs, catalog="prod")
    assert [role.principals for role in grants.roles] == [("pricing-1", "pricing-2"), ("inventory_agent",)]


REMARKS = [
    # entry                                                               what is said of it, in part
    ("{table: a.t, operations: [append], partitions: [{day: ['1']}]}",    "every partition may be written"),
    ("{table: a.t, operations: [append], partitions: all, except: [{day: ['1']}]}", "every partition may be written"),
    ("{table: a.t, operations: [append], partitions: all, pattern: mediator}",     "come through the write-ahead log"),
    ("{table: a.t, operations: [append], partitions: all}",               "also allows delete, overwrite, replace"),
    ("{table: a.t, operations: [overwrite], partitions: all}",            "also allows alter and refs"),
    ("{table: a.t, operations: [alter], partitions: all}",                "TABLE_WRITE_PROPERTIES also allows commits"),
    ("{table: a.t, operations: [create]}",                                "for every name in it"),
    ("{table: a.*, operations: [register]}",                              "TABLE_CREATE allows both"),
    ("{table: a.t, operations: [rename]}",                                "TABLE_DROP, which it takes, allows drops"),
    ("{table: a.*, operations: [read]}",                                  "reaches the namespaces under it"),
    ("{table: a.t, operations: [append], partitions: all, strict: true}",  "strict, write_location: Polaris has no"),
    ("{table: a.*, operations: [delete], partitions: all, quotas: {files_per_commit: 1}, write_location: table}",
                                                                          "quotas: Polaris has no such check"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "said"), REMARKS)
def test_what_is_not_enforced_there_is_said(entry: str, said: str) -> None:
    remarks = of(contract("x", f"tables: [{entry}]")).remarks
    assert any(said in remark.words for remark in remarks), remarks


@pytest.mark.parametrize(
    ("clauses", "said"),
    [
        ("mode: shadow", "mode: shadow: Polaris enforces its grants at once"),
        ("idempotency: {required: true}", "idempotency: Polaris has no such clause"),
        ("orphans: {older_than: 72h}\nescalation: {after_failures: 5, within: 10m, to: dana@example.com}",
         "escalation, orphans: Polaris has no such clause"),
    ],
)  # fmt: skip
def test_clauses_that_are_not_enforced_there_are_said(clauses: str, said: str) -> None:
    assert said in [remark.words for remark in of(contract("x", clauses)).remarks]


def test_who_writes_through_the_mediator_only_reads() -> None:
    """The table belongs to the mediator; the agent writes to the log."""
    log = "{table: a.log, operations: [append], partitions: all}"
    through = "{table: a.t, operations: [append], partitions: all, pattern: mediator}"
    grants = of(contract("x", f"tables: [{through}, {log}]"))
    assert told(grants) == ["x_writer: TABLE_WRITE_DATA ON table a.log", "x_writer: TABLE_READ_DATA ON table a.t"]


def test_nothing_is_said_where_polaris_holds_to_the_contract() -> None:
    remarks = of(contract("x", "reads: [a.t, b.**, '**']")).remarks
    assert [remark.about for remark in remarks] == ["the contract"]
    assert "revocation at the next request" in remarks[0].words


def test_a_table_widened_to_its_namespace_is_said() -> None:
    words = [remark.words for remark in of(PRICING, by_namespace=True).remarks]
    assert "the one table: it is granted on the whole namespace" in words
    assert not any("whole namespace" in remark.words for remark in of(PRICING).remarks)


def test_of_several_contracts_the_most_patient_settings_hold() -> None:
    entry = "tables: [{table: a.t, operations: [append], partitions: all}]"
    hasty = contract("hasty", f"{entry}\nretries: {{attempts: 2, min_wait: 200ms, max_wait: 1s}}")
    patient = contract("patient", f"{entry}\nretries: {{attempts: 9, min_wait: 50ms, max_wait: 1m}}")
    reader = contract("reader", "reads: [a.t]\nretries: {attempts: 20, min_wait: 1s, max_wait: 1h}")
    a = Identifier(("a",), "t")

    def numbers(*contracts: Contract) -> list[str]:
        return [value for name, value in properties_of(a, contracts).items() if name.startswith("commit.retry.")]

    assert numbers(hasty) == ["2", "200", "1000"]
    assert numbers(hasty, patient, reader) == ["9", "200", "60000"]
    assert numbers(hasty, contract("silent", entry)) == ["5", "200", "5000"]
    assert numbers(reader) == []


def test_write_settings_are_those_of_the_guide() -> None:
    """Step 3."""
    assert properties_of(Identifier(("pricing",), "product_prices"), THE_GUIDE) == {
        "commit.retry.num-retries": "5",
        "commit.retry.min-wait-ms": "100",
        "commit.retry.max-wait-ms": "5000",
        "write.distribution-mode": "hash",
    }
    assert properties_of(Identifier(("pricing",), "other"), THE_GUIDE) == {}
    assert [str(pattern) for pattern in written_patterns([*THE_GUIDE, contract("audit", "reads: ['**']")])] == [
        "pricing.product_prices",
        "inventory.stock_movements",
        "recommendations.clicks",
    ]
