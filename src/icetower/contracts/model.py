"""The isolation contract of one agent, as written in YAML and kept in review beside the agent's code.

    version: 1
    agent: pricing_agent                     # the contract's name; a principal is bound to exactly one contract
    description: hourly prices               # optional
    owner: pricing-team@example.com          # optional
    tables:
      - table: pricing.product_prices        # or `inventory.*` (its tables), `inventory.**` (all under it), `**`
        operations: [read, append, overwrite]
        partitions:                          # regions, as a union; absent: no partition; `all`: every one
          - date_day: {from: 2017-01-01, to: 2017-02-01}      # half open
            product_id_bucket: [0, 1, 2, 3]
        blind_appends: false
        strict: false
        require_key: false
        prove_partitions: false              # appends by descriptor: statistics must prove where each file lies
        read_scope: owned                    # its writes depend on no rows but those of partitions that it owns
    reads: [inventory.*]                     # short for tables with `operations: [read]`

Whatever is not granted is refused. Several rules may name one table: what they grant adds up, and so do their flags.
`read_scope` doesn't: it is a promise about every write, so each rule that grants the write must make it.
Values of regions stay text here: what they mean depends on the partition field, which only the table knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from icetower.contracts.reading import Reader, read_document
from icetower.protocol.names import Identifier, Namespace

VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
ADMINISTRATOR_NAME = "administrator"
EVERY_PARTITION = "all"
OWNED = "owned"
"""The only value of `read_scope`; without the field nothing is known of what a write depends on."""


class Operation(StrEnum):
    """What a principal may do to a table."""

    READ = "read"
    APPEND = "append"
    OVERWRITE = "overwrite"
    DELETE = "delete"
    REPLACE = "replace"
    CREATE = "create"
    DROP = "drop"
    RENAME = "rename"
    ALTER = "alter"
    REFS = "refs"
    REGISTER = "register"


FILE_OPERATIONS = frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE, Operation.REPLACE})
"""Operations that are granted partition by partition; the others concern the whole table."""

_READ = frozenset({Operation.READ})
# Who may overwrite a partition can append to it, empty it and rewrite it by overwriting, so refusing the weaker
# operation would protect nothing. A writer must load the table that it writes to; creating one needs no look inside.
IMPLIED: Mapping[Operation, frozenset[Operation]] = {
    Operation.OVERWRITE: FILE_OPERATIONS | _READ,
    Operation.APPEND: _READ,
    Operation.DELETE: _READ,
    Operation.REPLACE: _READ,
    Operation.ALTER: _READ,
    Operation.REFS: _READ,
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """Tables by name. `last`: a table's name, ``*`` for every table of the namespace, ``**`` for those under it too."""

    namespace: Namespace
    last: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.last))

    def matches(self, table: Identifier) -> bool:
        if self.last == "**":
            return table.namespace[: len(self.namespace)] == self.namespace
        return table.namespace == self.namespace and self.last in ("*", table.name)

    def covers_namespace(self, namespace: Namespace) -> bool:
        """Whether the pattern grants something on every table that `namespace` may ever hold."""
        if self.last == "**":
            return namespace[: len(self.namespace)] == self.namespace
        return self.last == "*" and namespace == self.namespace

    def reaches(self, namespace: Namespace) -> bool:
        """Whether a table that the pattern matches may lie in `namespace` or under it."""
        return self.namespace[: len(namespace)] == namespace or self.covers_namespace(namespace)


@dataclass(frozen=True, slots=True)
class Range:
    """Half open: from `start` up to, not including, `end`; None where a side is not bounded. Never holds null."""

    start: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class Values:
    """A set of values; None stands for null."""

    values: tuple[str | None, ...]


Extent = Range | Values


