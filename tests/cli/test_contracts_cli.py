"""`icetower contracts …`, from the first draft to what is in force and back: offline, in git, at a running tower."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import DateType, LongType, NestedField

from icetower.agent import Tower
from icetower.cli import contracts as commands
from icetower.cli.app import main
from icetower.contracts.document import load
from icetower.contracts.schema import FILE_NAME, schema_text
from icetower.errors import Forbidden
from verify.kit.tower_process import TowerProcess, command

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Done:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The program, in an empty folder, without a tower."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ICETOWER_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "250")

    def type_it(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["icetower", *words])
        capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(status, said.out, said.err)

    return type_it


def contract(agent: str, *tables: str, more: str = "") -> str:
    clauses = (
        "escalation: {after_failures: 5, within: 10m, to: d@example.com}\n"
        "idempotency: {required: true, how: [summary]}\n"
    )
    entries = "tables:\n" + "".join(f"- {table}\n" for table in tables) if tables else ""
    return f"version: 1\nagent: {agent}\nowner: {agent}@example.com\n{clauses}{entries}{more}"


def owns(region: str, table: str = "shop.sales", operations: str = "overwrite") -> str:
    return f"{{table: {table}, operations: [{operations}], partitions: [{region}]}}"


JANUARY = "{day(sold): {from: 2017-01-01, to: 2017-02-01}}"
TWO_MONTHS = "{day(sold): {from: 2017-01-01, to: 2017-03-01}}"


# -- drafts ------------------------------------------------------------------------------------------------------------


def test_init_writes_a_contract_to_begin_with_and_never_over_another(run: Run, tmp_path: Path) -> None:
    words = ("--table", "a.b", "--table", "c: d.'e", "--operations", "append,delete", "--owner", "x: y # z")
    done = run("contracts", "init", "pricing_agent", *words, "--escalation", "Dana <d@e.f>")
    assert done.status == 0, done.err
    text = (tmp_path / "pricing_agent.yaml").read_text()
    assert text.startswith(f"# yaml-language-server: $schema={FILE_NAME}\n")
    assert (tmp_path / FILE_NAME).read_text() == schema_text() == run("contracts", "schema").out
    found = load(text, source="draft")
    assert (found.name, found.owner, [str(rule.pattern) for rule in found.tables]) == (
        "pricing_agent",
        "x: y # z",
        ["a.b", "c: d.'e"],
    )
    assert found.escalation is not None
    assert found.escalation.to == "Dana <d@e.f>"
    # What is a comment can be made part of it.
    said = ("# partitions: #", "#   ", "# blind", "# read", "# quotas", "# mode", "# revocation", "# description")
    lines = [line.replace("# ", "", 1) if line.lstrip().startswith(said) else line for line in text.splitlines()]
    whole = load("\n".join(lines), source="uncommented")
    assert whole.tables[0].partitions is not None
    assert whole.revocation is not None
    assert whole.shadow

    (tmp_path / FILE_NAME).write_text("mine")
    again = run("contracts", "init", "pricing_agent")
    assert again.status == 2
    assert "exists already, and was not changed" in again.err
    assert ((tmp_path / "pricing_agent.yaml").read_text(), (tmp_path / FILE_NAME).read_text()) == (text, "mine")


def test_init_without_anything_is_a_contract_too_and_says_what_is_wrong(run: Run, tmp_path: Path) -> None:
    assert run("contracts", "init", "a", "--file", "new.yml").status == 0
    checked = run("contracts", "check", "new.yml")
    assert checked.status == 0
    assert "[partitions.none]" in checked.out
    for words, said in (
        (("no spaces",), "agent 'no spaces'"),
        (("b", "--operations", "write"), "operations[0] is 'write'"),
        (("b", "--table", "t"), "with its namespace"),
        (("b", "--escalation", "somebody"), "name a person"),
        (("b", "--file", "no/such/folder.yaml"), "cannot be written"),
        (("administrator",), "other than 'administrator'"),
    ):
        refused = run("contracts", "init", *words)
        assert (refused.status, said in refused.err) == (2, True), refused
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, "new.yml"]


def test_init_asks_at_a_terminal_for_what_was_not_given(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"Table": "a.b", "Who is responsible": "me@example.com", "Who is notified": ""}
    asked: list[str] = []

    def prompt(question: str, **_: object) -> str:
        asked.append(next(start for start in answers if question.startswith(start)))
        return answers[asked[-1]]

    monkeypatch.setattr(commands, "at_terminal", lambda: True)
    monkeypatch.setattr(commands.typer, "prompt", prompt)
    assert run("contracts", "init", "asked").status == 0
    assert asked == [*answers]
    found = load(Path("asked.yaml").read_text(), source="asked")
    assert (str(found.tables[0].pattern), found.owner, found.escalation) == ("a.b", "me@example.com", None)


BOTH = "shop.sales where day(sold) is from 2017-01-01 to 2017-02-01 (overwrite here, append at two.yaml:7)"


# -- check, offline ----------------------------------------------------------------------------------------------------


def test_findings_have_lines_and_errors_an_exit_status(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(contract("one", owns(JANUARY)))
    (tmp_path / "two.yaml").write_text(contract("two", owns("{month(sold): 2017-01}", operations="append")))
    (tmp_path / "broken.yaml").write_text("version: 1\nagent: b\ntables: 5\n")
    alone = run("contracts", "check", "one.yaml")
    assert (alone.status, alone.out) == (0, "nothing was found\n")
    done = run("contracts", "check", "one.yaml", "two.yaml", "broken.yaml")
    assert done.status == 1
    assert done.out.splitlines() == [
        "broken.yaml:3: error: tables must be a list [contract.syntax]",
        (
            f"one.yaml:7: error: one and two both own {BOTH}; give it to one of them, or say "
            "`intents: required` in both [overlap.owned]"
        ),
        "2 errors",
    ]
    found = run("contracts", "check", ".", "--json")
    assert found.status == 1
    assert [(f["file"], f["line"], f["rule"], f["also"]) for f in found.json["findings"]] == [
        ("broken.yaml", 3, "contract.syntax", []),
        ("one.yaml", 7, "overlap.owned", [{"file": "two.yaml", "line": 7}]),
    ]
    ignored = run("contracts", "check", "one.yaml", "two.yaml", "--ignore", "overlap.owned")
    assert (ignored.status, ignored.out) == (0, "nothing was found\n")


def test_strict_makes_warnings_errors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("version: 1\nagent: a\ntables:\n- {table: x.y, operations: [append]}\n")
    assert run("contracts", "check", "a.yaml").status == 0
    strict = run("contracts", "check", "a.yaml", "--strict")
    assert strict.status == 1
    assert "1 error, 1 note\n" in strict.out


def test_annotations_for_github_are_escaped_and_shown_at_both_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "50%, a:b.yaml").write_text(contract("one", owns(JANUARY)))
    (tmp_path / "two.yaml").write_text(contract("two", owns(JANUARY)))
    out = run("contracts", "check", ".", "--annotations", "github").out.splitlines()
    commands_said = [line for line in out if line.startswith("::")]
    assert [line.split("::")[1] for line in commands_said] == [
        "error file=50%25%2C a%3Ab.yaml,line=7,title=contracts%3A overlap.owned",
        "error file=two.yaml,line=7,title=contracts%3A overlap.owned",
    ]
    assert run("contracts", "check", ".", "--annotations", "gitlab").status == 2


def test_words_of_a_contract_cannot_command_the_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text('version: 1\nagent: e\nowner: "x\\e[2J"\nmode: "\\e]0;title\\a"\n')
    done = run("contracts", "check", "evil.yaml", "--annotations", "github")
    assert done.status == 1
    assert "\x1b" not in done.out
    assert "\x07" not in done.out


def test_what_cannot_be_checked_is_said_with_status_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "a.yaml").write_text(contract("a"))
    for words, said in (
        (("nowhere.yaml",), "nowhere.yaml cannot be read"),
        (("empty",), "has no contract"),
        (("bytes.yaml",), "not UTF-8 text"),
        (("a.yaml", "--ignore", "overlap"), "no such rule"),
        (("a.yaml", "--against", "HEAD"), "this is not a git repository"),
    ):
        done = run("contracts", "check", *words)
        assert (done.status, said in done.err) == (2, True), done


# -- check, in a pull request ------------------------------------------------------------------------------------------


@pytest.fixture
def git(tmp_path: Path, run: Run) -> Callable[..., str]:
    """A repository with a commit of two contracts, in the folder where commands run."""
    del run

    def say(*words: str) -> str:
        options = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *options, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    say("init", "-q", "-b", "main")
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "prices é.yaml").write_text(contract("pricing_agent", owns(JANUARY)))
    (tmp_path / "contracts" / "stock.yaml").write_text(contract("stock_agent", more="reads: [stock.*]\n"))
    (tmp_path / "contracts" / ".hidden.yaml").write_text("no contract")
    say("add", ".")
    say("commit", "-q", "-m", "first")
    return say


def test_a_pull_request_says_in_words_what_it_changes(run: Run, git: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    unchanged = run("contracts", "check", "contracts", "--against", "main")
    assert unchanged.out == "nothing has changed since main\nnothing was found\n"
    git("mv", "contracts/prices é.yaml", "contracts/moved.yaml")
    assert run("contracts", "check", "contracts", "--against", "HEAD").out == unchanged.out.replace("main", "HEAD")

    (folder / "moved.yaml").write_text(contract("pricing_agent", owns(TWO_MONTHS)))
    (folder / "stock.yaml").unlink()
    (folder / "new.yaml").write_text(contract("new_agent", more="reads: [shop.*]\n"))
    done = run("contracts", "check", "contracts", "--against", "main", "--annotations", "github")
    assert done.status == 0
    gained = "pricing_agent gains overwrite on shop.sales where day(sold) is from 2017-02-01 to 2017-03-01"
    assert [line for line in done.out.splitlines() if "title=contracts%3A changes" not in line] == [
        "pricing_agent: changed since main",
        f"  + {gained}",
        "new_agent: new since main",
        "  + new_agent gains read on shop.*",
        "  ~ new_agent has owner: new_agent@example.com",
        "  ~ new_agent has escalation: to d@example.com after 5 failures in a row within 10m",
        "  ~ new_agent has idempotency: a key is required by summary",
        "stock_agent: gone since main; it stays in force until it is revoked",
        "  - stock_agent loses read on stock.*",
        "nothing was found",
        f"::notice file=contracts/moved.yaml,line=7,title=contracts%3A gains::{gained}",
        "::notice file=contracts/new.yaml,line=6,title=contracts%3A gains::new_agent gains read on shop.*",
    ]
    git("add", ".")
    git("commit", "-q", "-m", "second")
    # The files themselves may be named; one that is gone is looked for where it was.
    named = run("contracts", "check", "contracts/moved.yaml", "contracts/stock.yaml", "--against", "HEAD~1", "--json")
    assert [(c["contract"], c["new"], c["gone"]) for c in named.json["changes"]] == [
        ("pricing_agent", True, False),  # its old file was not named
        ("stock_agent", False, True),
    ]
    # So is the whole repository, and the folder from within.
    whole = run("contracts", "check", ".", "--against", "HEAD~1", "--json")
    os.chdir(folder)
    here = run("contracts", "check", ".", "--against", "HEAD~1", "--json")
    assert {(c["contract"], c["new"], c["gone"]) for c in here.json["changes"]} == {
        ("pricing_agent", False, False),
        ("new_agent", True, False),
        ("stock_agent", False, True),
    }
    assert whole.json["changes"] == here.json["changes"]


def test_what_git_cannot_tell_is_said(run: Run, git: Callable[..., str], tmp_path: Path) -> None:
    for reference in ("nowhere", "--output=x", "-h", "main:contracts", ""):
        done = run("contracts", "check", "contracts", f"--against={reference}")
        assert (done.status, "git knows no commit" in done.err) == (2, True), done
    outside = tmp_path.parent / f"{tmp_path.name}-outside.yaml"
    outside.write_text(contract("o"))
    done = run("contracts", "check", str(outside), "--against", "main")
    assert (done.status, "outside the git repository" in done.err) == (2, True)
    # What was no contract then is no reason to stop now.
    (tmp_path / "contracts" / "stock.yaml").write_text("old: format\n")
    git("commit", "-qam", "broken")
    (tmp_path / "contracts" / "stock.yaml").write_text(contract("stock_agent", more="reads: [stock.*]\n"))
    done = run("contracts", "check", "contracts", "--against", "HEAD")
    assert (done.status, "is not a contract, and is skipped" in done.err) == (0, True)
    assert "stock_agent: new since HEAD" in done.out


# -- at a tower --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    process = TowerProcess(tmp_path_factory.mktemp("contracts") / "data")
    yield process
    assert process.stop() == 0, process.log.read_text()


@pytest.fixture
def at(run: Run, tower: TowerProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The program, as the administrator of a tower."""
    monkeypatch.setenv("ICETOWER_URI", tower.uri)
    monkeypatch.setenv("ICETOWER_TOKEN", tower.secret)
    return run


