"""`icetower doctor`: what is wrong on this machine, and what mends it; also where the tower does not start."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from icetower.ambient import SystemAmbient
from icetower.cli.checkup import Check, State, checks
from icetower.cli.own_tower import CONFIG_FILE, CONFIG_VARIABLE, config_file
from icetower.cli.progress import waiting
from icetower.cli.registry import Json
from icetower.cli.terminal import FAILED, say
from icetower.texts import escaped


def doctor(
    config: Annotated[
        Path | None,
        typer.Option(help=f"The tower's settings in TOML.  [default: {CONFIG_VARIABLE}, or ./{CONFIG_FILE}]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for what is wrong on this machine, and say what mends it. It works where the tower does not start.

    It looks at the configuration, the data directory and its permissions, the disk, the catalog, the storage (it writes
    one file to the warehouse, and deletes it), clocks, the tower's port, PyIceberg, Java, Spark and its jars. Exit
    status: 0 nothing is wrong, there may be warnings; 1 something is.

    \b
    Example:
      icetower doctor
      icetower doctor --config /etc/icetower/icetower.toml --json
    """
    found = looked(config)
    wrong = [each for each in found if each.state is State.FAIL]
    if as_json:
        say(json.dumps({"well": not wrong, "checks": [each.to_json() for each in found]}))
    else:
        for each in found:
            say(escaped(f"{each.state:<4}  {each.name}: {each.said}"))
            if each.mend:
                say(escaped(f"      {each.mend}"))
        counts = Counter(each.state for each in found)
        said = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
        well = "nothing fails, and something wants a look" if counts[State.WARN] else "nothing is wrong"
        say(f"{'something is wrong' if wrong else well}: {said}")
    if wrong:
        raise typer.Exit(FAILED)


def looked(config: Path | None) -> list[Check]:
    """All checks of this machine's tower."""
    with waiting("looking") as progress:
        task = progress.task_ids[0]

        def doing(name: str) -> None:
            progress.update(task, description=f"looking at {name}")

        return list(checks(config or config_file(), SystemAmbient(), doing))
