"""`icetower contracts grants`: puts contracts in force as grants of an existing catalog (docs/grants.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from icetower.ambient import SystemAmbient
from icetower.cli.credentials import Credentials
from icetower.cli.polaris import CATALOG, MANAGEMENT, Outcome, carry_out, connect, look
from icetower.cli.printing import SafeConsole
from icetower.cli.registry import Json
from icetower.cli.terminal import say
from icetower.cli.write_settings import Setting, Tables
from icetower.contracts.document import load
from icetower.contracts.grants import Grants, compile_grants
from icetower.contracts.model import Contract
from icetower.contracts.polaris import Found, Request, left_alone, requests_for
from icetower.errors import IcetowerError, UsageError
from icetower.texts import escaped


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes to make.

    Attributes:
        settings: properties of tables.
        missing: tables that contracts name and that do not exist.
        others: managed roles of contracts that were not given → their contract.
    """

    grants: Grants
    requests: tuple[Request, ...]
    settings: tuple[Setting, ...] = ()
    missing: tuple[str, ...] = ()
    others: dict[str, str] = field(default_factory=dict[str, str])


def grants(
    files: Annotated[list[Path], typer.Argument(help="Contracts in YAML: all that share the catalog.")],
    catalog: Annotated[str, typer.Option(help="The catalog's name in Polaris.")],
    polaris: Annotated[
        str, typer.Option(help="Polaris's address; with --dry-run it may be left out: the plan for an empty one.")
    ] = "",
    principal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=CONTRACT",
            help="A principal and its contract; may be repeated. Without any, each contract's principal has its "
            "agent's name.",
        ),
    ] = None,
    by_namespace: Annotated[
        bool, typer.Option("--by-namespace", help="Grant on the namespaces of tables instead of on the tables.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="These are all contracts: delete the managed roles of all others.")
    ] = False,
    tables: Annotated[bool, typer.Option(help="Set the write settings on the tables, too.")] = True,
    catalog_uri: Annotated[
        str, typer.Option(help="The catalog's Iceberg REST routes; by default POLARIS/api/catalog.")
    ] = "",
    credentials: Annotated[Path, typer.Option(help="The folder for the credentials of new principals.")] = Path(
        ".icetower/polaris"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Put contracts in force as grants of Apache Polaris.

    They become roles, principals, privileges and table properties.

    Existing objects stay; privileges of managed roles beyond the contracts are revoked. The caller's credentials are in
    ICETOWER_POLARIS_TOKEN (a bearer token) or ICETOWER_POLARIS_CREDENTIAL (client-id:client-secret).

    Exit status: 0 all is in force, or a plan was shown; 1 something failed or waits; 2 wrong usage.

    \b
    Example:
      icetower contracts grants contracts/*.yaml --catalog prod --polaris http://127.0.0.1:8181 --dry-run
    """
    contracts = [_read(file) for file in files]
    wanted = compile_grants(contracts, map(_binding, principal or ()), catalog=catalog, by_namespace=by_namespace)
    if not polaris:
        if not dry_run:
            raise UsageError("give Polaris's address with --polaris, or ask for a plan with --dry-run")
        _show(Plan(wanted, requests_for(wanted, Found())), Outcome(), as_json)
        return
    kept, attempt = Credentials(credentials), SystemAmbient().uuid4()
    with ExitStack() as stack:
        server = stack.enter_context(connect(polaris))
        found = look(server, wanted)
        requests = requests_for(wanted, found, attempt=attempt, unanswered=kept.unanswered(), prune=prune)
        others = {} if prune else dict(left_alone(wanted, found))
        plan, outcome, lake = Plan(wanted, requests, others=others), Outcome(), None
        if tables:
            at = stack.enter_context(server.elsewhere(catalog_uri or server.uri + CATALOG))
            lake = Tables(at, catalog)
            settings, missing = lake.settings(contracts)
            plan = replace(plan, settings=settings, missing=missing)
        if not as_json:
            _show(plan, outcome, as_json)
        if not dry_run:
            outcome = carry_out(server, requests, kept, attempt)
            if lake is not None and outcome.error is None:
                _set(lake, plan.settings, outcome)
    _finish(plan, outcome, dry_run=dry_run, as_json=as_json)


def _read(file: Path) -> Contract:
    try:
        return load(file.read_text(), source=str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{file} cannot be read: {reason}") from error


def _binding(text: str) -> tuple[str, str]:
    name, equals, contract = text.partition("=")
    if not (name and equals and contract):
        raise UsageError(f"--principal {text!r}: write NAME=CONTRACT, such as pricing-1=pricing_agent")
    return name, contract


def _set(lake: Tables, settings: Iterable[Setting], outcome: Outcome) -> None:
    for setting in settings:
        try:
            lake.commit(setting)
        except IcetowerError as error:
            outcome.error = error
            return
        outcome.done += 1


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _finish(plan: Plan, outcome: Outcome, *, dry_run: bool, as_json: bool) -> None:
    """Print the outcome. Raises the error that ended it early."""
    total = len(plan.requests) + len(plan.settings)
    if as_json:
        _show(plan, outcome, as_json)
    elif not dry_run:
        for name, file in outcome.credentials.items():
            say(f"the credentials of {name} are in {file}")
        for words in outcome.waiting:
            say(f"waits: {words}")
        say(f"{outcome.done} of {total} done")
    if outcome.error is not None:
        raise type(outcome.error)(
            f"{outcome.error.message} ({outcome.done} of {total} done; run the command again to continue from there)",
            rule=outcome.error.rule,
        )
    if not dry_run and (outcome.waiting or plan.missing):
        raise typer.Exit(1)


def _show(plan: Plan, outcome: Outcome, as_json: bool) -> None:
    if as_json:
        say(json.dumps(_as_json(plan, outcome), indent=2))
        return
    console = SafeConsole(markup=False, highlight=False, emoji=False)
    console.print(
        _table("To do", ("what", "request"), _rows(plan)) if _rows(plan) else "Nothing to do: all is in force."
    )
    for name, contract in plan.others.items():
        console.print(f"{name} is not changed: its contract {contract} was not given (--prune deletes it)")
    for table in plan.missing:
        console.print(f"{escaped(table)} does not exist yet: its properties wait")
    remarks = [(remark.contract, remark.about, remark.words) for remark in plan.grants.remarks]
    console.print(_table("Not enforced there", ("contract", "about", "what"), remarks))


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(request.why, f"{request.method} {request.path}") for request in plan.requests]
    for setting in plan.settings:
        for name, value in setting.wanted.items():
            rows.append((f"set {name} of {setting.table} to {value}, now {setting.now[name] or 'unset'}", "commit"))
    return rows


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(escaped, row))
    return table


def _as_json(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    return {
        "catalog": plan.grants.catalog,
        "requests": [
            {"method": request.method, "path": MANAGEMENT + request.path, "body": request.body, "why": request.why}
            for request in plan.requests
        ],
        "tables": [
            {"table": str(setting.table), "set": dict(setting.wanted), "now": dict(setting.now)}
            for setting in plan.settings
        ],
        "tables_missing": list(plan.missing),
        "not_enforced": [
            {"contract": remark.contract, "about": remark.about, "what": remark.words} for remark in plan.grants.remarks
        ],
        "left_alone": plan.others,
        "done": outcome.done,
        "waiting": outcome.waiting,
        "credentials": {name: str(file) for name, file in outcome.credentials.items()},
        "error": None if outcome.error is None else outcome.error.message,
    }
