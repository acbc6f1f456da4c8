"""What unchanged clients gain from a tower, client by client and operation by operation: the table of docs/clients.md.

    run.py                                   all clients and operations
    run.py --only pyiceberg,duckdb --writers 8 --rounds 5

Some writers, each with a partition of its own, load the table, wait for each other, and commit at the same moment,
round after round. They do so on Iceberg's reference REST server, through a tower that knows nothing of what they read,
and through one to which the table's owner and the contracts declare it. What is counted: commits that landed, 409
answers, and rows that are not what they must be.

The clients are installed into `.cache/clients` in the versions that stand below. Go and Rust need `go` and `cargo`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from rich.console import Console
from rich.table import Table as Shown

from verify.kit.tower_process import TowerProcess
from verify.wire.counting import counting
from verify.wire.reference import reference_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "clients"
PYTHON = (
    "pyiceberg[pyarrow,pyiceberg-core]==0.12.0",
    "polars==2.1.0",
    "daft==0.7.26",
    "duckdb==1.4.4",
    "duckdb-ext-avro==1.4.4.20260205",
    "duckdb-ext-httpfs==1.4.4.20260205",
    "duckdb-ext-iceberg==1.4.4.20260205",
)
GO = "github.com/apache/iceberg-go@v0.7.0"
RUST = "0.10.1"
RUST_ARROW = "58"
COMMIT_WITHIN_S = 300
SIDES = ("reference server", "tower, nothing declared", "tower, declared")
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "price", LongType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))


@dataclass(frozen=True)
class Client:
    """A client, what it can do to one partition, and whether it writes partitioned tables."""

    name: str
    shown: str
    operations: tuple[str, ...]
    partitioned: bool = True


CLIENTS = (
    Client("pyiceberg", "PyIceberg 0.12.0", ("append", "overwrite", "delete", "upsert")),
    Client("polars", "Polars 2.1.0", ("append",)),
    Client("daft", "Daft 0.7.26", ("append",)),
    Client("duckdb", "DuckDB 1.4.4", ("append",), partitioned=False),
    Client("go", "iceberg-go 0.7.0", ("append", "overwrite", "delete")),
    Client("rust", "iceberg-rust 0.10.1", ("append",), partitioned=False),
    Client("spark", "Spark 4.1.4, Iceberg 1.12.0", ("append", "overwrite", "delete", "update", "upsert")),
)


@dataclass
class Outcome:
    """What became of the commits of one client, one operation, on one side."""

    landed: int = 0
    failed: list[str] = field(default_factory=list)
    conflicts: int = 0
    wrong: str = ""


# ── The clients ──────────────────────────────────────────────────────────────────────────────────────────────────────


def install(names: Sequence[str]) -> None:
    """What the chosen clients need, once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    uv = str(Path(sys.executable).with_name("uv"))
    if set(names) & {"pyiceberg", "polars", "daft", "duckdb"}:
        subprocess.run(
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, CACHE / "python"], check=True
        )
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", CACHE / "python" / "bin" / "python", *PYTHON], check=True
        )
    if "go" in names:
        folder = CACHE / "go"
        folder.mkdir(exist_ok=True)
        shutil.copy(HERE / "go" / "main.go", folder)
        if not (folder / "go.mod").exists():
            subprocess.run(["go", "mod", "init", "clients"], cwd=folder, check=True, capture_output=True)
            subprocess.run(["go", "get", GO], cwd=folder, check=True, capture_output=True)
        subprocess.run(["go", "mod", "tidy"], cwd=folder, check=True, capture_output=True)
        subprocess.run(["go", "build", "-o", "clients", "."], cwd=folder, check=True)
    if "rust" in names:
        folder = CACHE / "rust"
        shutil.copytree(HERE / "rust", folder, dirs_exist_ok=True)
        (folder / "Cargo.toml").write_text(
            '[package]\nname = "clients"\nversion = "0.1.0"\nedition = "2024"\n\n[dependencies]\n'
            f'arrow-array = "{RUST_ARROW}"\nparquet = "{RUST_ARROW}"\niceberg = "={RUST}"\n'
            f'iceberg-catalog-rest = "={RUST}"\ntokio = {{ version = "1", features = ["macros", "rt"] }}\n'
        )
        subprocess.run(["cargo", "build", "--quiet"], cwd=folder, check=True)


