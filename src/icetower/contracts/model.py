"""The isolation contract of one agent: what two teams have agreed on. `document` reads and writes it.

Whatever is not granted is refused. Several rules may name one table: what they grant adds up, and so do their flags.
`read_scope` and `blind_appends` don't: they are promises about every write, so each rule that grants the write must
make them. Neither does what restrains: of two isolation levels, patterns, places or quotas the stricter holds.
Values of regions stay text here: what they mean depends on the partition field, which only the table knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from icetower.protocol.names import Identifier, Namespace

VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
ADMINISTRATOR_NAME = "administrator"
EVERY_PARTITION = "all"
OWNED = "owned"
"""The only value of `read_scope`; without the field nothing is known of what a write depends on."""
NOW = "now"
TABLES_KEPT = 256
"""Tables of which a contract remembers what it says of them."""


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


class Isolation(StrEnum):
    """The level that writes under a rule are held to, whatever the table asks for."""

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


class Orchestration(StrEnum):
    """How an agent's rows come into a table (the guide, "Orchestration Patterns").

    direct      it commits to the table itself
    mediator    through the table's write-ahead log only; its own commits to the table are refused
    scheduler   it commits itself, into slots: every region that it owns moves with the clock
    """

    DIRECT = "direct"
    MEDIATOR = "mediator"
    SCHEDULER = "scheduler"


class Role(StrEnum):
    """What a contract's holder is to the tables, for reviews and for people; what is granted stays as it is written.

    agent        it owns partitions of its own
    maintenance  it works on the partitions of others: compaction, retention, erasure
    pipeline     it merges or collects what others have sent, into partitions that they own too
    """

    AGENT = "agent"
    MAINTENANCE = "maintenance"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class Range:
    """Half open: from `start` up to, not including, `end`; None where a side is not bounded. Never holds null.

    Either may be ``now``, ``now+2h`` or ``now-30m``.
    """

    start: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class Values:
    """A set of values; None stands for null."""

    values: tuple[str | None, ...]


Extent = Range | Values


@dataclass(frozen=True, slots=True)
class Region:
    """Rows for which every term lies within its extent; a term that is not named may have any value.

    A term is the name of a partition field, or a transform of a column: ``day(ts)``, ``bucket(16, product_id)``.
    """

    fields: tuple[tuple[str, Extent], ...]


def with_joined(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    """The regions, and the unions of those that differ in one term only: lists, and ranges that follow each other.

    Two half months own a month together, which neither does by itself. Nothing of what the texts mean is known here.
    """
    alike: dict[tuple[int, Region], list[Extent]] = {}
    for region in regions:
        for at, (name, extent) in enumerate(region.fields):
            rest = Region((*region.fields[:at], (name, _ANY), *region.fields[at + 1 :]))
            alike.setdefault((at, rest), []).append(extent)
    found = dict.fromkeys(regions)
    for (at, rest), extents in alike.items():
        for union in _unions(extents) if len(extents) > 1 else ():
            found[Region((*rest.fields[:at], (rest.fields[at][0], union), *rest.fields[at + 1 :]))] = None
    return tuple(found)


_ANY = Values(())


def _unions(extents: list[Extent]) -> Iterator[Extent]:
    lists = [extent.values for extent in extents if isinstance(extent, Values)]
    if len(lists) > 1:
        yield Values(tuple(dict.fromkeys(value for values in lists for value in values)))
    after = {extent.start: extent for extent in extents if isinstance(extent, Range) and extent.start is not None}
    for first in (extent for extent in extents if isinstance(extent, Range)):
        last, left = first, dict(after)
        while last.end is not None and last.end in left:
            last = left.pop(last.end)
        if last is not first:
            yield Range(first.start, last.end)


@dataclass(frozen=True, slots=True)
class Quota:
    """What one principal may send to a table; None where nothing is said."""

    commits_per_minute: int | None = None
    files_per_commit: int | None = None
    bytes_per_commit: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `tables`.

    Attributes:
        partitions: the union of these; None: every partition, and files of an unpartitioned table.
        excluded: what is taken away from them (`except`).
        reads_owned: `read_scope: owned`.
        own_location: files that a principal adds lie in a place of its own under the table's (`write_location: own`).
    """

    pattern: Pattern
    operations: frozenset[Operation]
    partitions: tuple[Region, ...] | None = ()
    blind_appends: bool = False
    strict: bool = False
    require_key: bool = False
    prove_partitions: bool = False
    reads_owned: bool = False
    excluded: tuple[Region, ...] = ()
    isolation: Isolation | None = None
    orchestration: Orchestration = Orchestration.DIRECT
    own_location: bool = True
    quota: Quota = Quota()

    @property
    def whole(self) -> bool:
        """Whether it speaks of all partitions, and of files without one."""
        return self.partitions is None and not self.excluded

    def grants(self, operation: Operation) -> bool:
        return operation in self.operations or any(operation in IMPLIED.get(held, ()) for held in self.operations)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a contract says of one table, all its rules for it together.

    Attributes:
        own_location: whether files that a principal adds must lie in a place of its own.
        quota: of the rules that let it write, the strictest.
    """

    rules: tuple[Rule, ...]
    own_location: bool
    quota: Quota

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Grant:
        rules = tuple(rules)
        writing = [rule for rule in rules if any(rule.grants(operation) for operation in FILE_OPERATIONS)]
        quota = Quota(
            *(
                min((said for rule in writing if (said := getattr(rule.quota, each.name)) is not None), default=None)
                for each in fields(Quota)
            )
        )
        return cls(rules, any(rule.own_location for rule in writing), quota)


@dataclass(frozen=True, slots=True)
class Retries:
    """How an agent's client tries again after 409 (Iceberg's `commit.retry.*`, with the guide's numbers)."""

    attempts: int = 5
    min_wait_ms: int = 100
    max_wait_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class Escalation:
    """When its failures are a person's business: after so many in a row within `within_s`, on one table.

    Attributes:
        to: the named human: an address, or `Name <address>`.
        webhook: the name of an address in the tower's settings; None: mail alone.
    """

    after_failures: int
    within_s: float
    to: str
    webhook: str | None = None


