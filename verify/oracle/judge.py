"""The oracle's verdict on a case, the gate's, and what is to be said of the two.

A commit may go on if every row that it gives a reader or takes from one lies, by its values, in what the contract
grants for what is done. What is done goes by the rows, too: rows come (append), rows go (delete), both (overwrite); a
commit that says replace and leaves as many rows as there were is no more than that.

Three things are believed, as docs/contracts-gate.md says: the partition of a new data file (unless its rows are looked
at), how many rows an entry tells, and that a delete file which takes another's place deletes what that one did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from icetower.contracts.model import FILE_OPERATIONS, Operation
from icetower.contracts.owning import Ownership
from icetower.contracts.terms import Layout
from icetower.contracts.values import Membership
from icetower.iceberg.partitions import spec_of
from verify.oracle.cases import ADDED, DATA, POSITIONS, Case, File, Partition, Row, Snapshot
from verify.oracle.gaps import may_hold_others
from verify.oracle.reader import Effect, effect
from verify.oracle.regions import Grants
from verify.oracle.tables import partition_of
from verify.oracle.world import Gate, Refused, World, contract_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """What both say. `wrong`: what must not be; None: nothing. `reason`: why a refusal was not called for."""

    case: Case
    refused: Refused | None
    foreign: str | None
    wrong: str | None = None
    reason: str | None = None

    @property
    def kind(self) -> str:
        """`passed`, `refused`, or `false refusal`."""
        if self.wrong is not None:
            return "wrong"
        if self.refused is None:
            return "passed"
        return "refused" if self.foreign is not None else "false refusal"


def judge(gate: Gate, case: Case) -> Verdict:
    """Ask both."""
    world = World(case)
    grants = Grants(case)
    effects = _effects(case)
    foreign = _foreign(case, grants, effects)
    try:
        refused = gate.ask(world)
    except Exception as error:  # noqa: BLE001 - a gate that fails is a finding, whatever it fails with
        return Verdict(case, None, foreign, f"the gate failed: {type(error).__name__}: {error}")
    if refused is None and foreign is not None:
        return Verdict(case, None, foreign, f"a false pass: {foreign}")
    wrong = _misjudged(case, grants, world)
    if wrong is not None:
        return Verdict(case, refused, foreign, wrong)
    if refused is None or foreign is not None:
        return Verdict(case, refused, foreign)
    if not case.forged and not refused.rule.startswith(HONEST_RULES):
        return Verdict(case, refused, None, f"an honest commit is called a lie: {refused.rule}: {refused.message}")
    return Verdict(case, refused, None, None, _reason(case, refused, world, effects))


HONEST_RULES = ("contract.operation", "contract.partitions", "contract.undecided", "append.unproven")


class Reason(StrEnum):
    """Why a commit is refused that does no harm to anybody's rows."""

    LIES = "its manifests lie"
    COLUMN = "its partitions tell nothing of a column that the contract goes by"
    COARSE = "its partitions may hold others' rows, too"
    TOGETHER = "several regions own a partition together"
    WORDS = "the contract's words mean nothing for the table"
    TARGET = "a delete file is about a data file that is not there"
    UNPROVEN = "statistics do not prove where a file lies"
    FILES = "by its files it does more than by its rows"
    DEAD = "in others' partitions it touches no living row"
    NOTHING = "it touches no row at all"


# ------------------------------------------------------------------------------------------------------- the oracle


def _effects(case: Case) -> tuple[Effect, ...]:
    """What the commit does to rows, snapshot by snapshot."""
    if case.appended:
        some = (
            (file.path, at, row, file.spec, file.partition)
            for file in case.appended
            for at, row in enumerate(file.rows)
        )
        return (Effect(tuple(some), ()),)
    # Where `main` stands, by what the commit asserts: the engine sees to it that it does.
    before = case.snapshot(case.asserted)
    found: list[Effect] = []
    for snapshot in case.commit:
        found.append(effect(case, before, snapshot))
        before = snapshot
    return tuple(found)


def _foreign(case: Case, grants: Grants, effects: tuple[Effect, ...]) -> str | None:
    """A row that the commit touches and the contract does not grant; None where there is none."""
    befores = (case.snapshot(case.asserted), *case.commit)
    for before, snapshot, done in zip(befores, case.commit or (None,), effects, strict=False):
        operation = _operation(before, snapshot, done)
        for seen, how in ((done.gained, "gained"), (done.lost, "lost")):
            for path, at, row, spec, partition in seen:
                if operation is None or _believed(case, row, spec, partition):
                    continue
                if not grants.grants(operation, row, spec):
                    return f"row {at} of {path}, {row!r}, is {how}, and the contract grants no {operation} there"
    if case.proves:
        added = (*case.appended, *(file for snapshot in case.commit for file in _added(snapshot)))
        for file in added:
            for row in file.rows if file.content == DATA else ():
                if _believed(case, row, file.spec, file.partition):
                    return f"{file.path} holds {row!r}, which is not of partition {file.partition}"
    return None


