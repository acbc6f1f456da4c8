"""What a table's history says of its writers before any contract: who writes where and how, what they lost, and a first
contract for each. Pure.

Iceberg's clients leave little behind of a commit that failed, but the ones that succeeded say how often they had tried:
Java's library counts attempts in the name of the manifest list. Everything else is read from what was committed.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, count, pairwise
from math import gcd
from types import MappingProxyType
from typing import Any

from icetower.audit.commits import Commit
from icetower.audit.wording import shown
from icetower.contracts.document import dump
from icetower.contracts.model import Contract, Operation, Role, Rule
from icetower.contracts.patterns import Orchestration, all_move
from icetower.contracts.regions import Extent, Pattern, Range, Region, Values, parse_pattern
from icetower.contracts.slots import Turn
from icetower.counting import counted
from icetower.iceberg.partitions import PartitionField, PartitionSpec, human_value
from icetower.protocol.marks import GROUP_FILE, PRINCIPAL
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.table.groups import Group
from icetower.table.origins import application_of

JSON = Mapping[str, Any]

WRITERS_MAX = 40
CANDIDATES_MAX = 5
_OWN_OF_ICEBERG = re.compile(
    r"operation$|(added|deleted|removed|total|changed|replaced|kept|created|engine|iceberg|manifests|entries|spark|"
    r"flink|trino|app|icetower|kafka|write|wap|published|source)[-.]"
)
"""Properties of summaries that Iceberg, its engines and the tower write."""
"""More applications than this are taken for runs of one: their engine names them all."""
GROUP_MS = 1_000
"""Commits that come within this time of each other could have been one swap."""

TURNS_LEAST = 3
"""Moments of one writer, from which on they may be slots that come round."""

_OPERATIONS = {
    "append": Operation.APPEND,
    "overwrite": Operation.OVERWRITE,
    "delete": Operation.DELETE,
    "replace": Operation.REPLACE,
}
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")

Place = tuple[str | None, ...]
"""A partition as people read it: one value a field of the table's default spec, None for null."""


@dataclass
class Writer:
    """What one writer did.

    Attributes:
        retries: swaps that it is known to have lost.
        retried: commits that had lost one.
        places: how often it wrote to each partition.
        shared: partitions to which others write more often, with the owner.
        agent: its name as a contract can have it, which no other writer has.
    """

    name: str
    commits: Counter[str] = field(default_factory=Counter[str])
    files: int = 0
    rows: int = 0
    retries: int = 0
    retried: int = 0
    blind: int = 0
    first_ms: int = 0
    last_ms: int = 0
    places: Counter[Place] = field(default_factory=Counter[Place])
    shared: dict[Place, str] = field(default_factory=dict[Place, str])
    agent: str = ""

    @property
    def total(self) -> int:
        return sum(self.commits.values())


@dataclass(frozen=True, slots=True)
class Savings:
    """What a tower would have saved.

    Attributes:
        lost_swaps: attempts that were lost to somebody else's commit; a tower rebases such commits itself.
        swaps: commits, each a metadata file and a swap of its own.
        grouped: how many swaps they would have been, were those that come close together one.
        missing: sequence numbers that no commit of the branch has: staged, rolled back, or another branch's.
        counted: commits whose client counts its attempts; of all others it is not known what they lost.
    """

    lost_swaps: int
    swaps: int
    grouped: int
    missing: int
    counted: int


