"""The invariants, by name: checked before every swap becomes visible, at every deletion and answer, and at the end.

The judge reads metadata files, manifest lists and manifests from storage as a stranger would, and holds them against
what the clients wanted.

    files.whole       every file that a snapshot names is in storage, as long as it is said to be, and readable
    files.kept        no file that the table names is ever deleted; a tower deletes nothing that it has not written
    log.kept          the metadata log goes on from each head to the next
    history.kept      no snapshot goes but by an expiry
    sequence.grows    sequence numbers strictly grow, and the table's is the highest
    rows.apart        row ids are given once, never change, and `next-row-id` is right
    totals.right      the running totals and the counts of each snapshot are those of its files
    parent.chain      a snapshot goes on from the branch that it was sent for; a ref moves back only when told to
    snapshot.own      a snapshot's own manifests hold exactly what its client added
    content.exact     the files that are live after a snapshot are its parent's, but what it removes, and what it adds
    rebase.allowed    a commit on a stale base is in the table only if somebody's word allows it
    rebase.scope      nothing came into what a commit says it has read, between its base and its place
    commit.once       no commit is in a table twice: by key, snapshot id or data file
    group.tells       the group file of folded appends says whose each file is, and under which key
    commit.refused    a commit that was answered 409 is not in the table, and never comes
    commit.acked      a commit that was acknowledged is in the table, and a ref that it moves has stood there since
    commit.together   a transaction lands in one swap or not at all
    contract.kept     what a principal under a contract lands touches nothing outside of its partitions
    commit.revoked    no swap that began after a principal was revoked carries its commits
    answers.agree     of two answers to one request, none says 409 where the other says done
    engine.sound      no task of the engine dies unseen, and nothing waits for ever
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from icetower.errors import ValidationFailed
from icetower.iceberg.records import ADDED, DELETED, Manifest, ManifestFile
from icetower.protocol.marks import BLIND_APPENDS, GROUP_FILE
from icetower.protocol.names import Identifier
from icetower.table.groups import read_group
from icetower.upstream.port import Swap
from verify.torture.ledger import Attempt, Intent, Step
from verify.torture.memory import manifest_list_of, manifest_of

JSON = Mapping[str, Any]
INVARIANTS = tuple(line.split()[0] for line in (__doc__ or "").splitlines() if line.startswith("    "))
ISOLATION = ("write.delete.isolation-level", "write.update.isolation-level", "write.merge.isolation-level")


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, and where."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live data file as a snapshot has it."""

    rows: int
    size_bytes: int
    number: int | None
    first_row_id: int | None
    added_by: int | None


@dataclass(frozen=True, slots=True)
class Seen:
    """One snapshot as it stands in storage."""

    parent: int | None
    live: Mapping[str, LiveFile]
    named: frozenset[str]


@dataclass(slots=True)
class TableSeen:
    """One table as it is visible, and all of it that ever was."""

    location: str
    metadata: JSON
    snapshots: dict[int, Seen] = field(default_factory=dict[int, Seen])
    landed: dict[int, Attempt | None] = field(default_factory=dict[int, "Attempt | None"])
    keys: dict[tuple[str, str, str], Attempt] = field(default_factory=dict[tuple[str, str, str], Attempt])
    named: Counter[str] = field(default_factory=Counter[str])
    log: frozenset[str] = frozenset()
    added: dict[str, int] = field(default_factory=dict[str, int])
    steps: dict[int, Step] = field(default_factory=dict[int, Step])
    sent_by: dict[int, tuple[Intent, ...]] = field(default_factory=dict[int, "tuple[Intent, ...]"])
    heads: list[dict[str, set[int]]] = field(default_factory=list[dict[str, set[int]]])