class KeyWay(StrEnum):
    """How a key may come with a commit."""

    HEADER = "header"
    SUMMARY = "summary"
    SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True)
class Idempotency:
    """Whether every commit needs a key, in which of the ways it may come, and how long it is remembered at least."""

    required: bool = True
    how: frozenset[KeyWay] = frozenset(KeyWay)
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files that an agent wrote and never committed: how often they are looked for, from what age, and their end."""

    detect_every_s: float = 86_400
    older_than_s: float = 259_200
    delete: bool = False


@dataclass(frozen=True, slots=True)
class Revocation:
    """Principals that may revoke the contract, besides administrators."""

    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract as read.

    Attributes:
        reads: patterns of the shorthand.
        administrator: the built-in one that admits all.
        role: contracts of different roles may own the same partitions on purpose.
        shadow: it is evaluated and logged, and admits everything (`mode: shadow`).
        requests_at_once: so many requests of one principal go on at the same time; None: the server's default.
    """

    name: str
    tables: tuple[Rule, ...] = ()
    reads: tuple[Pattern, ...] = ()
    description: str = ""
    owner: str | None = None
    administrator: bool = False
    role: Role = Role.AGENT
    shadow: bool = False
    retries: Retries | None = None
    escalation: Escalation | None = None
    idempotency: Idempotency | None = None
    orphans: Orphans | None = None
    revocation: Revocation | None = None
    requests_at_once: int | None = None

    _by_table: dict[Identifier, Grant] = field(
        default_factory=dict[Identifier, Grant], init=False, compare=False, repr=False
    )

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.tables + tuple(Rule(pattern, _READ) for pattern in self.reads)

    def rules_for(self, table: Identifier) -> tuple[Rule, ...]:
        """The rules that speak of a table; the very same objects each time, for a while."""
        return self.on(table).rules

    def on(self, table: Identifier) -> Grant:
        found = self._by_table.get(table)
        if found is None:
            found = Grant.of(rule for rule in self.rules if rule.pattern.matches(table))
            if len(self._by_table) >= TABLES_KEPT:
                self._by_table.clear()
            self._by_table[table] = found
        return found

    def grants(self, operation: Operation, table: Identifier) -> bool:
        return self.administrator or any(rule.grants(operation) for rule in self.rules_for(table))

    def grants_everywhere(self, operations: frozenset[Operation], table: Identifier) -> bool:
        """Whether one rule grants all `operations` on every partition of the table."""
        return self.administrator or any(
            rule.whole and all(rule.grants(operation) for operation in operations) for rule in self.rules_for(table)
        )

    def requires_key(self, table: Identifier) -> bool:
        """Whether every commit to the table needs an idempotency key."""
        if self.idempotency is not None and self.idempotency.required:
            return bool(self.rules_for(table))
        return any(rule.require_key for rule in self.rules_for(table))

    def proves(self, table: Identifier) -> bool:
        """Whether statistics must show in which partition of the table each data file lies."""
        return any(rule.prove_partitions for rule in self.rules_for(table))


ADMINISTRATOR = Contract(ADMINISTRATOR_NAME, description="everything is allowed", administrator=True)
