"""A contract in plain words, for people who do not read YAML. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from icetower.contracts.limits import Quota
from icetower.contracts.model import FILE_OPERATIONS, Contract, Operation, Rule
from icetower.contracts.patterns import Orchestration
from icetower.contracts.reading import size_text
from icetower.contracts.regions import Region
from icetower.contracts.wording import operations_text, region_text
from icetower.counting import counted, series

REGIONS_MAX = 20
"""Regions of one entry that are said one by one."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One entry of `tables`: what may be done, to which tables, where, and under which conditions."""

    operations: str
    tables: str
    where: tuple[str, ...]
    but: tuple[str, ...]
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """The contract. `clauses`: what holds for all of it, each a label and a sentence."""

    grants: tuple[Grant, ...]
    clauses: tuple[tuple[str, str], ...]


def words_of(contract: Contract) -> Words:
    """What a contract says."""
    if contract.administrator:
        return Words((Grant("everything", "all tables", (), (), ()),), ())
    grants = tuple(map(_grant, contract.tables))
    if contract.reads:
        grants += (Grant("read", series([str(pattern) for pattern in contract.reads]), (), (), ()),)
    return Words(grants, tuple(_clauses(contract)))


def _grant(rule: Rule) -> Grant:
    writes = any(rule.grants(operation) for operation in FILE_OPERATIONS)
    where: tuple[str, ...] = ()
    if rule.partitions is not None and writes:
        where = _regions(rule.partitions) or ("nowhere: it owns no partition",)
    elif writes:
        where = ("all partitions",)
    return Grant(
        operations_text(rule.operations), str(rule.pattern), where, _regions(rule.excluded), tuple(_conditions(rule))
    )


def _regions(regions: tuple[Region, ...]) -> tuple[str, ...]:
    shown = tuple(region_text(region) for region in regions[:REGIONS_MAX])
    more = len(regions) - len(shown)
    return (*shown, f"{more} more") if more else shown


def _conditions(rule: Rule) -> list[str]:
    found: list[str] = []
    if rule.orchestration is not Orchestration.DIRECT:
        through = f", through {rule.through}" if rule.through is not None else ""
        found.append(f"its rows come in by the pattern {rule.orchestration.value}{through}")
    if rule.blind_appends:
        found.append("its appends depend on nothing that it has read")
    if rule.reads_owned:
        found.append("its writes depend on rows of its own partitions only")
    if rule.strict:
        found.append("nothing of it is rebased")
    if rule.require_key:
        found.append("each commit needs an idempotency key")
    if rule.prove_partitions:
        found.append("statistics must prove in which partition each file lies")
    if rule.isolation is not None:
        found.append(f"rebased commits are held to {rule.isolation.value} isolation")
    if not rule.own_location and any(rule.grants(each) for each in FILE_OPERATIONS - {Operation.DELETE}):
        found.append("its files may lie anywhere under the table")
    found += [f"at most {text}" for text in _quota(rule.quota)]
    if rule.guard.times is not None:
        found.append(
            f"an overwrite that adds over {rule.guard.times} times the rows that it removes waits for a person"
        )
    return found


def _quota(quota: Quota) -> list[str]:
    found: list[str] = []
    if quota.commits_per_minute is not None:
        found.append(f"{counted(quota.commits_per_minute, 'commit')} a minute")
    if quota.files_per_commit is not None:
        found.append(f"{counted(quota.files_per_commit, 'file')} a commit")
    if quota.bytes_per_commit is not None:
        found.append(f"{size_text(quota.bytes_per_commit)} a commit")
    return found


def _clauses(contract: Contract) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if contract.shadow:
        found.append(("Mode", "shadow: what it would refuse is logged, and goes on"))
    said = (
        ("Retries", contract.retries),
        ("Escalation", contract.escalation),
        ("Keys", contract.idempotency),
        ("Orphaned files", contract.orphans),
        ("Branches", contract.branches),
        ("Revocation", contract.revocation),
    )
    found += [(label, str(clause)) for label, clause in said if clause is not None]
    if contract.requests_at_once is not None:
        found.append(("Requests", f"{counted(contract.requests_at_once, 'request')} at once"))
    return found
