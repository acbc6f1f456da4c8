"""A review of contracts by themselves: what does not do what was meant, and who is in whose way. Pure.

`one` looks at a contract alone, `together` at several that are to be in force beside each other and beside those that
are already. What is found is said with the line, the rule and the way out; docs/contracts.md lists the rules.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Collection, Iterator, Sequence

from icetower.contracts.axes import Axes, is_relative, rules_regions
from icetower.contracts.boxes import TooMany
from icetower.contracts.calendars import problems
from icetower.contracts.findings import Finding, Severity, Written
from icetower.contracts.gaps import gaps
from icetower.contracts.grants import role_name
from icetower.contracts.model import (
    FILE_OPERATIONS,
    NARROWER_ON_A_PART,
    Contract,
    Isolation,
    KeyWay,
    Operation,
    Orchestration,
    Retries,
    Role,
    Rule,
)
from icetower.contracts.overlaps import Overlap, common_tables, overlaps, written
from icetower.contracts.patterns import THROUGH
from icetower.contracts.reading import duration_text
from icetower.contracts.regions import Extent, Pattern, Range
from icetower.contracts.terms import Layout, parse_term
from icetower.contracts.values import NotUnderstood, moment_of
from icetower.contracts.wording import UNIT_MS, operations_text
from icetower.iceberg.partitions import PartitionSpec
from icetower.protocol.names import Identifier

ORPHANS_AGE_LEAST_S = 86_400
"""Younger files are not deleted: Iceberg's own procedure refuses to, since a writer may be at work on them for long."""
LOGS_NAMESPACE = ("system",)
"""Where the mediator, the collector and the export keep their logs, if their `--system` says nothing else."""
_ROWS_CHANGE = frozenset({Operation.OVERWRITE, Operation.DELETE})
GAPS_MAX = 5
"""Gaps of one table that are named."""


def alone(contracts: Sequence[Written], *, now_ms: int) -> Iterator[Finding]:
    """What is found in some contracts, each by itself and all together, without the tables or others in force."""
    for contract in contracts:
        yield from one(contract, now_ms=now_ms)
    yield from together(contracts, now_ms=now_ms)


def one(contract: Written, *, now_ms: int) -> Iterator[Finding]:
    """What is found in one contract."""
    yield from _retries(contract)
    yield from _clauses(contract)
    for position, rule in enumerate(contract.contract.tables):
        place = f"tables[{position}]"
        yield from _entry(contract, rule, place)
        yield from _regions(contract, rule, place, now_ms)


# ----------------------------------------------------------------------------------------------- retries and escalation


def longest_retrying_s(retries: Retries) -> float:
    """How long the waits between all retries take at most, as Iceberg's clients double them."""
    waits_ms = (min(retries.min_wait_ms * 2**attempt, retries.max_wait_ms) for attempt in range(retries.attempts))
    return sum(itertools.islice(waits_ms, 64)) / 1000 + max(0, retries.attempts - 64) * retries.max_wait_ms / 1000


def _retries(it: Written) -> Iterator[Finding]:
    contract = it.contract
    writing = [position for position, rule in enumerate(contract.tables) if written(rule)]
    if not writing:
        return
    retries = contract.retries or Retries()
    tried_s = longest_retrying_s(retries)
    longest = duration_text(max(tried_s, 0.001))
    escalation, idempotency = contract.escalation, contract.idempotency
    keyless = [position for position in writing if not _needs_key(contract, contract.tables[position])]
    if retries.attempts and keyless:
        place = "retries" if contract.retries is not None else f"tables[{keyless[0]}]"
        yield it.found(
            Severity.WARNING,
            "retries.key",
            f"commits to {contract.tables[keyless[0]].pattern} are tried again and need no idempotency key: one whose "
            "answer was lost and that its writer writes anew lands twice; once every client sends a key "
            "(docs/clients.md) add 'idempotency: {required: true}'",
            place,
        )
    elif not keyless and idempotency is not None and idempotency.how == frozenset(KeyWay):
        yield it.found(
            Severity.NOTE,
            "idempotency.clients",
            "every commit needs an idempotency key. Unchanged PyIceberg, and Iceberg's Java clients before 1.11, send "
            "none: their commits are refused (contract.key). docs/clients.md says how each client sends one; name the "
            "ways that this agent's clients take in 'how'",
            "idempotency.required",
        )
    if escalation is None:
        yield it.found(
            Severity.WARNING,
            "escalation.none",
            "nobody is notified when its commits keep failing; add 'escalation' with a named human",
            "agent",
        )
    else:
        if tried_s > escalation.within_s:
            yield it.found(
                Severity.WARNING,
                "escalation.within",
                f"the retries of one commit take up to {longest}, longer than the {duration_text(escalation.within_s)} "
                "within which failures count together: they may never come to an escalation; raise 'within'",
                "escalation.within",
            )
    if idempotency is not None and idempotency.window_s is not None and idempotency.window_s < tried_s:
        yield it.found(
            Severity.WARNING,
            "idempotency.window",
            f"a key is forgotten after {duration_text(idempotency.window_s)}, and a commit may be tried again for "
            f"{longest}; raise 'window'",
            "idempotency.window",
        )


