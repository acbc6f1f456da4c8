"""A case of which something is wrong, made smaller for as long as the same is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from verify.oracle.cases import HONEST, Case, Entry, Manifest, Region, Rule, Snapshot

STEPS_MAX = 2_000
"""Cases that are tried for one."""


def shrink(case: Case, is_wrong: Callable[[Case], bool]) -> Case:
    """The smallest case that can be reached by leaving something out, one thing at a time."""
    tried = 0
    while True:
        for smaller in _smaller(case):
            tried += 1
            if tried > STEPS_MAX:
                return case
            if is_wrong(smaller):
                case = smaller
                break
        else:
            return case


def _smaller(case: Case) -> Iterator[Case]:
    if len(case.commit) > 1:
        yield replace(case, commit=case.commit[:1])
    for at in range(len(case.appended)):
        if len(case.appended) > 1:
            yield replace(case, appended=(*case.appended[:at], *case.appended[at + 1 :]))
    yield from (replace(case, rules=rules) for rules in _fewer_rules(case.rules))
    for path in dict.fromkeys(e.file.path for s in (*case.history, *case.commit) for _, e in _entries(s)):
        yield _each_manifest(case, lambda manifest, path=path: _without(manifest, path))
    for path in dict.fromkeys(m.path for s in (*case.history, *case.commit) for m in s.manifests):
        yield _each_manifest(case, lambda manifest, path=path: None if manifest.path == path else manifest)
        yield _each_manifest(
            case, lambda manifest, path=path: replace(manifest, lies=HONEST) if manifest.path == path else manifest
        )
    for snapshot in case.commit:
        for manifest, entry in _entries(snapshot):
            if manifest.snapshot == snapshot.id and len(manifest.entries) > 1:
                yield _each_manifest(case, lambda m, manifest=manifest, entry=entry: _less(m, manifest, entry))
    for path in dict.fromkeys(e.file.path for s in (*case.history, *case.commit) for _, e in _entries(s)):
        yield _each_manifest(case, lambda manifest, path=path: _shorter(manifest, path))
    if len(case.history) > 1 and case.commit and case.commit[0].parent == case.history[-1].id:
        history = (*case.history[:-2], case.history[-1])
        yield replace(case, history=history)


def _entries(snapshot: Snapshot) -> Iterator[tuple[Manifest, Entry]]:
    for manifest in snapshot.manifests:
        for entry in manifest.entries:
            yield manifest, entry


def _each_manifest(case: Case, change: Callable[[Manifest], Manifest | None]) -> Case:
    """The case with every manifest changed, wherever it is listed; None: left out, as are those without entries."""

    def changed(snapshot: Snapshot) -> Snapshot:
        manifests = (change(manifest) for manifest in snapshot.manifests)
        return replace(snapshot, manifests=tuple(m for m in manifests if m is not None and m.entries))

    history, commit = (tuple(map(changed, snapshots)) for snapshots in (case.history, case.commit))
    return case if (history, commit) == (case.history, case.commit) else replace(case, history=history, commit=commit)


def _without(manifest: Manifest, path: str) -> Manifest:
    """Without a file, and without the delete files that are about it alone."""
    kept = (e for e in manifest.entries if path != e.file.path and [path] != [target for target, _ in e.file.positions])
    return replace(manifest, entries=tuple(kept))


def _less(manifest: Manifest, which: Manifest, entry: Entry) -> Manifest:
    if manifest != which:
        return manifest
    at = manifest.entries.index(entry)
    return replace(manifest, entries=(*manifest.entries[:at], *manifest.entries[at + 1 :]))


def _shorter(manifest: Manifest, path: str) -> Manifest:
    """With the file's last row left out."""
    entries = (
        replace(e, file=replace(e.file, rows=e.file.rows[:-1])) if e.file.path == path and len(e.file.rows) > 1 else e
        for e in manifest.entries
    )
    return replace(manifest, entries=tuple(entries))


def _fewer_rules(rules: tuple[Rule, ...]) -> Iterator[tuple[Rule, ...]]:
    for at, rule in enumerate(rules):
        before, after = rules[:at], rules[at + 1 :]
        if len(rules) > 1:
            yield before + after
        for regions in _fewer(rule.regions or ()):
            if regions:
                yield (*before, replace(rule, regions=regions), *after)
        for excluded in _fewer(rule.excluded):
            yield (*before, replace(rule, excluded=excluded), *after)


def _fewer(regions: tuple[Region, ...]) -> Iterator[tuple[Region, ...]]:
    for at, region in enumerate(regions):
        before, after = regions[:at], regions[at + 1 :]
        yield before + after
        for term in range(len(region) if len(region) > 1 else 0):
            yield (*before, region[:term] + region[term + 1 :], *after)
        for term, (name, extent) in enumerate(region):
            for value in extent.values or () if len(extent.values or ()) > 1 else ():
                fewer = replace(extent, values=tuple(each for each in extent.values or () if each != value))
                yield (*before, (*region[:term], (name, fewer), *region[term + 1 :]), *after)
