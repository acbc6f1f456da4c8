"""Keys that stand for objects themselves, and what is kept by them: it goes with the objects, not with their values."""

from __future__ import annotations

import ast
import copy
import gc
import weakref
from pathlib import Path

import pytest

import icetower
from icetower.contracts.terms import Layout
from icetower.errors import ValidationFailed
from icetower.iceberg.partitions import spec_of
from icetower.protocol.names import Identifier
from icetower.recent import IdentityKey, bounded_cache, weight_of_schemas

FIELDS = [{"id": 1, "name": "ts", "type": "timestamptz"}, {"id": 2, "name": "region", "type": "string"}]
DAY = {"name": "ts_day", "transform": "day", "source-id": 1, "field-id": 1000}
METADATA = {
    "current-schema-id": 0,
    "schemas": [{"schema-id": 0, "fields": FIELDS}],
    "partition-specs": [{"spec-id": 0, "fields": [DAY]}],
}


class Thing:
    """Equal to all of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    def __hash__(self) -> int:
        return 1


def test_only_the_very_same_objects_in_the_same_order_are_the_same() -> None:
    one, other = Thing(), Thing()
    assert IdentityKey(one, other) == IdentityKey(one, other)
    assert hash(IdentityKey(one, other)) == hash(IdentityKey(one, other))
    for different in (
        IdentityKey(other, one),
        IdentityKey(one),
        IdentityKey(one, other, one),
        IdentityKey(Thing(), other),
        (one, other),
    ):
        assert IdentityKey(one, other) != different


def test_it_keeps_its_objects_so_that_no_others_take_their_place() -> None:
    thing = Thing()
    seen, key = weakref.ref(thing), IdentityKey(thing)
    del thing
    gc.collect()
    assert seen() is key.parts[0]


def test_versions_that_share_schemas_and_specs_share_what_is_derived_from_them() -> None:
    later = {**METADATA, "snapshots": [], "schemas": list(METADATA["schemas"])}
    assert Layout.of(later) is Layout.of(METADATA)
    assert spec_of(later, 0) is spec_of(METADATA, 0)


@pytest.mark.parametrize("how", ["replaced", "grown in place"])
def test_a_table_that_was_changed_is_looked_at_anew(how: str) -> None:
    before = copy.deepcopy(METADATA)
    spec = spec_of(before, 0)
    assert Layout.of(before).field("region", spec) is None
    after = before if how == "grown in place" else {**before, "partition-specs": list(before["partition-specs"])}
    added = {"name": "region", "transform": "identity", "source-id": 2, "field-id": 1001}
    after["partition-specs"].append({"spec-id": 1, "fields": [added]})
    assert [field.name for field in spec_of(after, 1).fields] == ["region"]
    found = Layout.of(after).field("region", spec)
    assert found is not None
    assert found.transform == "identity"
    with pytest.raises(ValidationFailed, match="unknown to the table"):
        spec_of(METADATA, 1)


def test_a_current_schema_of_another_number_is_another_layout() -> None:
    renamed = {"schema-id": 1, "fields": [{"id": 1, "name": "at", "type": "timestamptz"}]}
    both = {**METADATA, "schemas": [*METADATA["schemas"], renamed]}
    spec = spec_of(METADATA, 0)
    for current, known, unknown in ((0, "hour(ts)", "hour(at)"), (1, "hour(at)", "hour(ts)")):
        layout = Layout.of({**both, "current-schema-id": current})
        assert layout.field(known, spec) is not None
        assert layout.field(unknown, spec) is None


def test_a_contract_remembers_its_rules_for_a_table_and_a_bounded_number_of_tables() -> None:
    from icetower.contracts.document import load
    from icetower.contracts.model import TABLES_KEPT

    text = "version: 1\nagent: a\ntables: [{table: ns.*, operations: [append]}]\nreads: [ns.t0, other.*]"
    contract = load(text, source="test")
    tables = [Identifier(("ns",), f"t{number}") for number in range(TABLES_KEPT + 10)]
    first = contract.rules_for(tables[0])
    assert [sorted(rule.operations) for rule in first] == [["append"], ["read"]]
    assert contract.rules_for(tables[0])[1] is first[1]
    assert all(contract.rules_for(table) == first[:1] for table in tables[1:])
    assert contract.rules_for(tables[0]) == first
    assert len(contract._by_table) <= TABLES_KEPT
    assert contract == load(text, source="test")


class Watched(dict[str, object]):
    """A schema of which it can be seen whether anything keeps it."""

    __slots__ = ("__weakref__",)


def test_schemas_of_tables_that_are_gone_are_kept_within_a_bound_of_bytes() -> None:
    """Trap A8: caches that count their entries kept 4,096 schemas of megabytes each."""
    from icetower.contracts.owning import Ownership

    seen: list[weakref.ref[Watched]] = []
    for number in range(40):
        schema = Watched({"schema-id": 0, "fields": [{**FIELDS[0], "doc": str(number) * 200_000}]})
        table = {**METADATA, "schemas": [schema]}
        spec = spec_of(table, 0)
        layout = Layout.of(table)
        Ownership([], layout, 0).of(spec, (1,))
        seen.append(weakref.ref(schema))
    del schema, table, spec, layout
    gc.collect()
    left = [found for found in (each() for each in seen) if found is not None]
    assert 1 <= len(left) <= 11
    assert sum(weight_of_schemas(IdentityKey(each)) for each in left) <= 16 * 1024 * 1024


def test_the_newest_results_are_kept_within_a_bound_of_bytes() -> None:
    made: list[int] = []

    @bounded_cache(10, lambda key: key)
    def double(key: int) -> int:
        made.append(key)
        return key * 2

    assert [double(key) for key in (3, 4, 3, 5, 3, 4, 30, 30, 3)] == [6, 8, 6, 10, 6, 8, 60, 60, 6]
    assert made == [3, 4, 5, 4, 30, 3]


def test_only_small_keys_are_counted_by_number() -> None:
    """`lru_cache` keeps its keys whatever they hold: each use of it is one whose keys are small, or few."""
    known = {
        ("icetower/contracts/owning.py", 1),  # within one term of a rule: the newest hour
        ("icetower/registry/versions.py", 1024),  # contracts that administrators have stored
        ("icetower/iceberg/transforms.py", 1024),  # names of transforms and types
        ("icetower/contracts/deliveries.py", 256),  # rules of contracts that administrators have stored
        ("icetower/ledger/attempts.py", 12),  # dialects of databases
        ("icetower/ledger/metrics.py", 16),  # tables of figures, by dialect
        ("icetower_simulator/sums.py", 32),
    }
    source = Path(icetower.__file__).parent.parent
    found: set[tuple[str, object]] = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lru_cache":
                number = node.keywords[0].value
                assert isinstance(number, ast.Constant), path
                found.add((str(path.relative_to(source)), number.value))
    assert found == known
