"""Filters, projections and pruning against Iceberg itself, on random questions from a fixed seed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.iceberg.filter_questions import agree, answer, question
from tools import java
from verify.differential.oracle import classpath

pytestmark = pytest.mark.java

QUESTIONS = 1500
TIMEOUT_S = 300
SOURCE = Path(__file__).with_name("Filters.java")


def ask(questions: list[str]) -> list[str]:
    """Iceberg's answers."""
    command = [str(java.find(jdk=True)), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
    command += ["-cp", os.pathsep.join(map(str, classpath())), str(SOURCE)]
    done = subprocess.run(
        command, input="\n".join(questions), capture_output=True, text=True, encoding="utf-8", timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_iceberg_answers_as_we_do() -> None:
    questions = [question(seed) for seed in range(QUESTIONS)]
    answers = ask([json.dumps(asked) for asked in questions])
    assert len(answers) == QUESTIONS
    seen: set[tuple[str, str]] = set()
    for seed, (asked, line) in enumerate(zip(questions, answers, strict=True)):
        theirs = json.loads(line)
        theirs["json"] = json.loads(theirs["json"])
        ours = answer(asked)
        for name, mine in ours.items():
            pairs = zip(theirs.get(name, []), mine, strict=True) if isinstance(mine, list) else [(theirs[name], mine)]
            for at, (their, my) in enumerate(pairs):
                assert agree(their, my), f"question({seed}), {name}, {at}: Iceberg says {their!r}, we say {my!r}"
                seen.add((name, str(their) if isinstance(their, bool) else type(their).__name__))
    # The questions were worth asking: every test came out both ways, and some were refused.
    tests = [name for name in ours if name.endswith((" might", " must"))] + ["can contain"]
    assert seen >= {(name, outcome) for name in tests for outcome in ("True", "False")}
    assert {("bound", "list"), ("residual", "list"), ("literals", "list"), ("applied", "list")} <= seen
