"""A review of contracts against the tables that they name: columns, partition fields, values, and who owns what. Pure.

A table is its metadata as plain JSON; its partitions are given by whoever has read its manifests.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from icetower.contracts.findings import Finding, Place, Severity, Written
from icetower.contracts.model import Operation, Rule
from icetower.contracts.overlaps import common_tables, overlaps, written
from icetower.contracts.owning import Ownership
from icetower.contracts.regions import Extent, Pattern, Region, is_clock
from icetower.contracts.review import of_gaps, of_overlap, owns, pairs, why_short
from icetower.contracts.terms import Layout
from icetower.contracts.values import Membership, NotUnderstood, compile_extent
from icetower.counting import series
from icetower.errors import ValidationFailed
from icetower.iceberg.partitions import PartitionField, PartitionSpec, columns_of, partition_name, spec_of
from icetower.iceberg.transforms import apply
from icetower.protocol.names import Identifier

NAMED_MAX = 8
"""Columns, fields and partitions that are named."""


@dataclass(frozen=True)
class Found:
    """A table as it is.

    Attributes:
        partitions: those with live files, each with its spec; None: they were not read.
    """

    identifier: Identifier
    metadata: Mapping[str, Any]
    partitions: Sequence[tuple[PartitionSpec, tuple[Any, ...]]] | None = None

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.metadata)

    @cached_property
    def spec(self) -> PartitionSpec:
        """The spec by which new files are written."""
        return spec_of(self.metadata, self.metadata.get("default-spec-id", 0))

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """Name → type, of the columns that a partition may come from."""
        schemas = self.metadata.get("schemas") or [self.metadata["schema"]]
        current = self.metadata.get("current-schema-id", 0)
        schema = next((each for each in schemas if each.get("schema-id", 0) == current), schemas[0])
        return {name: kind for _, (name, kind) in columns_of(schema)}

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.identifier.namespace, self.identifier.name)


def references(it: Written, table: Found, *, now_ms: int) -> Iterator[Finding]:
    """What the regions of one contract mean for one table that it names."""
    for position, rule in enumerate(it.contract.tables):
        if rule.pattern.matches(table.identifier):
            yield from _entry(it, table, rule, f"tables[{position}]", now_ms)


def _entry(it: Written, table: Found, rule: Rule, place: str, now_ms: int) -> Iterator[Finding]:
    by_clock = rule.partitions and all(is_clock(*line) for region in rule.partitions for line in region.fields)
    if written(rule) and not rule.whole and not by_clock and not table.spec.fields:
        yield it.found(
            Severity.WARNING,
            "reference.spec",
            f"{table.identifier} is not partitioned: only who owns all of it (`partitions: all`) may write to it",
            place,
        )
        return
    regions = [(region, f"{place}.partitions[{i}]") for i, region in enumerate(rule.partitions or ())]
    regions += [(region, f"{place}.except[{i}]") for i, region in enumerate(rule.excluded)]
    for region, at in regions:
        yield from _region(it, table, region, at, now_ms)


def _region(it: Written, table: Found, region: Region, at: str, now_ms: int) -> Iterator[Finding]:
    for name, extent in region.fields:
        place = f"{at}.{name}"
        if is_clock(name, extent):
            continue
        field = table.layout.field(name, table.spec)
        if field is None:
            yield it.found(Severity.ERROR, "reference.name", _no_such_name(name, table), place)
            continue
        problem = _why_meaningless(field, extent, now_ms)
        if problem is not None:
            yield it.found(Severity.ERROR, "reference.value", f"{table.identifier}: {problem}", place)
            continue
        if why := why_short(name, field.transform, extent):
            yield it.found(Severity.WARNING, "partitions.slot", f"{table.identifier}: {why}", place)
        if why := _why_untold(field, table):
            yield it.found(Severity.WARNING, "reference.spec", why, place)


def _no_such_name(name: str, table: Found) -> str:
    fields = [field.name for field in table.spec.fields]
    columns = list(table.columns)
    more = " …" if len(columns) > NAMED_MAX else ""
    return (
        f"{table.identifier} has no partition field and no column for {name!r}; its partition fields are "
        f"{', '.join(fields) or 'none'}, its columns {', '.join(columns[:NAMED_MAX])}{more}"
    )


def _why_meaningless(field: PartitionField, extent: Extent, now_ms: int) -> str | None:
    """Why an extent means nothing for a field: its transform does not apply to the column, or a value is none."""
    sample = _SAMPLES.get(field.source_type.split("(")[0].split("[")[0])
    try:
        if sample is not None:
            apply(field.transform, field.source_type, sample)
        compile_extent(field, extent, now_ms)
    except ValidationFailed as problem:
        return problem.message
    except NotUnderstood as problem:
        return str(problem)
    return None


_SAMPLES: Mapping[str, Any] = {
    **dict.fromkeys(("int", "long", "date", "time"), 0),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    "boolean": False,
    "string": "",
    "decimal": Decimal(0),
    **dict.fromkeys(("binary", "fixed"), b""),
    "uuid": bytes(16),
}
"""A value of each type."""


def _why_untold(field: PartitionField, table: Found) -> str | None:
    """Why the partitions of new files tell nothing of a term, so that whatever is written is refused."""
    own = [each for each in table.spec.fields if each.source_id == field.source_id and each.transform != "void"]
    if any(_tells(each.transform, field.transform) for each in own):
        return None
    has = f"{series([each.transform for each in own])} of it" if own else "no field of that column"
    return (
        f"{field.name} is {field.transform} of {field.source_name}, and {table.identifier} is partitioned by {has}: "
        "whether a file lies there cannot be determined, and what cannot be determined is refused"
    )


def _tells(have: str, want: str) -> bool:
    buckets = have.startswith("bucket["), want.startswith("bucket[")
    return have in ("identity", want) or buckets == (True, True) or not any(buckets)


def of_table(
    table: Found, contracts: Sequence[Written], in_force: Sequence[Written], *, now_ms: int
) -> Iterator[Finding]:
    """All that is found of one table: what regions mean for it, who owns the same, and what nobody owns.

    Of a region that means nothing, no more is said than that.
    """
    meaningless: set[Place] = set()
    for it in contracts:
        for position, rule in enumerate(it.contract.tables):
            if rule.pattern.matches(table.identifier):
                found = list(_entry(it, table, rule, f"tables[{position}]", now_ms))
                yield from found
                if any(finding.severity is Severity.ERROR for finding in found):
                    meaningless.add(it.at(f"tables[{position}]"))
    for finding in between(table, contracts, in_force, now_ms=now_ms):
        if not (finding.rule.startswith("overlap.") and finding.place in meaningless):
            yield finding


def between(
    table: Found, contracts: Sequence[Written], in_force: Sequence[Written], *, now_ms: int
) -> Iterator[Finding]:
    """What is found of one table between contracts: who owns the same, and what nobody owns."""
    for it, other in pairs(contracts, in_force):
        found = overlaps(
            it.contract,
            other.contract,
            now_ms=now_ms,
            tables=table.pattern,
            layout=table.layout,
            spec=table.spec,
        )
        for overlap in found:
            yield of_overlap(it, other, overlap)
    yield from of_gaps(
        table.pattern,
        contracts,
        in_force,
        now_ms=now_ms,
        layout=table.layout,
        spec=table.spec,
        severity=Severity.WARNING,
    )
    yield from _unowned(table, contracts, in_force, now_ms)


def _unowned(table: Found, contracts: Sequence[Written], in_force: Sequence[Written], now_ms: int) -> Iterator[Finding]:
    """Partitions that are there, and that nobody owns."""
    mine = [
        (it, position)
        for it in contracts
        for position, rule in enumerate(it.contract.tables)
        if rule.pattern.matches(table.identifier) and owns(it, rule)
    ]
    rules = [
        rule
        for it in (*contracts, *in_force)
        for rule in it.contract.tables
        if rule.pattern.matches(table.identifier) and owns(it, rule)
    ]
    if not mine or table.partitions is None or any(rule.whole for rule in rules):
        return
    ownership = Ownership(rules, table.layout, now_ms)
    left = [
        partition_name(spec, partition)
        for spec, partition in table.partitions
        if ownership.of(spec, partition) is Membership.OUTSIDE
    ]
    if left:
        more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
        it, position = mine[0]
        yield it.found(
            Severity.WARNING,
            "gap.rows",
            f"nobody owns {len(left)} of the {len(table.partitions)} partitions of {table.identifier} that hold rows: "
            f"{', '.join(sorted(left)[:NAMED_MAX])}{more}",
            f"tables[{position}]",
        )


def without_catalog(pattern: Pattern) -> Pattern | None:
    """What a pattern names if its first level is a catalog's name and no namespace; None: it has one level only."""
    return Pattern(pattern.namespace[1:], pattern.last) if len(pattern.namespace) > 1 else None


