"""A tower that writes down its memory: `python -m verify.soak.served SETTINGS OUT YOUNG_S [AFTER_S FOR_S]`.

Retention lets nothing go that is younger than ten minutes; here it is YOUNG_S, so that the histories of a short run
stop growing as those of a long one do.

Four times a second OUT gets a line of JSON: the time, the resident set, what the caches count, what the C allocator
holds. With AFTER_S and FOR_S allocations are followed from then on for so long; OUT with `.trace` gets what was
allocated meanwhile and is still held, by line, and the lines count objects by type. That slows the tower.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

from icetower.ambient import SystemAmbient
from icetower.commit import gatekeeper, retention
from icetower.gateway import app
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import Tower, open_tower

EVERY_S = 0.25
LINES = 40

towers: list[Tower] = []


def opened(*arguments: Any, **named: Any) -> Tower:
    """A tower that can be looked at from beside."""
    towers.append(open_tower(*arguments, **named))
    return towers[-1]


def rss_bytes() -> int:
    """The resident set of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def allocator() -> dict[str, int]:
    """What the C allocator has taken from the system, and how much of it is in use; nothing where it does not tell."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return {}
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return {"taken": found.arena + found.hblkhd, "used": found.uordblks + found.hblkhd, "free": found.fordblks}


def counted() -> dict[str, int]:
    """Objects of each type that the garbage collector knows, the most frequent ones."""
    kinds = Counter(type(each).__name__ for each in gc.get_objects())
    return dict(kinds.most_common(LINES))


def watch(out: Path, trace: tuple[float, float] | None) -> None:
    """Write down, until the process ends."""
    began_s, before, at = time.monotonic(), None, 0
    with out.open("a", buffering=1) as file:
        while True:
            time.sleep(EVERY_S)
            passed_s = time.monotonic() - began_s
            line: dict[str, Any] = {"at_s": time.monotonic(), "rss_bytes": rss_bytes(), "allocator": allocator()}
            for tower in towers:
                budget = tower.lake.budget
                line |= {"counted_bytes": budget.used_bytes, "caches": budget.by_cache(), "held": budget.held_bytes}
            at += 1
            if trace is not None and at % 40 == 0:
                line["objects"] = counted()
            file.write(json.dumps(line) + "\n")
            if trace is None:
                continue
            if before is None and passed_s > trace[0]:
                tracemalloc.start(6)
                before = tracemalloc.take_snapshot()
            elif before is not None and passed_s > sum(trace):
                _write_trace(out.with_suffix(".trace"))
                trace = None  # it goes on: Python 3.11 may crash where tracing ends beside busy threads


def _write_trace(out: Path) -> None:
    gc.collect()
    snapshot = tracemalloc.take_snapshot()
    by_line = [str(each) for each in snapshot.statistics("lineno")[:LINES]]
    by_path: list[str] = []
    for each in snapshot.statistics("traceback")[:LINES]:
        by_path += [f"{each.size:,} bytes in {each.count:,} blocks", *each.traceback.format()]
    out.write_text("\n".join([*by_line, "", *by_path]) + "\n")


def main() -> None:
    settings, out, young_s, *traced = sys.argv[1:]
    trace = (float(traced[0]), float(traced[1])) if traced else None
    retention.YOUNG_MS = gatekeeper.YOUNG_MS = int(float(young_s) * 1000)
    app.open_tower = opened
    threading.Thread(target=watch, args=(Path(out), trace), daemon=True).start()

    def ready(uri: str) -> None:
        print(f"icetower: serving {uri} (its memory is written down)", flush=True)

    app.serve(load_settings(Path(settings)), SystemAmbient(), open_to_all=False, ready=ready)


if __name__ == "__main__":
    main()