def put(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_diff_and_apply_show_who_gains_and_loses_what(at: Run, tmp_path: Path, tower: TowerProcess) -> None:
    first = put(tmp_path / "1.yaml", contract("walk_agent", owns(JANUARY, "walk.sales")))
    new = at("contracts", "diff", first)
    granted = "overwrite on walk.sales where day(sold) is from 2017-01-01 to 2017-02-01"
    assert new.out.splitlines()[:2] == ["walk_agent: new", f"  + walk_agent gains {granted}"]
    applied = at("contracts", "apply", first, "--message", "the first")
    assert applied.status == 0, applied.err
    assert applied.out == new.out + "walk_agent: version 1 is in force\n"
    assert at("contracts", "diff", first).out == "nothing changes: all of it is in force\n"
    tower.admin.create_principal("walk-1", "walk_agent")

    second = put(
        tmp_path / "2.yaml", contract("walk_agent", owns(TWO_MONTHS, "walk.sales", "append"), more="reads: [s.*]\n")
    )
    assert at("contracts", "diff", second).out.splitlines() == [
        "walk_agent: changes version 1 (principals: walk-1)",
        "  + walk_agent gains append on walk.sales where day(sold) is from 2017-02-01 to 2017-03-01",
        "  + walk_agent gains read on s.*",
        f"  - walk_agent loses {granted}",
    ]
    told = at("contracts", "diff", second, "--json").json[0]
    assert (told["contract"], told["version"], told["new"], told["principals"]) == ("walk_agent", 1, False, ["walk-1"])
    assert told["changes"][0] == {
        "kind": "gains",
        "words": "gains append on walk.sales where day(sold) is from 2017-02-01 to 2017-03-01",
        "table": "walk.sales",
        "operations": ["append"],
        "partitions": "day(sold) is from 2017-02-01 to 2017-03-01",
        "clause": "tables",
    }
    done = at("contracts", "apply", second, "--json").json
    assert (done["contracts"], done["changes"][0]["version"]) == (
        [{"contract": "walk_agent", "version": 2, "changed": True}],
        1,
    )
    again = at("contracts", "apply", second)
    assert again.out == "nothing changes: all of it is in force\nwalk_agent: version 2 is in force\n"

    # Shown, remembered, revoked and restored.
    assert at("contracts", "show", "walk_agent", "--version", "1").out == (tmp_path / "1.yaml").read_text()
    assert at("contracts", "show", "walk_agent").out == (tmp_path / "2.yaml").read_text()
    assert at("contracts", "revoke", "walk_agent", "-m", "went wild").out == "walk_agent is revoked\n"
    gone = at("contracts", "show", "walk_agent")
    assert (gone.status, gone.out) == (1, "")
    assert "revoked" in at("contracts", "list").out
    assert at("contracts", "restore", "walk_agent", "--version", "1").out == "walk_agent: version 4 is in force\n"
    past = at("contracts", "history", "walk_agent").out.splitlines()
    assert [line.split(" by ")[1] for line in past if line.startswith("version")] == [
        "admin: the first",
        "admin",
        "admin: went wild",
        "admin",
    ]
    assert [line.split(",")[1].split()[0] for line in past if line.startswith("version")] == [
        "applied",
        "applied",
        "revoked",
        "applied",
    ]
    assert f"  + walk_agent gains {granted}" in past[past.index(next(p for p in past if p.startswith("version 4"))) :]
    rows = at("contracts", "history", "walk_agent", "--json").json
    assert [(row["version"], row["applied_by"], len(row["changes"])) for row in rows] == [
        (1, "admin", 4),
        (2, "admin", 3),
        (3, "admin", 2),
        (4, "admin", 4),
    ]
    assert at("contracts", "history", "nobody").status == at("contracts", "restore", "nobody").status == 1


def test_all_contracts_are_applied_or_none_and_nothing_is_overwritten(
    at: Run, tmp_path: Path, tower: TowerProcess
) -> None:
    one, two = (put(tmp_path / f"{name}.yaml", contract(name, more="reads: [a.*]\n")) for name in ("both-1", "both-2"))
    assert at("contracts", "apply", str(tmp_path)).out.splitlines()[-2:] == [
        "both-1: version 1 is in force",
        "both-2: version 1 is in force",
    ]
    for name, path in (("both-1", one), ("both-2", two)):
        put(Path(path), contract(name, more="reads: [b.*]\n"))
    stale = at("contracts", "apply", one, two, "--expect-version", "both-2=7")
    assert (stale.status, "at version 1, not 7" in stale.err) == (1, True)
    versions = {v["name"]: v["version"] for v in tower.admin.contracts() if v["name"].startswith("both")}
    assert versions == {"both-1": 1, "both-2": 1}
    for wrong in ("2", "x=1", "both-1=y"):
        assert at("contracts", "apply", one, two, "--expect-version", wrong).status == 2
    assert at("contracts", "apply", one, "--expect-version", "1", "--yes").status == 0
    broken = put(tmp_path / "broken.yaml", "version: 1\n")
    refused = at("contracts", "apply", two, broken)
    assert (refused.status, "broken.yaml:1: the contract lacks the field 'agent'" in refused.err) == (2, True)
    twice = put(tmp_path / "twice.yaml", (tmp_path / "both-2.yaml").read_text() + "description: more\n")
    assert at("contracts", "apply", two, twice).status == 1
    assert tower.admin.contract("both-2")["version"] == 1


def test_what_changed_while_it_was_looked_at_is_not_overwritten(
    at: Run, tmp_path: Path, tower: TowerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = put(tmp_path / "mine.yaml", contract("raced", more="reads: [mine.*]\n"))

    def somebody_else(_question: str) -> bool:
        tower.admin.apply_contract(contract("raced", more="reads: [theirs.*]\n"))
        return True

    monkeypatch.setattr(commands, "at_terminal", lambda: True)
    monkeypatch.setattr(commands.typer, "confirm", somebody_else)
    done = at("contracts", "apply", mine)
    assert (done.status, "somebody has changed it meanwhile" in done.err) == (1, True)
    assert "theirs" in tower.admin.contract("raced")["text"]


def test_at_a_terminal_apply_asks_first(at: Run, tmp_path: Path, tower: TowerProcess) -> None:
    del at
    path = put(tmp_path / "asked.yaml", contract("asked", more="reads: [a.*]\n"))
    for answer, status, there in (("n\n", 1, False), ("y\n", 0, True)):
        controller, terminal = pty.openpty()
        process = subprocess.Popen(
            command("contracts", "apply", path),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "ICETOWER_URI": tower.uri, "ICETOWER_TOKEN": tower.secret},
        )
        os.close(terminal)
        said = b""
        while b"in force? [y/N]" not in said:
            said += os.read(controller, 1000)
        os.write(controller, answer.encode())
        assert process.wait(60) == status
        os.close(controller)
        assert ("asked" in {version["name"] for version in tower.admin.contracts()}) is there


def test_whom_a_contract_names_revokes_it_from_the_terminal(at: Run, tower: TowerProcess, monkeypatch: Any) -> None:
    tower.admin.apply_contract(contract("night", more="revocation: {by: [guard]}\n"))
    guard = tower.principal("guard", "reads: [nothing.*]\n")
    monkeypatch.setenv("ICETOWER_TOKEN", guard)
    assert at("contracts", "revoke", "night").out == "night is revoked\n"
    refused = at("contracts", "restore", "night")
    assert (refused.status, "not an administrator" in refused.err) == (1, True)
    for words in (("diff",), ("apply",), ("check",)):
        done = at("contracts", *words, put(Path("x.yaml"), contract("x")))
        assert (done.status, "administrator" in done.err) == (1, True)
    with Tower(tower.uri, guard) as caller, pytest.raises(Forbidden):
        caller.contracts()


SALES = Schema(
    NestedField(1, "sold", DateType(), required=False),
    NestedField(2, "product", LongType(), required=False),
)


@pytest.fixture(scope="module")
def shop(tower: TowerProcess) -> str:
    """A table by day and bucket with rows on two days, one without partitions, and their namespace."""
    catalog = tower.catalog()
    catalog.create_namespace("shop")
    by_day = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=DayTransform(), name="sold_day"),
        PartitionField(source_id=2, field_id=1001, transform=BucketTransform(4), name="product_bucket"),
    )
    sales = catalog.create_table("shop.sales", SALES, partition_spec=by_day)
    catalog.create_table("shop.plain", SALES)
    sales.append(pa.table({"sold": pa.array([17167, 17167, 17198], pa.date32()), "product": [0, 6, 0]}))
    sales.append(pa.table({"sold": pa.array([17167], pa.date32()), "product": [0]}))
    return "shop"


