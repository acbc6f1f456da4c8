"""`icetower top`: tables and agents, live in the terminal."""

from __future__ import annotations

import json
import select
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli.figures import Figures, by, windows
from icetower.cli.printing import SafeConsole
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.screens import percent, plain_table
from icetower.cli.terminal import at_terminal, say
from icetower.cli.times import duration_s, time_text
from icetower.errors import IcetowerError, Unavailable, UsageError
from icetower.texts import escaped

LEAST_EVERY_S = 0.5
OTHER_LINES = 7
ALL_LINES = 10_000
COLUMNS = ("commits/s", "first try", "conflicts", "refused", "p50 ms", "p99 ms", "hot partitions")

Screen = dict[str, Any]


def top(
    window: Annotated[
        str, typer.Option(help="The time over which it counts, such as 5m; the tower counts by five minutes.")
    ] = "5m",
    every: Annotated[str, typer.Option(help="How often it asks the tower, such as 2s.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end, as without a terminal.")] = False,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Show tables and agents live: commits a second, first-try success, conflicts, latency, hot partitions.

    The busiest come first. `q` or Ctrl-C ends it. Latencies of several agents are not added up: it shows the longest.

    \b
    Example:
      icetower top
      icetower top --once --window 15m
    """
    window_s, every_s = duration_s(window, "--window"), duration_s(every, "--every")
    if not window_s:
        raise UsageError("--window must be longer than nothing, such as 5m")
    with connect(uri) as tower:
        ask = lambda: _asked(tower, window_s)  # noqa: E731
        first = ask()
        if as_json:
            say(json.dumps(_as_json(first)))
        elif once or not at_terminal():
            SafeConsole().print(_drawn(uri, first, lines=ALL_LINES))
        else:
            with suppress(KeyboardInterrupt):
                _live(uri, first, ask, max(every_s, LEAST_EVERY_S))


def _asked(tower: Tower, window_s: float) -> Screen:
    found = windows(tower, window_s, SystemAmbient().now_ms())
    tables, agents = by("table", found.rows), by("principal", found.rows)
    return {"now_ms": found.now_ms, "since_ms": found.since_ms, "s": found.seconds, "tables": tables, "agents": agents}


def _as_json(screen: Screen) -> dict[str, Any]:
    return {
        "now_ms": screen["now_ms"],
        "since_ms": screen["since_ms"],
        "seconds": screen["s"],
        "tables": [each.to_json(screen["s"]) for each in screen["tables"]],
        "agents": [each.to_json(screen["s"]) for each in screen["agents"]],
    }


def _live(uri: str, first: Screen, ask: Callable[[], Screen], every_s: float) -> None:
    """Draw until `q`. A tower that does not answer is said so, and asked again; what was drawn stays."""
    screen, trouble = first, ""
    console = SafeConsole()
    with _keys() as quits, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(uri, screen, lines=console.height, trouble=trouble), refresh=True)
            if quits(every_s):
                return
            try:
                screen, trouble = ask(), ""
            except Unavailable as error:
                trouble = error.message
            except IcetowerError as error:
                if error.status < 500:
                    raise
                trouble = error.message


def _drawn(uri: str, screen: Screen, *, lines: int, trouble: str = "") -> Group:
    """A screen of so many lines: half for tables, half for agents."""
    each = max(3, (lines - OTHER_LINES) // 2)
    head = f"{uri}   {time_text(screen['now_ms'])}   since {time_text(screen['since_ms'])[11:19]}   q ends"
    parts: list[Any] = [Text(escaped(head), style="bold", no_wrap=True)]
    if trouble:
        parts.append(Text(escaped(trouble), style="red"))
    for what in ("tables", "agents"):
        rows: Sequence[Figures] = screen[what]
        shown = [_row(row, screen["s"]) for row in rows[:each]]
        more = f" (the busiest {each:,} of {len(rows):,})" if len(rows) > each else ""
        parts += [Text(""), plain_table((f"{what}{more}", *COLUMNS), shown) if shown else Text(f"{what}: no attempt")]
    return Group(*parts)


def _row(figures: Figures, seconds: float) -> tuple[object, ...]:
    counts: Mapping[str, int] = figures.counts
    return (
        figures.name,
        f"{counts['landed'] / seconds:,.2f}",
        percent(figures.first_try_rate),
        counts["conflicts"],
        counts["refused"],
        "" if figures.p50_ms is None else f"{figures.p50_ms:,.0f}",
        "" if figures.p99_ms is None else f"{figures.p99_ms:,.0f}",
        ", ".join(f"{name} ({count})" for name, count in figures.hottest),
    )


@contextmanager
def _keys() -> Generator[Callable[[float], bool]]:
    """Yields what waits so many seconds, and says whether `q` was pressed; the terminal is put back at the end."""
    try:
        import termios
        import tty
    except ModuleNotFoundError:  # Windows
        yield lambda seconds: threading.Event().wait(seconds)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield lambda seconds: _pressed(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(descriptor: int, seconds: float) -> bool:
    import os

    clock = SystemAmbient()
    until_s = clock.monotonic_s() + seconds
    while (left_s := until_s - clock.monotonic_s()) > 0:
        if select.select([descriptor], [], [], left_s)[0]:
            key = os.read(descriptor, 1)
            if key in (b"q", b"Q", b""):  # an end of input, too: the terminal is gone
                return True
    return False
