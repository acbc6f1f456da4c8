"""Random jobs: small tables, writers that scan, wait and commit, as engines do it; reproducible from a seed.

A job begins with a few commits that set the table up. Then two to five writers scan it. They commit one inside the
other (what others do between an attempt and its swap is nested under it, so that its base is old when it arrives), or
all at the same moment. In between the table itself may change.

What a table or a writer says of isolation is what its writers ask Iceberg for: a job is one that an engine could run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from icetower.protocol.marks import BLIND, BLIND_APPENDS, FILTER, ISOLATION
from verify.differential.material import SPEC_WEIGHTS, SPECS, Material, chance, pick, some
from verify.differential.writers import NEEDS_DELETES, PROFILES, Operation, Planner, Table

Step = dict[str, Any]
Job = dict[str, Any]

FORMATS = {"1": 1, "2": 5, "3": 5}
CONTRACTS = {
    "contract-blind": "blind_appends: true",
    "contract-snapshot": "isolation: snapshot",
    "contract-owned": "read_scope: owned",
}
WORDS = {
    "nothing": 2, "snapshot": 7, "turned": 0.5, "declared": 3, "blind-appends": 2, "blind-summaries": 1,
    "contract-blind": 1.5, "contract-snapshot": 2, "contract-owned": 1.5,
}  # fmt: skip
"""Who declares what: nobody; the table, snapshot isolation; the table, but only after the scans; each writer, what it
read; the table, that appends are blind; each writer that only adds, that it is blind; the contract of all writers."""
LEVELS = tuple(f"write.{what}.isolation-level" for what in ("merge", "update", "delete"))
ROWS = 10
"""In every data file, for each row that its statistics tell of."""
RETRIES = "commit.retry.num-retries"
SPARK = {"engine-name": "spark", "engine-version": "4.1.4", "spark.app.id": "local-1"}
OLD_SPARK = {"engine-name": "spark", "engine-version": "3.5.6", "spark.app.id": "local-1"}
MERGED = {
    f"spark.merge-into.num-target-rows-{what}": "1"
    for what in (
        "copied", "deleted", "updated", "inserted", "matched-updated", "matched-deleted",
        "not-matched-by-source-updated", "not-matched-by-source-deleted",
    )
}  # fmt: skip
INSERTED = "spark.merge-into.num-target-rows-inserted"
MEDIATED = {"icetower.wal.table-uuid": "log", "icetower.wal.sequence": "1"}
VALIDATING = (
    ("kafka.connect.offsets.control.group", {"kafka.connect.commit-id": "c"}),
    ("flink.max-committed-checkpoint-id", {"flink.job-id": "job", "flink.operator-id": "operator"}),
    ("application.offset", {BLIND: "false"}),
)
"""Clients that use Java's `validateWith`: the property that they look for, and what else they write."""
SPARKS_OWN = (
    "spark copy-on-write", "spark merge-on-read update", "spark merge-on-read delete", "compaction",
    "rewrite deletes", "insert overwrite", "replace partitions", "delete", "rewrite manifests", "append",
)  # fmt: skip
MERGES = ("spark copy-on-write", "spark merge-on-read update")
AGREED = ("spark copy-on-write", "spark merge-on-read update", "spark merge-on-read delete", "trino", "pyiceberg")
"""Engines that ask for the level that the table names, or that the writer declares."""
WEIGHTS = {
    "spark copy-on-write": 8, "spark merge-on-read update": 8, "spark merge-on-read delete": 5, "compaction": 5,
    "append": 5, "delete": 2, "insert overwrite": 2, "replace partitions": 2, "anything": 2,
}  # fmt: skip


class _Material(Material):
    """Delete files name the partition of the data that they are for: readers refuse any other.

    Attributes:
        targets: by delete file, the data files in which it deletes rows.
    """

    def __init__(self, rng: Random, specs: Sequence[list[dict[str, str]]]) -> None:
        super().__init__(rng, specs)
        self.targets: dict[str, list[str]] = {}

    def vector(self, target: str) -> str:
        name = super().vector(target)
        self.targets[name] = [target]
        return name

    def position_deletes(self, target: str, other: str | None = None) -> str:
        name = super().position_deletes(target, other)
        bounds = self.files[name].get("path_bounds", ())
        self.targets[name] = sorted({target, *bounds})
        return name

    def _for(self, content: str, letter: str, target: str, extra: dict[str, Any], astray: float) -> str:
        return super()._for(content, letter, target, extra, astray=0.0)


