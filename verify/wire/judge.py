"""Is the tower ever weaker than Iceberg? A job's outcome through the tower beside Iceberg's own.

1. Iceberg alone runs the very same job, its own retries included. The same verdicts: the histories are the same, and so
   must be what readers find in every snapshot.
2. Else (writers that raced; a commit that the tower took where Iceberg tried again) Iceberg alone runs what happened:
   each writer begins where it began and commits, for the first time, where it landed. What Iceberg refuses there and
   the tower took is a divergence, unless one of `EXCUSES` argues for it; then it is committed without its
   validations, and Iceberg goes on. What Iceberg takes and the tower refused is stricter, and counted.

The contents of every snapshot are compared with those of that serial run, and the tower's table is audited by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icetower.protocol.marks import BLIND, BLIND_APPENDS, ISOLATION
from verify.wire.audit import ADDED, DELETED, Entry, audit, chain, entries
from verify.wire.deletes import Positions, path_of, written

Job = dict[str, Any]
Outcome = Mapping[str, Any]
Run = Callable[[Job], Outcome]

LEVEL = "write.merge.isolation-level"
CLIENT_REFUSALS = {
    "ValidationException", "CherrypickAncestorCommitException", "DuplicateWAPCommitException",
    "IllegalArgumentException", "IllegalStateException", "NullPointerException",
}  # fmt: skip
"""What Iceberg's own client says no with; all else comes over the wire."""
NEW_ROW_IDS = ("is marked EXISTING with first row id", "is carried over, but listed twice or otherwise")
"""In what words the tower refuses what Iceberg takes, in a table that came to version 3 while a job ran.

A writer remembers manifests and rows of lists over its attempts. One whose first attempt came before the upgrade's
first snapshot, and the next one after it, gives new row ids to rows that have theirs by then.
"""

SECOND_VECTOR = "has a deletion vector in manifest"
"""In what words the tower refuses a second deletion vector for a data file, where the first one stays.

Iceberg looks for another one only among what came after the commit's start; nobody can read the table afterwards.
"""

TWO_VECTORS = "Can't index multiple DVs"
"""How Iceberg refuses to read a snapshot with two deletion vectors for one data file."""

BLIND_BY_CONTRACT, SNAPSHOT_BY_CONTRACT = "blind_appends: true", "isolation: snapshot"
"""What the contract of a job's writers may declare."""

ONLY_ITS_CLIENT = ("spark.merge-into.", "kafka.connect.", "flink.", "icetower.wal.", "source-snapshot-id")
"""How the marks begin of commits that no declaration makes blind."""
INSERTED = "spark.merge-into.num-target-rows-inserted"

NEVER = (1 << 63, 0)
"""Where in the order stands what did not land."""


@dataclass
class Judgement:
    """What became of a job."""

    problems: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Doubt:
    """A commit that the tower took and Iceberg refuses where it landed."""

    job: Job
    positions: Positions
    outcome: Outcome
    writer: int
    op: Mapping[str, Any]
    said: str
    """Iceberg's message."""

    def own(self) -> list[Entry]:
        """What it added and removed."""
        return _own(next(each for each in self.outcome["snapshots"] if each["id"] == self.writer))

    def meanwhile(self) -> list[list[Entry]]:
        """What each snapshot between its base and itself added and removed."""
        line = chain(self.outcome, self.writer)[:-1]
        base = self.outcome["verdicts"][str(self.writer)]["base"]
        after = [each["id"] for each in line].index(base) + 1 if base in {each["id"] for each in line} else 0
        return [_own(snapshot) for snapshot in line[after:]]

    def disjoint(self, *, but: frozenset[str] = frozenset()) -> bool:
        """Whether it has written nothing that was written meanwhile, the data files `but` aside."""
        return not any(_meet(self, self.own(), other, but) for other in self.meanwhile())

    def vectors(self) -> dict[str, str]:
        """Its deletion vectors by the data file that each is for."""
        of = ((name, self.positions[name]) for name in self.op.get("add_deletes", ()) if _is_vector(self.job, name))
        return {path_of(self.job, target): name for name, targets in of for target in targets}

    def outcome_parent(self) -> int | None:
        """The snapshot that it landed on."""
        own = self.snapshot(self.writer)
        return None if own is None else own["parent"]

    def snapshot(self, number: int | None) -> Outcome | None:
        """A snapshot of the outcome."""
        return next((each for each in self.outcome["snapshots"] if each["id"] == number), None)


