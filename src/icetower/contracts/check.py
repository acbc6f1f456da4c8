"""Is what a commit touches within the contract? Clear, Violation, or Undecided where the contract cannot tell.

A commit asks for all its operations at once: a partition is free where one rule of the contract grants every file
operation of the commit on it. Undecided is no permission: the caller refuses, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.contracts.deliveries import (
    Slot,
    has_slots,
    lines_of,
    moment_text,
    next_slot,
    through_of,
    without_slots,
)
from icetower.contracts.model import FILE_OPERATIONS, Contract, Isolation, Operation, Role, Rule
from icetower.contracts.owning import Interval, Ownership, source_of
from icetower.contracts.patterns import THROUGH, Orchestration
from icetower.contracts.regions import is_clock
from icetower.contracts.slots import Turn
from icetower.contracts.terms import NO_LAYOUT, Layout
from icetower.contracts.values import Membership
from icetower.iceberg.partitions import PartitionField, PartitionSpec, partition_name
from icetower.protocol.names import Identifier

NAMED_IN_MESSAGE = 5
NAMED_IN_LIST = 100


@dataclass(frozen=True, slots=True)
class Touch:
    """Files that a commit adds to (`adds`) or removes from one partition.

    `content` as in manifests: 0 data, 1 position deletes, 2 equality deletes.
    """

    spec: PartitionSpec
    partition: tuple[Any, ...]
    adds: bool
    content: int
    files: int = 1


@dataclass(frozen=True, slots=True)
class Clear:
    """Nothing stands against it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Outside the contract.

    Attributes:
        rule: as in error bodies.
        partitions: by their human names.
        outside: what is touched and not owned; `layout` is the table's.
        wanted: the operations that it would have to own them for.
        slot: where they lie outside of its slot alone, the one that goes on or comes next.
        over: some of them name a slot that has ended, so that the same is not let in at any later time.
    """

    rule: str
    partitions: tuple[str, ...]
    message: str
    outside: tuple[Touch, ...] = ()
    layout: Layout = NO_LAYOUT
    wanted: tuple[Operation, ...] = ()
    slot: Slot | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Undecided:
    """The contract's regions cannot be compared with these partitions."""

    rule: str
    partitions: tuple[str, ...]
    message: str


Verdict = Clear | Violation | Undecided


def check(
    contract: Contract,
    table: Identifier,
    touches: Sequence[Touch],
    operations: frozenset[Operation],
    *,
    layout: Layout,
    now_ms: int,
    mediated: bool = False,
) -> Verdict:
    """The verdict on a commit to `table` that asks for `operations` and touches `touches`.

    Args:
        layout: what the names in the contract's regions mean for the table.
        now_ms: milliseconds since 1970.
        mediated: whether the rows come through the table's write-ahead log.
    """
    if contract.administrator:
        return Clear()
    rules = contract.rules_for(table)
    if not rules:
        return Violation("contract.table", (), f"contract {contract.name} doesn't name the table {table}")
    refused = sorted(operation for operation in operations if not any(rule.grants(operation) for rule in rules))
    if refused:
        held = sorted({operation for operation in Operation if any(rule.grants(operation) for rule in rules)})
        return Violation(
            "contract.operation",
            (),
            f"contract {contract.name} doesn't grant {', '.join(refused)} on {table}; it grants {', '.join(held)}",
        )
    wanted = operations & FILE_OPERATIONS
    granting = tuple(rule for rule in rules if all(rule.grants(operation) for operation in wanted))
    if wanted and not mediated:
        direct = tuple(rule for rule in granting if rule.orchestration not in THROUGH)
        if granting and not direct:
            pattern = granting[0].orchestration
            return Violation(
                "contract.pattern",
                (),
                f"contract {contract.name} lets its rows into {table} through the {THROUGH[pattern]} alone "
                f"(pattern: {pattern}); append them to the {_other_table(contract, table, granting)}",
            )
        granting = direct
    if any(rule.whole for rule in granting) or not touches:
        return Clear()
    ownership = Ownership(granting, layout, now_ms)
    verdict = _partitions(contract, table, ownership, touches, wanted, layout)
    if isinstance(verdict, Violation) and (slot := _missed(granting, verdict.outside, layout, now_ms)) is not None:
        outside = (each for each in touches if ownership.of(each.spec, each.partition) is Membership.OUTSIDE)
        over = any(is_over(contract, table, each, layout, now_ms) for each in outside)
        return _out_of_slot(contract, table, verdict, slot, now_ms, over=over)
    return verdict


def _other_table(contract: Contract, table: Identifier, rules: Sequence[Rule]) -> str:
    """The table that the rows of a pattern go to, as far as it is known."""
    pattern = rules[0].orchestration
    kind = "log" if pattern is Orchestration.MEDIATOR else THROUGH[pattern]
    through = through_of(contract, table, rules)
    return kind if through is None else f"{kind} {through}"