UNBOUND = "no principal is bound to it; `icetower principals create NAME --contract sales_agent` makes one"
LEFT = "day(sold) is from 2017-01-01 to 2017-01-15 and product_bucket is 2 or 3"
NOBODYS = "sold_day=2017-02-01/product_bucket=0"


@pytest.mark.usefixtures("shop")
def test_check_at_a_tower_looks_at_tables_partitions_people_and_other_contracts(
    at: Run, tmp_path: Path, tower: TowerProcess
) -> None:
    tower.admin.apply_contract(contract("early_agent", owns("{sold_day: {from: 2016-12-01, to: 2017-01-01}}")))
    text = contract(
        "sales_agent",
        owns("{day(sold): {from: 2017-01-01, to: 2017-01-15}, product_bucket: [0, 1]}"),
        owns("{day(product): 2017-01-01}"),
        owns("{colour: red}", "shop.*", "append"),
        owns("{product_bucket: 9}", operations="append"),
        "{table: shop.gone, operations: [append], partitions: all}",
        more="reads: [shop.*]\nrevocation: {by: [admin, oncall]}\n"
        "branches: {checks: [counts], checked_by: [admin, sales_agent]}\n",
    )
    put(tmp_path / "sales.yaml", text)
    file = "sales.yaml"
    done = at("contracts", "check", file, "--json")
    assert done.status == 1
    found = {(f["line"], f["severity"], f["rule"]) for f in done.json["findings"]}
    assert found == {
        (2, "note", "principal.none"),
        (8, "error", "reference.value"),
        (9, "error", "reference.name"),
        (9, "warning", "reference.spec"),  # of the table without partitions
        (10, "error", "reference.value"),
        (11, "warning", "reference.table"),
        (13, "warning", "revocation.unknown"),
        (14, "warning", "checks.unknown"),
    }

    clean = contract("sales_agent", owns("{day(sold): {from: 2017-01-01, to: 2017-01-15}, product_bucket: [0, 1]}"))
    put(tmp_path / "sales.yaml", clean)
    done = at("contracts", "check", file)
    assert done.out.splitlines() == [
        f"sales.yaml:2: note: {UNBOUND} [principal.none]",
        f"sales.yaml:7: warning: nobody owns shop.sales where {LEFT} [gap.partitions]",
        f"sales.yaml:7: warning: nobody owns 1 of the 3 partitions of shop.sales that hold rows: {NOBODYS} [gap.rows]",
        "2 warnings, 1 note",
    ]
    assert "gap.rows" not in at("contracts", "check", file, "--no-partitions").out

    # Field and column are one by the table, which the files alone could not tell.
    put(tmp_path / "sales.yaml", contract("sales_agent", owns("{day(sold): 2016-12-31}")))
    both = at("contracts", "check", file, "--no-partitions")
    assert both.status == 1
    assert (
        "both own shop.sales where day(sold) is 2016-12-31 (overwrite here, overwrite at contract early_agent, "
        in both.out
    )
    offline = at("contracts", "check", file, "--uri", "")
    assert (offline.status, offline.out) == (0, "nothing was found\n")