def _own(snapshot: Outcome) -> list[Entry]:
    return [e for e in entries(snapshot) if e.snapshot == snapshot["id"] and e.status in (ADDED, DELETED)]


# -- where the server knows better --------------------------------------------------------------------------------


def files_instead_of_a_filter(doubt: Doubt) -> bool:
    """Under snapshot isolation only what both have written counts.

    Iceberg asks whether new delete files *can* match the scan's filter (C3a, C3b, C2), as it does not know which rows
    were read; the tower compares the objects that both wrote. Snapshot isolation is about write-write conflicts alone,
    so the tower's answer is exact where Iceberg's is cautious. It must be asked for: by the table, or by the writer.
    Here it is proved anew, from the entries: no data file removed or reached by deletes of both, and no delete file
    removed by both.
    """
    asked = (
        doubt.op.get("summary", {}).get(ISOLATION) == "snapshot"
        or "write.merge.isolation-level" in doubt.job["properties"]
        or doubt.job.get("contract") == SNAPSHOT_BY_CONTRACT
    )
    if not asked or "no-conflicting-data" in doubt.op.get("validate", ()):
        return False
    cautious = ("Found new conflicting delete files", "Cannot commit, found new delete", "Found conflicting deleted")
    if not doubt.said.startswith(cautious):
        return False
    return doubt.disjoint()


def disjoint_rows_of_one_vector(doubt: Doubt) -> bool:
    """Two deletion vectors for one data file may become one, where no row is in both.

    Iceberg refuses the second (C5, or C3a before it), as it sees only that there are two for one file. Both commits
    under snapshot isolation, they conflict only in rows that both deleted; there are none, and the union says what both
    say. Where the writer's filter leaves out what it changes, Iceberg doesn't even see that: it adds the second vector,
    and the table cannot be read any more. The writer must have said what isolation it asks for. Proved here from the
    rows themselves: what the writer deletes besides what was deleted at its base, against what was deleted since.
    """
    base = doubt.snapshot(doubt.outcome["verdicts"][str(doubt.writer)]["base"])
    landed = doubt.snapshot(doubt.outcome_parent())
    vectors = doubt.vectors()
    asked = doubt.op.get("summary", {}).get(ISOLATION) == "snapshot"
    if not (asked or doubt.job.get("contract") == SNAPSHOT_BY_CONTRACT) or base is None or landed is None:
        return False
    if not doubt.said.startswith((TWO_VECTORS, "Found concurrently added DV", "Found new conflicting delete files")):
        return False
    for target, name in vectors.items():
        before = _deleted(base, target)
        mine = {at for each in doubt.positions[name].values() for at in each} - before
        if mine & (_deleted(landed, target) - before):
            return False
    return doubt.disjoint(but=frozenset(vectors))


def _deleted(snapshot: Outcome, path: str) -> set[int]:
    """The rows of a data file that are deleted by position."""
    return {at for file in snapshot.get("plan", ()) if file[0] == path for at in file[5]}


def _is_vector(job: Job, name: str) -> bool:
    return job["files"][name]["content"] == "dv"


def the_owner_lowered_the_level(doubt: Doubt) -> bool:
    """A level is the table's, and its owner has lowered it while the job ran.

    The job scanned a serializable table, and so validates new data, too. It then refreshed, and found that the table is
    content with snapshot isolation; what came after that it leaves to the server, which holds it to the level that the
    table has by then. No client tells when it has scanned. Only what both have written is proved to be apart.
    """
    if not doubt.said.startswith("Found conflicting files that can contain records"):
        return False
    events = doubt.outcome["events"]
    ended = next(at for at, each in enumerate(events) if each["do"] == "commit" and each["id"] == doubt.writer)
    begun = next(at for at, each in enumerate(events) if each["do"] == "begin" and each["id"] == doubt.writer)
    lowered = any(each["do"] == "set" and LEVEL in each["properties"] for each in events[begun:ended])
    return lowered and doubt.disjoint()