class Judge:
    """Sees everything, believes nothing.

    Attributes:
        files: the storage. heads: the catalog.
        violations: what was found, in order.
        checked: how often each invariant was looked at.
        revoked: when each principal was revoked, in seconds.
        owned: principals under a contract, each with the partition that it owns.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.heads: dict[Identifier, str] = {}
        self.tables: dict[Identifier, TableSeen] = {}
        self.intents: list[Intent] = []
        self.violations: list[Violation] = []
        self.checked: Counter[str] = Counter()
        self.revoked: dict[str, float] = {}
        self.owned: dict[str, int] = {}
        self.written: set[str] = set()
        self._attempts: dict[int, tuple[Attempt, Step]] = {}
        self._appends: dict[str, Attempt] = {}
        self._folded: dict[int, int] = {}
        self._began: dict[str, float] = {}
        self._sent_after: dict[int, int] = {}

    # -- what the run tells ---------------------------------------------------------------------------------------

    def created(self, identifier: Identifier, location: str) -> None:
        """A new, empty table."""
        self.heads[identifier] = location
        self.tables[identifier] = TableSeen(location, orjson.loads(self.files[location]))

    def wanted(self, intent: Intent) -> None:
        """Somebody is about to do something."""
        self.intents.append(intent)

    def sent(self, attempt: Attempt) -> None:
        """A commit goes out for the first time."""
        attempt.intent.attempts.append(attempt)
        self._sent_after[id(attempt)] = len(self.tables[attempt.intent.table].heads)
        for step in attempt.steps:
            self._attempts[step.snapshot_id] = (attempt, step)
        self._appends.update(dict.fromkeys(attempt.files, attempt))

    def acked(self, attempt: Attempt) -> None:
        """A client was told that its commit is done."""
        intent = attempt.intent
        table = self.tables[intent.table]
        if attempt.steps or attempt.files:
            landed = [a for a in intent.attempts if self.landed(a)]
            self._hold("commit.acked", bool(landed), lambda: f"{intent} was acknowledged, and is not in {intent.table}")
        elif attempt.moves:
            since = table.heads[self._sent_after[id(attempt)] :]
            ok = any(all(s in stood.get(r, ()) for r, s in attempt.moves.items()) for stood in since)
            self._hold("commit.acked", ok, lambda: f"{intent} was acknowledged, and no ref stood there")
        elif attempt.effect is not None:
            ok = attempt.effect(table.metadata)
            self._hold("commit.acked", ok, lambda: f"{intent} was acknowledged, and {intent.table} does not show it")
        self._hold("answers.agree", not attempt.refused, lambda: f"{intent}: answered 409, and then done")

    def refused(self, attempt: Attempt) -> None:
        """A client was told 409."""
        attempt.refused = True
        self._hold(
            "commit.refused",
            not self.landed(attempt),
            lambda: f"{attempt.intent} was answered 409, and is in the table",
        )

    def landed(self, attempt: Attempt) -> bool:
        """Whether any of its snapshots ever was in the table."""
        table = self.tables[attempt.intent.table]
        return id(attempt) in self._folded or any(step.snapshot_id in table.landed for step in attempt.steps)

    def swap_begins(self, actor: str, swaps: Sequence[Swap], began_s: float) -> None:
        """A swap is sent for the first time, or again."""
        del actor
        for swap in swaps:
            self._began.setdefault(swap.new, began_s)

    def found(self, name: str, message: str) -> None:
        """Something that the run itself has noticed."""
        self.violations.append(Violation(name, message))

    # -- deletions ------------------------------------------------------------------------------------------------

    def before_delete(self, actor: str, path: str) -> None:
        """A tower or a client deletes a file."""
        for identifier, table in self.tables.items():
            self._hold(
                "files.kept",
                not table.named[path] and path != table.location and path not in table.log,
                lambda i=identifier: f"{actor} deletes {path}, which {i} names",
            )
        if actor.startswith("tower"):
            self._hold("files.kept", path not in self.written, lambda: f"{actor} deletes {path}, a client's own file")

    # -- swaps ----------------------------------------------------------------------------------------------------

    def before_swap(self, actor: str, swaps: Sequence[Swap], began_s: float) -> None:
        """The swap would land now."""
        del began_s
        together: Counter[int] = Counter()
        bundles: dict[int, Attempt] = {}
        for swap in swaps:
            table = self.tables[swap.identifier]
            try:
                fresh = self._step(actor, table, swap)
            except (KeyError, ValidationFailed, ValueError, IndexError, TypeError) as error:
                self.found("files.whole", f"{swap.new} cannot be read: {type(error).__name__}: {error}")
                continue
            for attempt in {id(a): a for a in fresh if a is not None}.values():
                if attempt.intent.bundle is not None:
                    together[id(attempt.intent.bundle)] += 1
                    bundles[id(attempt.intent.bundle)] = attempt
        for number, attempt in bundles.items():
            whole = attempt.intent.bundle is not None and together[number] == len(attempt.intent.bundle.intents)
            self._hold("commit.together", whole, lambda a=attempt: f"{a.intent} landed without its sibling")

    def _step(self, actor: str, table: TableSeen, swap: Swap) -> list[Attempt | None]:
        new: JSON = orjson.loads(self.files[swap.new])
        old = table.metadata
        self._log(old, new, swap)
        before = {snapshot["snapshot-id"] for snapshot in old["snapshots"]}
        after = {snapshot["snapshot-id"] for snapshot in new["snapshots"]}
        gone = before - after
        explained = {i for a in self._open(swap.identifier) for i in a.expires} if gone else set()
        self._hold("history.kept", gone <= explained, lambda: f"snapshots {sorted(gone - explained)} are gone")
        for snapshot_id in gone:
            table.named.subtract(table.snapshots[snapshot_id].named)
        fresh = [snapshot for snapshot in new["snapshots"] if snapshot["snapshot-id"] not in before]
        number, next_row_id = old.get("last-sequence-number", 0), old.get("next-row-id", 0)
        attempts: list[Attempt | None] = []
        for snapshot in fresh:
            if new["format-version"] > 1:
                higher = snapshot["sequence-number"] > number
                self._hold("sequence.grows", higher, lambda s=snapshot, n=number: f"{s['sequence-number']} after {n}")
                number = max(number, snapshot["sequence-number"])
            if new["format-version"] > 2 and "first-row-id" in snapshot:
                right = snapshot["first-row-id"] == next_row_id
                self._hold("rows.apart", right, lambda s=snapshot, n=next_row_id: f"{s['first-row-id']}, next is {n}")
                next_row_id += snapshot["added-rows"]
            attempts.append(self._snapshot(actor, table, swap, old, new, snapshot))
        if new["format-version"] > 1:
            self._hold("sequence.grows", new["last-sequence-number"] == number, lambda: "last-sequence-number is wrong")
        if new["format-version"] > 2:
            self._hold("rows.apart", new["next-row-id"] == next_row_id, lambda: "next-row-id is wrong")
        self._refs(table, swap.identifier, old, new, {s["snapshot-id"] for s in fresh})
        table.location, table.metadata = swap.new, new
        table.log = frozenset(entry["metadata-file"] for entry in new.get("metadata-log", ()))
        came = {s["snapshot-id"] for s in fresh}
        table.heads.append({name: self._stood(table, ref["snapshot-id"], came) for name, ref in new["refs"].items()})
        return attempts

    def _stood(self, table: TableSeen, now: int, came: set[int]) -> set[int]:
        """Where a ref has stood within one swap, as far as the swap's own snapshots tell.

        A group is one swap: where it moves a ref, and goes on from there, no version shows the ref where it was moved
        to. It is what lies beneath the snapshots that came with it.
        """
        beneath = next((i for i in self._chain(table, now) if i not in came), now)
        return {now, beneath}

    def _log(self, old: JSON, new: JSON, swap: Swap) -> None:
        log = [entry["metadata-file"] for entry in new.get("metadata-log", ())]
        before = [entry["metadata-file"] for entry in old.get("metadata-log", ())]
        ok = bool(log) and [*before, swap.expected][-len(log) :] == log and new["table-uuid"] == old["table-uuid"]
        self._hold("log.kept", ok, lambda: f"the log of {swap.new} does not go on from {swap.expected}")

    def _open(self, identifier: Identifier) -> Iterator[Attempt]:
        for intent in self.intents:
            if intent.table == identifier:
                yield from intent.attempts

    # -- one snapshot ---------------------------------------------------------------------------------------------

    def _snapshot(
        self, actor: str, table: TableSeen, swap: Swap, old: JSON, new: JSON, snapshot: JSON
    ) -> Attempt | None:
        snapshot_id: int = snapshot["snapshot-id"]
        seen, own = self._read(table, new, snapshot)
        table.snapshots[snapshot_id] = seen
        table.named.update(seen.named)
        parent = table.snapshots[seen.parent] if seen.parent is not None else Seen(None, {}, frozenset())
        known = self._attempts.get(snapshot_id)
        if known is None:
            self._group(table, swap, snapshot, parent, seen, own)
            return None
        attempt, step = known
        intent = attempt.intent
        twice = snapshot_id in table.landed
        earlier = [a for a in intent.attempts if a is not attempt and self.landed(a)]
        self._hold("commit.once", not twice and not earlier, lambda: f"{intent} landed twice: {snapshot_id}")
        table.landed[snapshot_id] = attempt
        table.steps[snapshot_id], table.sent_by[snapshot_id] = step, (intent,)
        self._key_once(table, attempt)
        self._hold("commit.refused", not attempt.refused, lambda: f"{intent} was answered 409, and lands now")
        if not intent.outside:
            self._inside(table, swap, old, snapshot, attempt, step)
        self._content(table, snapshot, step, intent, parent, seen, own)
        self._totals(snapshot, step, parent, seen)
        return attempt

    def _group(
        self, table: TableSeen, swap: Swap, snapshot: JSON, parent: Seen, seen: Seen, own: Mapping[str, LiveFile]
    ) -> None:
        """A snapshot that the tower made of appends by the fast path: whole ones, each once, and a file that tells."""
        attempts = list({id(a): a for a in (self._appends.get(path) for path in own) if a is not None}.values())
        if not attempts:
            self.found("snapshot.own", f"nobody has sent snapshot {snapshot['snapshot-id']}")
            return
        adds: dict[str, int] = {}
        for attempt in attempts:
            intent = attempt.intent
            adds |= {path: rows for path, (_, rows) in attempt.files.items()}
            earlier = [a for a in intent.attempts if self.landed(a)]
            self._hold("commit.once", not earlier, lambda i=intent: f"{i} landed twice")
            self._folded[id(attempt)] = snapshot["snapshot-id"]
            self._key_once(table, attempt)
            self._not_revoked(swap, intent)
            self._contract_kept(intent, attempt.files)
            self._hold("commit.refused", intent.state != "refused", lambda i=intent: f"{i} was given up, and lands now")
        step = Step(snapshot["snapshot-id"], seen.parent, adds, frozenset(), None, "")
        table.landed[step.snapshot_id] = None
        table.steps[step.snapshot_id] = step
        table.sent_by[step.snapshot_id] = tuple(attempt.intent for attempt in attempts)
        group = read_group(self.files[(snapshot.get("summary") or {})[GROUP_FILE]])
        reported = {(a.principal, a.key, a.application, a.files) for a in group.appends}
        right = {(a.intent.who, a.intent.key, a.intent.application, tuple(a.files)) for a in attempts}
        self._hold("group.tells", reported == right, lambda: f"the group file tells {reported}, and {right} is so")
        self._content(table, snapshot, step, attempts[0].intent, parent, seen, own)
        self._totals(snapshot, step, parent, seen)

    def _key_once(self, table: TableSeen, attempt: Attempt) -> None:
        intent = attempt.intent
        for name in (intent.key, intent.application and f"{intent.application}"):
            if name is not None:
                first = table.keys.setdefault((intent.who, intent.ref, name), attempt)
                self._hold("commit.once", first is attempt, lambda n=name: f"{intent}: {n} is in the table twice")

    def _not_revoked(self, swap: Swap, intent: Intent) -> None:
        revoked_s = self.revoked.get(intent.who)
        late = revoked_s is not None and revoked_s < self._began.get(swap.new, 0.0)
        self._hold("commit.revoked", not late, lambda: f"{intent} landed, though revoked at {revoked_s}")

    def _contract_kept(self, intent: Intent, paths: Collection[str]) -> None:
        own = self.owned.get(intent.who)
        if own is not None:
            beyond = [path for path in paths if f"/p={own}/" not in path]
            self._hold("contract.kept", not beyond, lambda: f"{intent} landed, and touches {beyond[:1]}")

    def _inside(self, table: TableSeen, swap: Swap, old: JSON, snapshot: JSON, attempt: Attempt, step: Step) -> None:
        """What holds for commits that came through a tower."""
        intent = attempt.intent
        self._not_revoked(swap, intent)
        self._contract_kept(intent, {*step.adds, *step.removes})
        if snapshot.get("parent-snapshot-id") == step.parent:
            return
        siblings = {other.snapshot_id for other in attempt.steps}
        properties = old.get("properties", {})
        blind = intent.blind or properties.get(BLIND_APPENDS) == "true"
        allowed = (
            step.parent in siblings
            or (blind and not step.removes)
            or all(properties.get(name) == "snapshot" for name in ISOLATION)
            or intent.kind == "compact"
            or step.scope is not None
        )
        self._hold("rebase.allowed", allowed, lambda: f"{intent} read what nobody knows, and was rebased")
        if step.scope is not None:
            came = [path for between in self._between(table, snapshot, step) for path in between]
            into = sorted(path for path in came if f"/p={step.scope}/" in path)
            self._hold("rebase.scope", not into, lambda: f"{intent} has read p={step.scope}, where {into} came in")

    def _between(self, table: TableSeen, snapshot: JSON, step: Step) -> Iterator[Collection[str]]:
        """What each snapshot between a commit's base and its place added; compactions add no rows."""
        for snapshot_id in self._chain(table, _parent(snapshot)):
            if snapshot_id == step.parent:
                return
            if any(intent.kind != "compact" for intent in table.sent_by.get(snapshot_id, ())):
                yield table.steps[snapshot_id].adds.keys()

    def _read(self, table: TableSeen, new: JSON, snapshot: JSON) -> tuple[Seen, Mapping[str, LiveFile]]:
        """A snapshot from storage; with the files that its own manifests mark as added by it."""
        path = snapshot["manifest-list"]
        rows = manifest_list_of(self.files[path])
        live: dict[str, LiveFile] = {}
        own: dict[str, LiveFile] = {}
        named = {path}
        if group_file := (snapshot.get("summary") or {}).get(GROUP_FILE):
            named.add(group_file)
        for row in rows:
            named.add(row.path)
            data = self.files.get(row.path, b"")
            self._hold(
                "files.whole",
                len(data) == row.length_bytes,
                lambda r=row, d=data: f"{r.path} has {len(d)} bytes of {r.length_bytes}",
            )
            manifest = manifest_of(data)
            self._row(row, manifest)
            next_row_id = row.first_row_id
            for entry in manifest.entries:
                file = entry.file
                named.add(file.path)
                if entry.status == DELETED:
                    continue
                first_row_id = file.first_row_id
                if next_row_id is not None and first_row_id is None:
                    first_row_id, next_row_id = next_row_id, next_row_id + file.record_count
                number = row.sequence_number if entry.sequence_number is None else entry.sequence_number
                adder = row.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id
                found = LiveFile(file.record_count, file.size_bytes, number, first_row_id, adder)
                self._hold("commit.once", file.path not in live, lambda f=file: f"{f.path} is live twice")
                live[file.path] = found
                if entry.status == ADDED and row.added_snapshot_id == snapshot["snapshot-id"]:
                    own[file.path] = found
                whole = len(self.files.get(file.path, b"")) == file.size_bytes
                self._hold("files.whole", whole, lambda f=file: f"{f.path} is not whole, and is live")
        self._row_ids(new, snapshot, live)
        # What a manifest only says to be gone may go from storage, once the snapshots that had it do.
        gone = {e.file.path for row in rows for e in manifest_of(self.files[row.path]).entries if e.status == DELETED}
        return Seen(_parent(snapshot), live, frozenset(named - (gone - live.keys()))), own

    def _row(self, row: ManifestFile, manifest: Manifest) -> None:
        counts = Counter(entry.status for entry in manifest.entries)
        listed = (row.added_files, row.existing_files, row.deleted_files)
        right = listed == (counts[ADDED], counts[0], counts[DELETED]) and row.spec_id == manifest.spec_id
        self._hold("totals.right", right, lambda: f"{row.path} is listed with {listed}, and has {dict(counts)}")
        numbers = [e.sequence_number for e in manifest.entries if e.status != DELETED and e.sequence_number is not None]
        low = min((row.sequence_number, *numbers))
        self._hold("sequence.grows", row.min_sequence_number <= low, lambda: f"{row.path}: minimum above {low}")

    def _row_ids(self, new: JSON, snapshot: JSON, live: Mapping[str, LiveFile]) -> None:
        if new["format-version"] < 3 or "first-row-id" not in snapshot:  # from before the upgrade
            return
        spans = sorted((f.first_row_id, f.first_row_id + f.rows) for f in live.values() if f.first_row_id is not None)
        apart = all(end <= start for (_, end), (start, _) in pairwise(spans))
        self._hold("rows.apart", apart, lambda: f"row ids of live files overlap: {spans}")
        self._hold("rows.apart", len(spans) == len(live), lambda: "a live file has no row ids")
        self._hold("rows.apart", not spans or spans[-1][1] <= new["next-row-id"], lambda: "row ids beyond next-row-id")

    def _content(
        self,
        table: TableSeen,
        snapshot: JSON,
        step: Step,
        intent: Intent,
        parent: Seen,
        seen: Seen,
        own: Mapping[str, LiveFile],
    ) -> None:
        lost = step.removes - parent.live.keys()
        self._hold("content.exact", not lost, lambda: f"{intent} removes what is gone already: {sorted(lost)}")
        again = sorted(path for path in step.adds if path in table.added)
        self._hold("commit.once", not again, lambda: f"{intent} adds {again}, which snapshots have added before")
        table.added.update(dict.fromkeys(step.adds, step.snapshot_id))
        expected = (parent.live.keys() - step.removes) | step.adds.keys()
        missing, extra = sorted(expected - seen.live.keys()), sorted(seen.live.keys() - expected)
        self._hold(
            "content.exact", not missing and not extra, lambda: f"after {intent}: lost {missing}, come back {extra}"
        )
        self._hold(
            "snapshot.own", own.keys() == step.adds.keys(), lambda: f"{intent}: its own manifests add {sorted(own)}"
        )
        for path, file in seen.live.items():
            was = parent.live.get(path)
            if was is None:
                number = snapshot.get("sequence-number", 0) if step.number is None else step.number
                right = file.number == number and file.rows == step.adds.get(path)
                self._hold("sequence.grows", right, lambda p=path, f=file: f"{p} of {intent} stands as {f}")
                continue
            same = (was.rows, was.number, was.added_by) == (file.rows, file.number, file.added_by)
            self._hold("content.exact", same, lambda p=path, w=was, f=file: f"{p} was {w}, and is {f}")
            kept = was.first_row_id is None or was.first_row_id == file.first_row_id
            self._hold("rows.apart", kept, lambda p=path, w=was, f=file: f"{p}: row ids {w} became {f}")

    def _totals(self, snapshot: JSON, step: Step, parent: Seen, seen: Seen) -> None:
        summary = snapshot.get("summary") or {}
        removed = [parent.live[path] for path in step.removes if path in parent.live]
        right = {
            "total-data-files": len(seen.live),
            "total-records": sum(file.rows for file in seen.live.values()),
            "total-files-size": sum(file.size_bytes for file in seen.live.values()),
            "added-data-files": len(step.adds),
            "added-records": sum(step.adds.values()),
            "deleted-data-files": len(step.removes),
            "deleted-records": sum(file.rows for file in removed),
        }
        wrong = {k: summary.get(k) for k, v in right.items() if summary.get(k, "0" if v == 0 else None) != str(v)}
        self._hold("totals.right", not wrong, lambda: f"snapshot {step.snapshot_id} says {wrong}, and has {right}")

    # -- refs -----------------------------------------------------------------------------------------------------

    def _refs(self, table: TableSeen, identifier: Identifier, old: JSON, new: JSON, fresh: set[int]) -> None:
        reported = [(ref, target) for attempt in self._open(identifier) for ref, target in attempt.moves.items()]
        reached: set[int] = set()
        for name in sorted(old["refs"].keys() | new["refs"].keys()):
            was, now = (m["refs"].get(name, {}).get("snapshot-id") for m in (old, new))
            chain = list(self._chain(table, now))
            reached.update(chain)
            back = [target for ref, target in reported if ref == name]
            forward = now is not None and (was is None or was in chain)
            self._hold(
                "parent.chain", forward or bool(set(back) & set(chain)), lambda n=name, w=was, o=now: f"{n}: {w} → {o}"
            )
            for snapshot_id in fresh & set(chain):
                refs = {intent.ref for intent in table.sent_by.get(snapshot_id, ())}
                right = refs == {name} or not refs & old["refs"].keys()
                self._hold("parent.chain", right, lambda n=name, s=snapshot_id: f"snapshot {s} is on {n}")
        told_back = {ref for ref, _ in reported}
        for snapshot_id in fresh - reached:
            dropped = {intent.ref for intent in table.sent_by.get(snapshot_id, ())} <= told_back
            self._hold("parent.chain", dropped, lambda s=snapshot_id: f"snapshot {s} is on no branch")

    @staticmethod
    def _chain(table: TableSeen, snapshot_id: int | None) -> Iterator[int]:
        while snapshot_id is not None and snapshot_id in table.snapshots:
            yield snapshot_id
            snapshot_id = table.snapshots[snapshot_id].parent

    # -- the end --------------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """The tables against the ledgers of their clients, read from storage once more."""
        for identifier, table in self.tables.items():
            metadata: JSON = orjson.loads(self.files[self.heads[identifier]])
            for snapshot in metadata["snapshots"]:
                self._read(table, metadata, snapshot)
            missing = sorted(path for path, count in table.named.items() if count > 0 and path not in self.files)
            self._hold("files.whole", not missing, lambda m=missing: f"the table names files that are gone: {m[:3]}")
            for name, ref in metadata["refs"].items():
                self._branch(table, name, ref["snapshot-id"])
        for intent in self.intents:
            self._intent(intent)

    def _branch(self, table: TableSeen, name: str, head: int) -> None:
        expected: set[str] = set()
        for snapshot_id in reversed(list(self._chain(table, head))):
            step = table.steps.get(snapshot_id)
            if step is not None:
                expected = (expected - step.removes) | step.adds.keys()
        live = set(table.snapshots[head].live)
        self._hold(
            "content.exact", live == expected, lambda: f"{name} differs from the ledgers: {sorted(live ^ expected)[:4]}"
        )

    def _intent(self, intent: Intent) -> None:
        landed = [attempt for attempt in intent.attempts if self.landed(attempt)]
        self._hold("commit.once", len(landed) <= 1, lambda: f"{intent} landed {len(landed)} times")
        self._hold("engine.sound", intent.state != "open", lambda: f"{intent} was never answered")
        if intent.state == "acked" and any(attempt.steps or attempt.files for attempt in intent.attempts):
            self._hold("commit.acked", len(landed) == 1, lambda: f"{intent} was acknowledged, and never landed")
        if intent.state == "refused":
            self._hold("commit.refused", not landed, lambda: f"{intent} was refused, and landed")

    def _hold(self, name: str, holds: bool, message: Callable[[], str]) -> None:
        self.checked[name] += 1
        if not holds:
            self.found(name, message())


def _parent(snapshot: JSON) -> int | None:
    parent = snapshot.get("parent-snapshot-id")
    return None if parent in (None, -1) else parent