@pytest.mark.usefixtures("shop")
def test_apply_and_restore_refuse_what_check_calls_an_error(at: Run, tmp_path: Path, tower: TowerProcess) -> None:
    tower.admin.apply_contract(contract("first_agent", owns("{sold_day: {from: 2019-01-01, to: 2019-02-01}}")))
    second = put(tmp_path / "second.yaml", contract("second_agent", owns("{date(sold): 2019-01-05}")))
    refused = at("contracts", "apply", second)
    assert (refused.status, refused.out) == (1, "")
    assert "both own shop.sales where date(sold) is 2019-01-05" in refused.err
    assert "nothing was put in force" in refused.err
    assert "--ignore overlap.owned" in refused.err
    assert "second_agent" not in {version["name"] for version in tower.admin.contracts()}
    assert at("contracts", "apply", second, "--ignore", "overlap").status == 2  # no such rule

    # A role of its own makes it a note; so does going over it by name. Both are in force then.
    put(
        tmp_path / "second.yaml", contract("second_agent", owns("{date(sold): 2019-01-05}"), more="role: maintenance\n")
    )
    assert at("contracts", "apply", second).status == 0
    put(tmp_path / "second.yaml", contract("second_agent", owns("{day(sold): 2019-01-05}")))
    assert at("contracts", "apply", second, "--ignore", "overlap.owned").status == 0

    assert at("contracts", "revoke", "second_agent").status == 0
    restored = at("contracts", "restore", "second_agent")
    assert (restored.status, "both own shop.sales" in restored.err) == (1, True)
    assert at("contracts", "restore", "second_agent", "--version", "1").status == 0  # of another role

    named = put(tmp_path / "named.yaml", contract("named_agent", "{table: prod.shop.sales, operations: [read]}"))
    wrong = at("contracts", "apply", named)
    assert (wrong.status, "without the catalog's name; write shop.sales" in wrong.err) == (1, True)


