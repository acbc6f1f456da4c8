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

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from icetower.protocol.marks import BLIND_APPENDS, ISOLATION
from wire.audit import ADDED, DELETED, Entry, audit, chain, entries

Job = dict[str, Any]
Outcome = Mapping[str, Any]
Run = Callable[[Job], Outcome]

LEVEL = "write.merge.isolation-level"
CLIENT_REFUSALS = {"ValidationException", "IllegalArgumentException", "IllegalStateException", "NullPointerException"}
"""What Iceberg's own client says no with; all else comes over the wire."""
STRICTER = (
    "is marked ADDED, but was live before",
    "is named twice as live",
)
"""In what words the tower refuses what Iceberg takes: a table with one path twice, or manifests that aren't so (R5)."""


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

    def disjoint(self) -> bool:
        """Whether it has written nothing that was written meanwhile."""
        mine = _written(self, self.own())
        return not any(mine & _written(self, other) for other in self.meanwhile())


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
    )
    if not asked or "no-conflicting-data" in doubt.op.get("validate", ()):
        return False
    cautious = ("Found new conflicting delete files", "Cannot commit, found new delete", "Found conflicting deleted")
    if not doubt.said.startswith(cautious):
        return False
    return doubt.disjoint()


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
    """`icetower.blind-appends`: the table's owner answers for every append, whatever its writer has validated."""
    kinds = {entry.status for entry in doubt.own()}
    return doubt.job["properties"].get(BLIND_APPENDS) == "true" and kinds <= {ADDED}


def _written(doubt: Doubt, changed: list[Entry]) -> set[Any]:
    """The objects: files removed, data files that deletes reach into."""
    files = {f"mem://t/data/{name}.parquet": name for name in doubt.job["files"]}
    out: set[Any] = set()
    for entry in changed:
        if entry.status == DELETED:
            out.add(entry.path)
        elif entry.deletes:
            described = doubt.job["files"].get(files.get(entry.path, ""), {})
            bounds = set(described.get("path_bounds", ()))
            if entry.references is not None:
                out.add(entry.references)
            elif len(bounds) == 1:
                out.add(f"mem://t/data/{bounds.pop()}.parquet")
            else:  # anything in its partition
                out |= {(entry.spec, entry.partition)}
    placed = {e.path: (e.spec, e.partition) for s in doubt.outcome["snapshots"] for e in entries(s) if not e.deletes}
    return out | {placed[path] for path in out if path in placed and _by_partition(doubt)}


def _by_partition(doubt: Doubt) -> bool:
    """Whether somebody's position deletes reach anywhere in a partition: then partitions are objects, too."""
    return any(
        described.get("content") == "position-deletes"
        and not described.get("references")
        and len(set(described.get("path_bounds", ()))) != 1
        for described in doubt.job["files"].values()
    )


EXCUSES: tuple[Callable[[Doubt], bool], ...] = (
    files_instead_of_a_filter,
    the_owner_lowered_the_level,
    the_owner_says_blind,
)
"""All places where the tower may take what Iceberg refuses."""


# -- the judgement ------------------------------------------------------------------------------------------------


def judge(job: Job, tower: Outcome, plain: Outcome | None, run: Run) -> Judgement:
    """Compare. `plain`: the same job on Iceberg alone, None where it had a race; `run` runs more jobs there."""
    out = Judgement()
    for outcome in (tower, *([plain] if plain is not None else ())):
        if "error" in outcome:
            out.problems.append(f"could not be run: {outcome['error']}")
            return out
    for number, verdict in tower["verdicts"].items():
        if verdict.get("error") in ("CommitStateUnknownException", "ServiceFailureException"):
            out.problems.append(f"writer {number} does not know what became of it: {verdict.get('message')}")
    out.problems += audit(tower)
    out.problems += _promised(job, tower)
    out.notes.update(_rebased(tower))
    if plain is not None and _verdicts(plain) == _verdicts(tower):
        out.notes["the same as Iceberg's own retries"] += 1
        out.problems += contents(tower, plain)
        return out
    _as_landed(job, tower, run, out)
    return out


def _verdicts(outcome: Outcome) -> dict[str, Any]:
    return {number: verdict.get("verdict") for number, verdict in outcome["verdicts"].items()}


def _rebased(tower: Outcome) -> Iterator[str]:
    parents = {snapshot["id"]: snapshot["parent"] for snapshot in tower["snapshots"]}
    for number, verdict in tower["verdicts"].items():
        if verdict.get("verdict") == "committed":
            landed = parents.get(int(number), verdict["base"])
            yield f"{'rebased' if landed != verdict['base'] else 'direct'} {verdict['operation']}"


def _operations(outcome: Outcome) -> dict[int, Mapping[str, Any]]:
    return {event["id"]: event["op"] for event in outcome["events"] if event["do"] == "begin"}


def _promised(job: Job, tower: Outcome) -> Iterator[str]:
    """What a writer named is what its snapshot did, file by file: nothing lost, nothing twice."""
    ops = _operations(tower)
    for snapshot in tower["snapshots"]:
        op, own = ops.get(snapshot["id"]), _own(snapshot)
        if op is None or op["kind"] == "rewrite-manifests":
            continue
        named = sorted(_path(job, name) for name in {*op.get("add", ()), *op.get("add_deletes", ())})
        added = sorted({entry.path for entry in own if entry.status == ADDED})
        if named != added and len(set(named)) == len(named):
            yield f"writer {snapshot['id']} named {named}, and its snapshot added {added}"


def _path(job: Job, name: str) -> str:
    file = job["files"][name]
    ending = "puffin" if file["content"] == "dv" else "parquet"
    return file.get("path") or f"mem://t/data/{name}.{ending}"


def _as_landed(job: Job, tower: Outcome, run: Run, out: Judgement) -> None:
    """Iceberg alone, in the order in which things landed on the tower."""
    ops, verdicts = dict(_operations(tower)), tower["verdicts"]
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
            and (verdicts[str(number)].get("verdict") == "committed")
            != (serial["verdicts"].get(str(number), {}).get("verdict") == "committed")
        ]
        if not different:
            out.notes["the same as Iceberg where it landed"] += 1
            out.problems += contents(tower, serial)
            return
        number = different[0]
        if verdicts[str(number)].get("verdict") != "committed":
            out.notes[_stricter(verdicts[str(number)], out)] += 1
            skipped.add(number)
            continue
        said = serial["verdicts"][str(number)]
        doubt = Doubt(job, tower, number, ops[number], str(said.get("message")))
        excuse = next((excuse.__name__ for excuse in EXCUSES if excuse(doubt)), None)
        if excuse is None:
            base = verdicts[str(number)]["base"]
            out.problems.append(
                f"weaker: writer {number} ({ops[number]['kind']}) was taken on base {base}, and Iceberg refuses it "
                f"where it landed: {said.get('error')}: {said.get('message')}"
            )
            return
        out.notes[f"excused: {excuse}"] += 1
        ops[number] = {**ops[number], "validate": [], "references": []}
        ops[number].pop("start", None)


def _stricter(verdict: Mapping[str, Any], out: Judgement) -> str:
    """A name for a refusal that Iceberg alone would not give."""
    if verdict.get("verdict") == "exhausted":
        return "stricter: retries used up"
    if verdict.get("error") in CLIENT_REFUSALS:
        return "stricter: Iceberg's own client, at another moment"
    message = str(verdict.get("message"))
    if not any(words in message for words in STRICTER):
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
    return sorted(
        [path, sequence, records, sorted(deletes)] for path, sequence, _, records, deletes in snapshot["plan"]
    )