def command(client: str, operation: str) -> list[str]:
    if client == "go":
        return [str(CACHE / "go" / "clients"), operation]
    if client == "rust":
        return [str(CACHE / "rust" / "target" / "debug" / "clients"), operation]
    return [str(CACHE / "python" / "bin" / "python"), str(HERE / "python_driver.py"), client, operation]


def race(client: Client, operation: str, uri: str, tokens: Sequence[str], table: str, rounds: int) -> list[str]:
    """What each commit came to. The writers of a round begin when all of them have loaded the table."""
    if client.name == "spark":
        driver = [sys.executable, str(HERE / "spark_driver.py"), operation, uri, tokens[0], table]
        done = subprocess.run(
            [*driver, str(len(tokens)), str(rounds)], capture_output=True, text=True, check=False, timeout=1200
        )
        said = [line for line in done.stdout.splitlines() if line.startswith(("landed", "failed"))]
        assert len(said) == len(tokens) * rounds, done.stderr[-2000:]
        return said
    writers = [
        subprocess.Popen(
            [*command(client.name, operation), uri, token, table, str(region), str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for region, token in enumerate(tokens)
    ]
    said: list[str] = []
    try:
        for _ in range(rounds):
            for writer in writers:
                line = _line(writer)
                assert line == "ready", line
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("go\n")
                writer.stdin.flush()
            said += [_line(writer) for writer in writers]
        return said
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            for pipe in (writer.stdin, writer.stdout):
                if pipe is not None:
                    pipe.close()


def _line(writer: subprocess.Popen[str]) -> str:
    """The next line of the protocol; libraries may print others."""
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.startswith(("ready", "landed", "failed")):
            return line.strip()
    return "failed: the writer ended"


# ── The sides ────────────────────────────────────────────────────────────────────────────────────────────────────────


def furnish(
    catalog: Catalog, table: str, client: Client, writers: int, rounds: int, properties: dict[str, str]
) -> None:
    spec = BY_REGION if client.partitioned else UNPARTITIONED_PARTITION_SPEC
    created = catalog.create_table(table, SCHEMA, partition_spec=spec, properties=properties)
    if client.name == "go":  # it sets this where it is missing, with its overwrites and deletions, which takes `alter`
        with created.transaction() as change:
            change.set_properties({"schema.name-mapping.default": created.schema().name_mapping.model_dump_json()})
    regions = [(region, i) for region in range(writers) for i in (*range(5), *range(10, 10 + rounds))]
    created.append(
        pa.table(
            {
                "id": [region * 1000 + i for region, i in regions],
                "region": [f"r{region}" for region, _ in regions],
                "price": [0] * len(regions),
            },
            schema=pa.schema([("id", pa.int64()), ("region", pa.string()), ("price", pa.int64())]),
        )
    )


def contract(table: str, region: int, client: Client, *, declared: bool) -> str:
    """Spark's writers share one session, and so one contract; the others own a partition each."""
    shared = client.name == "spark" or not client.partitioned
    partitions = "all" if shared else f"[{{region: r{region}}}]"
    place = ", write_location: table" if client.name in ("duckdb", "rust", "go") else ""
    promise = ", read_scope: owned" if declared and not shared else ""
    return f"tables:\n- {{table: {table}, operations: [overwrite], partitions: {partitions}{promise}{place}}}\n"


def wrong(catalog: Catalog, table: str, operation: str, outcome: Outcome, writers: int, rounds: int) -> str:
    """Where the table is not what the commits that landed make of it."""
    found = catalog.load_table(table).scan().to_arrow().to_pylist()
    ids = [row["id"] for row in found]
    if len(ids) != len(set(ids)):
        return f"{len(ids) - len(set(ids))} rows twice"
    seeded = writers * (5 + rounds)
    if operation == "append" and len(ids) != seeded + outcome.landed:
        return f"{len(ids)} rows in place of {seeded + outcome.landed}"
    if operation == "delete" and len(ids) != seeded - outcome.landed:
        return f"{len(ids)} rows in place of {seeded - outcome.landed}"
    if operation == "update" and len(ids) != seeded:
        return f"{len(ids)} rows in place of {seeded}"
    return ""


def run(client: Client, operation: str, sides: Sequence[str], writers: int, rounds: int) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for side in sides:
        with tempfile.TemporaryDirectory() as folder, standing(side, Path(folder)) as (uri, tower):
            table = "lake.t"
            declared = side == SIDES[2]
            properties = {"icetower.blind-appends": "true"} if declared and operation == "append" else {}
            if declared and client.name == "spark":
                properties |= {f"write.{what}.isolation-level": "snapshot" for what in ("merge", "update", "delete")}
            token = {} if tower is None else {"token": tower.secret}
            catalog = load_catalog("lake", type="rest", uri=uri, **token)
            catalog.create_namespace("lake")
            furnish(catalog, table, client, writers, rounds, properties)
            tokens = [""] * writers
            if tower is not None:
                tokens = [
                    tower.principal(f"w{region}", contract(table, region, client, declared=declared))
                    for region in range(writers)
                ]
            with counting(uri) as answers:
                said = race(client, operation, answers.uri, tokens, table, rounds)
            outcome = Outcome(said.count("landed"), [line for line in said if line != "landed"], answers.statuses[409])
            outcome.wrong = wrong(catalog, table, operation, outcome, writers, rounds)
            found[side] = outcome
    return found


@contextmanager
def standing(side: str, folder: Path) -> Generator[tuple[str, TowerProcess | None]]:
    if side == SIDES[0]:
        with reference_server(folder / "reference") as uri:
            yield uri, None
        return
    tower = TowerProcess(folder / "data")
    try:
        yield tower.uri, tower
    finally:
        tower.stop()


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def cell(outcome: Outcome, commits: int) -> str:
    landed = "all" if outcome.landed == commits else f"{outcome.landed} of {commits}"
    conflicts = f", {outcome.conflicts} × 409" if outcome.conflicts else ""
    return landed + conflicts + (f"; {outcome.wrong}" if outcome.wrong else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(client.name for client in CLIENTS), help="clients, by commas")
    parser.add_argument("--operations", default="", help="operations, by commas; all by default")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    chosen = given.only.split(",")
    install(chosen)
    shown = Shown("client", "operation", *SIDES)
    everything: list[dict[str, Any]] = []
    for client in CLIENTS:
        for operation in client.operations if client.name in chosen else ():
            if given.operations and operation not in given.operations.split(","):
                continue
            found = run(client, operation, SIDES, given.writers, given.rounds)
            commits = given.writers * given.rounds
            shown.add_row(client.shown, operation, *(cell(found[side], commits) for side in SIDES))
            for side, outcome in found.items():
                everything.append(
                    {"client": client.shown, "operation": operation, "side": side, "commits": commits}
                    | {"landed": outcome.landed, "conflicts": outcome.conflicts, "wrong": outcome.wrong}
                    | {"failures": sorted(set(outcome.failed))[:3]}
                )
                sys.stderr.write(f"{client.shown} {operation}, {side}: {cell(outcome, commits)} {outcome.failed[:1]}\n")
    if given.as_json:
        sys.stdout.write(json.dumps(everything, indent=2) + "\n")
    else:
        Console(width=160).print(shown)
    if any(each["wrong"] for each in everything if each["side"] != SIDES[0]):
        raise SystemExit("rows are wrong behind a tower")


if __name__ == "__main__":
    main()
