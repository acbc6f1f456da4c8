"""A tower that counts what its gate and its observation take: `python -m bench.commits.gate_clock SETTINGS OUT`.

The gate is what is asked of a commit because its principal is bound by a contract: the verdict on its files and
operations, the quotas, what it may see, and the table as this principal alone is told it. Administrators pass through
the same functions, and are what the rest is held against. Observation is what is done so that people see: the log of
attempts and of events, the figures counted from them, and what `/metrics` answers.

The functions that do it are timed on their own thread's processor clock, which runs only while they do. At each SIGUSR1
OUT gets the seconds until then, by the function's name, as JSON (`totals` asks for it).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from bench.commits.servers import Trouble
from icetower.admission import client_settings, gate
from icetower.admission.quotas import Rates
from icetower.admission.shadow import ShadowRecorder
from icetower.ambient import SystemAmbient
from icetower.gateway import iceberg, scrape
from icetower.gateway.app import serve
from icetower.gateway.settings import load_settings
from icetower.ledger import ledger, measures, watching
from icetower.service.attempts import Attempts

GATE = (
    (gate, "judge"),
    (client_settings, "without_client_properties"),
    (client_settings, "client_properties"),
    (iceberg, "answer_parts"),
    (Rates, "wait_s"),
    (ShadowRecorder, "allow"),
    (ShadowRecorder, "record"),
)
OBSERVATION = (
    (Attempts, "ended"),
    (Attempts, "swapped"),
    (ledger, "write_attempts"),
    (watching, "write_watched"),
    (measures, "count_logged"),
    (scrape, "read_figures"),
    (scrape, "expose"),
)
"""None of all these calls another of them."""


WAIT_MAX_S = 30.0


def totals(process_id: int, out: Path) -> dict[str, float]:
    """Seconds of processor time by function, of a server that was started with that OUT. Raises `Trouble`."""
    out.unlink(missing_ok=True)
    os.kill(process_id, signal.SIGUSR1)
    until_s = time.monotonic() + WAIT_MAX_S
    while time.monotonic() < until_s:
        if out.exists():
            return json.loads(out.read_text())
        time.sleep(0.01)
    raise Trouble(f"the server said nothing of its gate for {WAIT_MAX_S:g} s")


class Clock:
    """Seconds of processor time by function."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def watch(self, owner: Any, name: str) -> None:
        """Time a function of a module, or a method of a class, from now on."""
        setattr(owner, name, self._timed(getattr(owner, name), name))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            began_ns = time.thread_time_ns()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] += (time.thread_time_ns() - began_ns) / 1e9

        return timed


def main() -> None:
    settings, out = Path(sys.argv[1]), Path(sys.argv[2])
    clock = Clock()
    for owner, name in (*GATE, *OBSERVATION):
        clock.watch(owner, name)

    def tell(*_: object) -> None:
        half = out.with_suffix(".part")
        half.write_text(json.dumps(clock.seconds))
        half.rename(out)

    signal.signal(signal.SIGUSR1, tell)
    serve(
        load_settings(settings),
        SystemAmbient(),
        open_to_all=False,
        ready=lambda uri: print(f"icetower: serving {uri} (its gate and its observation are timed)", flush=True),
    )


if __name__ == "__main__":
    main()
