"""Where a page is run: a folder that looks like a clone, a catalog of the user's, a tower, and a shell.

A page's commands are run as they stand, but for the port, for secrets, and for placeholders. `icetower serve` goes on
in the background, since what follows it on a page is typed into another terminal.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

from icetower.agent import Landed, PublishedBranch
from icetower.contracts.document import load as load_contract
from icetower.gateway.settings import Settings, load_settings
from icetower.protocol.appends import parse_append
from icetower.protocol.checks import IntentRequest, parse_check
from icetower.protocol.landings import parse_fence
from icetower.protocol.publishing import parse_publish, parse_verdict
from icetower.protocol.row_limits import JSON_TYPE
from icetower.protocol.rows import parse_rows
from icetower_client_model.cases import Case
from icetower_simulator.experiments import parse as parse_experiment
from tests.pages.page_blocks import ROOT, Block

WITHIN_S = 300
CONTRACT = "version: 1\nagent: fragment\ntables:\n  - table: a.b\n    operations: [append]\n"
_WRAPPER = """\
#!/bin/bash
# The program, on a port of the test's own; `serve` goes on in the background.
case "$1" in
init) shift; exec "{real}" init "$@" --port {port} ;;
serve)
    shift
    nohup "{real}" serve "$@" --port {port} > "{folder}/serve.log" 2>&1 < /dev/null &
    echo $! >> "{folder}/pids"
    for _ in $(seq 600); do
        grep -q "icetower: serving" "{folder}/serve.log" && exit 0
        kill -0 $! 2> /dev/null || break
        sleep 0.1
    done
    cat "{folder}/serve.log" >&2
    exit 1 ;;
*) exec "{real}" "$@" ;;
esac
"""
_MAKE = """\
#!/bin/bash
exec "{real}" -C "{root}" "$@"
"""


class Failed(AssertionError):
    """A block did not do what the page says."""


class World:
    """A folder for one page, with a home of its own. `settle` makes the user's catalog, `stop` ends what was started.

    Attributes:
        secret: of the principal that the page has made last, or that it was given.
    """

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        self.port = free_port() if port is None else port
        self.here = folder / "clone"
        self.home = folder / "home"
        self.secret = ""
        self.replaced: dict[str, str] = {}
        self._python: subprocess.Popen[str] | None = None
        for each in (self.here, self.home, folder / "bin"):
            each.mkdir(parents=True)
        for name in subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.split("\0"):
            top = name.split("/")[0]
            if top and not (self.here / top).exists():
                (self.here / top).symlink_to(ROOT / top)
        (self.here / ".venv").symlink_to(ROOT / ".venv")
        icetower = _WRAPPER.format(real=Path(sys.executable).with_name("icetower"), port=self.port, folder=folder)
        self._tool("icetower", icetower)
        self._tool("make", _MAKE.format(real=shutil.which("make"), root=ROOT))

    def _tool(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def settle(self) -> None:
        """The user's catalog: `prod` in PyIceberg's configuration, with two tables."""
        data = self.folder / "data"
        data.mkdir()
        (self.home / ".pyiceberg.yaml").write_text(
            f"catalog:\n  prod:\n    type: sql\n    uri: sqlite:///{data}/catalog.db\n    warehouse: {data}/warehouse\n"
        )
        catalog = SqlCatalog("prod", uri=f"sqlite:///{data}/catalog.db", warehouse=f"file://{data}/warehouse")
        for namespace in ("pricing", "shop", "inventory"):
            catalog.create_namespace(namespace)
        prices = Schema(
            NestedField(1, "ts", TimestampType()),
            NestedField(2, "product_id", LongType()),
            NestedField(3, "price", DoubleType()),
        )
        spec = PartitionSpec(
            PartitionField(1, 1000, DayTransform(), "ts_day"),
            PartitionField(2, 1001, BucketTransform(16), "product_id_bucket"),
        )
        catalog.create_table("pricing.product_prices", prices, partition_spec=spec)
        sales = Schema(
            NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "day", LongType())
        )
        table = catalog.create_table("shop.sales", sales)
        for number in range(3):
            table.append(
                pa.table({"id": [number], "region": ["eu"], "day": [number]}),
                snapshot_properties={"app": f"job-{number}"},
            )
        catalog.engine.dispose()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ICETOWER_", "PYICEBERG_"))}
        path = os.pathsep.join((str(self.folder / "bin"), str(ROOT / ".venv/bin"), os.environ["PATH"]))
        return {**kept, "PATH": path, "HOME": str(self.home), "COLUMNS": "200"}

    # -- blocks ---------------------------------------------------------------------------------------------------

    def run(self, block: Block) -> None:
        """Raises `Failed`, or what a check raises."""
        if block.kind in ("as", "slow") and block.more:
            self.shell(block.more, block.place)
        elif block.kind == "check":
            CHECKS[block.more](json.loads(block.text) if block.language == "json" else block.text)
        else:
            _WAYS[block.language](self, block)

    def shell(self, text: str, place: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.filled(text)],
            cwd=self.here,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{place}: exit status {done.returncode}\n{text}\n{done.stdout}\n{done.stderr}")
        if secrets := re.findall(r"^ict_[\w-]+$", done.stdout, re.MULTILINE):
            self.secret = secrets[-1]
        return done.stdout

    def python(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("page_python.py"))],
                cwd=self.here,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({"code": self.filled(block.text), "place": block.place}) + "\n")
        self._python.stdin.flush()
        said: list[str] = []
        for line in self._python.stdout:
            said.append(line)
            if "\0" in line:
                break
        ended = said[-1].rpartition("\0")[2] if said else '"the process has ended"'
        if wrong := json.loads(ended):
            raise Failed(f"{block.place}:\n{block.text}\n{wrong}")

    def data(self, block: Block) -> None:
        """Settings, contracts and workloads are read; one that names its file in its first line is written there."""
        named = re.match(r"# ([\w./-]+\.(?:ya?ml|toml))\b", block.text)
        if named and not (self.here / named[1]).exists():
            (self.here / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (self.here / named[1]).write_text(self.filled(block.text))
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            _read_yaml(block.text, block.place)
        else:
            _read_toml(block.text, self.folder / "read.toml")

    def filled(self, text: str) -> str:
        """A text with this world's port, secret and names."""
        text = text.replace("127.0.0.1:8181", f"127.0.0.1:{self.port}")
        for word, value in {**self.replaced, "SECRET": self.secret}.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", lambda _, value=value: value, text)
        return text

    def stop(self) -> None:
        if self._python is not None:
            assert self._python.stdin is not None
            self._python.stdin.close()
            self._python.wait(WITHIN_S)
        pids = self.folder / "pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            try:
                os.kill(int(pid), signal.SIGTERM)
            except ProcessLookupError:
                continue


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _read_yaml(text: str, place: str) -> None:
    import yaml

    document = yaml.safe_load(text)
    if "agent" in document:
        load_contract(text, source=place)
    elif document.keys() <= {"partitions", "except"}:
        load_contract(CONTRACT + "".join(f"    {line}\n" for line in text.splitlines()), source=place)


