"""Run the figures on Iceberg itself, and write the page that walks through them.

    run.py                  writes docs/isolation.md and docs/figures/*.svg
    run.py --into DIR       writes isolation.md and figures/ there

Exit status 1: Iceberg could not be asked, or the model does not say the same.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from icetower.pipelines.session import ICEBERG_RUNTIME
from icetower_client_model.figures import FIGURES
from verify.differential.oracle import Oracle, OracleError
from verify.walkthrough.draw import draw, legend
from verify.walkthrough.levels import tried
from verify.walkthrough.observation import Asked, Disagreement, observe
from verify.walkthrough.page import page

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
TEMPLATE = Path(__file__).with_name("page.md")
MOMENTS = {"7": 2}
"""Figures that show a moment, not an end: the one right after this writer's commit."""


def written(iceberg: Asked) -> Mapping[str, str]:
    """The page and its drawings, by path below docs/.

    Raises:
        Disagreement: the model and Iceberg do not say the same.
    """
    observations = {name: observe(figure, iceberg, until=MOMENTS.get(name)) for name, figure in FIGURES.items()}
    version = re.search(r"(\d+\.\d+\.\d+)$", ICEBERG_RUNTIME)
    text = page(TEMPLATE.read_text(), observations, tried(iceberg), version[1] if version else ICEBERG_RUNTIME)
    drawings = {f"figures/{name}.svg": draw(observation) for name, observation in observations.items()}
    return {"isolation.md": text, "figures/legend.svg": legend(), **drawings}


def main(arguments: list[str] | None = None) -> int:
    """The program. Returns its exit status."""
    parser = argparse.ArgumentParser(description="Run the figures on Iceberg itself, and write the page about them.")
    parser.add_argument("--into", type=Path, default=DOCS, help="the folder that gets isolation.md and figures/")
    into: Path = parser.parse_args(arguments).into
    try:
        with Oracle() as iceberg:
            files = written(iceberg)
    except (OracleError, Disagreement) as error:
        print(error, file=sys.stderr)
        return 1
    (into / "figures").mkdir(parents=True, exist_ok=True)
    for stale in set((into / "figures").glob("*.svg")) - {into / name for name in files}:
        stale.unlink()
    for name, text in files.items():
        (into / name).write_text(text)
    print(f"{len(files) - 1} drawings and isolation.md in {into}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
