"""The contracts of the guide's three agents, as they are shipped: whole, understood, and beside one another."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pyiceberg.catalog.memory import InMemoryCatalog

from icetower.contracts import reading
from icetower.contracts.document import load
from icetower.contracts.model import Contract, KeyWay, Retries
from icetower.contracts.terms import Layout, parse_term
from icetower.contracts.values import compile_extent
from icetower.contracts.write_settings import properties_of
from icetower.demo import tables
from icetower.iceberg.partitions import spec_of
from icetower.protocol.names import Identifier

FOLDER = Path(__file__).parent.parent.parent / "examples" / "contracts"
AGENTS = {
    "pricing_agent": (tables.PRICES, ["day(observed_at)", "bucket(8, product_id)"]),
    "inventory_agent": (tables.STOCK, ["hour(moved_at)"]),
    "recommendation_agent": (tables.INTERACTIONS, ["day(interacted_at)"]),
}
"""Agent → the table that the document gives it, and how that is partitioned."""


def contract(agent: str) -> Contract:
    return load((FOLDER / f"{agent}.yaml").read_text(), source=agent)


def test_the_folder_holds_the_documents_agents_their_maintenance_and_nobody_else() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*AGENTS, "maintenance"}


@pytest.mark.parametrize("agent", AGENTS)
def test_an_example_says_all_six_clauses(agent: str) -> None:
    found = contract(agent)
    table, terms = AGENTS[agent]
    assert found.name == agent
    rule = found.rules_for(Identifier.parse(table))[0]
    assert rule.partitions is not None
    assert [sorted(name for name, _ in region.fields) for region in rule.partitions] == [sorted(terms)]
    assert rule.own_location
    assert found.retries == Retries(attempts=5, min_wait_ms=100, max_wait_ms=5_000)
    assert found.escalation is not None
    assert "<" in found.escalation.to, "a person, by name"
    assert found.idempotency is not None
    assert (found.idempotency.required, found.idempotency.window_s) == (True, 86_400)
    assert KeyWay.SUMMARY in found.idempotency.how
    assert found.orphans is not None
    assert found.orphans.detect_every_s == 86_400
    assert found.revocation is not None
    assert found.revocation.by


@pytest.mark.parametrize(
    ("agent", "table"),
    [
        ("pricing_agent", tables.PRICES),
        ("inventory_agent", tables.STOCK),
        ("recommendation_agent", tables.INTERACTIONS_WAL),  # to the table itself the mediator writes
    ],
)
def test_the_write_settings_are_the_documents(agent: str, table: str) -> None:
    assert properties_of(Identifier.parse(table), [contract(agent)]) == tables.WRITER_SETTINGS


@pytest.mark.parametrize("agent", AGENTS)
def test_every_word_of_an_example_means_something_for_its_tables(agent: str) -> None:
    catalog = InMemoryCatalog("examples")
    tables.create_tables(catalog)
    for rule in contract(agent).tables:
        metadata = catalog.load_table(str(rule.pattern)).metadata.model_dump(mode="json", by_alias=True)
        spec = spec_of(metadata, metadata["default-spec-id"])
        for name, extent in (pair for region in rule.partitions or () for pair in region.fields):
            field = Layout(metadata).field(name, spec)
            assert field is not None, name
            assert compile_extent(field, extent, now_ms=0)
            term = parse_term(name)
            told = (field.transform, field.source_name) if term is None else (term.transform, term.column)
            assert told in {(each.transform, each.source_name) for each in spec.fields}, f"{name} is no partition field"


def test_each_example_names_tables_of_its_own_namespace() -> None:
    """As the guide gives the roles: no agent can write outside its namespace."""
    written = [{rule.pattern.namespace for rule in contract(agent).tables} for agent in AGENTS]
    assert all(len(namespaces) == 1 for namespaces in written)
    assert len(set().union(*written)) == len(AGENTS)


@pytest.mark.parametrize("agent", AGENTS)
def test_both_readers_of_yaml_read_the_same(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quickly = contract(agent)
    monkeypatch.setattr(reading, "_QUICK", yaml.SafeLoader)
    assert contract(agent) == quickly
