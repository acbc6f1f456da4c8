"""Random cases: small tables with several writers at once, reproducible from a seed.

A case begins with a few commits that set the table up. Then two to four writers plan, begin and commit in random order;
what others do between an attempt and its swap is nested under the commit. Around them the table is rolled back,
expired, repartitioned and upgraded. About half of the concurrent writers are refused.

Only what real Iceberg does not decide by itself is left out: two deletion vectors for one data file in one operation
(it would open the files), and two missing manifests in one rewrite of manifests (it names either).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from verify.differential.material import SPEC_WEIGHTS, SPECS, Material, chance, pick, some
from verify.differential.writers import STARTED, Operation, Planner, Table, writer

Step = dict[str, Any]
Case = dict[str, Any]

FORMATS = {"1": 3, "2": 9, "3": 8}
WRITERS_MAX = 5
DEPTH_MAX = 2
"""How deep commits nest between the attempts of others."""
DEFAULT_RETRIES = 4


@dataclass(frozen=True, slots=True)
class Made:
    """A case, and what went into it: counts of `engine:…`, `spec:…`, `step:…`, `start:…` and so on."""

    case: Case
    notes: Counter[str]


@dataclass
class _Writer:
    """One concurrent writer on its way: planned, begun, committed."""

    id: int
    op: Operation | None = None
    planned_on: int | None = None
    begun: bool = False
    done: bool = False


def case(seed: int) -> Case:
    """The case of a seed: the same on every machine and every run."""
    return make(seed).case


def make(seed: int) -> Made:
    """The case of a seed, with what went into it."""
    return _Generator(Random(f"icetower differential case {seed}"), seed).make()


class _Generator:
    def __init__(self, rng: Random, seed: int) -> None:
        self.rng = rng
        self.seed = seed
        self.notes: Counter[str] = Counter()
        self.specs = self._specs()
        self.material = Material(rng, self.specs)
        self.table = Table(int(pick(rng, FORMATS)), self.material)
        self.properties = self._properties()
        if self.table.format == 1 and chance(rng, 0.15):
            self.properties["compatibility.snapshot-id-inheritance.enabled"] = "true"
        self.planner = Planner(rng, self.table, self.material)
        self.writers: list[_Writer] = []
        self.ids = 0
        self.format = self.table.format

    def make(self) -> Made:
        """Set-up, concurrent writers, and now and then a last word."""
        steps: list[Step] = []
        self.table.certain = chance(self.rng, 0.96)
        if self.table.certain:
            self._set_up(steps)
        else:
            self.notes["empty table"] += 1
        live = self.table.view().data
        self.planner.hot = some(self.rng, live, 2)
        self._concurrently(steps)
        # What an upgrade between attempts has left behind shows only when the next one touches it.
        if chance(self.rng, 0.8 if self.notes["step:upgrade from 1 between attempts"] else 0.2):
            self._write(writer(self.rng, self.table), steps)
        self.notes.update(self.material.notes)
        self.notes[f"format:{self.format}"] += 1
        case: Case = {"name": f"random-{self.seed}", "format": self.format, "specs": self.specs}
        case |= {"properties": self.properties, "files": self.material.files, "steps": steps}
        return Made(case, self.notes)

    # --- the table ---------------------------------------------------------------------------------------------

    def _specs(self) -> list[list[dict[str, str]]]:
        """One spec, or up to three different ones for a table that evolves."""
        out: list[list[dict[str, str]]] = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3))):
            kind = pick(self.rng, SPEC_WEIGHTS)
            spec = self.rng.choice(SPECS[kind])
            if spec not in out:
                out.append(spec)
                self.notes[f"spec:{kind}"] += 1
        return out

    def _properties(self) -> dict[str, str]:
        """How manifests merge, and how often a lost swap is retried."""
        rng, out = self.rng, {}
        if chance(rng, 0.4):
            out["commit.manifest-merge.enabled"] = "false"
        else:
            if chance(rng, 0.8):
                out["commit.manifest.min-count-to-merge"] = str(rng.randint(2, 4))
            if chance(rng, 0.15):
                out["commit.manifest.target-size-bytes"] = "1"
        if chance(rng, 0.2):
            out["commit.retry.num-retries"] = str(rng.randint(0, 2))
        return out

    def _id(self) -> int:
        self.ids += 1
        return self.ids

    def _set_up(self, out: list[Step]) -> None:
        """One to four commits, and the table's evolution between them."""
        kinds = ["append", "append", "append", "flink", "spark merge-on-read delete", "spark copy-on-write"]
        first = self.planner.append(self.table.view())
        first["add"] = self.planner.added(self.rng.choice((2, 2, 3, 4)))
        self._committed(self._id(), first, out, sure=True)
        for _ in range(self.rng.randint(0, 3)):
            if chance(self.rng, 0.3):
                self._evolve(out)
            if chance(self.rng, 0.1):
                self._table_step(out)
            kind = self.rng.choice(kinds)
            if self.table.format == 1 and kind.startswith(("flink", "spark merge")):
                kind = "append"
            op = self.planner.plan(kind, self.table.view())
            for key in ("start", "conflict_filter", "validate", "branch"):
                op.pop(key, None)
            self._committed(self._id(), op, out, sure=True)
        if chance(self.rng, 0.1):
            self._evolve(out)

    def _committed(self, writes: int, op: Operation, out: list[Step], sure: bool) -> None:
        out.append({"do": "write", "id": writes, "op": op})
        self.notes[f"kind:{op['kind']}"] += 1
        self.table.commit(writes, op, sure)

    def _specs_left(self, nested: bool) -> bool:
        """Whether another spec may be added. What is nested may never run, and specs are added in order: so only the
        last of them there."""
        left = len(self.specs) - self.table.specs
        return left == 1 if nested else left > 0

    def _evolve(self, out: list[Step], nested: bool = False) -> None:
        """The next spec, or a higher format, if there is one left."""
        if self._specs_left(nested) and chance(self.rng, 0.75):
            self.table.default_spec = self.table.specs
            self.table.specs += 1
            out.append({"do": "spec", "spec": self.table.default_spec})
        elif self.table.format < 3 and chance(self.rng, 0.5):
            self.table.format += 1
            out.append({"do": "upgrade", "format": self.table.format})
        else:
            return
        self.notes[f"step:{out[-1]['do']}"] += 1

    def _table_step(self, out: list[Step], nested: bool = False) -> None:
        """Something that is not a write: rollback, expiry, other properties, evolution, an old spec again."""
        table, ancestors = self.table, self.table.ancestors()
        which = pick(self.rng, {"rollback": 4, "expire": 3, "set": 1.5, "evolve": 4, "spec": 1, "upgrade": 0.4})
        if which == "evolve":
            return self._evolve(out, nested)
        if which == "rollback" and len(ancestors) > 1:
            to = self.rng.choice(ancestors[1:3])
            table.gone += ancestors[: ancestors.index(to)]
            table.head = to
            table.views[to] = replace(table.views[to], manifests=min(1, table.views[to].manifests))
            out.append({"do": "rollback", "to": to})
        elif which == "expire" and len(ancestors) > 1:
            # From the old end, mostly: that is what expiry does. A hole in the middle is nastier.
            old = ancestors[-self.rng.randint(1, 2) :] if chance(self.rng, 0.8) else some(self.rng, ancestors[1:], 1)
            old = [each for each in old if each not in (table.head, table.branch)]
            if not old:
                return None
            for each in old:
                del table.views[each]
            table.gone += old
            out.append({"do": "expire", "ids": sorted(old)})
        elif which == "set":
            out.append({"do": "set", "properties": self._properties() or {"commit.retry.num-retries": "1"}})
        elif which == "spec" and table.specs > 1:
            table.default_spec = self.rng.randrange(table.specs)
            out.append({"do": "spec", "spec": table.default_spec})
        elif which == "upgrade":  # any format, lower ones included
            out.append({"do": "upgrade", "format": self.rng.randint(1, 3)})
            table.format = max(table.format, out[-1]["format"])
        else:
            return None
        self.notes[f"step:{out[-1]['do']}"] += 1
        return None

    # --- writers -----------------------------------------------------------------------------------------------

    def _concurrently(self, out: list[Step]) -> None:
        """Writers advance in random order until all have committed."""
        for _ in range(self.rng.choice((2, 2, 2, 3, 3, 4))):
            self.writers.append(_Writer(self._id()))
        while waiting := [writer for writer in self.writers if not writer.done]:
            if chance(self.rng, 0.05):
                self._table_step(out)
            self._change_under(out, nested=False)
            self._advance(self.rng.choice(waiting), out, 0)

    def _change_under(self, out: list[Step], nested: bool) -> None:
        """Now and then, the table changes under a writer that has begun: an upgrade from format 1 between its attempts,
        one to format 3 while it holds position deletes for format 2, or a new spec while it removes files."""
        if nested and self.table.format == 1 and chance(self.rng, 0.4):
            self.table.format = self.rng.randint(2, 3)
            out.append({"do": "upgrade", "format": self.table.format})
            self.notes["step:upgrade from 1 between attempts"] += 1
        for waiting in self.writers:
            op = (waiting.op or {}) if waiting.begun and not waiting.done else {}
            deletes = [name for name in op.get("add_deletes", ()) if name.startswith("P")]
            if deletes and self.table.format == 2 and chance(self.rng, 0.06):
                self.table.format = 3
                out.append({"do": "upgrade", "format": 3})
                self.notes["step:upgrade under deletes"] += 1
            removes = op.get("kind") == "replace-partitions" or "filter" in op or "remove" in op
            if removes and self._specs_left(nested) and chance(self.rng, 0.1):
                self.table.default_spec = self.table.specs
                self.table.specs += 1
                out.append({"do": "spec", "spec": self.table.default_spec})
                self.notes["step:spec under removal"] += 1
                if chance(self.rng, 0.6):
                    added = self.material.data(self.table.default_spec)
                    self._committed(self._id(), {"kind": "fast-append", "add": [added]}, out, sure=not nested)

    def _advance(self, which: _Writer, out: list[Step], depth: int) -> None:
        if which.op is None:
            self._plan(which)
        elif not which.begun:
            which.begun = True
            self.planner.settle(which.op)
            out.append({"do": "begin", "id": which.id, "op": which.op})
        else:
            self._commit(which, out, depth)

    def _plan(self, which: _Writer) -> None:
        profile = writer(self.rng, self.table)
        which.op = self.planner.plan(profile, self.table.view())
        which.planned_on = self.table.head
        self.notes[f"engine:{profile}"] += 1
        self.notes[f"kind:{which.op['kind']}"] += 1

    def _finish(self, which: _Writer, out: list[Step], depth: int) -> None:
        """All that is left for a writer to do, in one place."""
        while not which.done:
            self._advance(which, out, depth)

    def _commit(self, which: _Writer, out: list[Step], depth: int) -> None:
        """A commit, with what comes between its attempts and their swaps."""
        which.done = True  # nobody commits it again from within
        op = which.op or {}
        if op["kind"] in STARTED and self.table.head is not None and chance(self.rng, 0.04):
            op["start"] = self.table.head
            self.notes["start:head at commit"] += 1
        if op.get("start") in self.table.gone:
            self.notes["start:gone at commit"] += 1
        slots = self._slots(depth, which.planned_on != self.table.head)
        between: list[list[Step]] = []
        for _ in range(slots):
            between.append([])
            self._meanwhile(between[-1], depth + 1)
        step: Step = {"do": "commit", "id": which.id}
        if between:
            step["between"] = between
            self.notes[f"attempts deep:{len(between)}"] += 1
            self.notes[f"nested:{depth + 1}"] += 1
        last = out[-1] if out else {}
        if last.get("do") == "begin" and last["id"] == which.id and not between:
            out[-1] = {"do": "write", "id": which.id, "op": op}
        else:
            out.append(step)
        if slots <= int(self.properties.get("commit.retry.num-retries", DEFAULT_RETRIES)):
            self.table.commit(which.id, op, sure=not slots and not depth and op["kind"] == "fast-append")

    def _slots(self, depth: int, moved: bool) -> int:
        """How many attempts something comes between. Fewer if the head has moved already: whoever is refused at once
        leaves those that wait between its attempts no turn."""
        if depth == 0:
            weights = (
                {"0": 65, "1": 25, "2": 7, "3": 2, "5": 1} if moved else {"0": 35, "1": 38, "2": 18, "3": 7, "5": 2}
            )
        else:
            weights = {"0": 75, "1": 22, "2": 3} if depth < DEPTH_MAX else {"0": 1}
        return int(pick(self.rng, weights))

    def _meanwhile(self, out: list[Step], depth: int) -> None:
        """What happens between one attempt and its swap."""
        kind = pick(self.rng, {"writer": 10, "fail": 2.5, "table": 1.5})
        self._change_under(out, nested=True)
        if kind == "table":
            self._table_step(out, nested=True)
        waiting = [writer for writer in self.writers if not writer.done]
        if kind == "writer" and not waiting and len(self.writers) < WRITERS_MAX:
            waiting = [_Writer(self._id())]
            self.writers += waiting
        if kind == "writer" and waiting:
            self._finish(self.rng.choice(waiting), out, depth)
        if not out:
            out.append({"do": "fail"})
            self.notes["step:fail"] += 1

    def _write(self, profile: str, out: list[Step]) -> None:
        op = self.planner.plan(profile, self.table.view())
        self.planner.settle(op)
        self.notes[f"engine:{profile}"] += 1
        self._committed(self._id(), op, out, sure=False)
