"""The isolation contract of one agent: what two teams have agreed on. `document` reads and writes it.

Whatever is not granted is refused. Several rules may name one table: what they grant adds up, and so do their flags.
`read_scope` and `blind_appends` don't: they are promises about every write, so each rule that grants the write must
make them. Neither does what restrains: of two isolation levels, patterns, places or quotas the stricter holds. Values
of regions stay text here: only the table knows what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

from icetower.contracts.fields import (
    FLAG,
    TEXT,
    Hint,
    Part,
    Saying,
    choice,
    choices,
    duration,
    either,
    flag,
    listed,
    nested,
    number,
    only,
    part,
    said,
    switch,
    text_like,
)
from icetower.contracts.limits import Guard, Quota
from icetower.contracts.patterns import STRICTER, THROUGH, Orchestration, all_move, claims_changed, why_no_calendar
from icetower.contracts.reading import duration_text
from icetower.contracts.regions import EVERY_PARTITION, OWNED_ROWS, ROWS, TABLES, Pattern, Region
from icetower.contracts.slots import Turn
from icetower.contracts.upkeep import SPANS, Branches, Orphans
from icetower.counting import counted, series
from icetower.protocol.names import Identifier

VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
ADMINISTRATOR_NAME, VIEWER_NAME = "administrator", "(viewer)"
"""The latter is of people who look and change nothing. No file's contract can have it: see `NAME`."""
OWNED = "owned"
"""The only value of `read_scope`; without the field nothing is known of what a write depends on."""
ENFORCE, SHADOW = "enforce", "shadow"
OWN, TABLE = "own", "table"
ADVISORY, REQUIRED = "advisory", "required"
TABLES_KEPT = 256  # tables of which a contract remembers what it says of them


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
TABLE_OPERATIONS = frozenset({Operation.DROP, Operation.RENAME})  # not granted by an entry that owns some partitions
NARROWER_ON_A_PART = frozenset({Operation.REFS, Operation.ALTER})
"""Of a part of a table these allow less: whoever holds `refs` on all of it may set `main` to any snapshot."""
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


class Isolation(StrEnum):
    """The level that writes under a rule are held to, whatever the table asks for."""

    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


class Role(StrEnum):
    """What a contract's holder is to the tables, for reviews and for people; what is granted stays as it is written.

    agent        it owns partitions of its own
    maintenance  it works on the partitions of others: compaction, retention, erasure
    pipeline     it merges or collects what others have sent, into partitions that they own too
    """

    AGENT = "agent"
    MAINTENANCE = "maintenance"
    PIPELINE = "pipeline"


class KeyWay(StrEnum):
    """How a key may come with a commit."""

    HEADER = "header"
    SUMMARY = "summary"
    SEQUENCE = "sequence"


# ── Entries of `tables` ──────────────────────────────────────────────────────────────────────────────────────────────


def _level(values: Sequence[Isolation | None]) -> Isolation | None:
    if Isolation.SERIALIZABLE in values:
        return Isolation.SERIALIZABLE
    return Isolation.SNAPSHOT if set(values) == {Isolation.SNAPSHOT} else None


def _one(values: Sequence[Pattern | None]) -> Pattern | None:
    return next((value for value in values if value is not None), None)


def _level_changed(was: Isolation | None, now: Isolation | None) -> str:
    if now is None:
        return f"is held to {was} isolation on {{}} no more"
    return f"is held to {now} isolation on {{}}{f', before: {was}' if was else ''}"


_REGIONS_HINT = """\
all
partitions: # regions, which add up; within one, all lines hold at once
  - day(ts): {from: 2026-01-01, to: 2027-01-01} # half open; or by the clock: {from: now, to: now+2d}
    bucket(16, id): [0, 1, 2, 3]"""


