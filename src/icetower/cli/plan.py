"""`icetower plan`: the patterns that hold a workload, and where each breaks, before anything is built."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from icetower.cli.contract_tables import Routes
from icetower.cli.known import require_table
from icetower.cli.lake import Lake, part
from icetower.cli.printing import show
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, token_for
from icetower.cli.simulate import make_folder, needed, progress
from icetower.cli.terminal import at_terminal, say
from icetower.counting import counted
from icetower.errors import ConfigurationError, IcetowerError, UsageError
from icetower.protocol.names import Identifier

if TYPE_CHECKING:
    from icetower_simulator.planner import Advice, Plan, Workload

QUESTIONS = (
    ("agents", "How many agents write to the table?"),
    ("writes_per_hour", "How often does each write, times an hour?"),
    ("appends", "What share of the writes only adds rows, from 0 to 1?"),
    ("partitions", "Over how many partitions are the writes spread?"),
    ("own_partitions", "Does each agent write to partitions of its own?"),
    ("conflicts", "What share of the other writes changes rows that others change at the same time, from 0 to 1?"),
    ("by_the_clock", "Does each write at a fixed pace, by the clock?"),
    ("checked_first", "Is the work several commits, or checked before anybody sees it?"),
    ("work_s", "How long does an agent work on a write, in seconds?"),
    ("freshness_s", "Within how many seconds is a write to be visible?"),
    ("storage", "Where does the table lie: s3, s3x, azure, azurex or gcp?"),
    ("catalog_latency_ms", "How long does a round trip to the catalog take, in milliseconds?"),
)
LOG_LIMIT = 10_000
"""The most attempts that are read from a tower's log."""


