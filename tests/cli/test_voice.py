"""One voice: the same option for the same thing, JSON everywhere, one paragraph for whatever goes wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_every_command import CONTRACT, OVER_THE_WIRE, ROOT, refused_port
from tests.cli.test_every_command import LEAVES as ALL
from verify.kit.tower_process import TowerProcess

LEAVES = [words for words in ALL if words != ("mcp",)]
"""`icetower mcp` speaks to a program, by a protocol of its own (tests/mcp)."""

ON_SPARK = {("audits",), ("mediate",), ("collect",), ("dedup",), ("maintain",), ("orphans",), ("export",)}
OTHER_WORDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("init",): ("--uri", "sqlite:////nowhere/none.db", "--catalog", "c", "--warehouse", "w"),
    ("serve",): ("--config", "none.toml"),
    ("backup",): ("b",),
    ("restore",): ("b",),
    ("demo",): ("--days", "0"),
    ("pipeline", "run"): ("--days", "0"),
    ("explain",): ("--case", "none.json"),
    ("audit",): ("none.metadata.json",),
    ("audits",): ("a.b",),
    ("advise",): ("none.metadata.json",),
    ("revert",): ("a.b", "--agent", "x", "--since", "soon"),
    ("mediate",): ("--wal", "a.b", "--target", "a.c"),
    ("collect",): ("--deltas", "a.b", "--target", "a.c", "--keys", "id"),
    ("dedup",): ("--target", "a.b"),
    ("maintain",): (),
    ("orphans",): ("a.b",),
    ("export",): (),
    ("contracts", "init"): ("no name",),
    ("contracts", "check"): ("none.yaml",),
    ("contracts", "grants"): ("none.yaml", "--catalog", "c", "--polaris", "http://127.0.0.1:1"),
    ("simulate", "run"): ("nosuch",),
    ("simulate", "sweep"): ("nosuch",),
    ("simulate", "reproduce"): ("--seeds", "0"),
    ("simulate", "calibrate"): ("x", "--property", "type"),
    ("support-bundle",): ("--log", "none.log"),
}
"""What each command that asks no tower is given, so that it fails."""

NEVER_FAIL = {("contracts", "schema"), ("pipeline", "tables"), ("simulate", "list"), ("doctor",)}
"""Without a tower and whatever the files, unless the configuration is asked for."""

WITHOUT_CONFIGURATION = {words for words in LEAVES if words[0] in ("simulate", "explain", "demo", "pipeline")}


def options_of(words: tuple[str, ...]) -> list[Any]:
    command: Any = ROOT
    for word in words:
        command = command.commands[word]
    return [each for each in command.params if each.param_type_name == "option"]


def test_every_command_is_covered() -> None:
    assert {*OTHER_WORDS, *OVER_THE_WIRE, *NEVER_FAIL} == set(LEAVES)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_json(words: tuple[str, ...]) -> None:
    assert any("--json" in each.opts for each in options_of(words))


def test_one_name_for_one_thing() -> None:
    """A length of time has its unit in its value; what reads once or on is `--follow`; a tower's address is `--uri`."""
    for words in LEAVES:
        for each in options_of(words):
            first = each.opts[0]
            assert first in ("--freshness-s", "--work-s", "--hours-per-s") or not first.endswith("-s"), (words, first)
            assert first not in ("--watch", "--output", "--format", "--url", "--server", "--verbose"), (words, first)
            assert each.help, (words, first)


def one_paragraph(err: str) -> str:
    """The error on standard error, which is one line; warnings may stand before it."""
    lines = [line for line in err.strip().splitlines() if not line.startswith("icetower: warning: ")]
    assert len(lines) == 1, err
    assert lines[0].startswith("icetower: "), err
    assert re.search(r"[;:,] ", lines[0]), f"no way out: {err}"
    return lines[0]


def json_error(err: str) -> dict[str, Any]:
    """The error in JSON; each line is an object, and the error is the last."""
    objects = [json.loads(line) for line in err.strip().splitlines()]
    assert all(each.keys() <= {"error", "warning", "finding"} for each in objects), err
    return objects[-1]["error"]