@part
class Rule(Part):
    """One entry of `tables`.

    Attributes:
        partitions: the union of these; None: every partition, and files of an unpartitioned table.
        excluded: what is taken away from them (`except`).
        reads_owned: `read_scope: owned`.
        own_location: files that a principal adds lie in a place of its own under the table's (`write_location: own`).
    """

    pattern: Pattern = said(TABLES, name="table")
    operations: frozenset[Operation] = said(
        choices(Operation, "leave the whole entry out to grant nothing"),
        "What the agent may do. overwrite grants append, delete, replace and read; any of these grants read.",
        hint=Hint("[append]", "overwrite grants append, delete, replace", on=True),
    )
    partitions: tuple[Region, ...] | None = said(
        OWNED_ROWS,
        f"The partitions that it owns: none without it, and `{EVERY_PARTITION}` for every one.",
        default=(),
        hint=Hint(_REGIONS_HINT),
    )
    _: KW_ONLY
    excluded: tuple[Region, ...] = said(
        ROWS, "Regions that are taken away from those of this entry.", default=(), name="except"
    )
    blind_appends: bool = flag(
        "Its appends depend on nothing that it has read: they are rebased unchecked.",
        "gains rebasing of its appends to {} unchecked (blind_appends)",
        "loses rebasing of its appends to {} unchecked (blind_appends)",
        gains=True,
        hint=Hint("true", "its appends depend on nothing that it has read; not if it upserts (docs/clients.md)"),
    )
    strict: bool = flag(
        "Nothing of it is rebased: what is stale is answered 409.",
        "loses all rebasing on {} (strict)",
        "gains rebasing on {} again (strict no more)",
    )
    require_key: bool = flag(
        "Each commit needs an idempotency key.",
        "needs an idempotency key for each commit to {} (require_key)",
        "needs no idempotency key on {} any more (require_key)",
    )
    prove_partitions: bool = flag(
        "Statistics must prove in which partition each file lies.",
        "must prove the partitions of its files on {} (prove_partitions)",
        "need not prove the partitions of its files on {} any more (prove_partitions)",
    )
    reads_owned: bool = said(
        switch((OWNED,), on=OWNED),
        "Its writes depend on no rows but those of partitions that it owns.",
        default=False,
        name="read_scope",
        saying=Saying(
            either(
                "promises that its writes to {} depend on owned partitions only (read_scope: owned)",
                "promises no more what its writes to {} depend on (read_scope)",
            ),
            together=lambda values: bool(values) and all(values),
            of_writers=True,
        ),
        hint=Hint(OWNED, "its other writes depend on rows of its own partitions only"),
    )
    isolation: Isolation | None = said(
        choice(Isolation),
        "The isolation level that its rebased commits are held to.",
        default=None,
        saying=Saying(_level_changed, together=_level),
    )
    intents_required: bool = said(
        switch((ADVISORY, REQUIRED), on=REQUIRED),
        "Its commits into rows that another's intent holds: advisory lets them in, required refuses them. The table "
        "may require it of everybody (icetower.intents).",
        default=False,
        name="intents",
        saying=Saying(
            either(
                "loses commits into rows of {} that others hold (intents: required)",
                "gains commits into rows of {} that others hold (intents: advisory)",
            ),
            lambda _, now: not now,
            together=any,
        ),
        hint=Hint(REQUIRED, "its commits stay out of rows that others hold (docs/intents.md)"),
    )
    orchestration: Orchestration = said(
        choice(Orchestration),
        "How its rows come into the table: by its own commits; only through the write-ahead log, or the delta table; "
        "or by its own commits into slots that move with the clock.",
        default=Orchestration.DIRECT,
        name="pattern",
        saying=Saying(
            lambda was, now: f"writes to {{}} by the pattern {now}, before: {was}",
            together=lambda values: max(values, key=STRICTER.index, default=Orchestration.DIRECT),
        ),
    )
    claim_within_ms: int | None = said(
        duration(1000),
        "Its slots are handed out. One that nobody has taken within this time goes to the next agent of the table.",
        default=None,
        name="claim_within",
        saying=Saying(
            claims_changed, lambda _, now: now is not None, lambda each: min(filter(None, each), default=None)
        ),
    )
    through: Pattern | None = said(
        TABLES,
        "The write-ahead log or the delta table by which its rows come in; without it the only other table of the "
        "namespace that it may append to.",
        default=None,
        saying=Saying(lambda _, now: f"sends its rows of {{}} to {now or 'its log or delta table'}", together=_one),
    )
    own_location: bool = said(
        switch((OWN, TABLE), on=OWN),
        "Where its files may lie: a place of its own, or anywhere under the table's.",
        default=True,
        name="write_location",
        saying=Saying(
            either(
                "loses writing files anywhere under {} (write_location: own)",
                "gains writing files anywhere under {} (write_location: table)",
            ),
            lambda _, now: not now,
            together=all,
        ),
        hint=Hint(TABLE, "for clients that do not follow write.data.path, such as DuckDB"),
    )
    ignore_unknown_columns: bool = flag(
        "Of rows that it sends, columns that the table does not have are passed over.",
        "gains sending rows to {} with columns that it does not have (ignore_unknown_columns)",
        "loses sending rows to {} with columns that it does not have (ignore_unknown_columns)",
        gains=True,
    )
    quota: Quota = said(
        nested(Quota),
        "What one principal may send to a table.",
        default=Quota(),
        name="quotas",
        hint=Hint("{commits_per_minute: 60, files_per_commit: 500, bytes_per_commit: 1GiB}"),
    )
    guard: Guard = said(
        nested(Guard),
        "Overwrites that nobody can have meant are refused, until a person has approved them.",
        default=Guard(),
        hint=Hint("{times: 3}", "an overwrite adds at most so many times the rows that it removes"),
    )

    def problem(self) -> tuple[str, str] | None:
        if self.excluded and self.partitions == ():
            return "except", "takes partitions away where none are given; add 'partitions'"
        if any(isinstance(extent, Turn) for region in self.excluded for _, extent in region.fields):
            return "except", "takes away a slot that comes round; leave it out of 'partitions' instead"
        if self.orchestration is Orchestration.SCHEDULER and not all_move(self.partitions):
            return "pattern", (
                "is scheduler, by slots: each region needs a slot such as {every: 2m, from: 0s, to: 1m}, or a range "
                "that ends relative to now, such as {from: now, to: now+2h}"
            )
        if self.claim_within_ms is not None and (why := why_no_calendar(self.partitions, self.claim_within_ms)):
            return "claim_within", why
        if self.through is not None and self.orchestration not in THROUGH:
            return "through", "names a table for rows that come in by a log or a delta table; add 'pattern'"
        return None

    @property
    def whole(self) -> bool:
        """Whether it speaks of all partitions, and of files without one."""
        return self.partitions is None and not self.excluded

    def grants(self, operation: Operation) -> bool:
        if operation in TABLE_OPERATIONS:
            return operation in self.operations and not (self.partitions or self.excluded)
        return operation in self.operations or any(operation in IMPLIED.get(held, ()) for held in self.operations)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a contract says of one table, all its rules for it together.

    Attributes:
        own_location: whether files that a principal adds must lie in a place of its own.
        quota, guard: of the rules that let it write, the strictest.
    """

    rules: tuple[Rule, ...]
    own_location: bool
    quota: Quota
    guard: Guard

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Grant:
        rules = tuple(rules)
        writing = [rule for rule in rules if any(rule.grants(operation) for operation in FILE_OPERATIONS)]
        quota = Quota.strictest([rule.quota for rule in writing])
        guard = Guard.strictest([rule.guard for rule in writing])
        return cls(rules, any(rule.own_location for rule in writing), quota, guard)


# ── The contract ─────────────────────────────────────────────────────────────────────────────────────────────────────


@part
class Retries(Part):
    """How an agent's client tries again after 409 (Iceberg's `commit.retry.*`, with the guide's numbers)."""

    attempts: int = said(number(0), "So often a commit is tried again (commit.retry.num-retries).", default=5)
    min_wait_ms: int = said(duration(1000), f"The shortest wait before it. {SPANS}", default=100, name="min_wait")
    max_wait_ms: int = said(duration(1000), f"The longest wait before it. {SPANS}", default=5_000, name="max_wait")

    def problem(self) -> tuple[str, str] | None:
        if self.max_wait_ms >= self.min_wait_ms:
            return None
        return "", f"waits at least {self.min_wait_ms} ms and at most {self.max_wait_ms} ms; raise 'max_wait'"

    def __str__(self) -> str:
        shortest, longest = (duration_text(ms / 1000) for ms in (self.min_wait_ms, self.max_wait_ms))
        return f"up to {self.attempts} retries, {shortest} to {longest} apart"