def _needs_key(contract: Contract, rule: Rule) -> bool:
    return rule.require_key or (contract.idempotency is not None and contract.idempotency.required)


def _clauses(it: Written) -> Iterator[Finding]:
    contract = it.contract
    if contract.owner is None:
        yield it.found(Severity.NOTE, "owner.none", "nobody is named who answers for the agent; add 'owner'", "agent")
    if contract.shadow:
        yield it.found(Severity.NOTE, "mode.shadow", "it is evaluated and logged only: it admits everything", "mode")
    orphans = contract.orphans
    if orphans is not None and orphans.delete and orphans.older_than_s < ORPHANS_AGE_LEAST_S:
        yield it.found(
            Severity.WARNING,
            "orphans.age",
            f"files are deleted from the age of {duration_text(orphans.older_than_s)} on, and may belong to a commit "
            "under way; wait a day at least",
            "orphans.older_than",
        )


# -------------------------------------------------------------------------------------------------- one entry of tables


def _entry(it: Written, rule: Rule, place: str) -> Iterator[Finding]:
    files = frozenset(operation for operation in FILE_OPERATIONS if rule.grants(operation))
    if files and rule.partitions == ():
        yield it.found(
            Severity.WARNING,
            "partitions.none",
            f"{operations_text(files)} on {rule.pattern} comes to nothing: no partition is owned; add 'partitions'",
            place,
        )
    if (
        not (files or NARROWER_ON_A_PART & rule.operations)
        and rule.partitions != ()
        and not (rule.whole and any(map(rule.grants, rule.operations)))
    ):
        yield it.found(
            Severity.NOTE,
            "partitions.unused",
            f"the partitions of {rule.pattern} come to nothing: no file operation is granted on them",
            f"{place}.partitions",
        )
    unable = frozenset(operation for operation in rule.operations if not rule.grants(operation))
    if unable:
        yield it.found(
            Severity.WARNING,
            "operation.table",
            f"{operations_text(unable)} on {rule.pattern} comes to nothing: it concerns the whole table, and this "
            "entry owns a part of it; grant it in an entry without 'partitions', or with 'partitions: all'",
            f"{place}.operations",
        )
    if rule.strict and (rule.blind_appends or rule.reads_owned):
        said = "blind_appends" if rule.blind_appends else "read_scope"
        yield it.found(
            Severity.NOTE,
            "strict.rebase",
            f"'{said}' comes to nothing: 'strict' turns all rebasing off",
            f"{place}.{said}",
        )
    if rule.blind_appends and rule.isolation is Isolation.SERIALIZABLE:
        yield it.found(
            Severity.NOTE,
            "blind.serializable",
            "'blind_appends' comes to nothing: 'isolation: serializable' goes before it, and only a commit's own "
            "declaration makes it blind",
            f"{place}.blind_appends",
        )
    elif rule.blind_appends and rule.grants(Operation.OVERWRITE):
        yield it.found(
            Severity.NOTE,
            "blind.upsert",
            f"the agent may change rows of {rule.pattern}, and its appends are put on a newer head unchecked. An "
            "upsert of PyIceberg that finds no row to change is an append: two of them insert one row twice, unless "
            "they declare what they have read (icetower.agent.reads). Leave 'blind_appends' out if this agent upserts",
            f"{place}.blind_appends",
        )
    if (kind := THROUGH.get(rule.orchestration)) and not _has_log(it.contract, rule):
        yield it.found(
            Severity.WARNING,
            f"pattern.{rule.orchestration}",
            f"rows come into {rule.pattern} through a {kind} only, and there is no {rule.through or 'other table'} "
            f"that it may append to; add the {kind.removeprefix('write-ahead ')} to 'tables'",
            f"{place}.pattern",
        )