@dataclass(frozen=True, slots=True)
class Region:
    """Partitions whose named fields all lie within their extents; a field that is not named may have any value."""

    fields: tuple[tuple[str, Extent], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `tables`. `partitions` None: every partition, and files of an unpartitioned table.

    `reads_owned`: `read_scope: owned`.
    """

    pattern: Pattern
    operations: frozenset[Operation]
    partitions: tuple[Region, ...] | None = ()
    blind_appends: bool = False
    strict: bool = False
    require_key: bool = False
    prove_partitions: bool = False
    reads_owned: bool = False

    def grants(self, operation: Operation) -> bool:
        return operation in self.operations or any(operation in IMPLIED.get(held, ()) for held in self.operations)


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract as read. `reads`: patterns of the shorthand; `administrator`: the built-in one that admits all."""

    name: str
    tables: tuple[Rule, ...] = ()
    reads: tuple[Pattern, ...] = ()
    description: str = ""
    owner: str | None = None
    administrator: bool = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.tables + tuple(Rule(pattern, _READ) for pattern in self.reads)

    def rules_for(self, table: Identifier) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.pattern.matches(table))

    def grants(self, operation: Operation, table: Identifier) -> bool:
        return self.administrator or any(rule.grants(operation) for rule in self.rules_for(table))

    def grants_everywhere(self, operations: frozenset[Operation], table: Identifier) -> bool:
        """Whether one rule grants all `operations` on every partition of the table."""
        return self.administrator or any(
            rule.partitions is None and all(rule.grants(operation) for operation in operations)
            for rule in self.rules_for(table)
        )


ADMINISTRATOR = Contract(ADMINISTRATOR_NAME, description="everything is allowed", administrator=True)


# ---------------------------------------------------------------------------------------------------------- reading


def parse_pattern(text: str) -> Pattern | None:
    """A pattern of its text, or None where it is none: `ns.table`, `ns.*`, `ns.**` or `**`."""
    *namespace, last = text.split(".")
    if any(not level or "*" in level for level in namespace):
        return None
    if last == "**" or (namespace and last and ("*" not in last or last == "*")):
        return Pattern(tuple(namespace), last)
    return None


def load(text: str, *, source: str) -> Contract:
    """The contract written in `text`; `source` names it in messages. Raises `BadRequest` with line and field."""
    top = read_document(text, source=source)
    fields = top.fields(required=("version", "agent"), optional=("description", "owner", "tables", "reads"))
    if fields["version"].text() != str(VERSION):
        raise fields["version"].wrong(f"is {fields['version'].text()!r}; this release reads version {VERSION}")
    name = fields["agent"].text()
    if not NAME.fullmatch(name) or name == ADMINISTRATOR_NAME:
        raise fields["agent"].wrong(
            f"is {name!r}; write 1 to 128 letters, digits, '_', '-' or '.', other than {ADMINISTRATOR_NAME!r}"
        )
    return Contract(
        name=name,
        tables=tuple(_rule(item) for item in fields["tables"].items()) if "tables" in fields else (),
        reads=tuple(_pattern(item) for item in fields["reads"].items()) if "reads" in fields else (),
        description=fields["description"].text() if "description" in fields else "",
        owner=fields["owner"].text() if "owner" in fields else None,
    )


def _pattern(reader: Reader) -> Pattern:
    pattern = parse_pattern(reader.text())
    if pattern is None:
        raise reader.wrong(
            f"is {reader.text()!r}; write a table with its namespace, such as 'pricing.product_prices', "
            "or 'pricing.*', 'pricing.**' or '**'"
        )
    return pattern


def _rule(reader: Reader) -> Rule:
    flags = ("blind_appends", "strict", "require_key", "prove_partitions")
    fields = reader.fields(required=("table", "operations"), optional=("partitions", "read_scope", *flags))
    operations = [item.choice(tuple(Operation)) for item in fields["operations"].items()]
    if not operations:
        raise fields["operations"].wrong("is empty; leave the whole entry out to grant nothing")
    partitions: tuple[Region, ...] | None = ()
    if "partitions" in fields:
        given = fields["partitions"]
        partitions = None if given.is_text(EVERY_PARTITION) else tuple(_region(item) for item in given.items())
    return Rule(
        pattern=_pattern(fields["table"]),
        operations=frozenset(Operation(operation) for operation in operations),
        partitions=partitions,
        reads_owned="read_scope" in fields and fields["read_scope"].choice((OWNED,)) == OWNED,
        **{flag: fields[flag].boolean() for flag in flags if flag in fields},
    )