def _believed(case: Case, row: Row, spec: int, partition: Partition) -> bool:
    """Whether a row's file is listed in another partition than its own: that was its writer's word.

    Where a commit says it of a file that is there already, its rows are lost where they were: that is seen.
    """
    return spec < len(case.specs) and partition_of(case.columns, case.specs[spec], row) != partition


def _operation(before: Snapshot | None, snapshot: Snapshot | None, done: Effect) -> Operation | None:
    if not done.gained and not done.lost:
        return None
    if snapshot is None:
        return Operation.APPEND
    if snapshot.operation == "replace" and _balanced(before, snapshot):
        return Operation.REPLACE
    renewed = _renewed(snapshot)
    gained = any(path not in renewed for path, *_ in done.gained)
    if gained and done.lost:
        return Operation.OVERWRITE
    return Operation.APPEND if gained else Operation.DELETE


def _balanced(before: Snapshot | None, after: Snapshot) -> bool:
    """Whether as many rows come as go, by the counts in the entries (docs/contracts.md, `replace`)."""
    was, now = (Counter(e.file for _, e in each.live()) if each else Counter[File]() for each in (before, after))
    balance = 0
    for files, sign in ((now - was, 1), (was - now, -1)):
        for file in files.elements():
            if file.content not in (DATA, POSITIONS):
                return False
            balance += sign * file.records * (1 if file.content == DATA else -1)
    return balance == 0


def _added(snapshot: Snapshot) -> list[File]:
    own = (manifest for manifest in snapshot.manifests if manifest.snapshot == snapshot.id)
    return [entry.file for manifest in own for entry in manifest.entries if entry.status == ADDED]


def _renewed(snapshot: Snapshot) -> frozenset[str]:
    """Data files that get a new delete file of their own: it is taken to hold what others for them had held."""
    return frozenset(target for file in _added(snapshot) if (target := file.target()) is not None)


# ------------------------------------------------------------------------------------------ partitions, one by one


def _misjudged(case: Case, grants: Grants, world: World) -> str | None:
    """Whether what the gate says of the partitions of truthful data files holds for each of their rows."""
    ownership = Ownership(contract_of(case.rules).tables, Layout(world.metadata), case.now_ms)
    for spec, partition, rows in _partitions(case):
        membership = ownership.of(spec_of(world.metadata, spec), partition)
        owned = [any(grants.owns(rule, row, spec) for rule in case.rules) for row in rows]
        if membership is Membership.INSIDE and not all(owned):
            row = rows[owned.index(False)]
            return f"partition {partition} of spec {spec} is said to be owned, and its row {row!r} is not"
        if membership is Membership.OUTSIDE and any(owned):
            row = rows[owned.index(True)]
            return f"partition {partition} of spec {spec} is said to be foreign, and its row {row!r} is owned"
    return None


def _partitions(case: Case) -> list[tuple[int, tuple[Any, ...], tuple[Any, ...]]]:
    """Spec, partition and rows of data files that lie where they say."""
    found: dict[tuple[int, str], tuple[int, tuple[Any, ...], tuple[Any, ...]]] = {}
    for snapshot in (*case.history, *case.commit):
        for _, entry in snapshot.live(DATA):
            file = entry.file
            if file.rows and not any(_believed(case, row, file.spec, file.partition) for row in file.rows):
                found[file.spec, repr((file.partition, file.rows))] = (file.spec, file.partition, file.rows)
    return list(found.values())


# ------------------------------------------------------------------------------------------------- false refusals


def _reason(case: Case, refused: Refused, world: World, effects: tuple[Effect, ...]) -> str:
    """Why the gate refused what does no harm to anybody's rows, in a few words."""
    touched = any(done.gained or done.lost for done in effects)
    if refused.rule == "append.unproven":
        return Reason.UNPROVEN
    if case.forged and refused.rule not in HONEST_RULES:
        return Reason.LIES
    if refused.rule == "contract.operation":
        return Reason.FILES if touched else Reason.NOTHING
    if refused.rule != "contract.undecided":
        return Reason.DEAD if touched else Reason.NOTHING
    if "is not in the snapshot" in refused.message:
        return Reason.TARGET
    if "has no field of the column" in refused.message:
        return Reason.COLUMN
    if "no partition field and no column" in refused.message or "value " in refused.message.partition("for ")[2]:
        return Reason.WORDS
    return Reason.COARSE if _coarse(case, world) else Reason.TOGETHER


def _coarse(case: Case, world: World) -> bool:
    """Whether one of the partitions that the gate was not sure of may indeed hold rows that are not granted."""
    places = [(e.file.spec, e.file.partition) for s in case.commit for m in s.manifests for e in m.entries]
    places += [(file.spec, file.partition) for file in case.appended]
    for operation in FILE_OPERATIONS:
        rules = Grants(case).granting(operation)
        ownership = Ownership(contract_of(rules).tables, Layout(world.metadata), case.now_ms)
        for spec, partition in dict.fromkeys(places):
            known = spec < len(case.specs)
            unsure = known and ownership.of(spec_of(world.metadata, spec), partition) is Membership.PARTLY
            if unsure and may_hold_others(case, spec, partition, operation):
                return True
    return False
