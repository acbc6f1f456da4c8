"""The program as a person types it, against a running tower."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from icetower.cli.escalations import _full_id
from icetower.errors import UsageError
from tests.pages.page_blocks import blocks_of
from verify.kit.light_spark import LIGHT
from verify.kit.tower_process import TowerProcess, command

CONTRACT = """\
version: 1
agent: till
owner: shop@example.com
tables:
  - table: shop.log
    operations: [append]
    partitions: [{_agent: [till-1]}]
  - table: shop.sales
    operations: [append]
    partitions: all
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    process = TowerProcess(tmp_path_factory.mktemp("cli") / "data")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def run(tower: TowerProcess, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return typed_at(tower, tmp_path_factory.mktemp("elsewhere"))


def typed_at(tower: TowerProcess, folder: Path) -> Run:
    """Types commands in a folder, for a tower."""

    def type_it(*words: str, token: str | None = tower.secret) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ICETOWER_URI": tower.uri, "COLUMNS": "200"}
        environment.pop("ICETOWER_TOKEN", None)
        if token is not None:
            environment["ICETOWER_TOKEN"] = token
        return subprocess.run(
            command(*words), capture_output=True, text=True, cwd=folder, env=environment, timeout=300, check=False
        )

    return type_it


@pytest.fixture
def contract(tmp_path: Path) -> str:
    path = tmp_path / "till.yaml"
    path.write_text(CONTRACT)
    return str(path)


def test_a_contract_is_applied_listed_shown_and_revoked(run: Run, contract: str) -> None:
    assert run("contracts", "apply", contract).stdout.splitlines()[-1] == "till: version 1 is in force"
    again = json.loads(run("contracts", "apply", contract, "--json").stdout)
    assert again["contracts"] == [{"contract": "till", "version": 1, "changed": False}]
    assert "till" in run("contracts", "list").stdout
    assert "shop.sales" in run("contracts", "show", "till").stdout
    assert run("contracts", "revoke", "till").stdout == "till is revoked\n"
    gone = run("contracts", "show", "till")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "no contract till in force" in gone.stderr


def test_a_principals_secret_is_shown_once_and_works_until_it_is_revoked(run: Run, contract: str) -> None:
    run("contracts", "apply", contract)
    secret = run("principals", "create", "till-7", "--contract", "till").stdout.strip()
    assert run("contracts", "show", "till", token=secret).returncode == 0
    listed = run("principals", "list", "--json").stdout
    assert [p["contract"] for p in json.loads(listed) if p["name"] == "till-7"] == ["till"]
    assert secret not in listed
    run("principals", "rotate", "till-7", "--grace", "1h")
    assert run("contracts", "show", "till", token=secret).returncode == 0
    second = json.loads(run("principals", "rotate", "till-7", "--json").stdout)["secret"]
    assert run("contracts", "show", "till", token=secret).returncode == 1
    assert run("contracts", "show", "till", token=second).returncode == 0
    assert run("principals", "revoke", "till-7").returncode == 0
    assert "unknown, expired or revoked" in run("contracts", "show", "till", token=second).stderr


WRONG = [
    # what is typed                                  status   what is said
    (("contracts", "apply", "nowhere.yaml"), 2, "nowhere.yaml cannot be read"),
    (("principals", "create", "x", "--contract", "none"), 1, "no contract none in force"),
    (("serve", "--config", "nowhere.toml"), 2, "nowhere.toml cannot be read"),
    (("contracts", "list", "--uri", "http://127.0.0.1:1"), 1, "no tower answers at http://127.0.0.1:1"),
    (("nonsense",), 2, "nonsense"),
]


@pytest.mark.parametrize(("words", "status", "said"), WRONG, ids=[" ".join(words) for words, _, _ in WRONG])
def test_what_is_wrong_is_said_without_a_traceback(run: Run, words: tuple[str, ...], status: int, said: str) -> None:
    done = run(*words)
    assert done.returncode == status
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_the_bare_install_says_what_its_program_needs() -> None:
    without = "import sys; sys.modules['typer'] = None; from icetower.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "install icetower[server]" in done.stderr


def _python(block: str, tower: TowerProcess, secrets: Mapping[str, str]) -> None:
    """A block of a page, at this tower and with the secrets that were printed before it."""
    code = block.replace("http://127.0.0.1:8181", tower.uri)
    for principal, secret in secrets.items():
        code = code.replace(f"{principal}:SECRET", f"{principal}:{secret}")
    exec(compile(code, "docs/mediator.md", "exec"), {})


@pytest.mark.spark
@pytest.mark.sharp
def test_the_pipelines_run_from_the_terminal(
    run: Run, tower: TowerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/mediator.md, block by block; then orphans of the tables that it leaves."""
    monkeypatch.setenv("ICETOWER_TOKEN", tower.secret)
    secrets: dict[str, str] = {}
    batches: list[dict[str, int]] = []
    ours = (each for each in blocks_of("docs/mediator.md") if each.kind != "in" or "test_cli.py" in each.more)
    for language, block in ((each.language, each.text) for each in ours):
        if language == "yaml":
            path = tmp_path / block.partition("\n")[0].removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
        elif language == "python":
            _python(block, tower, secrets)
        else:
            assert language == "sh"
            for line in block.splitlines():
                words = line.replace("contracts/", f"{tmp_path}/contracts/").split()
                token = secrets["mediator-1"] if words[0] == "ICETOWER_TOKEN=SECRET" else tower.secret
                options = ["--json"] if "mediate" in words else []
                done = run(*words[words.index("icetower") + 1 :], *options, token=token)
                assert done.returncode == 0, done.stderr[-2000:]
                if "create" in words:
                    secrets[words[3]] = done.stdout.split()[-1]
                batches += [json.loads(each) for each in done.stdout.splitlines() if options]
    (batch,) = batches
    assert (batch["read"], batch["applied"], batch["duplicates"], batch["rejected"]) == (4, 1, 1, 2)
    catalog = tower.catalog(tower.secret)
    assert catalog.load_table("shop.sales").scan().to_arrow()["sale"].to_pylist() == [17]

    # What till-1 has left in its own place goes as its contract says; what lies elsewhere is reported.
    contract = tmp_path / "contracts" / "till.yaml"
    tower.admin.apply_contract(contract.read_text() + "orphans: {older_than: 1ms, action: delete}\n")
    location = Path(urlparse(catalog.load_table("shop.sales").location()).path)
    own, other = location / "data" / "till-1" / "killed.parquet", location / "data" / "killed.parquet"
    for path in (own, other):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
    for options, fate in ((["--dry-run"], "would be deleted"), ([], "deleted")):
        found = run("orphans", "shop.sales", "--older-than-s", "0", "--json", *options)
        assert found.returncode == 0, found.stderr[-2000:]
        said = [json.loads(line) for line in found.stdout.splitlines()]
        fates = {Path(urlparse(each["path"]).path): each["fate"] for each in said if each["table"] == "shop.sales"}
        assert (fates.pop(own), fates[other], set(fates.values())) == (fate, "reported", {"reported"})
        assert own.exists() is (fate != "deleted")
    assert other.exists()


@pytest.mark.spark
@pytest.mark.sharp
def test_changes_are_collected_as_the_page_says(
    run: Run, tower: TowerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/collector.md, block by block, at a tower."""
    from icetower.pipelines.session import spark_session

    page = (Path(__file__).parents[2] / "docs" / "collector.md").read_text()
    monkeypatch.chdir(tmp_path)
    secrets: dict[str, str] = {}
    said: list[dict[str, Any]] = []
    names: dict[str, Any] = {}

    def session(token: str) -> Any:
        spark = spark_session("icetower-page", catalog_uri=tower.uri, token=token, settings=LIGHT)
        spark.sql("USE tower")
        return spark

    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if language == "yaml":
            path = tmp_path / block.partition("\n")[0].removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
        elif language == "sh":
            for line in block.splitlines():
                words = line.replace("contracts/", f"{tmp_path}/contracts/").split()
                options = ["--json"] if "collect" in words else []
                token = secrets["collector-1"] if options else tower.secret
                done = run(*words[words.index("icetower") + 1 :], *options, token=token)
                assert done.returncode == 0, done.stderr[-2000:]
                if "create" in words:
                    secrets[words[3]] = done.stdout.split()[-1]
                said += [json.loads(each) for each in done.stdout.splitlines() if options]
        else:
            spark = session(secrets["counter-1"] if "INSERT" in block else tower.secret)
            for statement in block.split(";") if language == "sql" else ():
                if statement.strip():
                    spark.sql(statement)
            if language == "python":
                names |= {"spark": spark, "catalog": tower.catalog(tower.secret)}
                exec(compile(block, "docs/collector.md", "exec"), names)
                seen = names.pop("rows", None)  # of the block with PyIceberg
                view = spark.table("stock_now").toArrow() if seen is None else seen
                assert view["amount"].to_pylist() == [42]
            spark.stop()
    (batch,) = said
    assert (batch["read"], batch["applied"], batch["rejected"]) == (2, 2, 0)
    assert tower.catalog(tower.secret).load_table("shop.stock").scan().to_arrow()["amount"].to_pylist() == [42]


@pytest.mark.spark
@pytest.mark.sharp
def test_rows_are_deduplicated_as_the_page_says(
    untouched: TowerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/dedup.md, block by block, at a tower. The job runs under its contract."""
    from icetower.pipelines.session import spark_session

    monkeypatch.chdir(tmp_path)
    tower, run = untouched, typed_at(untouched, tmp_path)
    secrets: dict[str, str] = {}
    said: list[dict[str, Any]] = []
    ours = (each for each in blocks_of("docs/dedup.md") if each.kind != "in" or "test_cli.py" in each.more)
    for language, block in ((each.language, each.text) for each in ours):
        if language == "yaml":
            path = tmp_path / block.partition("\n")[0].removeprefix("# ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
        elif language == "sh":
            for line in block.splitlines():
                words = line.replace("contracts/", f"{tmp_path}/contracts/").split()
                options = ["--json"] if "dedup" in words else []
                token = secrets["dedup-1"] if options else tower.secret
                done = run(*words[words.index("icetower") + 1 :], *options, token=token)
                assert done.returncode == 0, done.stderr[-2000:]
                if "create" in words:
                    secrets[words[3]] = done.stdout.split()[-1]
                said += [json.loads(each) for each in done.stdout.splitlines() if options]
        else:
            spark = spark_session("icetower-page", catalog_uri=tower.uri, token=tower.secret, settings=LIGHT)
            spark.sql("USE tower")
            for statement in block.split(";"):
                if statement.strip():
                    spark.sql(statement)
            spark.stop()
    validated, verified = said
    assert (validated["read"], validated["keys"], validated["removed"]) == (5, 3, 2)
    assert (verified["keys"], verified["orphans"]) == (3, [])
    rows = tower.catalog(tower.secret).load_table("system.agent_dedup_log").scan().to_arrow()
    assert sorted(rows["idempotency_key"].to_pylist()) == ["5f0c…", "a81e…", "c377…"]


def test_what_no_command_needs_is_not_imported() -> None:
    """All that the commands need takes a second and more to import, and most of them need little of it."""
    said = "print({'pyiceberg', 'pyarrow', 'numpy', 'sqlalchemy'} & sys.modules.keys())"
    program = f"import sys; from icetower.cli import main\ntry: main()\nexcept SystemExit: {said}"
    command = [sys.executable, "-c", program, "escalations", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_an_id_may_be_given_by_its_beginning_where_only_one_begins_so() -> None:
    def listing(limit: int) -> list[dict[str, Any]]:
        assert limit > 3
        return [{"id": "41c0"}, {"id": "41d1"}, {"id": "5e"}, {"id": "5ef"}]

    assert _full_id("5ef", listing) == "5ef"
    assert _full_id("41c", listing) == "41c0"
    assert _full_id("5e", listing) == "5e", "a whole id is that one, also where it begins another"
    assert _full_id("9", listing) == "9", "the server says that there is none"
    with pytest.raises(UsageError, match="'41' is the beginning of 2 ids: 41c0, 41d1; write more"):
        _full_id("41", listing)
