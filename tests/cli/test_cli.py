"""The program as a person types it, against a running tower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from tower_process import TowerProcess, command

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
    folder = tmp_path_factory.mktemp("elsewhere")

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
    second = run("principals", "rotate", "till-7").stdout.strip()
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


@pytest.mark.spark
def test_the_pipelines_run_from_the_terminal(run: Run, tower: TowerProcess, contract: str) -> None:
    run("contracts", "apply", contract)
    catalog = tower.catalog(tower.secret)
    for namespace in ("shop", "system"):
        catalog.create_namespace_if_not_exists(namespace)
    sales = pa.schema([("amount", pa.int64()), ("_idempotency_key", pa.string())])
    log = pa.schema([*sales, ("_agent", pa.string())])
    catalog.create_table("shop.sales", sales)
    with catalog.create_table("shop.log", log).update_spec() as spec:
        spec.add_identity("_agent")
    rows = {"amount": [5, 7, 5], "_idempotency_key": ["a", "b", "a"], "_agent": ["till"] * 3}
    catalog.load_table("shop.log").append(pa.table(rows, schema=log))
    done = run("mediate", "--wal", "shop.log", "--target", "shop.sales", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    batch = json.loads(done.stdout.splitlines()[0])
    assert (batch["read"], batch["applied"], batch["duplicates"], batch["rejected"]) == (3, 2, 1, 0)
    assert sorted(catalog.load_table("shop.sales").scan().to_arrow()["amount"].to_pylist()) == [5, 7]

    # What till-1 has left in its own place goes as its contract says; what lies elsewhere is reported.
    tower.admin.apply_contract(Path(contract).read_text() + "orphans: {older_than: 1ms, action: delete}\n")
    tower.admin.create_principal("till-1", "till")
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


def test_what_no_command_needs_is_not_imported() -> None:
    """All that the commands need takes a second and more to import, and most of them need little of it."""
    said = "print({'pyiceberg', 'pyarrow', 'numpy', 'sqlalchemy'} & sys.modules.keys())"
    program = f"import sys; from icetower.cli import main\ntry: main()\nexcept SystemExit: {said}"
    command = [sys.executable, "-c", program, "escalations", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