def _has_log(contract: Contract, target: Rule) -> bool:
    return any(
        rule.pattern != target.pattern
        and target.through in (None, rule.pattern)
        and rule.orchestration not in THROUGH
        and Operation.APPEND in written(rule)
        for rule in contract.tables
    )


def _regions(it: Written, rule: Rule, place: str, now_ms: int) -> Iterator[Finding]:
    """Of its regions: values that mean nothing, those that hold nothing, exceptions that take nothing away."""
    given = [(region, f"{place}.partitions[{i}]") for i, region in enumerate(rule.partitions or ())]
    taken = [(region, f"{place}.except[{i}]") for i, region in enumerate(rule.excluded)]
    moving = any(is_relative(region) for region, _ in (*given, *taken))
    axes = Axes(rules_regions([rule]), now_ms=now_ms)
    offsets = Axes(rules_regions([rule])) if moving else axes
    for region, at in (*given, *taken):
        try:
            axes.box(region)
        except NotUnderstood as problem:
            yield it.found(Severity.ERROR, "partitions.value", str(problem), at)
            return
        for name, extent in region.fields:
            if why := why_short(name, _unit_of(name), extent):
                yield it.found(Severity.WARNING, "partitions.slot", why, f"{at}.{name}")
    if not all(offsets.understands(region) for region, _ in (*given, *taken)):
        return
    for region, at in (*given, *taken):
        if offsets.box(region) is None:
            yield it.found(Severity.WARNING, "partitions.empty", "this region never holds anything", at)
    for region, at in taken:
        if rule.partitions is not None and not any(offsets.meet(region, other) for other, _ in given):
            yield it.found(
                Severity.NOTE, "except.nothing", "this takes nothing away from the partitions of its entry", at
            )
    try:
        if taken and given and not offsets.inhabited(offsets.boxes(rule)):
            yield it.found(
                Severity.WARNING,
                "partitions.empty",
                f"nothing is left of the partitions of {rule.pattern}: 'except' takes all of them away",
                f"{place}.except",
            )
    except TooMany:
        return


def _unit_of(name: str) -> str:
    term = parse_term(name)
    return "" if term is None else term.transform


def why_short(name: str, transform: str, extent: Extent) -> str | None:
    """What is wrong with a slot that moves with the clock and is shorter than what its term counts; None: nothing."""
    if transform not in UNIT_MS or not isinstance(extent, Range):
        return None
    start, end = (None if text is None else moment_of(text, 0) for text in (extent.start, extent.end))
    if start is None or end is None or not 0 < end - start < UNIT_MS[transform]:
        return None
    return (
        f"{name} from {extent.start} to {extent.end} is shorter than one {transform}: it holds one only while the next "
        f"begins within it, and nothing at all at other times; write a list, such as [now], or a longer range"
    )


# ------------------------------------------------------------------------------------------------------------- together


def together(
    contracts: Sequence[Written],
    in_force: Sequence[Written] = (),
    *,
    now_ms: int,
    tables: Sequence[Identifier] = (),
) -> Iterator[Finding]:
    """What is found between contracts.

    Args:
        contracts: those that are reviewed.
        in_force: others, which stay as they are; nothing is said of these among themselves.
        tables: those that are looked at by themselves (`references.py`): nothing is said of who owns what of them.
    """
    yield from _names(contracts)
    yield from _roles(contracts, in_force)
    for it, other in pairs(contracts, in_force):
        for found in overlaps(it.contract, other.contract, now_ms=now_ms):
            if not any(found.tables.matches(table) for table in tables):
                yield of_overlap(it, other, found)
    yield from _calendars(contracts, in_force)
    patterns = dict.fromkeys(rule.pattern for it in contracts for rule in it.contract.tables if owns(it, rule))
    for pattern in patterns:
        if not any(pattern.matches(table) for table in tables):
            yield from of_gaps(pattern, contracts, in_force, now_ms=now_ms)


def pairs(contracts: Sequence[Written], in_force: Sequence[Written]) -> Iterator[tuple[Written, Written]]:
    """All two of different agents, one of them at least among those that are reviewed."""
    for position, it in enumerate(contracts):
        for other in (*contracts[position + 1 :], *in_force):
            if it.contract.name != other.contract.name:
                yield it, other


