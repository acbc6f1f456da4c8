"""One run: a herd of writers reads a table at once and commits in turn; rows say which refusals were needed.

A refusal is *true* if a row that the writer changes was changed by somebody who committed meanwhile, or, for a
serializable writer, if a row that its condition covers was. Every other refusal is *false*: no row was in the way.
Which rows a commit changed is read from the contents of its files, not from what its command said.

After a run the table must hold what the committed commands leave behind, one after another. Where it does not, a commit
was admitted that should not have been.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from bench.experiments import spark
from bench.experiments.spark import Granularity
from bench.experiments.table import FIRST, Table, View
from bench.experiments.work import Command, Work, draw, stream
from bench.experiments.world import Base, Layout, base
from icetower.iceberg.validation import Conflict, Level
from icetower.table.head import HeadState
from icetower_client_model.producer import Producer

RULES = ("C1", "C3a", "C3b", "C4", "C5", "C6")
"""What can refuse a commit here."""
_KEPT = 128
"""Tables that are kept for the next run."""


class Broken(Exception):
    """An invariant of the experiments does not hold; the message names it and the run."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One point of an experiment.

    Attributes:
        work: what is done.
        level: the isolation level that all writers ask for.
        format: version of the table.
        granularity: of position delete files.
        precise: `Operation.precise_deletes`.
        drains: whether refused writers begin anew, all at once, until everybody is in.
    """

    work: Work
    level: Level = Level.SNAPSHOT
    format: int = 2
    granularity: Granularity = "file"
    precise: bool = False
    drains: bool = False


@dataclass
class Tally:
    """What came of a run.

    Attributes:
        writers: that began; each commits or is refused in the first round.
        committed, true, false: of these.
        true_by, false_by: refusals by rule.
        unneeded: refusals of the first round that `precise_deletes`, asked at the same moment, would not have made.
        overlaps: commits that changed a row which somebody had changed since they began.
        wrong_rows: keys of rows that are not as the committed commands leave them, one after another.
        runs: how often a command was run, in all rounds.
        rounds: how many there were.
    """

    writers: int = 0
    committed: int = 0
    true: int = 0
    false: int = 0
    true_by: Counter[str] = field(default_factory=Counter)
    false_by: Counter[str] = field(default_factory=Counter)
    unneeded: int = 0
    overlaps: int = 0
    wrong_rows: int = 0
    runs: int = 0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class _Writer:
    command: Command
    producer: Producer
    changed: frozenset[int]


class RunResult:
    """A run of a setup.

    Attributes:
        tally: what came of it.
        table: as it was left; its `case` tells the whole course.
        verdicts: by the writer's id in the case: the conflict, or None for a commit.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.seed = seed
        self.tally = Tally()
        self.verdicts: dict[int, Conflict | None] = {}
        self.table = _first(setup.work.layout, seed, setup.format).fork()
        self._admitted: list[Command] = []
        self._next_id = FIRST

    def run(self) -> Tally:
        """Run it. Raises `Broken`."""
        waiting = draw(self.setup.work, _base(self.setup.work.layout, self.seed), self.seed)
        while waiting:
            self.tally.rounds += 1
            refused = self._round(waiting)
            waiting = refused if self.setup.drains else []
        self._check_rows()
        return self.tally

    def _round(self, commands: Iterable[Command]) -> list[Command]:
        """All begin, then all commit; the commands that were refused, in an order that is drawn anew."""
        view = self.table.view()
        writers = [writer for writer in (self._begin(view, command) for command in commands) if writer is not None]
        changes: dict[int, list[Command]] = {}
        refused: list[Command] = []
        for writer in writers:
            before = self.table.head
            conflict = self.table.commit(writer.producer)
            self._compare(writer, before, conflict, changes)
            self.verdicts[writer.producer.snapshot_id] = conflict
            if conflict is not None:
                self._count_refusal(conflict, self._is_true(writer, changes))
                refused.append(writer.command)
                continue
            self._count_commit(writer, changes)
            for key in writer.changed:
                changes.setdefault(key, []).append(writer.command)
        stream(self.seed, "order", self.tally.rounds).shuffle(refused)
        return refused

    def _begin(self, view: View, command: Command) -> _Writer | None:
        self._next_id += 1
        setup = self.setup
        op = spark.prepare(self.table, view, command, self._next_id, level=setup.level, granularity=setup.granularity)
        self.tally.runs += 1
        if op is None:
            return None
        producer = self.table.begin(self._next_id, op, precise=setup.precise)
        return _Writer(command, producer, self.table.changed(view, op))

    # ── Truth ──

    def _is_true(self, writer: _Writer, changes: Mapping[int, list[Command]]) -> bool:
        minds = writer.changed
        if self.setup.level is Level.SERIALIZABLE:
            minds |= writer.command.reads
        return not changes.keys().isdisjoint(minds)

    def _compare(
        self, writer: _Writer, head: HeadState, conflict: Conflict | None, changes: Mapping[int, list[Command]]
    ) -> None:
        """Ask the other kind of check of the same moment: the precise one refuses no more, and lets nothing true by."""
        other = self.table.would_refuse(writer.producer, head, precise=not self.setup.precise)
        usual, precise = (other, conflict) if self.setup.precise else (conflict, other)
        if usual is None and precise is not None:
            raise Broken(f"{self._name}: precise deletes refuse what is admitted without them: {precise.message}")
        if usual is not None and usual.rule == "C3a" and precise is None:
            if self._is_true(writer, changes):
                raise Broken(f"{self._name}: precise deletes admit a true conflict: {usual.message}")
            self.tally.unneeded += self.tally.rounds == 1

    def _count_refusal(self, conflict: Conflict, true: bool) -> None:
        if conflict.rule not in RULES:
            raise Broken(f"{self._name}: refused by {conflict.rule}, which no writer here should meet")
        if self.tally.rounds > 1:
            return
        self.tally.writers += 1
        self.tally.true += true
        self.tally.false += not true
        (self.tally.true_by if true else self.tally.false_by)[conflict.rule] += 1

    def _count_commit(self, writer: _Writer, changes: Mapping[int, list[Command]]) -> None:
        self._admitted.append(writer.command)
        if self.tally.rounds == 1:
            self.tally.writers += 1
            self.tally.committed += 1
        met = [other for key in writer.changed for other in changes.get(key, ())]
        # Two DELETEs of one row leave what either leaves, in any order.
        self.tally.overlaps += any({other.verb, writer.command.verb} != {"delete"} for other in met)

    def _check_rows(self) -> None:
        """Compare the table's rows with those that the committed commands leave behind, one after another.

        Commands add to rows, drop rows by key or insert keys of their own, so that every serial order ends alike.
        """
        expected = dict(_base(self.setup.work.layout, self.seed).rows)
        for command in self._admitted:
            for key in command.changes & expected.keys():
                row = command.on(expected.pop(key))
                if row is not None:
                    expected[key] = row
            expected |= {row.id: row for row in command.inserts}
        actual, wanted = self.table.view().all_rows(), Counter(expected.values())
        if dict(actual) != dict(wanted):  # a Counter compares itself far more slowly
            self.tally.wrong_rows = len({row.id for row in (*(actual - wanted), *(wanted - actual))})
        if bool(self.tally.wrong_rows) != bool(self.tally.overlaps):
            raise Broken(
                f"{self._name}: {self.tally.overlaps} commits overlap, but {self.tally.wrong_rows} rows are wrong"
            )
        if self.tally.wrong_rows and not may_undelete(self.setup):
            raise Broken(f"{self._name}: {self.tally.wrong_rows} rows are not as any serial order would leave them")

    @property
    def _name(self) -> str:
        return f"{self.setup}, seed {self.seed}"


def may_undelete(setup: Setup) -> bool:
    """Whether Iceberg itself lets a DELETE pass that met an UPDATE of its rows: the "undelete" of Vanlightly's article.

    Spark's merge-on-read DELETE asks for no check of delete files. On format 3 C5 is always on; a serializable DELETE
    minds the UPDATE's new data file.
    """
    return "delete" in setup.work.verbs and setup.level is Level.SNAPSHOT and setup.format < 3


def run(setup: Setup, seed: int) -> Tally:
    """What comes of a setup. Raises `Broken`."""
    return RunResult(setup, seed).run()


@lru_cache(maxsize=_KEPT)
def _base(layout: Layout, seed: int) -> Base:
    return base(layout, stream(seed, "table", layout))


@lru_cache(maxsize=_KEPT)
def _first(layout: Layout, seed: int, format_version: int) -> Table:
    return Table(layout, format_version, _base(layout, seed).files)
