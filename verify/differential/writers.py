"""What random writers ask for: operations as engines build them, and as nobody would.

A light picture of the table (`Table`) says what is live, so that most operations are meaningful. It believes that
every commit succeeds and knows nothing of Iceberg's rules: it only steers, and it may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from verify.differential.material import Expression, Material, chance, pick, predicate, some

Operation = dict[str, Any]

FLAGS = {
    "overwrite": ("added-files-match-filter", "no-conflicting-data", "no-conflicting-deletes"),
    "row-delta": ("no-conflicting-data", "no-conflicting-deletes", "deleted-files"),
    "replace-partitions": ("no-conflicting-data", "no-conflicting-deletes", "append-only"),
    "delete": ("files-exist",),
}
"""What each kind of operation may validate."""
STARTED = ("overwrite", "row-delta", "rewrite", "replace-partitions")
"""Kinds that can be told the snapshot from which to validate."""
FILTERED = ("overwrite", "row-delta")
"""Kinds that take a filter for conflicts."""


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot as the simulation believes it: names of live data and delete files, in order of age."""

    id: int
    parent: int | None
    sequence_number: int
    data: tuple[str, ...]
    deletes: tuple[str, ...]
    manifests: int
    """It has at least so many data manifests."""


EMPTY = View(0, None, 0, (), (), 0)


@dataclass
class Table:
    """The table as the simulation believes it."""

    format: int
    material: Material
    default_spec: int = 0
    specs: int = 1
    """How many of the case's specs the table has."""
    head: int | None = None
    branch: int | None = None
    """The head of branch `b`, if there is one."""
    last_sequence_number: int = 0
    views: dict[int, View] = field(default_factory=dict)
    certain: bool = True
    """There are data files for certain: a commit that nobody refuses has added some."""
    gone: list[int] = field(default_factory=list)
    """Snapshots that were rolled back or expired."""

    def view(self, branch: str | None = None) -> View:
        """The head of main, or of branch `b` (which begins where main is)."""
        at = self.branch if branch and self.branch is not None else self.head
        return EMPTY if at is None else self.views[at]

    def ancestors(self) -> list[int]:
        """The ids from the head back, as far as they are retained."""
        out, at = [], self.head
        while at is not None and at in self.views:
            out.append(at)
            at = self.views[at].parent
        return out

    def commit(self, snapshot_id: int, op: Operation, sure: bool) -> None:
        """Take the operation as committed with this snapshot id. Not `sure`: it may never have a turn."""
        material, view = self.material, self.view(op.get("branch"))
        removed = {_name(item) for item in (*op.get("remove", ()), *op.get("remove_paths", ()))}
        dropped = {_name(item) for item in op.get("remove_deletes", ())}
        if "filter" in op:
            removed |= {name for name in view.data if material.match(op["filter"], name) == "all"}
        if op["kind"] == "replace-partitions":
            tuples = [(material.files[name]["spec"], material.files[name]["partition"]) for name in op.get("add", ())]
            swept = {
                name
                for name in (*view.data, *view.deletes)
                if [] in (of for _, of in tuples)
                or (material.files[name]["spec"], material.files[name]["partition"]) in tuples
            }
            removed, dropped = removed | swept, dropped | swept
        dropped |= {
            name
            for name in view.deletes
            if material.files[name]["content"] == "dv" and material.files[name]["references"] in removed
        }
        if self.format > 1:
            self.last_sequence_number += 1
        data = tuple(name for name in view.data if name not in removed) + tuple(op.get("add", ()))
        # A fast append touches nothing else; all others may merge manifests, or drop some.
        manifests = view.manifests + 1 if op["kind"] == "fast-append" else min(1, len(data))
        if not sure:
            manifests = min(manifests, view.manifests)
        self.views[snapshot_id] = View(
            snapshot_id,
            view.id or None,
            self.last_sequence_number if self.format > 1 else 0,
            data,
            tuple(name for name in view.deletes if name not in dropped) + tuple(op.get("add_deletes", ())),
            manifests,
        )
        if op.get("branch"):
            self.branch = snapshot_id
        else:
            self.head = snapshot_id


def _name(removed: Any) -> str:
    return removed if isinstance(removed, str) else removed["file"]