def the_owner_says_blind(doubt: Doubt) -> bool:
    """`icetower.blind-appends`, `blind_appends`: the owner answers for every append, whatever its writer has validated.

    Not for what shows that it is none: a MERGE, a picked snapshot, and what its client validates (trap R10).
    """
    kinds = {entry.status for entry in doubt.own()}
    declared = doubt.job["properties"].get(BLIND_APPENDS) == "true" or doubt.job.get("contract") == BLIND_BY_CONTRACT
    return declared and kinds <= {ADDED} and not _only_its_client(doubt.op)


def the_contract_lowers_the_level(doubt: Doubt) -> bool:
    """A contract that says `isolation: snapshot` holds its writers to that, though they validate new data, too.

    Not a MERGE that inserts rows, and nothing that its client validates: their rows would be there twice (trap R10).
    """
    summary = doubt.op.get("summary", {})
    if doubt.job.get("contract") != SNAPSHOT_BY_CONTRACT or "validate_with" in doubt.op:
        return False
    if doubt.op["kind"] == "cherry-pick" or summary.get(INSERTED, "0") != "0":
        return False
    return doubt.said.startswith("Found conflicting files that can contain records") and doubt.disjoint()


def _only_its_client(op: Mapping[str, Any]) -> bool:
    summary = op.get("summary", {})
    marked = any(name.startswith(ONLY_ITS_CLIENT) for name in summary) or summary.get(BLIND) == "false"
    return marked or op["kind"] == "cherry-pick" or "validate_with" in op


def _meet(doubt: Doubt, mine: list[Entry], theirs: list[Entry], but: frozenset[str]) -> bool:
    """Whether both have written one object: removed a file, or reached into a data file with deletes.

    An equality delete reaches into its partition, or everywhere from a spec without any; whatever the other one has
    written there is written by both.
    """
    my_files, their_files = _files(doubt, mine), _files(doubt, theirs)
    if (my_files & their_files) - but:
        return True
    return _equality_meets(doubt, mine, their_files, theirs) or _equality_meets(doubt, theirs, my_files, mine)


def _files(doubt: Doubt, changed: list[Entry]) -> set[str]:
    """The files that were removed, and the data files that position deletes and deletion vectors reach into."""
    targets = {
        path_of(doubt.job, name): [path_of(doubt.job, target) for target in of] for name, of in doubt.positions.items()
    }
    files: set[str] = set()
    for entry in changed:
        if entry.status == DELETED:
            files.add(entry.path)
        if entry.deletes:
            files |= {entry.references} if entry.references is not None else set(targets.get(entry.path, ()))
    return files


def _equality_meets(doubt: Doubt, one: list[Entry], files: set[str], other: list[Entry]) -> bool:
    """Whether equality deletes that one has added reach what the other has written: these files, or such deletes."""
    names = {path_of(doubt.job, name): file["content"] for name, file in doubt.job["files"].items()}
    found = [entry for snapshot in doubt.outcome["snapshots"] for entry in entries(snapshot) if entry.path in files]
    found += [entry for entry in other if names.get(entry.path) == "equality-deletes"]
    places = {(entry.spec, entry.partition) for entry in found}
    for entry in one:
        if entry.status == ADDED and names.get(entry.path) == "equality-deletes":
            everywhere = all(column["transform"] == "void" for column in doubt.job["specs"][entry.spec])
            if (entry.spec, entry.partition) in places or (everywhere and places):
                return True
    return False