def _region(reader: Reader) -> Region:
    fields = reader.open_fields()
    if not fields:
        raise reader.wrong(f"names no partition field; to own every partition write 'partitions: {EVERY_PARTITION}'")
    return Region(tuple((name, _extent(value)) for name, value in sorted(fields.items())))


def _extent(reader: Reader) -> Extent:
    if reader.is_mapping():
        bounds = reader.fields(required=(), optional=("from", "to"))
        if not bounds:
            raise reader.wrong("is an empty range; give 'from', 'to' or both")
        start, end = (bounds[side].text() if side in bounds else None for side in ("from", "to"))
        if start is not None and end is not None and _plainly_empty(start, end):
            raise reader.wrong(f"is the range from {start} to {end}, which holds nothing; 'to' is not included")
        return Range(start, end)
    if reader.is_list():
        values = tuple(item.text_or_null() for item in reader.items())
        if not values:
            raise reader.wrong("is an empty list; leave the region out to own nothing")
        return Values(values)
    return Values((reader.text_or_null(),))


_ISO = re.compile(r"\d{4}(-\d\d){0,2}(T\d\d)?")


def _plainly_empty(start: str, end: str) -> bool:
    """True where the bounds can be compared without knowing the field: two dates of one form, or two whole numbers."""
    if re.fullmatch(r"-?\d+", start) and re.fullmatch(r"-?\d+", end):
        return int(start) >= int(end)
    return bool(_ISO.fullmatch(start) and _ISO.fullmatch(end)) and len(start) == len(end) and start >= end


# ---------------------------------------------------------------------------------------------------------- writing


def to_json(contract: Contract) -> dict[str, Any]:
    """The contract as the JSON that `from_json` reads, in the fields of the YAML."""
    document: dict[str, Any] = {"version": VERSION, "agent": contract.name}
    if contract.description:
        document["description"] = contract.description
    if contract.owner is not None:
        document["owner"] = contract.owner
    if contract.tables:
        document["tables"] = [_rule_json(rule) for rule in contract.tables]
    if contract.reads:
        document["reads"] = [str(pattern) for pattern in contract.reads]
    return document


def _rule_json(rule: Rule) -> dict[str, Any]:
    document: dict[str, Any] = {
        "table": str(rule.pattern),
        "operations": [operation.value for operation in Operation if operation in rule.operations],
    }
    if rule.partitions is None:
        document["partitions"] = EVERY_PARTITION
    elif rule.partitions:
        document["partitions"] = [
            {name: _extent_json(extent) for name, extent in region.fields} for region in rule.partitions
        ]
    flags = {
        "blind_appends": rule.blind_appends,
        "strict": rule.strict,
        "require_key": rule.require_key,
        "prove_partitions": rule.prove_partitions,
    }
    document |= {name: True for name, value in flags.items() if value}
    return document | ({"read_scope": OWNED} if rule.reads_owned else {})


def _extent_json(extent: Extent) -> Any:
    if isinstance(extent, Values):
        return list(extent.values)
    return {side: text for side, text in (("from", extent.start), ("to", extent.end)) if text is not None}


def from_json(document: Mapping[str, Any], *, source: str) -> Contract:
    """As `load`, from a JSON object."""
    # JSON is YAML as long as characters beyond the basic plane are not written as surrogate pairs.
    return load(json.dumps(document, ensure_ascii=False, indent=1), source=source)


def dump(contract: Contract) -> str:
    """The contract as YAML; `load` reads the same contract back."""
    return yaml.safe_dump(to_json(contract), sort_keys=False, allow_unicode=True)