@dataclass(frozen=True, slots=True)
class Advice:
    """All of it.

    Attributes:
        contracts: the text of each, by the writer's name; none where contracts cannot name the table.
        unnamed: commits that name neither a principal, nor an application, nor the key that was asked for.
        candidates: properties in their summaries that may name a writer.
    """

    table: str
    fields: tuple[str, ...]
    writers: tuple[Writer, ...]
    owners: Mapping[Place, str]
    savings: Savings
    contracts: Mapping[str, str]
    commits: int
    unnamed: int = 0
    candidates: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        """What to do where commits do not say who wrote them; empty where they do."""
        if not self.unnamed:
            return ""
        known = f" ({', '.join(self.candidates)} may be one)" if self.candidates else ""
        return (
            f"{counted(self.unnamed, 'commit')} of {self.commits} not attributed to an agent: PyIceberg names none. If "
            f"your agents write their name into a snapshot property, give it as --writer-key{known}"
        )

    def to_json(self) -> dict[str, Any]:
        """As `icetower advise --json` prints it."""
        return {
            "table": self.table,
            "partition_fields": list(self.fields),
            "commits": self.commits,
            "unattributed_commits": self.unnamed,
            "writer_key_candidates": list(self.candidates),
            "writers": [
                {
                    "name": writer.name,
                    "agent": writer.agent,
                    "commits": dict(writer.commits),
                    "files": writer.files,
                    "rows": writer.rows,
                    "retried": writer.retried,
                    "lost_swaps": writer.retries,
                    "first_ms": writer.first_ms,
                    "last_ms": writer.last_ms,
                    "partitions": [[*place] for place in writer.places],
                    "shared": [{"partition": [*place], "owner": owner} for place, owner in writer.shared.items()],
                }
                for writer in self.writers
            ],
            "owners": [{"partition": [*place], "writer": owner} for place, owner in self.owners.items()],
            "savings": {
                "lost_swaps": self.savings.lost_swaps,
                "swaps": self.savings.swaps,
                "grouped": self.savings.grouped,
                "missing_sequence_numbers": self.savings.missing,
                "commits_that_count_attempts": self.savings.counted,
            },
            "contracts": dict(self.contracts),
        }


NO_GROUPS: Mapping[int, Group] = MappingProxyType({})


def advise(
    table: Identifier,
    commits: Sequence[Commit],
    spec: PartitionSpec,
    writer_key: str | None = None,
    groups: Mapping[int, Group] = NO_GROUPS,
) -> Advice:
    """What there is to say of a branch's commits.

    Args:
        table: by which name contracts speak of it.
        spec: the table's default one.
        writer_key: the name of a summary property that says who wrote.
        groups: of commits that stand for several appends, by the snapshot's id: whose each is.
    """
    called = _naming(commits, writer_key)
    writers: dict[str, Writer] = {}
    for commit in commits:
        group = None if writer_key else groups.get(commit.id)
        parts = [(called(commit), None)] if group is None else [(shown(a.principal), {*a.paths}) for a in group.appends]
        for name, files in parts:
            _count(writers.setdefault(name, Writer(name)), commit, spec, files)
    owners = _owners(writers.values())
    for writer in writers.values():
        writer.shared = {place: owners[place] for place in writer.places if owners[place] != writer.name}
    telling = _telling(owners, spec.fields)
    ordered = tuple(sorted(writers.values(), key=lambda writer: -writer.total))
    _name_agents(ordered)
    pattern = Pattern(table.namespace, table.name)
    texts = {
        writer.name: _contract(pattern, writer, owners, spec.fields, telling)
        for writer in ordered
        if _names_one(pattern)
    }
    return Advice(
        str(table),
        tuple(part.name for part in spec.fields),
        ordered,
        owners,
        _savings(commits),
        texts,
        len(commits),
        *_unnamed(commits, writer_key),
    )


# ── Who ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _naming(commits: Sequence[Commit], writer_key: str | None) -> Callable[[Commit], str]:
    """Principals are writers; without them applications are, or, where these are too many, engines."""
    applications = {application_of(commit.summary) for commit in commits}
    runs = len(applications) > WRITERS_MAX

    def name(commit: Commit) -> str:
        summary = commit.summary
        said = summary.get(writer_key) if writer_key else summary.get(PRINCIPAL)
        engine = str(summary.get("engine-name") or "")
        application = None if runs else application_of(summary)
        return shown(said or application or engine or "unknown")

    return name


def _unnamed(commits: Sequence[Commit], writer_key: str | None) -> tuple[int, tuple[str, ...]]:
    """How many commits do not say who wrote them, and the properties of their own that may tell."""
    names = (writer_key,) if writer_key else (PRINCIPAL, GROUP_FILE)
    silent = [
        commit.summary
        for commit in commits
        if not any(commit.summary.get(name) for name in names) and not application_of(commit.summary)
    ]
    values: dict[str, set[str]] = {}
    for summary in silent:
        for name, value in summary.items():
            if not _OWN_OF_ICEBERG.match(name):
                values.setdefault(shown(name), set()).add(str(value))
    likely = sorted(name for name, found in values.items() if len(found) <= WRITERS_MAX)
    return len(silent), tuple(likely[:CANDIDATES_MAX])


