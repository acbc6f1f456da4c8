"""Record what a tower answers to real clients, and compare it with the recording that is kept.

    run.py                             all clients
    run.py --only pyiceberg,duckdb     some of them
    run.py --write FOLDER              write the recordings there in place of comparing them

The tower is the one beside this interpreter: to record an older version, run this with the Python of its checkout's
`.venv`, from here. `verify/exchanges/kept` holds what the tower answered before its house was put in order; it is
written anew where an answer changes on purpose.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from verify.exchanges import catalog_parts, commit_parts, compare, control_parts, engine_parts, go_parts, normal
from verify.exchanges.drivers import driving, duckdb, go, spark
from verify.exchanges.recorder import recording
from verify.exchanges.stage import SETTINGS, Session, Stage
from verify.kit.tower_process import TowerProcess

KEPT = Path(__file__).with_name("kept")
SESSIONS = (
    Session("pyiceberg", (*catalog_parts.PARTS, *commit_parts.PARTS, *control_parts.PARTS)),
    Session("spark", engine_parts.SPARK, spark),
    Session("go", go_parts.PARTS, go),
    Session("duckdb", engine_parts.DUCKDB, duckdb),
)


def record(session: Session, folder: Path) -> compare.Recording:
    """The exchanges of a session with a new tower below `folder`, part by part."""
    config = folder / "icetower.toml"
    config.write_text(SETTINGS)
    found: compare.Recording = {}
    tower = TowerProcess(folder / "data", "--config", str(config))
    try:
        with ExitStack() as stack:
            recorder = stack.enter_context(recording(tower.uri))
            client = None if session.command is None else stack.enter_context(driving(session.command(recorder.uri)))
            literals = {tower.secret: "<administrator>", str(folder): "<folder>"}
            literals |= {recorder.uri: "<uri>", tower.uri: "<uri>"}
            for part in session.parts:
                stage = Stage(tower, recorder, part.__name__, client)
                stage.aside().create_namespace(stage.ns)
                before = len(recorder.exchanges)
                stage.step("")
                part(stage)
                found[stage.ns] = normal.kept(recorder.exchanges[before:], literals)
    finally:
        tower.stop()
    return found


def checked(clients: Sequence[str]) -> tuple[int, list[str]]:
    """How many exchanges were recorded, and how they differ from what is kept."""
    count, found = 0, []
    for session in SESSIONS:
        if session.client in clients:
            with tempfile.TemporaryDirectory() as folder:
                recorded = record(session, Path(folder))
            count += sum(map(len, recorded.values()))
            kept = compare.read(KEPT / f"{session.client}.jsonl")
            found += [f"{session.client}: {each}" for each in compare.differences(kept, recorded)]
    return count, found


def main() -> None:
    names = [session.client for session in SESSIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(names), help="clients, by commas")
    parser.add_argument("--write", type=Path, help="a folder for the recordings; nothing is compared")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"--only: no client {', '.join(unknown)}; choose of {', '.join(names)}")
    if options.write is not None:
        options.write.mkdir(parents=True, exist_ok=True)
        for session in SESSIONS:
            if session.client in chosen:
                with tempfile.TemporaryDirectory() as folder:
                    recorded = record(session, Path(folder))
                compare.write(options.write / f"{session.client}.jsonl", recorded)
                sys.stdout.write(f"{session.client}: {sum(map(len, recorded.values()))} exchanges\n")
        return
    count, found = checked(chosen)
    sys.stdout.write("".join(f"{each}\n" for each in found))
    sys.stdout.write(f"{count} exchanges, {len(found)} differences\n")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
