"""A tower whose wall clock runs faster than ours: `python -m bench.fast_clock SETTINGS FACTOR`.

Retention keeps what is younger than ten minutes. The curve over history makes twenty thousand commits in a few, so its
tower is told that more time has passed. Deadlines and durations stay real.
"""

from __future__ import annotations

import sys
from pathlib import Path

from icetower.ambient import SystemAmbient
from icetower.gateway.app import serve
from icetower.gateway.settings import load_settings


class FastAmbient(SystemAmbient):
    """The machine's own, but for the wall clock, which is `factor` times as fast from now on."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor
        self._start_ms = super().now_ms()

    def now_ms(self) -> int:
        return self._start_ms + round((super().now_ms() - self._start_ms) * self._factor)


def main() -> None:
    settings, factor = Path(sys.argv[1]), float(sys.argv[2])
    serve(
        load_settings(settings),
        FastAmbient(factor),
        open_to_all=False,
        ready=lambda uri: print(f"icetower: serving {uri} (clock x {factor:g})", flush=True),
    )


if __name__ == "__main__":
    main()