@part
class Escalation(Part):
    """When its failures are a person's business: after so many in a row within `within_s`, on one table.

    Attributes:
        to: the named human: an address, or `Name <address>`.
        webhook: the name of an address in the tower's settings; None: mail alone.
    """

    after_failures: int = said(number(1), "Failures in a row on one table.")
    within_s: float = said(duration(), f"The time within which they count together. {SPANS}", name="within")
    to: str = said(
        text_like(
            r"([^<>@\r\n]*<[^<>@\s]+@[^<>@\s]+>|[^<>@\s]+@[^<>@\s]+)",
            "is {!r}; name a person: 'Dana Ito <dana.ito@example.com>', or the address alone",
            maxLength=320,
        ),
        "The named human: an address, or `Name <address>`.",
    )
    webhook: str | None = said(
        text_like(
            NAME.pattern,
            "is no name; addresses are secrets and stand in the tower's settings ([escalations.webhooks]), by name",
        ),
        "An address in the tower's settings, by its name.",
        default=None,
    )

    def __str__(self) -> str:
        webhook = f" and the webhook {self.webhook}" if self.webhook else ""
        failures = f"{counted(self.after_failures, 'failure')} in a row within {duration_text(self.within_s)}"
        return f"to {self.to}{webhook} after {failures}"


