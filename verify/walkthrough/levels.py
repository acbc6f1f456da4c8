"""What every engine's command asks for at each level, and what that stops: tried on Iceberg itself.

Each command of `icetower_client_model.isolation` reads a table, then somebody else commits a change, then the command
commits. Commands that ask for the same at the same level are one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from icetower.iceberg.validation import Level
from icetower_client_model.cases import parse
from icetower_client_model.isolation import Command, Engine, Flags, flags, known
from icetower_client_model.operations import Flag, Kind
from icetower_client_model.replay import Replay
from icetower_client_model.sketch import (
    BY_CATEGORY,
    append,
    begin,
    both,
    case,
    commit,
    data,
    eq,
    equalities,
    op,
    positions,
    vector,
    write,
)
from verify.differential.compare import difference
from verify.walkthrough.draw import API
from verify.walkthrough.observation import Asked, Disagreement

FORMATS = (2, 3)
_RED, _ONE = eq("category", "red"), eq("id", 1)
_IDS = (1, 5)
_DATA: Mapping[str, str] = MappingProxyType(
    {"ours": "red", "neighbour": "red", "old": "red", "blue": "blue"}
    | {"our-data": "red", "their-data": "red", "blue-data": "blue"}
)
_STRIKES: Mapping[str, str] = MappingProxyType(
    {"old-deletes": "old", "old-deletes-again": "old", "our-deletes": "ours"}
    | {"their-deletes": "ours", "neighbour-deletes": "neighbour", "blue-deletes": "blue"}
)
START, THEIRS, OURS = 2, 3, 4
VECTORS_FROM = 3
"""From this format version on, positions are deleted by deletion vectors."""


def _struck(of: str, deletes: str, *add: str) -> Any:
    return op("row-delta", start=START, references=[of], add=list(add), add_deletes=[deletes])


CHANGES: Mapping[str, Any] = MappingProxyType(
    {
        "adds rows that it could have read": op("append", add=["their-data"]),
        "replaces the same data file": op("overwrite", remove=["ours"], add=["their-data"]),
        "removes the same data file": op("delete", remove=["ours"]),
        "strikes rows out of the same data file": _struck("ours", "their-deletes"),
        "strikes rows out of another file of the partition": _struck("neighbour", "neighbour-deletes"),
        "updates another partition": _struck("blue", "blue-deletes", "blue-data"),
    }
)
"""What somebody else commits in between, in words that follow "somebody"."""

METHODS: Mapping[Kind, Mapping[str, str]] = MappingProxyType(
    {
        Kind.OVERWRITE: {
            Flag.NO_CONFLICTING_DATA: "validateNoConflictingData",
            Flag.NO_CONFLICTING_DELETES: "validateNoConflictingDeletes",
        },
        Kind.REPLACE_PARTITIONS: {
            Flag.NO_CONFLICTING_DATA: "validateNoConflictingData",
            Flag.NO_CONFLICTING_DELETES: "validateNoConflictingDeletes",
        },
        Kind.ROW_DELTA: {
            Flag.NO_CONFLICTING_DATA: "validateNoConflictingDataFiles",
            Flag.NO_CONFLICTING_DELETES: "validateNoConflictingDeleteFiles",
            Flag.DELETED_FILES: "validateDeletedFiles",
            "data-files-exist": "validateDataFilesExist",
        },
    }
)
"""By what method of Iceberg's API a check is asked for."""
NAMES: Mapping[Command, str] = MappingProxyType(
    {
        Command.APPEND: "INSERT, append",
        Command.COPY_ON_WRITE: "copy-on-write DELETE, UPDATE, MERGE",
        Command.DELETE: "merge-on-read DELETE",
        Command.UPDATE: "merge-on-read UPDATE",
        Command.MERGE: "merge-on-read MERGE",
        Command.UPSERT: "upsert stream",
        Command.OVERWRITE: "overwrite by filter",
        Command.OVERWRITE_PARTITIONS: "overwrite of partitions",
        Command.DELETE_WHERE: "DELETE of whole files",
        Command.COMPACTION: "compaction of data files",
        Command.COMPACT_DELETES: "compaction of delete files",
    }
)
ENGINES: Mapping[Engine, str] = MappingProxyType(
    {Engine.SPARK: "Spark", Engine.FLINK: "Flink", Engine.TRINO: "Trino", Engine.PYICEBERG: "PyIceberg"}
)