def plan(
    workload: Annotated[Path | None, typer.Argument(help="A TOML file (docs/planner.md); else you are asked.")] = None,
    log: Annotated[str, typer.Option("--log", help="Take it from a tower's log of commits to this table.")] = "",
    uri: Uri = DEFAULT_URI,
    work_s: Annotated[float, typer.Option(help="With --log: how long an agent works on a write, in seconds.")] = 30.0,
    freshness_s: Annotated[float, typer.Option(help="With --log: within how long a write is to be visible.")] = 60.0,
    storage: Annotated[str, typer.Option(help="With --log: where the table lies.")] = "s3",
    table: Annotated[str, typer.Option(help="The table that the contract is to name.")] = "namespace.table",
    out: Annotated[Path | None, typer.Option(help="A folder for the plot, the numbers and a contract.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a workload under every writing pattern.

    It shows what each pattern holds today and at ten times the load, and where it breaks; and which way of writing
    docs/choosing.md chooses: an append, the collector, a contract, a slot, an intent or a branch.

    A pattern holds a load if 95 % of the writes commit, and 99 % of those are visible within the freshness wanted.

    \b
    Example:
      icetower plan examples/workloads/inventory.toml
      icetower plan --log shop.sales
    """
    planner = needed("planner")
    if log:
        given = {"title": log, "work_s": work_s, "freshness_s": freshness_s, "storage": storage}
        with connect(uri) as tower:
            attempts = tower.commits(limit=LOG_LIMIT, table=log)
            if not attempts:
                require_table(tower, uri, log)
        found: Workload = planner.workload_of_log(attempts, **given)
    elif workload is not None:
        try:
            text = workload.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{workload} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{workload} is not TOML: it is not UTF-8 ({error.reason})") from error
        found = planner.workload_from(text, str(workload))
    elif at_terminal():
        found = _ask_workload(planner)
    else:
        raise UsageError("name a file with the workload (docs/planner.md describes it), or give --log and a table")
    make_folder(out)
    with progress(quiet=as_json) as on_progress:
        done: Plan = planner.plan(found, on_progress)
    proposed, choice, best = needed("proposed"), needed("choosing").choose(found), done.advice[0].candidate.name
    shared = proposed.shared_by(_metadata(uri, log)) if log else None
    first, chosen = (proposed.contracts(done, name, log or table, shared_by=shared) for name in (best, choice.proposed))
    if out is not None:
        _write(out, done, {"contract": first} | ({"choice": chosen} if chosen != first else {}))
    if as_json:
        said = {"choice": choice.as_json(done) | {"contracts": chosen}, "contract": first[0], "contracts": first}
        say(json.dumps(done.as_json() | said))
        return
    _show(done)
    say(choice.text(done))
    if chosen != first:
        _show_contracts("To do as docs/choosing.md says, start from", chosen)
    _show_contracts(f"To write as {best}, the first row of the table, start from", first)


def _metadata(uri: str, table: str) -> Mapping[str, Any]:
    """A table's metadata; of one that is not there any more, or that the caller may not read, that of an empty one."""
    try:
        with Routes(uri, token_for(uri)) as routes:
            return part(Lake(routes).load(Identifier.parse(table)), "metadata")
    except IcetowerError:
        return {"schemas": [], "partition-specs": [], "current-schema-id": 0, "default-spec-id": 0}


def _ask_workload(planner: Any) -> Workload:
    """Ask a person for the workload; return accepts a question's proposal."""
    proposed = {field.name: field.default for field in fields(planner.Workload)}
    answers = {name: typer.prompt(question, default=proposed[name]) for name, question in QUESTIONS}
    return planner.workload_of(answers, "your answers")


def _show_contracts(words: str, contracts: Sequence[str]) -> None:
    say("")
    say(f"{words}:")
    for contract in contracts:
        say("")
        say(contract.rstrip())


def _write(out: Path, done: Plan, proposed: Mapping[str, Sequence[str]]) -> None:
    """The plot, the numbers, and files of contracts by how their names begin."""
    from icetower_simulator.plots import plan_plot

    try:
        (out / "plan.svg").write_text(plan_plot(done))
        (out / "plan.json").write_text(json.dumps(done.as_json(), indent=1) + "\n")
        for name, contracts in proposed.items():
            for number, contract in enumerate(contracts, 1):
                (out / (f"{name}.yaml" if number == 1 else f"{name}-{number}.yaml")).write_text(contract)
    except OSError as error:
        raise ConfigurationError(f"--out {out} cannot be written: {error.strerror or error}") from error


def _show(done: Plan) -> None:
    workload = done.workload
    shown = Table(
        title=f"{workload.title}: {counted(workload.agents, 'agent')}, {workload.rate_per_s:.3g} writes a second, "
        f"to be visible within {workload.freshness_s:g} s",
        title_justify="left",
        title_style="bold",
    )
    shown.add_column("pattern", no_wrap=True, min_width=10)
    for name in ("load", "holds", "commits a s", "success %", "p50 s", "p99 s", "visible p99 s", "wasted %"):
        shown.add_column(name, justify="right")
    for name in ("requests each", "USD for 1000", "breaks at"):
        shown.add_column(name, justify="right")
    for each in done.advice:
        for assessed, load in ((each.today, "today"), (each.grown, "10 x")):
            shown.add_row(
                each.candidate.name if load == "today" else "",
                load,
                "yes" if assessed.holds(workload) else "no",
                f"{assessed.commits_per_s:.3g}",
                f"{assessed.success_pct:.1f}",
                f"{assessed.p50_s:.3g}",
                f"{assessed.p99_s:.3g}",
                f"{assessed.fresh_p99_s:.3g}",
                f"{assessed.wasted_pct:.1f}",
                f"{assessed.requests:.1f}",
                f"{assessed.usd_per_1000:.3f}",
                _breaks(each) if load == "today" else "",
                end_section=load != "today",
            )
    show(shown)
    for each in done.advice:
        say(f"{each.candidate.name}: {each.candidate.description}")


def _breaks(advice: Advice) -> str:
    return f"> {advice.curve[-1].times:g} x" if advice.breaks_at is None else f"{advice.breaks_at:g} x"