def _read_toml(text: str, path: Path) -> None:
    import tomllib

    if tomllib.loads(text).keys() & {field.alias or name for name, field in Settings.model_fields.items()}:
        path.write_text(text)
        load_settings(path)


def _refusal(document: Any) -> None:
    names = {"message", "type", "code", "rule", "partitions", "snapshot", "files", "next_step"}
    assert document["error"].keys() == names | {"owner", "wait_until_ms", "escalated_to", "request_id"}


def _append_request(document: Any) -> None:
    parse_append(json.dumps(document).encode())


def _append_answer(document: Any) -> None:
    assert document.keys() == {"snapshot-id", "sequence-number", "outcome", "group-size", "files", "queue-wait-ms"}


def _rows_request(document: Any) -> None:
    assert parse_rows(json.dumps(document).encode(), JSON_TYPE, None).count == len(document["rows"])


def _rows_answer(document: Any) -> None:
    names = {"table", "snapshot-id", "sequence-number", "outcome", "group-size", "rows", "queue-wait-ms"}
    assert document.keys() == names


def _dry_run_request(document: Any) -> None:
    found = parse_check(json.dumps(document).encode())
    assert isinstance(found, IntentRequest)
    assert found.operations()
    assert found.regions()


def _landed_answer(document: Any) -> None:
    assert Landed.of(document).landed
    assert document.keys() == {"landed", "snapshot-id", "fenced", "error"}


def _fence_request(document: Any) -> None:
    assert parse_fence(json.dumps(document).encode()).key == document["key"]


def _dry_run_answer(document: Any) -> None:
    names = {"allowed", "outcome", "error", "snapshot", "operations", "partitions", "shadowed", "wait_ms"}
    assert document.keys() == names


def _partition_request(document: Any) -> None:
    assert document.keys() == {"table", "partitions", "operations", "reason"}


def _escalation_webhook(document: Any) -> None:
    assert document["event"] == "escalation.opened"
    assert isinstance(datetime.datetime.fromtimestamp(document["opened_ms"] / 1000, datetime.UTC), datetime.datetime)


def _case(document: Any) -> None:
    Case.model_validate(document)


def _experiment(text: str) -> None:
    parse_experiment(text, "page", "page")


def _provider(text: str) -> None:
    fixed = 'title = "x"\nmodel = "client"\n[setup]\nstorage = "mine"\ncatalog = "mine"\n'
    parse_experiment(f"{fixed}[sweep]\ninter_arrival_ms = [1000]\n{text}", "page", "page")


def _shipped(text: str) -> None:
    """An extract of what is shipped, but for empty lines and for how far it is indented."""
    folder = ROOT / "src/icetower/demo/retail"
    files = (path for path in folder.rglob("*") if path.suffix in (".py", ".sql", ".yaml"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for path in files:
        has = [line.strip() for line in path.read_text().splitlines() if line.strip()]
        if any(has[at : at + len(lines)] == lines for at in range(len(has))):
            return
    raise Failed(f"nothing under {folder} reads like this:\n{text}")


def _publish_request(document: Any) -> None:
    parse_publish(json.dumps(document).encode())


def _publish_answer(document: Any) -> None:
    PublishedBranch.of(document)


def _verdict_request(document: Any) -> None:
    parse_verdict(json.dumps(document).encode())


CHECKS: Mapping[str, Callable[[Any], None]] = {
    "refusal": _refusal,
    "append request": _append_request,
    "append answer": _append_answer,
    "rows request": _rows_request,
    "rows answer": _rows_answer,
    "dry run request": _dry_run_request,
    "dry run answer": _dry_run_answer,
    "landed answer": _landed_answer,
    "fence request": _fence_request,
    "partition request": _partition_request,
    "publish request": _publish_request,
    "publish answer": _publish_answer,
    "verdict request": _verdict_request,
    "escalation webhook": _escalation_webhook,
    "case": _case,
    "experiment": _experiment,
    "provider": _provider,
    "shipped": _shipped,
}
_WAYS: Mapping[str, Callable[[World, Block], object]] = {
    "sh": lambda world, block: world.shell(block.text, block.place),
    "python": World.python,
    "toml": World.data,
    "yaml": World.data,
    "json": World.data,
}
