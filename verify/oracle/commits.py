"""What honest clients commit, now and before: appends, overwrites, deletes, compactions, delete files of every kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from verify.oracle import forgeries
from verify.oracle.cases import DATA, EQUALITY, POSITIONS, Case, File, Partition, Row, Snapshot
from verify.oracle.drafts import Draft, Listed, Writer
from verify.oracle.reader import visible
from verify.oracle.regions import Grants
from verify.oracle.tables import partition_of


def with_history(rng: Random, case: Case, rows: Sequence[Row]) -> Case:
    """The case with snapshots: data under each spec, delete files, manifests written anew."""
    if rng.random() < 0.03:
        return case
    writer = Writer(rng, case, rows, Grants(case), 0.0)
    head: Snapshot | None = None
    for at in range(rng.choice((1, 2, 2, 3))):
        draft = Draft.on(case, head)
        spec = min(at, len(case.specs) - 1)
        grouped: defaultdict[Partition, list[Row]] = defaultdict(list)
        for row in rows if at == 0 else rng.sample(rows, len(rows) // 2):
            grouped[partition_of(case.columns, case.specs[spec], row)].append(row)
        files = [File(draft.path(), DATA, spec, partition, tuple(its[:4])) for partition, its in grouped.items()]
        half = rng.randint(0, len(files))
        for some in (files[:half], files[half:]):
            draft.add(some)
        if len(files) > 1 and rng.random() < 0.04:  # named once more, where it is not: Iceberg accepts that
            one, other = rng.sample(files, 2)
            draft.add([replace(one, partition=other.partition)])
        case, head = _landed(case, draft)
    if case.version > 1 and rng.random() < 0.65:
        draft = Draft.on(case, head)
        assert head is not None
        data = list(head.live(DATA))
        writer.delete_rows(draft, rng.sample(data, min(len(data), rng.randint(1, 3))))
        if rng.random() < 0.25:  # one that was let in when both partitions were somebody's
            target, place = rng.choice(data), rng.choice(data)
            path = target[1].file.path
            made = replace(writer.positions(draft, target, place), vector=False, reference=path, bounds=path)
            draft.add([made])
        draft.operation = "delete"
        case, head = _landed(case, draft)
    if rng.random() < 0.2:
        draft = Draft.on(case, head)
        assert head is not None
        draft.reopen(rng.choice(head.manifests))
        draft.operation = "replace"
        case, head = _landed(case, draft)
    return case


def _landed(case: Case, draft: Draft) -> tuple[Case, Snapshot]:
    snapshot = draft.finished()
    return replace(case, history=(*case.history, snapshot)), snapshot


# --------------------------------------------------------------------------------------------------------- commits

KINDS = {
    "append": 5, "overwrite": 5, "delete": 3, "rewrite": 4, "rewrite manifests": 1, "delete rows": 6, "delta": 3,
    "undelete": 2, "nothing": 0.3, "append by files": 0.8,
}  # fmt: skip
"""What is committed, by how often."""


def with_commit(rng: Random, case: Case, rows: Sequence[Row]) -> Case:
    """The case with a commit, honest or forged."""
    writer = Writer(rng, case, rows, Grants(case), rng.choice((0.5, 0.95, 1.0)))
    kind = rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    head = case.head
    if kind == "append by files":
        return forgeries.append_by_files(writer)
    base = head
    if len(case.history) > 1 and rng.random() < 0.03:
        base = case.history[-2]  # its client has not heard of the newest
    draft = Draft.on(case, base)
    _commit(writer, draft, kind)
    forged = forgeries.forge(writer, draft) if rng.random() < 0.55 else ()
    first = draft.finished()
    asserted = None if base is None else base.id
    if "on an older snapshot" in forged:
        assert head is not None
        asserted = head.id
    case = replace(case, commit=(first,), asserted=asserted, kind=kind, forged=forged)
    if rng.random() < 0.05:
        second = Draft.on(case, first)
        _commit(writer, second, rng.choice(("append", "delete", "overwrite", "delete rows")))
        case = replace(case, commit=(first, second.finished()), kind=f"{kind}, and more")
    return case


def _commit(writer: Writer, draft: Draft, kind: str) -> None:
    rng, data = writer.rng, list(draft.base.live(DATA)) if draft.base else []
    deletes = [each for content in (POSITIONS, EQUALITY) for each in (draft.base.live(content) if draft.base else ())]
    if kind in ("append", "overwrite", "delta") or not data:
        draft.add(writer.files(draft))
    if not data:
        return
    match kind:
        case "overwrite" | "delete":
            draft.operation = rng.choice((kind, kind, "append"))
            some = writer.picks(data, 2)
            gone = [listed for _, entry in some for listed in writer.vectors_of(draft, entry.file.path)]
            draft.remove(some + (gone if rng.random() < 0.9 else []))
        case "rewrite":
            _rewrite(writer, draft, data)
        case "rewrite manifests":
            draft.operation = "replace"
            for manifest in rng.sample(draft.kept, min(2, len(draft.kept))):
                draft.reopen(manifest)
        case "delete rows" | "delta" if draft.case.version > 1:
            draft.operation = rng.choice(("delete", "overwrite"))
            writer.delete_rows(draft, writer.picks(data, 2))
        case "undelete" if deletes:
            draft.operation = "overwrite"
            lost = [each for each in deletes if _is_elsewhere(draft, each[1].file)]
            draft.remove([rng.choice(lost or deletes)])
        case _:
            pass


def _is_elsewhere(draft: Draft, deletes: File) -> bool:
    """Whether a delete file says another partition than the data file that it is about."""
    assert draft.base is not None
    own = [entry.file.partition for _, entry in draft.base.live(DATA) if entry.file.path == deletes.target()]
    return bool(own) and deletes.partition not in own


def _rewrite(writer: Writer, draft: Draft, data: Sequence[Listed]) -> None:
    """Compaction: the living rows of files of one partition into a new one, perhaps of another spec."""
    draft.operation = "replace"
    first = writer.pick(data)
    assert first is not None
    place = (first[1].file.spec, first[1].file.partition)
    some = [each for each in data if (each[1].file.spec, each[1].file.partition) == place][:3]
    paths = {entry.file.path for _, entry in some}
    gone = [listed for path in paths for listed in writer.vectors_of(draft, path)]
    rows = [row for path, _, row, *_ in visible(draft.case, draft.base) if path in paths]
    spec = writer.rng.choice((place[0], writer.spec()))
    grouped: defaultdict[Partition, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[partition_of(writer.case.columns, writer.case.specs[spec], row)].append(row)
    numbers = [manifest.number_of(entry) for manifest, entry in some]
    draft.add(
        (File(draft.path(), DATA, spec, partition, tuple(its)) for partition, its in grouped.items()),
        min(numbers) if writer.case.version > 1 and writer.rng.random() < 0.5 else None,
    )
    draft.remove(some + gone)