def _count(writer: Writer, commit: Commit, spec: PartitionSpec, files: Collection[str] | None) -> None:
    """Count a commit, or of a group the append that these files are of."""
    writer.commits[commit.operation or "other"] += 1
    writer.retries += commit.retries
    writer.retried += bool(commit.retries)
    writer.blind += commit.reads.blind
    at_ms = int(commit.snapshot.get("timestamp-ms") or 0)
    writer.first_ms = min(writer.first_ms or at_ms, at_ms)
    writer.last_ms = max(writer.last_ms, at_ms)
    places: set[Place] = set()
    for item in (*commit.delta.added, *commit.delta.removed):
        if files is not None and item.path not in files:
            continue
        if item.spec_id == spec.spec_id and len(item.partition) == len(spec.fields):
            pairs = zip(spec.fields, item.partition, strict=True)
            places.add(tuple(None if value is None else human_value(part, value) for part, value in pairs))
    writer.places.update(places)
    added = [item for item in commit.delta.data_added() if files is None or item.path in files]
    writer.files += len(added)
    writer.rows += sum(item.records for item in added)


def _owners(writers: Iterable[Writer]) -> dict[Place, str]:
    """Of each partition, whoever wrote to it most often; of two, whoever wrote there first."""
    best: dict[Place, tuple[int, int, str]] = {}
    for writer in writers:
        for place, times in writer.places.items():
            claim = (times, -writer.first_ms, writer.name)
            if place not in best or claim[:2] > best[place][:2]:
                best[place] = claim
    return {place: best[place][2] for place in sorted(best, key=in_order)}


def in_order(place: Place) -> tuple[tuple[bool, str], ...]:
    """Sorts partitions; null comes last."""
    return tuple((value is None, value or "") for value in place)


# ── Contracts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _telling(owners: Mapping[Place, str], fields: Sequence[PartitionField]) -> tuple[int, ...] | None:
    """The fewest partition fields whose values tell one owner's partitions from another's; None for one owner.

    Those of the calendar come last: they move on with the data, and a contract by days ends with them.
    """
    if len(set(owners.values())) <= 1:
        return None
    order = sorted(range(len(fields)), key=lambda at: (_is_calendar(fields[at]), at))
    for width in range(1, len(order) + 1):
        for chosen in combinations(order, width):
            seen: dict[Place, str] = {}
            apart = (seen.setdefault(tuple(place[at] for at in chosen), who) == who for place, who in owners.items())
            if all(apart):
                return tuple(sorted(chosen))
    return tuple(range(len(fields)))


def _is_calendar(part: PartitionField) -> bool:
    dated = part.result_type.startswith(("date", "timestamp"))
    return part.transform in ("day", "hour", "month", "year") or dated


def _contract(
    pattern: Pattern,
    writer: Writer,
    owners: Mapping[Place, str],
    fields: Sequence[PartitionField],
    telling: tuple[int, ...] | None,
) -> str:
    """A first contract: in shadow mode, so that nothing is refused before somebody has looked at it."""
    owned = [place for place in writer.places if owners[place] == writer.name]
    operations = _operations(writer)
    rewrites = operations == frozenset({Operation.REPLACE})
    rules: tuple[Rule, ...] = (Rule(pattern, operations, None),) if rewrites else ()  # the partitions of all others
    if owned and not rewrites:
        partitions = None if telling is None else _regions(owned, fields, telling, owners)
        only_appends = operations == frozenset({Operation.APPEND})
        blind = only_appends and writer.blind == writer.total
        pattern_of_turns = Orchestration.SCHEDULER if all_move(partitions) else Orchestration.DIRECT
        rules = (Rule(pattern, operations, partitions, blind_appends=blind, orchestration=pattern_of_turns),)
    contract = Contract(
        name=writer.agent,
        tables=rules,
        reads=() if rules else (pattern,),
        description=f"what {writer.name} was seen to write: {_did(writer)}",
        role=Role.MAINTENANCE if rewrites else Role.AGENT,
        shadow=True,
    )
    return dump(contract)