@dataclass(frozen=True, slots=True)
class Line:
    """Commands that ask for the same, and what becomes of them.

    Attributes:
        who: engines and commands.
        level: at which this is so; NONE where the command knows no level, or has been given none.
        flags: what they ask for.
        levelled: whether the command has several levels.
        verdicts: by change: the rule that refuses in each of `FORMATS`, or empty for a commit.
    """

    who: tuple[tuple[Engine, Command], ...]
    level: Level
    flags: Flags
    levelled: bool
    verdicts: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """``Spark, Trino: merge-on-read UPDATE, MERGE``."""
        engines = dict.fromkeys(ENGINES[engine] for engine, _ in self.who)
        commands = [command for _, command in self.who]
        said = dict.fromkeys(NAMES[command] for command in commands)
        if set(commands) == {Command.UPDATE, Command.MERGE}:
            return f"{', '.join(engines)}: merge-on-read UPDATE, MERGE"
        return f"{', '.join(engines)}: {', '.join(said)}"

    @property
    def asks(self) -> tuple[str, ...]:
        """The methods of Iceberg's API that it calls, those that say what it has read first."""
        asked = self.flags
        scope = ("validateFromSnapshot", asked.start), ("conflictDetectionFilter", asked.conflict_filter)
        exist = ("validateDataFilesExist", asked.references), ("dataSequenceNumber", asked.sequence_number)
        checks = (METHODS[asked.kind][flag] for flag in asked.validate)
        return (*(name for name, on in (*scope, *exist) if on), *checks)

    @property
    def api(self) -> str:
        """What Iceberg calls the operation."""
        return API[self.flags.kind]


def tried(iceberg: Asked) -> tuple[Line, ...]:
    """Every command at every level against every change.

    Raises:
        Disagreement: the model and Iceberg do not say the same.
    """
    groups: dict[str, list[tuple[Engine, Command]]] = {}
    levels: dict[str, Level] = {}
    for engine, command, level in known(FORMATS[0]):
        asked = flags(engine, command, level, FORMATS[0])
        key = f"{level} {_operation(asked, command) | {'kind': API[asked.kind]}}"
        groups.setdefault(key, []).append((engine, command))
        levels[key] = level
    return tuple(_line(iceberg, tuple(who), levels[key]) for key, who in groups.items())


def stopped_by(lines: Sequence[Line], rule: str) -> Iterator[tuple[str, tuple[Level, ...]]]:
    """Whom a rule has stopped in any of the trials, and at which levels (none: it has no levels)."""
    found: dict[str, list[Level]] = {}
    for line in lines:
        if any(rule in verdicts for verdicts in line.verdicts.values()):
            found.setdefault(line.name, []).extend([line.level] if line.levelled else [])
    yield from ((name, tuple(levels)) for name, levels in found.items())


def _line(iceberg: Asked, who: tuple[tuple[Engine, Command], ...], level: Level) -> Line:
    engine, command = who[0]
    levelled = sum(1 for each in known(FORMATS[0]) if each[:2] == (engine, command)) > 1
    verdicts = {
        change: tuple(_verdict(iceberg, engine, command, level, change, version) for version in FORMATS)
        for change in CHANGES
    }
    return Line(who, level, flags(engine, command, level, FORMATS[0]), levelled, MappingProxyType(verdicts))


def _verdict(iceberg: Asked, engine: Engine, command: Command, level: Level, change: str, version: int) -> str:
    """The rule that refuses the command when somebody made the change in between; empty if it commits."""
    files: dict[str, Any] = {name: data(category, ids=_IDS) for name, category in _DATA.items()}
    for name, of in _STRIKES.items():
        category = _DATA[of]
        files[name] = positions(category, of=of) if version < VECTORS_FROM else vector(of, category)
    files["our-equalities"] = equalities("red", ids=(1, 1))
    ours = _operation(flags(engine, command, level, version), command)
    steps = (
        append(1, "ours", "neighbour", "old", "blue"),
        write(START, op("row-delta", start=1, add_deletes=["old-deletes"])),
        begin(OURS, ours),
        write(THEIRS, CHANGES[change]),
        commit(OURS),
    )
    life = case(files, *steps, specs=BY_CATEGORY, format_version=version)
    run = Replay(parse(life))
    if (differs := difference(iceberg.run(life), run.run())) is not None:
        where = f"{ENGINES[engine]} {command} at {level}, format {version}, when somebody {change}"
        raise Disagreement(f"{where}: {differs}")
    conflict = run.conflicts.get(OURS)
    return "" if conflict is None else conflict.rule


def _operation(asked: Flags, command: Command) -> Any:
    """The command on the row with id 1, or on the partition red, as its engine would have built it."""
    match command:
        case Command.APPEND:
            return asked.operation(add=["our-data"])
        case Command.COPY_ON_WRITE:
            where = both(_RED, _ONE)
            return asked.operation(start=START, conflict_filter=where, remove=["ours"], add=["our-data"])
        case Command.DELETE | Command.UPDATE | Command.MERGE:
            return asked.operation(
                start=START,
                conflict_filter=both(_RED, _ONE),
                references=["ours"],
                add=[] if command is Command.DELETE else ["our-data"],
                add_deletes=["our-deletes"],
            )
        case Command.UPSERT:
            return asked.operation(add=["our-data"], add_deletes=["our-equalities"])
        case Command.OVERWRITE:
            return asked.operation(start=START, filter=_RED, add=["our-data"])
        case Command.OVERWRITE_PARTITIONS:
            return asked.operation(start=START, add=["our-data"])
        case Command.DELETE_WHERE:
            return asked.operation(filter=_RED)
        case Command.COMPACTION:
            return asked.operation(start=START, sequence_number=START, remove=["ours"], add=["our-data"])
        case Command.COMPACT_DELETES:
            return asked.operation(start=START, remove_deletes=["old-deletes"], add_deletes=["old-deletes-again"])
