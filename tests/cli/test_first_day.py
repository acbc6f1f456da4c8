"""The first minutes: `icetower init`, a token that is found without being asked for, completion in the shell."""

from __future__ import annotations

import os
import pty
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icetower.cli.app import COMMANDS, main
from icetower.cli.found_catalogs import has_password
from icetower.cli.own_tower import own_tower, token_for
from icetower.gateway.settings import load_settings
from verify.kit.tower_process import TowerProcess, command

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The program in an empty folder, for somebody without any configuration."""
    for name in [name for name in os.environ if name.startswith(("ICETOWER_", "PYICEBERG_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")

    def type_it(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["icetower", *words])
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        else:
            status = 0
        said = capsys.readouterr()
        return status, said.out, said.err

    return type_it


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PyIceberg SQL catalog, `prod`, with one table."""
    folder = tmp_path_factory.mktemp("theirs")
    catalog = SqlCatalog("prod", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    catalog.create_table("shop.sales", rows.schema).append(rows)
    catalog.engine.dispose()
    return folder


def _configure(theirs: Path, **more: str) -> None:
    lines = [f"    {name.replace('_', '-')}: {value}" for name, value in more.items()]
    Path(os.environ["HOME"], ".pyiceberg.yaml").write_text(
        f"catalog:\n  prod:\n    type: sql\n    uri: sqlite:///{theirs}/catalog.db\n"
        f"    warehouse: {theirs}/warehouse\n    s3.endpoint: http://127.0.0.1:9\n" + "\n".join(lines)
    )


class TestInit:
    def test_the_catalog_of_pyicebergs_configuration_is_found(self, run: Run, theirs: Path) -> None:
        _configure(theirs)
        status, out, err = run("init")
        assert (status, err) == (0, "")
        here = Path.cwd()
        for part in ("catalog prod", "1: shop.sales", "http://127.0.0.1:8181", f"{here}/.icetower/admin.token"):
            assert part in out
        assert "icetower serve" in out
        settings = load_settings(Path("icetower.toml"))
        assert settings.upstream.uri == f"sqlite:///{theirs}/catalog.db"
        assert settings.upstream.catalog == "prod"
        assert settings.upstream.warehouse == f"file://{theirs}/warehouse"
        assert settings.storage == {"s3.endpoint": "http://127.0.0.1:9"}
        assert settings.server.data == f"{here}/.icetower"
        assert Path("icetower.toml").stat().st_mode & 0o077 == 0

    def test_the_environments_catalog_is_found_too(
        self, run: Run, theirs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{theirs}/catalog.db")
        assert run("init")[0] == 0
        # Where nobody says it, the place of a table tells the warehouse.
        assert load_settings(Path("icetower.toml")).upstream.warehouse == f"file://{theirs}/warehouse"

    def test_a_catalog_is_named_by_its_address_alone(self, run: Run, theirs: Path) -> None:
        assert run("init", "--uri", f"sqlite:///{theirs}/catalog.db", "--port", "9000")[0] == 0
        settings = load_settings(Path("icetower.toml"))
        assert (settings.upstream.catalog, settings.server.port) == ("prod", 9000)

    def test_a_name_in_their_catalog_commands_no_terminal(self, run: Run, theirs: Path) -> None:
        hostile = "a\x1b]0;title\x07\x9b2J\u202eb"
        SqlCatalog("prod", uri=f"sqlite:///{theirs}/catalog.db", warehouse=f"file://{theirs}/warehouse").create_table(
            f"shop.{hostile}", pa.schema([("id", pa.int64())])
        )
        status, out, _ = run("init", "--uri", f"sqlite:///{theirs}/catalog.db")
        assert status == 0
        assert r"shop.a\x1b]0;title\x07\u009b2J\u202eb" in out

    def test_nothing_is_overwritten(self, run: Run, theirs: Path) -> None:
        _configure(theirs)
        Path("icetower.toml").write_text("mine")
        status, _, err = run("init")
        assert status == 2
        assert "icetower.toml exists already" in err
        assert Path("icetower.toml").read_text() == "mine"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((), "no SQL catalog: give --uri and --catalog, or --new"),
            (("--catalog", "stage"), "no catalog 'stage' (SQL catalogs there: none)"),
            (("--uri", "sqlite:////nowhere/at/all.db"), "there is no file /nowhere/at/all.db"),
            (("--uri", "mysql://host/name"), "a catalog in mysql is not supported"),
            (("--uri", "what?"), "write sqlite:////absolute/path.db or postgresql+psycopg://"),
            (("--new", "--catalog", "prod"), "leave out --uri and --catalog, or --new"),
        ],
    )
    def test_what_is_missing_is_named(self, run: Run, words: tuple[str, ...], said: str) -> None:
        status, _, err = run("init", *words)
        assert status == 2
        assert said in err
        assert not Path("icetower.toml").exists()

    def test_a_rest_catalog_is_said_to_be_none_for_it(self, run: Run) -> None:
        Path(os.environ["HOME"], ".pyiceberg.yaml").write_text(
            "catalog:\n  lake:\n    type: rest\n    uri: http://127.0.0.1:9\n"
        )
        status, _, err = run("init", "--catalog", "lake")
        assert status == 2
        assert "the catalog 'lake' of PyIceberg's configuration is not a SQL catalog" in err

    def test_a_password_is_not_shown(self, run: Run, tmp_path: Path) -> None:
        status, out, err = run("init", "--catalog", "x", "--uri", "postgresql://me:hush@127.0.0.1:1/lake")
        assert status == 2
        assert "hush" not in out + err
        assert "postgresql+psycopg://me:***@127.0.0.1:1/lake cannot be read" in err

    @pytest.mark.parametrize("option", ["password", "sslpassword"])
    def test_a_password_among_the_options_of_an_address_is_not_shown(self, run: Run, option: str) -> None:
        status, out, err = run("init", "--catalog", "x", "--uri", f"postgresql://127.0.0.1:1/lake?{option}=hush")
        assert status == 2
        assert "hush" not in out + err
        assert "postgresql+psycopg://127.0.0.1:1/lake cannot be read" in err
        assert has_password(f"postgresql://127.0.0.1/lake?{option}=hush"), "the file is its owner's alone"

    def test_an_address_that_is_none_is_the_callers_mistake(self, run: Run) -> None:
        status, out, err = run("init", "--catalog", "x", "--uri", "postgresql://me:hush@[::1/lake")
        assert status == 2
        assert "the catalog's address cannot be understood" in err
        assert "hush" not in out + err

    def test_an_empty_catalog(self, run: Run) -> None:
        status, out, _ = run("init", "--new", "--data", "there")
        assert status == 0
        assert "a new, empty catalog" in out
        settings = load_settings(Path("icetower.toml"))
        assert (settings.upstream.uri, settings.server.data) == (None, str(Path("there").absolute()))

    def test_at_a_terminal_it_asks(self, run: Run, theirs: Path, tmp_path: Path) -> None:
        """Two catalogs are configured; the second is chosen, and where its tables go is not configured."""
        _configure(theirs)
        leader, follower = pty.openpty()
        asking = subprocess.Popen(
            command("init"),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "PYICEBERG_CATALOG__STAGE__URI": f"sqlite:///{theirs}/catalog.db"},
        )
        os.close(follower)
        os.write(leader, b"2\n/new/tables\n")
        said = _all_of(leader)
        assert asking.wait(60) == 0, said
        # Its database knows the tables of `prod` only; that is said, since a wrong name would show an empty catalog.
        assert b"has no table of a catalog 'stage'; it has prod" in said
        upstream = load_settings(Path("icetower.toml")).upstream
        assert (upstream.catalog, upstream.warehouse) == ("stage", "file:///new/tables")


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    process = TowerProcess(tmp_path_factory.mktemp("tower") / "data")
    yield process
    process.stop()