def _name_agents(writers: Iterable[Writer]) -> None:
    """Writers whose names a contract can't have get a number; names that differ by case alone do, too."""
    taken: set[str] = set()
    for writer in writers:
        name = agent_name(writer.name)
        numbered = (f"{name}-{number}" for number in count(2))
        writer.agent = next(each for each in chain((name,), numbered) if each.lower() not in taken)
        taken.add(writer.agent.lower())


def agent_name(writer: str) -> str:
    """A writer's name as a contract can have it."""
    name = _NAME.sub("-", writer).strip("-_.")[:100] or "writer"
    return f"{name}-agent" if name == "administrator" else name


def _names_one(pattern: Pattern) -> bool:
    """Whether a contract can name this table, and no other with it: stars and dots mean something there."""
    return parse_pattern(str(pattern)) == pattern and "*" not in pattern.last


def _operations(writer: Writer) -> frozenset[Operation]:
    """What it needs; `overwrite` grants all the others."""
    found = frozenset(_OPERATIONS[name] for name in writer.commits if name in _OPERATIONS)
    return frozenset({Operation.OVERWRITE}) if Operation.OVERWRITE in found else found or frozenset({Operation.APPEND})


def _did(writer: Writer) -> str:
    return ", ".join(f"{times} {operation}" for operation, times in writer.commits.most_common())


def _regions(
    places: Iterable[Place], fields: Sequence[PartitionField], telling: Sequence[int], everybodys: Iterable[Place]
) -> tuple[Region, ...]:
    """The partitions by some of their fields: a region for each combination of all but the last of these."""
    *rest, last = telling
    all_values = {place[last] for place in everybodys}
    ends: dict[Place, list[str | None]] = {}
    for row in sorted({tuple(place[at] for at in telling) for place in places}, key=in_order):
        ends.setdefault(row[:-1], []).append(row[-1])
    return tuple(
        Region(
            (
                *((fields[at].name, Values((value,))) for at, value in zip(rest, key, strict=True)),
                (fields[last].name, _turn(fields[last], values, all_values) or _extent(fields[last], values)),
            )
        )
        for key, values in ends.items()
    )


def _turn(part: PartitionField, values: Iterable[str | None], everybodys: Iterable[str | None]) -> Turn | None:
    """The slot that some moments are beginnings of, where several writers take turns; None: they do not."""
    if part.transform != "identity" or not part.result_type.startswith("timestamp"):
        return None
    mine, all_of_them = (sorted({_moment_ms(value) for value in some if value}) for some in (values, everybodys))
    if len(mine) <= TURNS_LEAST or len(all_of_them) == len(mine):
        return None
    every, length = (gcd(*(later - earlier for earlier, later in pairwise(some))) for some in (mine, all_of_them))
    start = mine[0] % every
    return Turn(every, start, start + length) if length < every and start + length <= every else None


def _moment_ms(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def _extent(part: PartitionField, values: Iterable[str | None]) -> Extent:
    """A list of values; whole numbers that follow each other as a range."""
    known = list(dict.fromkeys(values))
    numbers = part.result_type in ("int", "long") and part.transform == "identity"
    if numbers and len(known) > 3 and all(value is not None and re.fullmatch(r"-?\d+", value) for value in known):
        ordered = sorted(int(value) for value in known if value is not None)
        if ordered[-1] - ordered[0] == len(ordered) - 1:
            return Range(str(ordered[0]), str(ordered[-1] + 1))
    return Values(tuple(known))


# ── What it would have saved ─────────────────────────────────────────────────────────────────────────────────────────


def _savings(commits: Sequence[Commit]) -> Savings:
    times = [int(commit.snapshot.get("timestamp-ms") or 0) for commit in commits]
    groups, begun = 0, None
    for at_ms in times:
        if begun is None or at_ms - begun > GROUP_MS:
            groups, begun = groups + 1, at_ms
    numbers = [Snapshot(commit.snapshot).sequence_number for commit in commits]
    missing = sum(max(after - before - 1, 0) for before, after in pairwise(numbers) if before)
    counted = sum(commit.attempts > 0 for commit in commits)
    return Savings(sum(commit.retries for commit in commits), len(commits), groups, missing, counted)