class Planner:
    """Plans operations against a view of the table. `hot` files are those that writers of one case fight over."""

    def __init__(self, rng: Random, table: Table, material: Material) -> None:
        self.rng = rng
        self.table = table
        self.material = material
        self.hot: list[str] = []

    def plan(self, profile: str, view: View) -> Operation:
        """An operation as the engine `profile` builds it after a scan of `view`."""
        op = PROFILES[profile][1](self, view)
        if op["kind"] != "rewrite-manifests" and chance(self.rng, 0.02):
            op["branch"] = "b"
        return op

    # --- what writers aim at -----------------------------------------------------------------------------------

    def targets(self, view: View, most: int = 2) -> list[str]:
        """Live data files, the hot ones first; rarely one that is not live."""
        live = list(dict.fromkeys(view.data))
        hot = [name for name in self.hot if name in live]
        if self.table.gone and chance(self.rng, 0.02):
            live = [name for name, file in self.material.files.items() if file["content"] == "data"]
        return some(self.rng, hot if hot and chance(self.rng, 0.75) else live, most)

    def deletes_of(self, view: View, targets: list[str]) -> list[str]:
        """Live delete files that were written for these data files."""
        return [name for name in view.deletes if self._target(name) in targets]

    def _target(self, delete: str) -> str | None:
        file = self.material.files[delete]
        return file.get("references") or next(iter(file.get("path_bounds", ())), None)

    def removed(self, names: list[str]) -> list[Any]:
        """The files as objects out of the scan, mostly, or built anew."""
        built = chance(self.rng, 0.15)
        return [{"file": name, "from": "built"} if built or chance(self.rng, 0.05) else name for name in names]

    def spec(self) -> int:
        """The default spec, or now and then an older one."""
        return self.rng.randrange(self.table.specs) if chance(self.rng, 0.15) else self.table.default_spec

    def added(self, count: int, like: str | None = None) -> list[str]:
        """New data files, near `like`; rarely one that the table has (or had) already."""
        old = [name for name in self.material.files if name.startswith("D")]
        if old and chance(self.rng, 0.02):
            return [self.rng.choice(old)]
        near = like if like is not None and chance(self.rng, 0.8) else None
        spec = self.material.files[near]["spec"] if near and chance(self.rng, 0.6) else self.spec()
        new = [self.material.data(spec, near) for _ in range(count)]
        if old and chance(self.rng, 0.015):  # the path of another file, which may have another partition
            self.material.files[new[0]]["path"] = f"mem://t/data/{self.rng.choice(old)}.parquet"
        return new

    def row_deletes(self, targets: list[str]) -> list[str]:
        """Position deletes or deletion vectors, whichever the format wants; rarely the other ones."""
        others = [None, *targets]
        vectors = (self.table.format >= 3) != chance(self.rng, 0.02)
        if vectors:
            # One for each path, which two names may share: Iceberg would open two of one file, to merge them.
            by_path = {
                self.material.files[target].get("path", f"mem://t/data/{target}.parquet"): target for target in targets
            }
            vectors = [self.material.vector(target) for target in by_path.values()]
            if len(vectors) > 1 and chance(self.rng, 0.1):  # one Puffin file with several of them
                self.material.files[vectors[1]]["path"] = f"mem://t/data/{vectors[0]}.puffin"
            return vectors
        return [self.material.position_deletes(target, self.rng.choice(others)) for target in targets]

    def start(self, view: View) -> int | None:
        """Where to validate from: the scan's snapshot, none, an older one, one that is gone, one that never was."""
        ancestors = self.table.ancestors()
        of = {"scan": [view.id] if view.id else [], "older": ancestors, "gone": self.table.gone, "unknown": [999]}
        which = pick(self.rng, {"scan": 14, "null": 3, "older": 2.5, "gone": 1.5, "unknown": 0.15})
        if not of.get(which):
            which = "null"
        self.material.notes.append(f"start:{which}")
        return None if which == "null" else self.rng.choice(of[which])

    def scanned(self, op: Operation, view: View, targets: list[str], always: bool = True) -> Operation:
        """Add what a scan leaves behind: start and filter."""
        start = self.start(view)
        if start is not None:
            op["start"] = start
        if op["kind"] in FILTERED and (always or chance(self.rng, 0.5)):
            op["conflict_filter"] = self.material.filter(targets[0] if targets else None)
        return op

    def level(self, snapshot: list[str], serializable: list[str]) -> list[str]:
        """The flags of snapshot isolation, or with those that serializable adds."""
        return [*snapshot, *(serializable if chance(self.rng, 0.55) else [])]

    def row_filter(self, view: View, aim: str | None) -> Expression:
        """Which rows to remove; now and then by a prefix, where a partition has none: Iceberg falls over that."""
        nulls = [name for name in view.data if self.material.has_null_text(name)]
        if nulls and chance(self.rng, 0.5):
            return predicate(self.rng.choice(("starts-with", "not-starts-with")), "category", "a")
        return self.material.filter(aim)

    def settle(self, op: Operation) -> None:
        """Name only manifests that are there when the writer begins, and of one spec."""
        if "merge_manifests" in op:
            # Which spec a manifest has is only sure where there is one.
            sure = self.table.view().manifests if self.table.certain else 0
            if self.table.specs > 1:
                sure = min(1, sure)
            op["merge_manifests"] = op["merge_manifests"][:sure]
            if not sure:
                del op["merge_manifests"]
                op["cluster_by"] = "all"

    # --- engines -----------------------------------------------------------------------------------------------

    def spark_copy_on_write(self, view: View) -> Operation:
        """Spark's DELETE, UPDATE or MERGE that writes whole files anew."""
        targets = self.targets(view)
        op: Operation = {"kind": "overwrite", "remove": self.removed(targets)}
        vectors = [name for name in self.deletes_of(view, targets) if self.material.files[name]["content"] == "dv"]
        if vectors and chance(self.rng, 0.6):
            op["remove_deletes"] = self.removed(vectors)
        if targets and chance(self.rng, 0.7):
            op["add"] = self.added(self.rng.choice((1, 1, 2)), targets[0])
        if not targets and chance(self.rng, 0.8):
            op["add"] = self.added(1)
        op["validate"] = self.level(["no-conflicting-deletes"], ["no-conflicting-data"])
        return self.scanned(op, view, targets)

    def _merge_on_read(self, view: View, rows: float, snapshot: list[str]) -> Operation:
        targets = self.targets(view)
        op: Operation = {"kind": "row-delta", "add_deletes": self.row_deletes(targets)}
        superseded = self.deletes_of(view, targets)
        if superseded and chance(self.rng, 0.65 if self.table.format >= 3 else 0.35):
            op["remove_deletes"] = self.removed(superseded)
        if chance(self.rng, rows):
            op["add"] = self.added(1, targets[0] if targets else None)
        if targets:
            op["references"] = targets
        op["validate"] = self.level(snapshot, ["no-conflicting-data"])
        return self.scanned(op, view, targets)

    def spark_update(self, view: View) -> Operation:
        """Spark's UPDATE or MERGE that writes deletes and new rows."""
        return self._merge_on_read(view, 0.85, ["deleted-files", "no-conflicting-deletes"])

    def spark_delete(self, view: View) -> Operation:
        """Spark's DELETE that writes deletes only."""
        return self._merge_on_read(view, 0.0, [])

    def trino(self, view: View) -> Operation:
        """Trino's DELETE, UPDATE or MERGE: delete files are only looked for if rows were written."""
        writes = chance(self.rng, 0.5)
        snapshot = ["deleted-files", *(["no-conflicting-deletes"] if writes else [])]
        return self._merge_on_read(view, 1.0 if writes else 0.0, snapshot)

    def flink(self, view: View) -> Operation:
        """Flink's upserts: equality deletes with the new rows, nothing validated; on v3 also vectors."""
        targets = self.targets(view)
        aim = targets[0] if targets else None
        deletes = [self.material.equality_deletes(aim, self.spec()) for _ in range(self.rng.choice((1, 1, 2)))]
        op: Operation = {"kind": "row-delta", "add": self.added(1, aim), "add_deletes": deletes}
        if self.table.format >= 3 and targets and chance(self.rng, 0.3):
            op["add_deletes"] = [*deletes, *self.row_deletes(targets[:1])]
        return op

    def pyiceberg(self, view: View) -> Operation:
        """PyIceberg's delete and overwrite: by predicate, or by files."""
        targets = self.targets(view)
        op: Operation = {"kind": "overwrite"}
        if targets and chance(self.rng, 0.5):
            op["remove"] = self.removed(targets)
        else:
            op["filter"] = self.row_filter(view, targets[0] if targets else None)
        if chance(self.rng, 0.6):
            op["add"] = self.added(1, targets[0] if targets else None)
        op["validate"] = self.level(["no-conflicting-deletes"], ["no-conflicting-data"])
        return self.scanned(op, view, targets, always=False)

    def compaction(self, view: View) -> Operation:
        """rewrite_data_files: fewer files, the rows of the scan, its sequence number or none."""
        targets = self.targets(view, 3)
        op: Operation = {"kind": "rewrite", "remove": self.removed(targets)}
        records = sum(self.material.files[name]["records"] for name in targets)
        if targets and chance(self.rng, 0.9):
            written = max(0, records - self.rng.choice((0, 0, 0, 1))) if chance(self.rng, 0.94) else records + 1
            aim = targets[0]
            spec = self.material.files[aim]["spec"] if chance(self.rng, 0.7) else self.spec()
            op["add"] = [self.material.data(spec, aim, written)]
        stale = self.deletes_of(view, targets)
        if stale and chance(self.rng, 0.4):
            op["remove_deletes"] = self.removed(stale)
        op = self.scanned(op, view, targets)
        if chance(self.rng, 0.6):
            # A sequence number of its own needs format 2; on format 1 there is only 0.
            op["sequence_number"] = view.sequence_number
        return op

    def rewrite_deletes(self, view: View) -> Operation:
        """rewrite_position_delete_files: delete files for delete files, under an old sequence number or a new one."""
        old = some(self.rng, view.deletes, 2)
        op: Operation = {"kind": "rewrite", "remove_deletes": self.removed(old)}
        aims = [name for name in (self._target(delete) for delete in old) if name in self.material.files]
        if aims and chance(self.rng, 0.8):
            op["add_deletes"] = self.row_deletes([name for name in aims[:1] if name])
            if chance(self.rng, 0.5):
                for name in op["add_deletes"]:
                    self.material.files[name]["sequence_number"] = max(view.sequence_number, 1)
        return self.scanned(op, view, [])

    def insert_overwrite(self, view: View) -> Operation:
        """Spark's overwrite by filter: validated only if its options ask for it."""
        targets = self.targets(view)
        aim = targets[0] if targets else None
        op: Operation = {"kind": "overwrite"}
        op["filter"] = self.material.of_partition(aim) if aim and chance(self.rng, 0.6) else self.row_filter(view, aim)
        if chance(self.rng, 0.8):
            op["add"] = self.added(self.rng.choice((1, 1, 2)), aim)
        flags = ["added-files-match-filter"] if op.get("add") and chance(self.rng, 0.35) else []
        if chance(self.rng, 0.65):
            flags += self.level(["no-conflicting-deletes"], ["no-conflicting-data"])
            self.scanned(op, view, targets, always=False)
        op["validate"] = flags
        return op

    def replace_partitions(self, view: View) -> Operation:
        """Dynamic overwrite of partitions: no level, snapshot isolation, serializable, or append-only."""
        targets = self.targets(view)
        aim = targets[0] if targets else None
        op: Operation = {"kind": "replace-partitions", "add": self.added(self.rng.choice((1, 1, 2)), aim)}
        if chance(self.rng, 0.12):
            return op | {"validate": ["append-only"]}
        if chance(self.rng, 0.75):
            op["validate"] = self.level(["no-conflicting-deletes"], ["no-conflicting-data"])
            self.scanned(op, view, targets)
        return op

    def append(self, view: View) -> Operation:
        """An append, fast or merging; often into a hot partition."""
        like = self.rng.choice(self.hot) if self.hot and chance(self.rng, 0.7) else None
        kind = "append" if chance(self.rng, 0.5) else "fast-append"
        return {"kind": kind, "add": self.added(self.rng.choice((1, 1, 2)), like)}

    def delete(self, view: View) -> Operation:
        """DeleteFiles: by filter, by object, by path."""
        targets = self.targets(view)
        aim = targets[0] if targets else None
        op: Operation = {"kind": "delete"}
        how = pick(self.rng, {"filter": 4, "objects": 3, "paths": 2, "all": 0.5})
        if how in {"filter", "all"} or not targets:
            op["filter"] = self.material.of_partition(aim) if aim and chance(self.rng, 0.4) else self._whole(view, aim)
        if how in {"objects", "all"} and targets:
            op["remove"] = self.removed(targets)
        if how in {"paths", "all"} and targets:
            op["remove_paths"] = targets
        return op | {"validate": ["files-exist"] if chance(self.rng, 0.5) else []}

    def _whole(self, view: View, aim: str | None) -> Expression:
        whole = aim is not None and self.material.rows.get(aim) and chance(self.rng, 0.6)
        return self.material.of_rows(aim or "") if whole else self.row_filter(view, aim)

    def rewrite_manifests(self, view: View) -> Operation:
        """Manifests clustered anew, or one put in the place of others."""
        op: Operation = {"kind": "rewrite-manifests"}
        if chance(self.rng, 0.5):
            return op | {"merge_manifests": [0, 1] if chance(self.rng, 0.6) else [0]}
        op["cluster_by"] = self.rng.choice(("partition", "all", "file"))
        if chance(self.rng, 0.3):
            op["rewrite_if_spec"] = self.rng.randrange(self.table.specs)
        return op

    def anything(self, view: View) -> Operation:
        """What no engine would ask for: a random kind with random parts and flags."""
        rng, targets = self.rng, self.targets(view, 3)
        aim = targets[0] if targets else None
        op: Operation = {"kind": rng.choice(("overwrite", "row-delta", "rewrite", "replace-partitions", "delete"))}
        kind = op["kind"]
        if kind != "delete" and (kind == "replace-partitions" or chance(rng, 0.6)):
            op["add"] = self.added(rng.choice((1, 2)), aim)
        if kind != "replace-partitions" and targets and chance(rng, 0.7):
            op["remove"] = self.removed(targets)
        if kind in {"row-delta", "rewrite"} and targets and chance(rng, 0.6):
            equality = self.material.equality_deletes(aim, self.spec())
            op["add_deletes"] = [equality] if chance(rng, 0.3) else self.row_deletes(targets)
        if kind in {"overwrite", "row-delta", "rewrite"} and view.deletes and chance(rng, 0.5):
            op["remove_deletes"] = self.removed(some(rng, view.deletes, 2))
        if kind in {"overwrite", "delete"} and chance(rng, 0.5):
            op["filter"] = self.material.filter(aim)
        if kind == "row-delta" and view.data and chance(rng, 0.6):
            op["references"] = some(rng, view.data, 2)
        if kind == "delete" and view.data and chance(rng, 0.4):
            op["remove_paths"] = some(rng, view.data, 2)
        if kind == "rewrite" and chance(rng, 0.3):
            op["sequence_number"] = rng.randint(0, self.table.last_sequence_number + 1)
        for part in ("add", "add_deletes", "remove"):  # the same thing twice
            again = [name for name in op.get(part, ()) if not str(name).startswith("V")]
            if again and chance(rng, 0.04):
                op[part] = [*op[part], rng.choice(again)]
        op["validate"] = [flag for flag in FLAGS.get(kind, ()) if chance(rng, 0.5)]
        if kind in STARTED:
            self.scanned(op, view, targets, always=False)
        return op