def _names(contracts: Sequence[Written]) -> Iterator[Finding]:
    """Two contracts of one agent: the second would put an end to the first."""
    first: dict[str, Written] = {}
    for it in contracts:
        before = first.setdefault(it.contract.name, it)
        if before is not it:
            yield it.found(
                Severity.ERROR,
                "agent.twice",
                f"{it.contract.name} has a contract already, at {before.at('agent')}; rename one of the agents",
                "agent",
                (before.at("agent"),),
            )


def _roles(contracts: Sequence[Written], in_force: Sequence[Written]) -> Iterator[Finding]:
    """Two agents whose roles would be one, where contracts are put in force as a catalog's grants."""
    for it, other in pairs(contracts, in_force):
        role = role_name(it.contract)
        if role == role_name(other.contract):
            yield it.found(
                Severity.WARNING,
                "agent.role",
                f"{it.contract.name} and {other.contract.name} would share the role {role} in a catalog (`icetower "
                f"contracts grants`), and what is granted to it; rename one of them. The other: {other.at('agent')}",
                "agent",
                (other.at("agent"),),
            )


def _calendars(contracts: Sequence[Written], in_force: Sequence[Written]) -> Iterator[Finding]:
    """Slots that are handed out in a calendar that cannot work."""
    for it in contracts:
        others = [each.contract for each in (*contracts, *in_force) if each.contract.name != it.contract.name]
        for position in range(len(it.contract.tables)):
            for rule, words in problems(it.contract, position, others):
                yield it.found(Severity.WARNING, rule, words, f"tables[{position}].claim_within")


def people(it: Written, bound: Sequence[str], principals: Collection[str]) -> Iterator[Finding]:
    """What is found of those that a contract is about.

    Args:
        bound: the principals that are bound to it.
        principals: all that there are.
    """
    if not bound:
        yield it.found(
            Severity.NOTE,
            "principal.none",
            f"no principal is bound to it; `icetower principals create NAME --contract {it.contract.name}` makes one",
            "agent",
        )
    for position, name in enumerate(() if it.contract.revocation is None else it.contract.revocation.by):
        if name not in principals:
            yield it.found(
                Severity.WARNING,
                "revocation.unknown",
                f"{name} is no principal, and so may revoke nothing; create it, or mend the name",
                f"revocation.by[{position}]",
            )
    for position, name in enumerate(() if it.contract.branches is None else it.contract.branches.checked_by):
        if name not in principals:
            yield it.found(
                Severity.WARNING,
                "checks.unknown",
                f"{name} is no principal, and so its reports of checks never come; name a principal, not a contract",
                f"branches.checked_by[{position}]",
            )


def of_overlap(it: Written, other: Written, found: Overlap) -> Finding:
    """An overlap as a finding: how bad it is depends on what each may do there."""
    mine, theirs = found.operations
    here, there = f"tables[{found.one}]", f"tables[{found.other}]"
    its_place = other.at(there)
    where = f"{found.tables}" + (f" where {found.partitions}" if found.partitions else ", all of it")
    when = ""
    if found.from_ms is not None:
        when = f" from {dt.datetime.fromtimestamp(found.from_ms / 1000, dt.UTC):%Y-%m-%d %H:%M} UTC on,"
    agents = f"{it.contract.name} and {other.contract.name}"
    held = f"{operations_text(mine)} here, {operations_text(theirs)} at {its_place}"
    if it.contract.role is not other.contract.role:
        severity, rule = Severity.NOTE, "overlap.role"
        words = f"{_with_role(it.contract)} and {_with_role(other.contract)} both work on {where}{when} ({held})"
    elif found.tables.namespace == LOGS_NAMESPACE and _keeps_logs(it, found.one) and _keeps_logs(other, found.other):
        severity, rule = Severity.NOTE, "overlap.shared"
        words = f"{agents} share {where}{when} ({held}): pipelines keep their logs in the same tables"
    elif _handed_out(it, found.one) and _handed_out(other, found.other):
        severity, rule = Severity.NOTE, "overlap.shared"
        words = f"{agents} share {where}{when} ({held}): the tower hands each slot to one of them"
    elif _held(it, found.one) and _held(other, found.other):
        severity, rule = Severity.NOTE, "overlap.shared"
        words = f"{agents} share {where}{when} ({held}): by intents, each holds what it changes for itself"
        words += _blind_past_intents((it.contract, found.one), (other.contract, found.other))
    elif not mine & _ROWS_CHANGE and not theirs & _ROWS_CHANGE:
        severity, rule = Severity.NOTE, "overlap.shared"
        words = f"{agents} share {where}{when} ({held}): neither changes the other's rows"
    elif _collected(it, found.one) and _collected(other, found.other):
        severity, rule = Severity.NOTE, "overlap.shared"
        words = f"{agents} share {where}{when} ({held}): the collector lets the last event of a row win"
    elif found.unsure is not None:
        severity, rule = Severity.WARNING, "overlap.possible"
        words = f"{agents} may both own {where}{when} ({held}): {found.unsure}"
    else:
        shadow = it.contract.shadow or other.contract.shadow  # which refuses nothing yet
        severity, rule = Severity.WARNING if shadow else Severity.ERROR, "overlap.owned"
        words = f"{agents} both own {where}{when} ({held}); give it to one of them, or say `intents: required` in both"
    return it.found(severity, rule, words, here, (its_place,))