def missing(it: Written, there: Iterable[Identifier], nearby: Collection[Identifier] = ()) -> Iterator[Finding]:
    """Patterns by which a contract names no table that there is. Who may create one names it before.

    Args:
        there: the tables that the contract names.
        nearby: other tables, which its author may have meant.
    """
    tables = list(there)
    named = [(f"tables[{i}].table", rule) for i, rule in enumerate(it.contract.tables)]
    named += [
        (f"reads[{i}]", Rule(pattern, frozenset({Operation.READ}))) for i, pattern in enumerate(it.contract.reads)
    ]
    for place, rule in named:
        if any(rule.pattern.matches(table) for table in tables):
            continue
        creates = any(
            each.grants(Operation.CREATE) or each.grants(Operation.REGISTER)
            for each in it.contract.tables
            if common_tables(each.pattern, rule.pattern) is not None
        )
        shorter = without_catalog(rule.pattern)
        if not creates and shorter is not None and any(shorter.matches(table) for table in (*tables, *nearby)):
            yield it.found(
                Severity.ERROR,
                "reference.catalog",
                f"there is no table {rule.pattern}, and {shorter} is there: a table is named from its namespace on, "
                f"without the catalog's name; write {shorter}",
                place,
            )
            continue
        near = difflib.get_close_matches(str(rule.pattern), sorted({str(table) for table in (*tables, *nearby)}), n=1)
        yield it.found(
            Severity.NOTE if creates else Severity.WARNING,
            "reference.table",
            _absent(rule.pattern)
            + (" yet" if creates else f"; did you mean {near[0]}?" if near else "; create it first, or mend the name"),
            place,
        )


def _absent(pattern: Pattern) -> str:
    many = pattern.last in ("*", "**")
    return f"no table that {pattern} names is there" if many else f"there is no table {pattern}"