def _partitions(
    contract: Contract,
    table: Identifier,
    ownership: Ownership,
    touches: Sequence[Touch],
    wanted: frozenset[Operation],
    layout: Layout,
) -> Verdict:
    outside: dict[str, Touch] = {}
    unknown: dict[str, str] = {}
    for touch in touches:
        membership = ownership.of(touch.spec, touch.partition)
        if membership is Membership.PARTLY:
            unknown.setdefault(_name(touch), ownership.reason)
        elif membership is Membership.OUTSIDE:
            outside.setdefault(_name(touch), touch)
    what = " and ".join(sorted(wanted)) or "write"
    if outside:
        named = tuple(outside)
        return Violation(
            "contract.partitions",
            named[:NAMED_IN_LIST],
            f"contract {contract.name} doesn't own {_list(named)} of {table} for {what}",
            outside=tuple(outside.values())[:NAMED_IN_LIST],
            layout=layout,
            wanted=tuple(sorted(wanted)),
        )
    if unknown:
        named = tuple(unknown)
        return Undecided(
            "contract.undecided",
            named[:NAMED_IN_LIST],
            f"contract {contract.name} can't tell whether it owns {_list(named)} of {table} for {what}: "
            f"{unknown[named[0]]}",
        )
    return Clear()


def _missed(rules: Sequence[Rule], outside: Sequence[Touch], layout: Layout, now_ms: int) -> Slot | None:
    """The slot that goes on or comes next, where at another time all of this would have been owned."""
    slotted = [rule for rule in rules if has_slots(rule)]
    ownership = Ownership([without_slots(rule) for rule in slotted], layout, now_ms)
    if not slotted or any(ownership.of(each.spec, each.partition) is not Membership.INSIDE for each in outside):
        return None
    return next_slot(slotted, now_ms)


def _out_of_slot(
    contract: Contract, table: Identifier, verdict: Violation, slot: Slot, now_ms: int, *, over: bool
) -> Violation:
    when = "now" if slot.starts_ms <= now_ms else "next"
    what = " and ".join(verdict.wanted) or "write"
    named = _list([name for name in verdict.partitions if name])
    return Violation(
        "contract.slot",
        verdict.partitions,
        f"contract {contract.name} may {what} in its slot alone, and {named or 'this'} is outside of it: it is "
        f"{moment_text(now_ms)} UTC by the tower's clock, and its slot {when} is {slot}. Write "
        "the rows anew in that slot",
        slot=slot,
        over=over,
    )


def is_over(contract: Contract, table: Identifier, touch: Touch, layout: Layout, now_ms: int) -> bool:
    """Whether rows that are out of their slot now name one that has ended: they come into none that is still to come.

    False where it cannot be told.
    """
    lines = [line for rule in contract.rules_for(table) if has_slots(rule) for line in lines_of(rule)]
    return bool(lines) and all(
        isinstance(extent, Turn)
        and not is_clock(term, extent)
        and (last_ms := _last_ms(touch, layout.field(term, touch.spec))) is not None
        and last_ms < now_ms
        for term, extent in lines
    )