def _keeps_logs(it: Written, position: int) -> bool:
    """Whether an entry is that of a pipeline which makes the tables of its logs, and so shares them. The pipelines'
    commits to their logs are validated against each other's."""
    rule = it.contract.tables[position]
    return it.contract.role is Role.PIPELINE and Operation.CREATE in rule.operations and rule.whole


def _collected(it: Written, position: int) -> bool:
    """Whether its changes come in through a delta table. Agents may change the same rows there, in any order."""
    return it.contract.tables[position].orchestration is Orchestration.COLLECTOR


def _handed_out(it: Written, position: int) -> bool:
    """Whether it writes there in slots alone that the tower hands out."""
    return it.contract.tables[position].claim_within_ms is not None


def _held(it: Written, position: int) -> bool:
    """Whether it stays out of rows there that another's intent holds."""
    return it.contract.tables[position].intents_required


def _blind_past_intents(*entries: tuple[Contract, int]) -> str:
    """Whose appends come into rows that another's intent holds."""
    adding = [(contract.name, contract.tables[at]) for contract, at in entries]
    adding = [(name, rule) for name, rule in adding if rule.grants(Operation.APPEND)]
    blind = [name for name, rule in adding if rule.blind_appends]
    each = [name for name, rule in adding if not rule.blind_appends]
    said: list[str] = []
    if blind:
        said.append(f"the appends of {' and '.join(blind)} (`blind_appends: true`)")
    if each:
        said.append(f"appends of {' and '.join(each)} that say that they are blind")
    return f"; only an exclusive intent keeps out {' and '.join(said)}" if said else ""


def _with_role(contract: Contract) -> str:
    return f"{contract.name} ({contract.role})"


def owns(it: Written, rule: Rule) -> frozenset[Operation]:
    """The file operations by which a rule makes its contract an owner; maintenance owns nothing by itself."""
    return frozenset() if it.contract.role is Role.MAINTENANCE else written(rule)


def of_gaps(
    tables: Pattern,
    contracts: Sequence[Written],
    in_force: Sequence[Written],
    *,
    now_ms: int,
    layout: Layout | None = None,
    spec: PartitionSpec | None = None,
    severity: Severity = Severity.NOTE,
) -> Iterator[Finding]:
    """What nobody owns of the tables of a pattern, at the first entry that divides them."""
    owning = [
        (it, position, rule)
        for it in (*contracts, *in_force)
        for position, rule in enumerate(it.contract.tables)
        if owns(it, rule) and common_tables(rule.pattern, tables) == tables
    ]
    mine = next(((it, position) for it, position, rule in owning if it in contracts and rule.partitions), None)
    if mine is None:
        return
    found = gaps([rule for _, _, rule in owning], now_ms=now_ms, layout=layout, spec=spec)
    for words in found[:GAPS_MAX]:
        yield mine[0].found(
            severity, "gap.partitions", f"nobody owns {tables} where {words}", f"tables[{mine[1]}].partitions"
        )
    if len(found) > GAPS_MAX:
        yield mine[0].found(
            severity,
            "gap.partitions",
            f"nobody owns {len(found) - GAPS_MAX} regions more of {tables}",
            f"tables[{mine[1]}].partitions",
        )