EXCUSES: tuple[Callable[[Doubt], bool], ...] = (
    files_instead_of_a_filter,
    disjoint_rows_of_one_vector,
    the_owner_lowered_the_level,
    the_owner_says_blind,
    the_contract_lowers_the_level,
)
"""All places where the tower may take what Iceberg refuses."""


# -- the judgement ------------------------------------------------------------------------------------------------


def judge(
    job: Job, positions: Positions, directory: Path, tower: Outcome, plain: Outcome | None, run: Run
) -> Judgement:
    """Compare what became of a job.

    Args:
        job: with its delete files written (`deletes.written`) into `directory`.
        positions: the rows that they delete.
        plain: the same job on Iceberg alone; None where it had a race.
        run: runs more jobs there.
    """
    out = Judgement()
    for outcome in (tower, *([plain] if plain is not None else ())):
        if "error" in outcome:
            out.problems.append(f"could not be run: {outcome['error']}")
            return out
    for number, verdict in tower["verdicts"].items():
        if verdict.get("error") in ("CommitStateUnknownException", "ServiceFailureException"):
            out.problems.append(f"writer {number} does not know what became of it: {verdict.get('message')}")
    out.problems += _promised(job, positions, tower)
    out.notes.update(_rebased(tower))
    if plain is not None and _verdicts(plain) == _verdicts(tower) and not _spoilt(tower, plain):
        out.notes["the same as Iceberg's own retries"] += 1
        _compare(tower, plain, out)
    else:
        _as_landed(job, positions, directory, tower, run, out)
    return out


def _compare(tower: Outcome, serial: Outcome, out: Judgement) -> None:
    """Contents, and whether the tower's table is in itself what it must be; Iceberg's own flaws are not the tower's."""
    out.problems += contents(tower, serial)
    own = audit(serial)
    for problem in audit(tower):
        if problem in own:
            out.notes[f"wrong in Iceberg, too: {re.sub(r'[0-9]+', 'N', problem)}"] += 1
        else:
            out.problems.append(problem)


def _verdicts(outcome: Outcome) -> dict[str, Any]:
    return {number: verdict.get("verdict") for number, verdict in outcome["verdicts"].items()}


def _spoilt(tower: Outcome, serial: Outcome) -> dict[int, str]:
    """Why Iceberg cannot read snapshots as it wrote them by itself, of those that it reads as the tower wrote them."""
    readable = {snapshot["id"] for snapshot in tower["snapshots"] if "plan" in snapshot}
    unreadable = {each["id"]: each["unreadable"] for each in serial["snapshots"] if "plan" not in each}
    return {number: said for number, said in unreadable.items() if number in readable}


def _rebased(tower: Outcome) -> Iterator[str]:
    parents = {snapshot["id"]: snapshot["parent"] for snapshot in tower["snapshots"]}
    for number, verdict in tower["verdicts"].items():
        if verdict.get("verdict") == "committed":
            landed = parents.get(int(number), verdict["base"])
            yield f"{'rebased' if landed != verdict['base'] else 'direct'} {verdict['operation']}"


def _operations(job: Job, outcome: Outcome) -> dict[int, Mapping[str, Any]]:
    """What the writers that began were to do, by the job: a server may have been given something else."""
    asked = {step["id"]: step["op"] for step in _all(job["steps"]) if "op" in step}
    return {event["id"]: asked[event["id"]] for event in outcome["events"] if event["do"] == "begin"}