class TestToken:
    @pytest.fixture
    def config(self, run: Run, tower: TowerProcess) -> str:
        port = tower.uri.rpartition(":")[2]
        Path("icetower.toml").write_text(f'[server]\nport = {port}\ndata = "{tower.data}"\n')
        return str(Path("icetower.toml").absolute())

    def test_beside_its_configuration_a_command_needs_neither_address_nor_token(
        self, run: Run, config: str, tower: TowerProcess
    ) -> None:
        assert own_tower().uri == tower.uri
        status, out, _ = run("principals", "list", "--json")
        assert status == 0
        assert '"admin"' in out

    def test_the_configuration_may_be_named(
        self, run: Run, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ICETOWER_CONFIG", config)
        assert run("principals", "list", "--json")[0] == 0

    def test_one_of_a_folder_above_is_not_taken_and_is_named(
        self, run: Run, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        below = Path(config).parent / "jobs" / "nightly"
        below.mkdir(parents=True)
        monkeypatch.chdir(below)
        assert f"set ICETOWER_CONFIG={config}" in run("principals", "list")[2]
        monkeypatch.setenv("ICETOWER_CONFIG", config)
        assert run("principals", "list")[::2] == (0, "")

    def test_without_a_token_both_places_are_named(
        self, run: Run, config: str, tower: TowerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Path("icetower.toml").unlink()
        status, _, err = run("contracts", "list", "--uri", tower.uri)
        assert status == 1
        assert "no credential was sent" in err
        assert "set ICETOWER_TOKEN" in err
        assert f"{Path.cwd()}/.icetower/admin.token does not exist" in err
        monkeypatch.setenv("ICETOWER_TOKEN", "ict_wrong")
        status, _, err = run("contracts", "list", "--uri", tower.uri)
        assert status == 1
        assert "the token was taken from ICETOWER_TOKEN" in err
        assert "ict_wrong" not in err

    def test_the_secret_goes_to_this_machines_tower_only(self, run: Run, config: str, tower: TowerProcess) -> None:
        assert token_for(tower.uri) == tower.secret
        assert token_for("http://tower.example:8181") is None

    def test_a_tower_on_an_address_of_this_machine_gets_it(
        self, run: Run, tower: TowerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port = urlsplit(tower.uri).port
        config = f'[server]\nhost = "tower.test"\nport = {port}\ndata = "{tower.data}"\n'
        Path("icetower.toml").write_text(config)
        connect = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", lambda at, *more: connect(("127.0.0.1", at[1]), *more))
        assert token_for(f"http://tower.test:{port}") == tower.secret
        assert token_for("http://tower.test:82") is None
        assert own_tower().uri == f"http://tower.test:{port}"

    def test_whoever_listens_in_its_place_does_not_get_it(self, run: Run, config: str, tower: TowerProcess) -> None:
        """Another user may have the port by now: it can ask the tower itself for its proof, and that does not help."""
        seen: list[str | None] = []

        class Squatter(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.headers.get("Authorization"))
                answer = httpx2.get(tower.uri + self.path)
                self.send_response(answer.status_code)
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Squatter) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            status, _, err = run("contracts", "list", "--uri", f"http://127.0.0.1:{server.server_port}")
            server.shutdown()
        assert status == 1
        assert "only to this machine's tower, which must prove that it has the same secret" in err
        assert seen
        assert set(seen) == {None}


class TestCompletion:
    def test_it_is_installed(self, run: Run) -> None:
        done = subprocess.run(
            command("--install-completion"), capture_output=True, text=True, env=_shell(), check=False
        )
        assert done.returncode == 0, done.stderr
        script = Path(os.environ["HOME"], ".bash_completions/icetower.sh")
        assert "_ICETOWER_COMPLETE=complete_bash" in script.read_text()

    @pytest.mark.parametrize(
        ("typed", "offered"),
        [
            ("icetower contr", ["contracts"]),
            ("icetower contracts re", ["revoke", "restore"]),
            ("icetower contracts sh", ["show", "shadow-report"]),
            ("icetower init --ne", ["--new"]),
        ],
    )
    def test_commands_that_are_not_imported_yet_are_offered(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, typed: str, offered: list[str]
    ) -> None:
        monkeypatch.setenv("_ICETOWER_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        assert sorted(_words(run())) == sorted(offered)

    def test_every_command_is_offered(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("_ICETOWER_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "icetower ")
        monkeypatch.setenv("COMP_CWORD", "1")
        assert set(_words(run())) == {name for name in COMMANDS if " " not in name}


def _all_of(leader: int) -> bytes:
    """All that is said at a terminal until it is closed."""
    said = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            said += os.read(leader, 4096)
        except OSError:  # its other end is closed
            break
    os.close(leader)
    return said


def _words(done: tuple[int, Any, Any]) -> list[str]:
    return done[1].split()


def _shell() -> dict[str, str]:
    """The environment of somebody who types in bash, whose shell is named instead of being looked for."""
    return {**os.environ, "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": ""}


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:///{}/nowhere/x.db", "there is no folder {}/nowhere"),
        ("sqlite:///{}/text.db", "file is not a database"),
        ("postgresql+psycopg://me:hush@127.0.0.1:1/shop", "refused"),
    ],
)
def test_a_wrong_upstream_address_is_named_with_its_cause_and_leaves_nothing(
    tmp_path: Path, uri: str, said: str
) -> None:
    (tmp_path / "text.db").write_text("no database, but a long enough text of letters\n" * 20)
    (tmp_path / "t.toml").write_text(
        f'[server]\ndata = "{tmp_path}/data"\nport = 0\n[upstream]\nuri = "{uri.format(tmp_path)}"\ncatalog = "c"\n'
        f'warehouse = "file://{tmp_path}/w"\n'
    )
    done = subprocess.run(
        command("serve", "--config", str(tmp_path / "t.toml")),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    for part in (said.format(tmp_path), uri.format(tmp_path).replace("hush", "***"), "[upstream] uri"):
        assert part in done.stderr
    assert "hush" not in done.stderr
    assert not (tmp_path / "data").exists()