@part
class Idempotency(Part):
    """Whether every commit needs a key, in which of the ways it may come, and how long it is remembered at least."""

    required: bool = said(FLAG, "Whether each commit needs a key.")
    how: frozenset[KeyWay] = said(
        choices(KeyWay, "leave it out to take a key in every way"),
        "The ways in which a key may come.",
        default=frozenset(KeyWay),
    )
    window_s: float | None = said(
        duration(), f"How long a key is remembered at least. {SPANS}", default=None, name="window"
    )

    def __str__(self) -> str:
        ways = series([way.value for way in KeyWay if way in self.how], "or")
        window = "" if self.window_s is None else f", remembered for {duration_text(self.window_s)}"
        return f"a key {'is required' if self.required else 'may come'} by {ways}{window}"


@part
class Revocation(Part):
    """Principals that may revoke the contract, besides administrators."""

    by: tuple[str, ...] = said(
        listed(text_like(NAME.pattern, "is {!r}, which is no principal's name")),
        "Principals that may, besides administrators.",
    )

    def __str__(self) -> str:
        return f"by administrators{f' and by {series(self.by)}' if self.by else ' only'}"


_KEYS_NOTE = """
# A key makes a write that is sent twice land once. Unchanged PyIceberg sends none, nor do Iceberg's Java clients before
# 1.11: where a key is required their commits are refused. Require it once every client sends one (docs/clients.md).
"""