@pytest.mark.usefixtures("shop")
def test_a_contract_begun_by_init_lets_unchanged_clients_write(at: Run, tmp_path: Path, tower: TowerProcess) -> None:
    done = at("contracts", "init", "begun", "--table", "shop.begun", "--escalation", "d@example.com", "--owner", "x")
    assert done.status == 0, done.err
    text = (tmp_path / "begun.yaml").read_text().replace("# partitions: all", "partitions: all")
    put(tmp_path / "begun.yaml", text)
    checked = at("contracts", "check", "begun.yaml", "--uri", "")
    assert "[retries.key]" in checked.out  # what unchanged clients do without a key, and the way out
    assert at("contracts", "apply", "begun.yaml").status == 0
    secret = tower.admin.create_principal("begun-1", "begun")
    tower.catalog().create_table("shop.begun", SALES)
    table = tower.catalog(secret).load_table("shop.begun")
    table.append(pa.table({"sold": pa.array([17167], pa.date32()), "product": [0]}))
    assert tower.catalog().load_table("shop.begun").scan().to_arrow().num_rows == 1


@pytest.mark.usefixtures("shop")
def test_partitions_that_cannot_be_read_are_no_reason_to_stop(at: Run, tmp_path: Path, tower: TowerProcess) -> None:
    catalog = tower.catalog()
    torn = catalog.create_table("shop.torn", SALES, partition_spec=catalog.load_table("shop.sales").spec())
    torn.append(pa.table({"sold": pa.array([17167], pa.date32()), "product": [0]}))
    snapshot = torn.refresh().current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    file = put(tmp_path / "torn.yaml", contract("torn_agent", owns("{sold_day: 2017-01-01}", "shop.torn")))
    done = at("contracts", "check", file, "--ignore", "principal.none")
    assert done.status == 0
    assert "note: the partitions of shop.torn that have rows could not be read: " in done.out
    catalog.drop_table("shop.torn")