def _last_ms(touch: Touch, wanted: PartitionField | None) -> int | None:
    """The last moment that rows of a partition can have in the column of a term; None: it is not known."""
    found: list[int] = []
    for field, raw in zip(touch.spec.fields, touch.partition, strict=True):
        if wanted is None or raw is None or field.source_id != wanted.source_id:
            continue
        source = source_of(field, raw)
        if isinstance(source, Interval) and field.source_type.startswith("timestamp"):
            found.append(source.high // (1_000_000 if field.source_type.endswith("_ns") else 1_000))
    return min(found, default=None)


def reads_only_owned(contract: Contract, table: Identifier, operations: frozenset[Operation]) -> bool:
    """Whether the contract promises that a commit of `operations` depends on no rows but those of owned partitions.

    Every rule that grants the commit must say so: one that doesn't may be the one by which it was written.
    """
    wanted = operations & FILE_OPERATIONS
    granting = [rule for rule in contract.rules_for(table) if all(rule.grants(each) for each in wanted)]
    return bool(wanted and granting) and all(rule.reads_owned for rule in granting)


def appends_blindly(contract: Contract, table: Identifier) -> bool:
    """Whether the contract promises that its appends depend on nothing that was read: every rule that grants them."""
    granting = [rule for rule in contract.rules_for(table) if rule.grants(Operation.APPEND)]
    return bool(granting) and all(rule.blind_appends for rule in granting)


def requires_intents(contract: Contract, table: Identifier) -> bool:
    """Whether the contract keeps its commits out of rows that others hold: any of its rules for the table."""
    return not contract.shadow and any(rule.intents_required for rule in contract.rules_for(table))


def needs_slot(
    contract: Contract,
    table: Identifier,
    touches: Iterable[Touch],
    operations: frozenset[Operation],
    *,
    layout: Layout,
    now_ms: int,
    shadowed: bool = False,
) -> bool:
    """Whether only the holder of a slot may commit this: no rule grants it but those whose slots are handed out.

    Args:
        touches: looked at only where the contract has such rules.
        shadowed: of a contract in shadow mode instead, whether it would be so if it were enforced.
    """
    rules = () if contract.shadow and not shadowed else contract.rules_for(table)
    wanted = operations & FILE_OPERATIONS
    if not wanted or (shadowed and not contract.shadow) or all(rule.claim_within_ms is None for rule in rules):
        return False
    granting = [rule for rule in rules if all(rule.grants(operation) for operation in wanted)]
    free = [rule for rule in granting if rule.claim_within_ms is None and rule.orchestration not in THROUGH]
    if any(rule.whole for rule in free):
        return False
    ownership = Ownership(free, layout, now_ms)
    return any(ownership.of(each.spec, each.partition) is not Membership.INSIDE for each in touches)


def slot_needs(
    contract: Contract,
    table: Identifier,
    touches: Iterable[Touch],
    operations: frozenset[Operation],
    *,
    layout: Layout,
    now_ms: int,
) -> tuple[bool, bool]:
    """As `needs_slot`: whether it is so, and whether it would be so if the contract, in shadow mode, were enforced."""
    needed = needs_slot(contract, table, touches, operations, layout=layout, now_ms=now_ms, shadowed=contract.shadow)
    return needed and not contract.shadow, needed and contract.shadow


def would_require_intents(contract: Contract, table: Identifier) -> bool:
    """Whether a contract in shadow mode would do so if it were enforced."""
    return contract.shadow and any(rule.intents_required for rule in contract.rules_for(table))


def isolation_of(contract: Contract, table: Identifier, operations: frozenset[Operation]) -> Isolation | None:
    """The level that a contract holds a commit of `operations` to; None where it leaves that to the table.

    Of several rules that grant it the stricter counts, and snapshot isolation only where all of them say so.
    """
    wanted = operations & FILE_OPERATIONS
    granting = [rule for rule in contract.rules_for(table) if wanted and all(rule.grants(each) for each in wanted)]
    levels = {rule.isolation for rule in granting}
    if Isolation.SERIALIZABLE in levels:
        return Isolation.SERIALIZABLE
    return Isolation.SNAPSHOT if levels == {Isolation.SNAPSHOT} else None


def owner_of(
    contracts: Sequence[Contract], table: Identifier, touches: Sequence[Touch], layout: Layout, now_ms: int
) -> Contract | None:
    """The contract that owns what is touched, or some of it, and may write there; an agent's before a pipeline's."""
    owners = [contract for contract in contracts if contract.role is not Role.MAINTENANCE]
    for contract in sorted(owners, key=lambda each: each.role is not Role.AGENT):
        rules = [
            rule
            for rule in contract.rules_for(table)
            if not rule.whole and any(rule.grants(operation) for operation in FILE_OPERATIONS)
        ]
        ownership = Ownership(rules, layout, now_ms)
        if rules and any(ownership.of(touch.spec, touch.partition) is Membership.INSIDE for touch in touches):
            return contract
    return None


def owned(
    contract: Contract, table: Identifier, specs: Mapping[int, PartitionSpec], *, layout: Layout, now_ms: int
) -> Callable[[int, tuple[Any, ...]], bool]:
    """(spec id, partition) → whether a rule of the contract for this table may own that partition (trap R2).

    All of its rules count, whatever they grant there: it is a question of what may be read. What cannot be decided
    counts as owned, and so does a partition of a spec that came after `specs`.
    """
    rules = contract.rules_for(table)
    everything = any(rule.whole for rule in rules)
    ownership = Ownership(rules, layout, now_ms)

    def owns(spec_id: int, partition: tuple[Any, ...]) -> bool:
        if everything or spec_id not in specs:
            return True
        return ownership.of(specs[spec_id], partition) is not Membership.OUTSIDE

    return owns


def _name(touch: Touch) -> str:
    """The partition by its human name, also where a manifest holds values that are none of its fields'."""
    try:
        return partition_name(touch.spec, touch.partition)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return repr(touch.partition)[:200]


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED_IN_MESSAGE])
    more = len(names) - NAMED_IN_MESSAGE
    return f"{shown} and {more} more partitions" if more > 0 else shown