@part
class Contract(Part):
    """A contract as read.

    Attributes:
        reads: patterns of the shorthand.
        administrator: the built-in one that admits all.
        role: contracts of different roles may own the same partitions on purpose.
        shadow: it is evaluated and logged, and admits everything (`mode: shadow`).
        requests_at_once: so many requests of one principal go on at the same time; None: the server's default.
    """

    name: str = said(
        text_like(
            NAME.pattern,
            f"is {{!r}}; write 1 to 128 letters, digits, '_', '-' or '.', other than {ADMINISTRATOR_NAME!r}",
            **{"not": {"const": ADMINISTRATOR_NAME}},
        ),
        "The contract's name. A principal is bound to exactly one contract.",
        name="agent",
    )
    _: KW_ONLY
    description: str = said(TEXT, "What the agent does.", default="", hint=Hint("what the agent does"))
    owner: str | None = said(
        TEXT,
        "Who answers for the agent; named to others who need its partitions.",
        default=None,
        hint=Hint("team@example.com", "who answers for it"),
    )
    role: Role = said(
        choice(Role),
        "What its holder is to the tables. A maintenance job or a pipeline works on partitions that agents own, on "
        "purpose: `icetower contracts check` then reports the overlap as a note.",
        default=Role.AGENT,
        hint=Hint("maintenance", "or pipeline: it works on partitions that agents own, on purpose"),
    )
    shadow: bool = said(
        switch((ENFORCE, SHADOW), on=SHADOW),
        f"{SHADOW}: the contract is evaluated and logged, and admits everything.",
        default=False,
        name="mode",
        saying=Saying(
            either(
                "is evaluated and logged only, and admits everything (mode: shadow)",
                "is enforced from now on (mode: enforce)",
            ),
            lambda _, now: now,
        ),
        hint=Hint(SHADOW, "evaluated and logged, and admits everything: to see what it would refuse before it does"),
    )
    tables: tuple[Rule, ...] = said(
        listed(nested(Rule)),
        "What the agent may do to which tables, and which of their partitions it owns.",
        default=(),
        hint=Hint("[]", above="\n# Which tables the agent may write to, and which of their partitions it owns.\n"),
    )
    reads: tuple[Pattern, ...] = said(
        listed(TABLES),
        "Short for entries of tables with the operation read alone.",
        default=(),
        hint=Hint("[namespace.*]", "tables that it may read"),
    )
    administrator: bool = False
    retries: Retries | None = said(
        nested(Retries, full=True),
        "How the agent tries again after 409.",
        default=None,
        hint=Hint(
            "{attempts: 5, min_wait: 100ms, max_wait: 5s}",
            above="\n# How it tries again, and when a person is called.\n",
            on=True,
        ),
    )
    escalation: Escalation | None = said(
        nested(Escalation),
        "When its failures are a person's business.",
        default=None,
        hint=Hint("{after_failures: 5, within: 10m, to: Dana Ito <dana@example.com>}"),
    )
    idempotency: Idempotency | None = said(
        nested(Idempotency),
        "What makes a commit that is sent twice land once.",
        default=None,
        hint=Hint("{required: true, window: 24h}", above=_KEYS_NOTE),
    )
    orphans: Orphans | None = said(
        nested(Orphans, full=True),
        "Files that the agent wrote and never committed.",
        default=None,
        hint=Hint(
            "{detect_every: 24h, older_than: 72h, action: report}",
            "or delete",
            above="\n# Files that it wrote and never committed.\n",
            on=True,
        ),
    )
    branches: Branches | None = said(
        nested(Branches),
        "Branches that the agent works on, and publishes.",
        default=None,
        hint=Hint("{retain: 7d, checks: [row-counts], checked_by: [ci]}", above="\n# Branches that it publishes.\n"),
    )
    revocation: Revocation | None = said(
        nested(Revocation),
        "Who may revoke the contract.",
        default=None,
        hint=Hint("{by: [oncall]}", above="\n# Principals that may revoke this contract, besides administrators.\n"),
    )
    requests_at_once: int | None = said(
        only(
            "requests_at_once",
            number(1),
            "So many requests of one principal go on at the same time, over all tables; further ones wait.",
        ),
        "What one principal may send to the server.",
        default=None,
        name="quotas",
        text=lambda count: f"{counted(count, 'request')} at once",
    )

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
VIEWER = Contract(VIEWER_NAME, description="the control API may be read; nothing else is allowed")
