"""A case in words, for whoever has to find out what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from verify.oracle.cases import HONEST, LOCATION, Case, Entry, Extent, File, Region, Snapshot

_STATUSES = ("EXISTING", "ADDED", "DELETED")
_CONTENTS = ("data", "positions", "equality")


def described(case: Case) -> str:
    """The table, the contract and the commit."""
    return "\n".join(_lines(case))


def _lines(case: Case) -> Iterator[str]:
    forged = f", forged: {', '.join(case.forged)}" if case.forged else ""
    yield f"case {case.number}: {case.kind}{forged}; format version {case.version}, {case.now_ms} ms since 1970"
    for column in case.columns:
        was = f", {column.before} before" if column.name != column.before else ""
        yield f"  column {column.id} {column.name or '(dropped)'} {column.kind}{was}"
    for at, spec in enumerate(case.specs):
        fields = (f"{f.name} ({f.id}) = {f.transform} of column {case.columns[f.column].id}" for f in spec)
        yield f"  spec {at}: {'; '.join(fields) or 'no partition'}"
    for rule in case.rules:
        where = "all" if rule.regions is None else " or ".join(map(_region, rule.regions)) or "nothing"
        excluded = f" except {' or '.join(map(_region, rule.excluded))}" if rule.excluded else ""
        proof = ", proven" if rule.prove else ""
        yield f"  grants {', '.join(sorted(rule.operations))}: {where}{excluded}{proof}"
    for snapshot in case.history:
        yield from _snapshot(case, snapshot, "table")
    for snapshot in case.commit:
        yield from _snapshot(case, snapshot, "commit")
    if case.commit:
        yield f"  it asserts that main is at {case.asserted}"
    yield from (f"  appended: {_file(file)}" for file in case.appended)


def _region(region: Region) -> str:
    return "{" + ", ".join(f"{term}: {_extent(extent)}" for term, extent in region) + "}"


def _extent(extent: Extent) -> str:
    if extent.values is not None:
        return "[" + ", ".join("null" if value is None else repr(value) for value in extent.values) + "]"
    return f"from {extent.start!r} to {extent.end!r}"


def _snapshot(case: Case, snapshot: Snapshot, what: str) -> Iterator[str]:
    yield f"  {what}: snapshot {snapshot.id} on {snapshot.parent}, number {snapshot.number}, says {snapshot.operation}"
    for manifest in snapshot.manifests:
        lies = "" if manifest.lies == HONEST else f", {manifest.lies}"
        name = manifest.path.rsplit("/", 1)[-1]
        if manifest.snapshot != snapshot.id and not lies:
            yield f"    {name} is carried over"
            continue
        yield f"    {name}: {('data', 'deletes')[manifest.content]} of spec {manifest.spec}{lies}"
        yield from (f"      {_entry(entry)}" for entry in manifest.entries)


def _entry(entry: Entry) -> str:
    number = "" if entry.number is None else f", number {entry.number}"
    return f"{_STATUSES[entry.status]} {_file(entry.file)}{number}"


def _file(file: File) -> str:
    parts = [f"{_CONTENTS[file.content]} {_name(file.path)} in {file.partition} of spec {file.spec}"]
    if file.rows:
        parts.append(f"rows {list(file.rows)}")
    parts += [f"deletes {list(positions)} of {_name(path)}" for path, positions in file.positions]
    if file.reference is not None:
        parts.append(f"{'vector' if file.vector else 'reference'} for {_name(file.reference)}")
    if file.bounds is not None:
        parts.append(f"bounds say {_name(file.bounds)}")
    if file.equality:
        parts.append(f"of columns {[column + 1 for column in file.equality]}")
    if file.shorter:
        parts.append("said to be shorter than it is")
    if file.hides:
        parts.append("statistics hide it")
    return ", ".join(parts)


def _name(path: str) -> str:
    return path.removeprefix(f"{LOCATION}/data/")