def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(CONTRACT)
    (tmp_path / "rows.json").write_text('[{"a": 1}]')
    monkeypatch.setenv("PATH", "/nonexistent")  # without Java no job begins
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize("words", [each for each in LEAVES if each not in NEVER_FAIL], ids=" ".join)
def test_a_dead_tower_or_a_missing_file_is_one_paragraph(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    hostile(tmp_path, monkeypatch)
    monkeypatch.setenv("ICETOWER_URI", f"http://127.0.0.1:{refused_port()}")
    given = (*words, *(OVER_THE_WIRE | OTHER_WORDS)[words])
    status, out, err = run(*given)
    expected = 1 if words in OVER_THE_WIRE else (1, 2)
    assert status == expected or (isinstance(expected, tuple) and status in expected), err
    text = one_paragraph(err)
    again, out, err = run(*given, "--json")
    assert again == status, err
    found = json_error(err)
    assert found["exit_status"] == status
    assert text.removeprefix("icetower: ")[:30] == found["message"][:30]
    assert found["next_step"]
    assert not out.strip(), "a result, of a command that failed"


@pytest.mark.parametrize("words", OVER_THE_WIRE, ids=" ".join)
def test_a_broken_configuration_is_one_paragraph(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "icetower.toml").write_text("nothing = = here")
    (tmp_path / "c.yaml").write_text(CONTRACT)
    (tmp_path / "rows.json").write_text('[{"a": 1}]')
    status, _, err = run(*words, *OVER_THE_WIRE[words], "--json")
    assert status == 2
    assert "icetower.toml is not TOML" in json_error(err)["message"]


@pytest.mark.parametrize("words", OVER_THE_WIRE, ids=" ".join)
def test_an_address_that_is_none_is_one_paragraph(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "c.yaml").write_text(CONTRACT)
    (tmp_path / "rows.json").write_text('[{"a": 1}]')
    status, _, err = run(*words, *OVER_THE_WIRE[words], "--uri", "http://[::1")
    assert status == 1
    assert "address" in one_paragraph(err)


def test_a_wrong_token_is_one_paragraph_for_every_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: TowerProcess
) -> None:
    (tmp_path / "c.yaml").write_text(CONTRACT)
    (tmp_path / "rows.json").write_text('[{"a": 1}]')
    monkeypatch.setenv("ICETOWER_TOKEN", "ict_hunter2-and-more")
    for words, others in OVER_THE_WIRE.items():
        status, _, err = run(*words, *others, "--uri", untouched.uri)
        assert status == 1, (words, err)
        assert "hunter2" not in err
        assert "ICETOWER_TOKEN" in one_paragraph(err), words
        status, _, err = run(*words, *others, "--uri", untouched.uri, "--json")
        assert json_error(err)["next_step"] == "authenticate", words


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("commits", "--nosuch"), "no such option: --nosuch"),
        (("commits", "--limit", "many"), "--limit"),
        (("agents", "show"), "missing argument"),
        (("top", "--window", "0s"), "--window"),
        (("alerts", "silence"), "--reason"),
        (("alerts", "silence", "--reason", "r"), "--rule"),
        (("principals", "create", "p"), "--role"),
        (("principals", "create", "p", "--role", "viewer", "--contract", "c"), "--role"),
        (("mediate", "--wal", "a", "--target", "b", "--every", "soon"), "--every"),
    ],
)
def test_wrong_usage_is_one_paragraph_and_status_2(run: Run, words: tuple[str, ...], named: str) -> None:
    status, _, err = run(*words)
    assert status == 2, err
    assert named in one_paragraph(err)
    status, _, err = run(*words, "--json")
    assert (status, json_error(err)["exit_status"]) == (2, 2)
    assert named in json_error(err)["message"]


def test_json_after_two_dashes_is_an_argument(run: Run) -> None:
    status, _, err = run("forget", "--uri", "http://127.0.0.1:1", "--", "--json")
    assert status == 1
    one_paragraph(err)


def test_warnings_and_findings_are_json_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: TowerProcess
) -> None:
    (tmp_path / "c.yaml").write_text(CONTRACT.replace("a.b", "a.nosuch"))
    (tmp_path / "rows.json").write_text('[{"a": 1}]')
    monkeypatch.setenv("ICETOWER_TOKEN", untouched.secret)
    _, out, err = run("contracts", "apply", "c.yaml", "--uri", untouched.uri, "--json")
    objects = [json.loads(line) for line in err.splitlines()]
    assert any("finding" in each for each in objects), err
    if out:
        assert json.loads(out)