def test_without_a_tower_it_says_so(run: Run, tmp_path: Path) -> None:
    file = put(tmp_path / "a.yaml", contract("a"))
    for words in (("check", file), ("diff", file), ("apply", file), ("list",), ("history", "a"), ("restore", "a")):
        done = run("contracts", *words, "--uri", "http://127.0.0.1:1")
        assert (done.status, "no tower answers at http://127.0.0.1:1" in done.err) == (1, True), done


# -- the workflow ------------------------------------------------------------------------------------------------------


def test_the_workflow_is_one_and_its_commands_are_real(run: Run, git: Callable[..., str]) -> None:
    workflow = yaml.load((ROOT / "examples/ci/contracts.yml").read_text(), Loader=yaml.BaseLoader)
    assert set(workflow["on"]) == {"pull_request", "push"}
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert all(set(step) & {"run", "uses"} for step in steps)
    said = "\n".join(step.get("run", "") for step in steps)
    # What a stranger may choose, such as a branch's name, comes by the environment and not by the text of a script.
    assert "${{" not in said
    ours = [line.split() for line in said.replace("\\\n", " ").splitlines() if line.startswith("icetower ")]
    assert [words[:3] for words in ours] == [
        ["icetower", "contracts", "check"],
        ["icetower", "contracts", "check"],
        ["icetower", "contracts", "apply"],
    ]
    values = {'"origin/$BASE"': "main", '"$GITHUB_SHA"': "abc"}
    for words in ours:
        typed = [values.get(word, word) for word in words[1:]]
        done = run(*typed, *([] if "--against" in typed else ["--uri", "http://127.0.0.1:1"]))
        # As far as there is no tower: it was understood.
        assert (done.status == 0) is ("--against" in typed), done
        assert done.status in (0, 1)


def test_at_a_terminal_a_finding_is_a_heading_and_its_message_below(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("version: 1\nagent: a\ntables:\n  - {table: shop.sales, operations: [append]}\n")
    monkeypatch.setenv("COLUMNS", "60")
    (piped,) = {row for row in run("contracts", "check", "a.yaml").out.splitlines() if "[owner.none]" in row}
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # Rich's word for a terminal
    shown = re.sub(r"\x1b\[[0-9;]*m", "", run("contracts", "check", "a.yaml").out).splitlines()
    assert piped.startswith("a.yaml:2: note: ")
    at = shown.index(next(row for row in shown if "owner.none" in row))
    assert "a.yaml:2  note  owner.none" in shown[at]
    assert "    nobody is named who answers for the agent" in shown[at + 1]
