"""The settings that the guide gives every writer ("Step 3: Write behavior"), as properties of the tables. Pure.

A table has one set of properties for all who write to it. Where several contracts name a table, the most patient value
of each holds: the most retries and the longest waits. So no agent gives up before its own contract lets it; who may
retry less is held to that by its contract, where there is a tower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icetower.contracts.grants import operations_of
from icetower.contracts.model import FILE_OPERATIONS, Contract, Retries, Rule
from icetower.contracts.regions import Pattern
from icetower.protocol.names import Identifier

DISTRIBUTION_MODE = "write.distribution-mode"


def written_patterns(contracts: Sequence[Contract]) -> tuple[Pattern, ...]:
    """The patterns of tables that somebody may write to, each once."""
    patterns = (rule.pattern for contract in contracts for rule in _writing(contract))
    return tuple(dict.fromkeys(patterns))


def properties_of(table: Identifier, contracts: Sequence[Contract]) -> Mapping[str, str]:
    """What is to be set on `table`; nothing where no contract lets anybody write to it."""
    writers = [c for c in contracts if any(rule.pattern.matches(table) for rule in _writing(c))]
    if not writers:
        return {}
    return {**retries_of([contract.retries or Retries() for contract in writers]), DISTRIBUTION_MODE: "hash"}


def retries_of(clauses: Sequence[Retries]) -> dict[str, str]:
    """Iceberg's properties for the most patient of some clauses."""
    return {
        "commit.retry.num-retries": str(max(each.attempts for each in clauses)),
        "commit.retry.min-wait-ms": str(max(each.min_wait_ms for each in clauses)),
        "commit.retry.max-wait-ms": str(max(each.max_wait_ms for each in clauses)),
    }


def distribution_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The distribution by partition, for a table whose owner has chosen none, by property or by a sort order."""
    chosen = DISTRIBUTION_MODE in (metadata.get("properties") or {}) or metadata.get("default-sort-order-id")
    return {} if chosen else {DISTRIBUTION_MODE: "hash"}


def _writing(contract: Contract) -> tuple[Rule, ...]:
    return tuple(rule for rule in contract.tables if operations_of(rule) & FILE_OPERATIONS)
