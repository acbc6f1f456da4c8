"""Two outcomes of one case, compared: everything must be equal, except where Iceberg itself leaves it open.

Left open are only parts of messages. Each has its reason:
- Lists of files in C1, C2, C3a and C4: Iceberg reads the manifests out of a hash set, keyed by paths that carry a new
  UUID every time, so the files come in any order. They are compared as multisets.
- The text of a set of partitions (`[category=a, category=b]`): the tuples stand in a hash set.
- A data file in C3b is printed with all its maps, some of which have no text of their own: only its path counts.
- The two vectors of `Can't index multiple DVs for F: V and W`: which of them was read first is the hash set's affair.
- The manifest in `Deleted manifest M could not be found`: of several that are missing, a hash set gives one.
- The message of a NullPointerException: the JVM writes it out of the bytecode, in words that depend on its version and
  on how Iceberg was compiled. That it is thrown, and when, counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Outcome = Mapping[str, Any]

DIFFERENCES_MAX = 12
"""How many differences are told; the rest is counted."""

_DUMP = re.compile(r"Generic(?:Data|Delete)File\{.*?file_path=([^,}]*).*\}")
_LIST = re.compile(r"\[([^\[\]]*)\]")
_TWO_VECTORS = re.compile(r"^(Can't index multiple DVs for .*?): (DV\{[^}]*\}) and (DV\{[^}]*\})$")
_MISSING_MANIFEST = re.compile(r"^Deleted manifest \S+ could")


def message(text: str) -> str:
    """A message of Iceberg's without what differs from run to run."""
    text = _DUMP.sub(r"\1", text)
    text = _MISSING_MANIFEST.sub("Deleted manifest (…) could", text)
    if two := _TWO_VECTORS.match(text):
        return f"{two[1]}: {' and '.join(sorted((two[2], two[3])))}"
    return _LIST.sub(lambda found: f"[{', '.join(sorted(found[1].split(', ')))}]", text)


def difference(expected: Outcome, actual: Outcome) -> str | None:
    """What differs between two outcomes, a line each, as `where: expected != actual`; None if nothing does."""
    found = list(_differences("", _normal(expected), _normal(actual)))
    if not found:
        return None
    more = [f"… and {len(found) - DIFFERENCES_MAX} more"] if len(found) > DIFFERENCES_MAX else []
    return "\n".join(found[:DIFFERENCES_MAX] + more)


def live(outcome: Outcome) -> tuple[list[str], list[str]]:
    """Paths of the live data files and delete files of `main`, sorted; a path that is live twice stands twice."""
    data: list[str] = []
    deletes: list[str] = []
    for snapshot in outcome["snapshots"]:
        if snapshot["id"] == outcome["main"]:
            for manifest in snapshot["manifests"]:
                paths = [entry[4] for entry in manifest["entries"] if entry[0] != 2]
                (deletes if manifest["content"] else data).extend(paths)
    return sorted(data), sorted(deletes)


def _normal(outcome: Outcome) -> dict[str, Any]:
    out = dict(outcome)
    out["verdicts"] = {str(of): _worded(verdict) for of, verdict in outcome["verdicts"].items()}
    out["failures"] = [_worded(failure) for failure in outcome["failures"]]
    # By id, so that one missing snapshot does not make all that follow it differ; their order is compared, too.
    out["order of snapshots"] = [snapshot["id"] for snapshot in outcome["snapshots"]]
    out["snapshots"] = {str(snapshot["id"]): snapshot for snapshot in outcome["snapshots"]}
    return out


def _worded(said: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict or failure with its message made comparable."""
    if not said.get("message"):
        return dict(said)
    return {**said, "message": "" if said.get("error") == "NullPointerException" else message(said["message"])}


def _differences(where: str, expected: Any, actual: Any) -> Iterator[str]:
    """Leaf by leaf. Numbers and booleans are told apart, as JSON does."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            inner = f"{where}.{key}" if where else str(key)
            if key not in expected:
                yield f"{inner}: (absent) != {actual[key]!r}"
            elif key not in actual:
                yield f"{inner}: {expected[key]!r} != (absent)"
            else:
                yield from _differences(inner, expected[key], actual[key])
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            yield f"{where}: {len(expected)} items != {len(actual)} items: {expected!r} != {actual!r}"
            return
        for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
            yield from _differences(f"{where}[{index}]", left, right)
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield f"{where}: {expected!r} != {actual!r}"