PROFILES: dict[str, tuple[float, Callable[[Planner, View], Operation]]] = {
    "spark copy-on-write": (5, Planner.spark_copy_on_write),
    "spark merge-on-read update": (5, Planner.spark_update),
    "spark merge-on-read delete": (3, Planner.spark_delete),
    "trino": (3, Planner.trino),
    "flink": (2.5, Planner.flink),
    "pyiceberg": (3, Planner.pyiceberg),
    "compaction": (4, Planner.compaction),
    "rewrite deletes": (1.5, Planner.rewrite_deletes),
    "insert overwrite": (3.5, Planner.insert_overwrite),
    "replace partitions": (3.5, Planner.replace_partitions),
    "append": (3, Planner.append),
    "delete": (3, Planner.delete),
    "rewrite manifests": (2.5, Planner.rewrite_manifests),
    "anything": (5, Planner.anything),
}
"""Who writes, how often, and what they ask for."""
NEEDS_DELETES = ("spark merge-on-read update", "spark merge-on-read delete", "trino", "flink", "rewrite deletes")
"""Engines that write delete files: on format 1 they are refused at once."""


def writer(rng: Random, table: Table) -> str:
    """An engine that fits the table's format, mostly."""
    weights = {name: weight for name, (weight, _) in PROFILES.items()}
    if table.format == 1 and not chance(rng, 0.05):
        weights = {name: weight for name, weight in weights.items() if name not in NEEDS_DELETES}
    if not table.view().deletes:
        weights["rewrite deletes"] = 0.1
    return pick(rng, weights)