def _all(steps: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Steps, and those between the attempts of others."""
    for step in steps:
        yield step
        for slot in step.get("between", ()):
            yield from _all(slot)


def _promised(job: Job, positions: Positions, tower: Outcome) -> Iterator[str]:
    """What a writer named is what its snapshot did, file by file: nothing lost, nothing twice."""
    ops = _operations(job, tower)
    for snapshot in tower["snapshots"]:
        op, own = ops.get(snapshot["id"]), _own(snapshot)
        if op is not None and op["kind"] == "cherry-pick":
            op = ops[op["source"]]
        if op is None or op["kind"] == "rewrite-manifests":
            continue
        # A vector may have become one with another, in a file of its own: it is known by its data file.
        named = sorted(
            f"rows of {path_of(job, target)}" if _is_vector(job, name) else path_of(job, name)
            for name in {*op.get("add", ()), *op.get("add_deletes", ())}
            for target in (positions[name] if _is_vector(job, name) else [name])
        )
        vectors = {entry.path for entry in own if entry.deletes and entry.path.endswith(".puffin")}
        added = sorted(
            f"rows of {entry.references}" if entry.path in vectors else entry.path
            for entry in own
            if entry.status == ADDED
        )
        if named != added:
            yield f"writer {snapshot['id']} named {named}, and its snapshot added {added}"


def _as_landed(job: Job, positions: Positions, directory: Path, tower: Outcome, run: Run, out: Judgement) -> None:
    """Iceberg alone, in the order in which things landed on the tower."""
    ops, verdicts = _operations(job, tower), tower["verdicts"]
    skipped: set[int] = set()
    for _ in range(len(ops) + 1):
        serial = run(landed(job, tower, ops, skipped))
        if "error" in serial:
            out.problems.append(f"as it landed it could not be run: {serial['error']}")
            return
        different = [
            number
            for number in _order(tower)
            if number not in skipped
            and (
                (verdicts[str(number)].get("verdict") == "committed")
                != (serial["verdicts"].get(str(number), {}).get("verdict") == "committed")
                or number in _spoilt(tower, serial)
            )
        ]
        if not different:
            out.notes["the same as Iceberg where it landed"] += 1
            _compare(tower, serial, out)
            return
        number = different[0]
        if verdicts[str(number)].get("verdict") != "committed":
            out.notes[_stricter(job, verdicts[str(number)], out)] += 1
            skipped.add(number)
            continue
        said = serial["verdicts"][str(number)]
        if number in _spoilt(tower, serial):
            said = {"error": "it cannot be read", "message": _spoilt(tower, serial)[number]}
        doubt = Doubt(job, positions, tower, number, ops[number], str(said.get("message")))
        excuse = next((excuse.__name__ for excuse in EXCUSES if excuse(doubt)), None)
        if excuse is None:
            base = verdicts[str(number)]["base"]
            out.problems.append(
                f"weaker: writer {number} ({ops[number]['kind']}) was taken on base {base}, and Iceberg refuses it "
                f"where it landed: {said.get('error')}: {said.get('message')}"
            )
            return
        out.notes[f"excused: {excuse}"] += 1
        ops[number] = {**ops[number], "validate": [], "references": [], "start": doubt.outcome_parent()}
        if excuse == disjoint_rows_of_one_vector.__name__:
            job, positions, ops[number] = _united(doubt, ops[number], serial, directory)
    out.problems.append("as it landed Iceberg decides otherwise however often it is excused")


def _united(
    doubt: Doubt, op: Mapping[str, Any], serial: Outcome, directory: Path
) -> tuple[Job, Positions, dict[str, Any]]:
    """The writer's operation as one that Iceberg takes after the others: each vector with all rows, in place of theirs.

    Args:
        serial: what Iceberg alone has so far: all that landed before the writer.

    Returns the job with these vectors, the rows of all delete files, and the operation.
    """
    positions, files, new = dict(doubt.positions), dict(doubt.job["files"]), dict[str, dict[str, list[int]]]()
    add = list(op["add_deletes"])
    landed_on = next((each for each in serial["snapshots"] if each["id"] == doubt.outcome_parent()), None)
    live = [] if landed_on is None else [entry for entry in entries(landed_on) if entry.status != DELETED]
    names = {path_of(doubt.job, name): name for name in positions}
    superseded = {names[entry.path] for entry in live if entry.references in doubt.vectors() and entry.path in names}
    for path, name in doubt.vectors().items():
        (target,) = positions[name]
        rows = sorted({*positions[name][target], *(_deleted(landed_on, path) if landed_on is not None else ())})
        add[add.index(name)] = united = f"{name}-united"
        files[united], new[united] = {**files[name], "path": None}, {target: rows}
    kept = [each for each in op.get("remove_deletes", ()) if not set(positions.get(_name(each), ())) & _targets(doubt)]
    job = written({**doubt.job, "files": files, "positions": new}, directory)
    remove = [*kept, *sorted(superseded)]
    return job, positions | new, {**op, "add_deletes": add, "remove_deletes": remove}


def _targets(doubt: Doubt) -> set[str]:
    return {target for name in doubt.vectors().values() for target in doubt.positions[name]}


def _name(removed: Any) -> str:
    return removed if isinstance(removed, str) else removed["file"]


def _stricter(job: Job, verdict: Mapping[str, Any], out: Judgement) -> str:
    """A name for a refusal that Iceberg alone would not give."""
    if verdict.get("verdict") == "exhausted":
        return "stricter: retries used up"
    if verdict.get("error") in CLIENT_REFUSALS:
        return "stricter: Iceberg's own client, at another moment"
    message = str(verdict.get("message"))
    upgraded = any(step["do"] == "upgrade" and step["format"] == 3 for step in _all(job["steps"]))
    if upgraded and any(words in message for words in NEW_ROW_IDS):
        return "stricter: it gives new row ids to old rows"
    if SECOND_VECTOR in message:
        return "stricter: a second deletion vector for one data file"
    out.notes[f"stricter, not by a known rule: {verdict.get('error')}: {message[:160]}"] += 1
    return f"stricter: {verdict.get('error')}"


def _order(tower: Outcome) -> list[int]:
    return [event["id"] for event in _landed_events(tower) if event["do"] == "commit"]


def _landed_events(tower: Outcome) -> list[Mapping[str, Any]]:
    """Begins, commits and changes as they ended; of a race, the commits in the order of the chain, refusals last."""
    line = {snapshot["id"]: (snapshot["sequence_number"], 0) for snapshot in tower["snapshots"]}
    for head in tower["branches"].values():  # in format 1 all numbers are 0
        line |= {each["id"]: (each["sequence_number"], at) for at, each in enumerate(chain(tower, head))}
    out: list[Mapping[str, Any]] = []
    group: list[Mapping[str, Any]] = []
    for event in [*tower["events"], {"do": "end"}]:
        if event["do"] == "commit":
            group.append(event)
            continue
        out += sorted(group, key=lambda each: line.get(each["id"], NEVER))
        group = []
        out.append(event)
    return out[:-1]


def landed(job: Job, tower: Outcome, ops: Mapping[int, Mapping[str, Any]], skipped: set[int]) -> Job:
    """The job as it happened: who began where, who committed where, without anything nested."""
    steps: list[dict[str, Any]] = []
    for event in _landed_events(tower):
        if event.get("id") in skipped:
            continue
        if event["do"] == "begin":
            steps.append({"do": "begin", "id": event["id"], "op": ops[event["id"]]})
        else:
            steps.append({key: value for key, value in event.items() if key != "op"})
    return {**job, "steps": steps}


def contents(tower: Outcome, serial: Outcome) -> list[str]:
    """Where readers find other files, deletes or sequence numbers in a snapshot than in the serial run's."""
    theirs = {snapshot["id"]: snapshot for snapshot in serial["snapshots"]}
    problems: list[str] = []
    for snapshot in tower["snapshots"]:
        other = theirs.get(snapshot["id"])
        if other is None:
            problems.append(f"snapshot {snapshot['id']} is not in the serial run")
        elif _read(snapshot) != _read(other):
            what = f"snapshot {snapshot['id']} ({snapshot['operation']})"
            problems.append(f"{what} reads as {_read(snapshot)}, serially as {_read(other)}")
    if tower["main"] != serial["main"]:
        problems.append(f"main is at {tower['main']}, serially at {serial['main']}")
    return problems


def _read(snapshot: Outcome) -> Any:
    if "plan" not in snapshot:
        return "nothing: Iceberg cannot read it"
    return sorted([path, number, rows, sorted(by), sorted(at)] for path, number, _, rows, by, at in snapshot["plan"])