@dataclass
class _Planner(Planner):
    """Plans for engines that all ask for one level, where one is named."""

    rng: Random
    table: Table
    material: Material
    word: str
    hot: list[str] = field(default_factory=list)

    def level(self, snapshot: list[str], serializable: list[str]) -> list[str]:
        if self.word == "snapshot":
            return snapshot
        return super().level(snapshot, serializable)

    def added(self, count: int, like: str | None = None) -> list[str]:
        """New files only: a table with one path twice the tower refuses."""
        near = like if like is not None and chance(self.rng, 0.8) else None
        spec = self.material.files[near]["spec"] if near and chance(self.rng, 0.6) else self.spec()
        return [self.material.data(spec, near) for _ in range(count)]


def job(seed: int) -> Job:
    """The job of a seed: the same on every machine and every run."""
    return _Generator(Random(f"icetower wire job {seed}"), seed).make()


class _Generator:
    def __init__(self, rng: Random, seed: int) -> None:
        self.rng = rng
        self.seed = seed
        self.word = pick(rng, WORDS)
        self.specs = self._specs()
        self.material = _Material(rng, self.specs)
        self.table = Table(int(pick(rng, FORMATS)), self.material)
        self.format = self.table.format
        self.planner = _Planner(rng, self.table, self.material, self.word)
        self.ids = 0
        self.positions: dict[str, dict[str, list[int]]] = {}

        self.columns = 0
        self.staged: list[int] = []

    def make(self) -> Job:
        """Set-up, then writers at once."""
        steps: list[Step] = []
        self._set_up(steps)
        if chance(self.rng, 0.5):
            self.planner.hot = some(self.rng, self.table.view().data, 2)
        writers = [self._id() for _ in range(self.rng.choice((2, 3, 3, 4, 4, 5, 6)))]
        race = chance(self.rng, 0.35)
        for number in writers:
            steps.append({"do": "begin", "id": number, "op": self._planned()})
            if not race and chance(self.rng, 0.2):
                self._change(steps)
        if self.word == "turned":
            steps.append({"do": "set", "properties": dict.fromkeys(LEVELS, "snapshot")})
        if race:
            steps.append({"do": "race", "ids": writers})
        else:
            self._nested(writers, steps)
        if chance(self.rng, 0.3):
            steps.append({"do": "write", "id": self._id(), "op": self._planned()})
        properties = self._properties()
        for file in self.material.files.values():
            if file["content"] == "data":
                file["records"] *= ROWS
            elif file["content"] == "dv":
                file.pop("path", None)
        return {
            **({"contract": CONTRACTS[self.word]} if self.word in CONTRACTS else {}),
            "name": f"job-{self.seed}",
            "format": self.format,
            "specs": self.specs,
            "properties": properties,
            "files": self.material.files,
            "positions": self.positions,
            "steps": steps,
        }

    # --- the table ---------------------------------------------------------------------------------------------

    def _specs(self) -> list[list[dict[str, str]]]:
        out: list[list[dict[str, str]]] = []
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            spec = self.rng.choice(SPECS[pick(self.rng, SPEC_WEIGHTS)])
            if spec not in out:
                out.append(spec)
        return out

    def _properties(self) -> dict[str, str]:
        rng, out = self.rng, {RETRIES: "20"}
        if chance(rng, 0.4):
            out["commit.manifest-merge.enabled"] = "false"
        elif chance(rng, 0.8):
            out["commit.manifest.min-count-to-merge"] = str(rng.randint(2, 4))
        if self.word == "snapshot":
            out |= dict.fromkeys(LEVELS, "snapshot")
        if self.word == "blind-appends":
            out[BLIND_APPENDS] = "true"
        return out

    def _id(self) -> int:
        self.ids += 1
        return self.ids

    def _set_up(self, out: list[Step]) -> None:
        first = self.planner.append(self.table.view())
        first["add"] = self.planner.added(self.rng.choice((3, 4, 5, 6)))
        self._committed(first, out)
        for _ in range(self.rng.randint(0, 3)):
            if chance(self.rng, 0.2):
                self._evolve(out)
            kinds = ["append", "append", "spark copy-on-write"]
            if self.table.format > 1:
                kinds += ["flink", "spark merge-on-read delete"]
            op = self.planner.plan(self.rng.choice(kinds), self.table.view())
            for key in ("start", "conflict_filter", "validate", "branch"):
                op.pop(key, None)
            self._committed(op, out)
        if chance(self.rng, 0.15):
            self._committed(self.planner.append(self.table.view()) | {"branch": "b"}, out)
        if chance(self.rng, 0.25):
            self._stage(out)

    def _stage(self, out: list[Step]) -> None:
        """Snapshots that wait to be published, and one more commit: to pick them is no fast-forward."""
        for _ in range(self.rng.choice((1, 1, 2))):
            kind = "append" if chance(self.rng, 0.75) else "replace partitions"
            op = self.planner.plan(kind, self.table.view())
            for key in ("start", "conflict_filter", "validate", "branch"):
                op.pop(key, None)
            number = self._id()
            published = {"summary": {"wap.id": f"wap-{number}"}} if chance(self.rng, 0.6) else {}
            out.append({"do": "write", "id": number, "op": op | {"stage": True} | published})
            self.staged.append(number)
        self._committed(self.planner.append(self.table.view()), out)

    def _committed(self, op: Operation, out: list[Step]) -> None:
        number = self._id()
        self._delete(op)
        out.append({"do": "write", "id": number, "op": op})
        self.table.commit(number, op, sure=True)

    def _evolve(self, out: list[Step]) -> None:
        """The next spec, or a higher format, if there is one left."""
        if self.table.specs < len(self.specs):
            self.table.default_spec = self.table.specs
            self.table.specs += 1
            out.append({"do": "spec", "spec": self.table.default_spec})
        elif self.table.format < 3:
            self.table.format += 1
            out.append({"do": "upgrade", "format": self.table.format})

    def _change(self, out: list[Step]) -> None:
        """Something that is not a write: evolution, rollback, expiry, other properties."""
        ancestors = self.table.ancestors()
        which = pick(self.rng, {"evolve": 4, "rollback": 1, "expire": 2, "set": 1, "manage": 4})
        if which == "manage":
            out.append({"do": "manage", **self._managed(ancestors)})
        elif which == "evolve":
            self._evolve(out)
        elif which == "rollback" and len(ancestors) > 1 and not self.staged:
            out.append({"do": "rollback", "to": ancestors[1]})
        elif which == "expire" and len(ancestors) > 2:
            out.append({"do": "expire", "ids": [ancestors[-1]]})
        elif which == "set":
            out.append({"do": "set", "properties": {"commit.manifest.min-count-to-merge": "2"}})

    def _managed(self, ancestors: Sequence[int]) -> Step:
        """A commit without a snapshot. Main goes back only where nothing is staged: a pick could be a fast-forward."""
        back = [] if self.staged or len(ancestors) < 2 else ["rollback-to", "set-current"]
        of_refs = ["create-branch", "create-tag", "remove-tag", "remove-branch", "rename-branch", "replace-branch"]
        what = self.rng.choice((*of_refs, "fast-forward", "retain", "add-column", "sort-order", "property", *back))
        self.columns += 1
        step: Step = {"what": what}
        at = self.rng.choice(ancestors[:3]) if ancestors else 1
        match what:
            case "create-branch" | "replace-branch":
                step |= {"name": "side", "at": at}
            case "create-tag":
                step |= {"name": f"tag-{self.columns}", "at": at}
            case "remove-tag":
                step |= {"name": f"tag-{self.columns - 1}"}
            case "remove-branch":
                step |= {"name": "side"}
            case "rename-branch":
                step |= {"name": "side", "to": "aside"}
            case "fast-forward":
                step |= {"name": "side", "to": "main"}
            case "add-column" | "property":
                step |= {"name": f"extra_{self.columns}"}
            case "rollback-to" | "set-current":
                step |= {"at": ancestors[1]}
            case _:
                pass
        return step

    # --- writers -----------------------------------------------------------------------------------------------

    def _planned(self) -> Operation:
        """An operation after a scan of the table as it is now, with what its engine leaves in the summary."""
        if self.staged and chance(self.rng, 0.5):
            return self._declared_blind(
                {"kind": "cherry-pick", "source": self.rng.choice(self.staged[:1] * 3 + self.staged)}
            )
        if chance(self.rng, 0.08):
            return self._validating()
        profile = self._profile()
        branch = "b" if self.table.branch is not None and chance(self.rng, 0.3) else None
        op = self.planner.plan(profile, self.table.view(branch))
        # A branch that a commit makes begins where its writer saw main; on a retry, where main is by then.
        op.pop("branch", None)
        if branch is not None and op["kind"] != "rewrite-manifests":
            op["branch"] = branch
        if op.pop("merge_manifests", None) is not None:  # which there are, nobody can foresee
            op["cluster_by"] = "all"
        self._delete(op)
        summary = self._summary(profile, op)
        if summary:
            op["summary"] = summary
        return self._declared_blind(op)

    def _validating(self) -> Operation:
        """An append with a validation of its client's own, of which nothing but these marks is sent."""
        op = self.planner.append(self.table.view())
        op.pop("branch", None)
        name, marks = self.rng.choice(VALIDATING)
        self.columns += 1
        op["summary"] = {**marks, name: str(self.columns)}
        return self._declared_blind(op | {"validate_with": name})

    def _declared_blind(self, op: Operation) -> Operation:
        """Under some words each writer that may only add says that it is blind, whatever it has validated."""
        adds = op["kind"] == "cherry-pick" or (op.get("add") and not op.get("remove") and not op.get("add_deletes"))
        summary = op.get("summary", {})
        if self.word == "blind-summaries" and adds and BLIND not in summary and _says_what_it_is(op):
            return op | {"summary": {**summary, BLIND: "true"}}
        return op

    def _delete(self, op: Operation) -> None:
        """Choose the rows that its delete files delete, those of the files that they supersede among them."""
        old = [named if isinstance(named, str) else named["file"] for named in op.get("remove_deletes", ())]
        for name in op.get("add_deletes", ()):
            for target in self.material.targets.get(name, ()):
                rows = max(1, self.material.files[target]["records"] * ROWS)
                new = self.rng.sample(range(rows), min(rows, self.rng.randint(1, 3)))
                before = {at for each in old for at in self.positions.get(each, {}).get(target, ())}
                kept = before if before and op["kind"] == "rewrite" else {*new, *before}
                self.positions.setdefault(name, {})[target] = sorted(kept)

    def _profile(self) -> str:
        weights = {name: WEIGHTS.get(name, weight) for name, (weight, _) in PROFILES.items()}
        if self.word in ("snapshot", "declared", "contract-snapshot"):
            del weights["anything"]  # asks for any level
        if self.table.format == 1:
            weights = {name: weight for name, weight in weights.items() if name not in NEEDS_DELETES}
        if not self.table.view().deletes:
            weights.pop("rewrite deletes", None)
        return pick(self.rng, weights)

    def _summary(self, profile: str, op: Operation) -> dict[str, str]:
        rng, out = self.rng, dict[str, str]()
        if profile in SPARKS_OWN and chance(rng, 0.9):
            out |= OLD_SPARK if chance(rng, 0.15) else SPARK
            # Nobody else of Spark's row-level commands only adds.
            only_adds = op["kind"] != "append" and not op.get("remove") and not op.get("add_deletes")
            if profile in MERGES and out == SPARK and (only_adds or chance(rng, 0.75)):
                out |= MERGED
                if not op.get("add") or (not only_adds and chance(rng, 0.4)):
                    out[INSERTED] = "0"
                if chance(rng, 0.1):
                    out |= MEDIATED
        if profile == "append" and chance(rng, 0.1):
            out[BLIND] = "true"
        if self.word == "declared" and profile in AGREED and op.get("conflict_filter") is not None:
            out |= declaration(op)
        return out

    def _nested(self, writers: list[int], out: list[Step]) -> None:
        """One commits while the others do so between its attempt and its swap, and so on."""
        rest = list(writers)
        while rest:
            out.append(self._commit(rest, 0))

    def _commit(self, rest: list[int], depth: int) -> Step:
        number = rest.pop(0)
        step: Step = {"do": "commit", "id": number}
        if depth < 3 and rest and chance(self.rng, 0.9):
            most = self.rng.randint(1, len(rest))
            slot = [self._commit(rest, depth + 1) for _ in range(most) if rest]
            if chance(self.rng, 0.2):
                self._change(slot)
            step["between"] = [slot]
        return step


def _says_what_it_is(op: Operation) -> bool:
    """Its summary, or its kind, shows what it is: to say that anything else is blind would be a lie."""
    kind_shows = op["kind"] in ("append", "fast-append", "cherry-pick")
    return kind_shows or any(name.startswith("spark.merge-into.") for name in op.get("summary", {}))


def declaration(op: Mapping[str, Any]) -> dict[str, str]:
    """What a writer says of its reads, in its summary: the filter and the level that it asks Iceberg for.

    One that overwrites by a filter has read these rows, too: Iceberg evaluates that filter anew, whatever it validates.
    """
    level = "serializable" if "no-conflicting-data" in op.get("validate", ()) else "snapshot"
    read = op["conflict_filter"]
    if "filter" in op:
        read = {"type": "or", "left": read, "right": op["filter"]}
    return {FILTER: json.dumps(read), ISOLATION: level}


def notes(given: Job) -> Counter[str]:
    """What went into a job."""
    out: Counter[str] = Counter()
    for step in given["steps"]:
        if "op" in step:
            out[step["op"]["kind"]] += 1
        if step["do"] == "race":
            out["race"] += 1
        if step["do"] == "manage":
            out[step["what"]] += 1
    return out
