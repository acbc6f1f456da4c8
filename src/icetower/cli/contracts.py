"""`icetower contracts …`: drafts, checks, applies, revokes and restores contracts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli import contract_output as output
from icetower.cli.completion import complete_contract
from icetower.cli.contract_files import files_at, read_files, written
from icetower.cli.contract_output import Difference
from icetower.cli.contract_tables import TowerState, read_state
from icetower.cli.contract_template import TemplateFields, template
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect, print_rows, token_for
from icetower.cli.terminal import FAILED, at_terminal, fail, say, tell_finding, warn
from icetower.cli.times import time_text
from icetower.contracts import references, review
from icetower.contracts.findings import RULES, Finding, Severity, Written, condensed
from icetower.contracts.model import NAME, Contract
from icetower.contracts.schema import FILE_NAME, schema_text
from icetower.errors import Forbidden, NotFound, UsageError

Name = Annotated[str, typer.Argument(help="The contract.", autocompletion=complete_contract)]

contracts = typer.Typer(help="Isolation contracts: who may write what.", no_args_is_help=True)

Files = Annotated[list[Path], typer.Argument(help="Contracts in YAML, or folders of them.")]
Ignore = Annotated[
    list[str] | None, typer.Option(metavar="RULE", help="Leave findings of a rule out; may be repeated.")
]
Message = Annotated[str | None, typer.Option("--message", "-m", help="The reason; it is kept with the version.")]


# ── Before they are in force ─────────────────────────────────────────────────────────────────────────────────────────


@contracts.command("init")
def init(
    name: Annotated[str, typer.Argument(help="The agent.")],
    table: Annotated[list[str] | None, typer.Option(help="A table that it writes to; may be repeated.")] = None,
    operations: Annotated[str, typer.Option(help="The operations that it may do, by commas.")] = "append",
    owner: Annotated[str | None, typer.Option(help="The person or team responsible for it.")] = None,
    escalation: Annotated[
        str | None, typer.Option(help="Contact for failures: an address, or `Name <address>`.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="The file to write.  [default: NAME.yaml]")] = None,
    as_json: Json = False,
) -> None:
    """Write a first contract for an agent.

    It also writes the JSON Schema with which editors complete contracts. Nothing is overwritten.

    At a terminal it asks for missing values.

    \b
    Example:
      icetower contracts init pricing_agent --table pricing.product_prices
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"agent {name!r}: write 1 to 128 letters, digits, '_', '-' or '.'")
    asks = at_terminal()
    if table is None and asks:
        table = [typer.prompt("Table that it writes to, with its namespace", default="namespace.table")]
    if owner is None and asks:
        owner = typer.prompt("Who is responsible for it (address)", default="", show_default=False)
    if escalation is None and asks:
        escalation = typer.prompt(
            "Who is notified when it keeps failing (Name <address>)", default="", show_default=False
        )
    granted = tuple(operation for operation in operations.split(",") if operation)
    text = template(TemplateFields(name, tuple(table or ()), granted, owner or "", escalation or ""))
    path = file or Path(f"{name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(text)
        schema = path.parent / FILE_NAME
        if not schema.exists():
            schema.write_text(schema_text(), encoding="utf-8")
    except FileExistsError as error:
        raise UsageError(f"{path} exists already, and was not changed; choose another with --file") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    done = f"{path} is written; `icetower contracts check {path}` shows what it lacks"
    say(json.dumps({"file": str(path), "schema": str(path.parent / FILE_NAME)}) if as_json else done)


@contracts.command("schema")
def schema(as_json: Annotated[bool, typer.Option("--json", help="As without it: the schema is JSON.")] = False) -> None:
    """Print the JSON Schema of contracts, for editors.

    \b
    Example:
      icetower contracts schema > contract.schema.json
    """
    del as_json
    sys.stdout.write(schema_text())


@contracts.command("check")
def check(
    files: Files,
    uri: Annotated[
        str | None, typer.Option(envvar="ICETOWER_URI", help="Also check them against the tables of this tower.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="REF", help="Show what has changed since this git commit.")
    ] = None,
    partitions: Annotated[
        bool, typer.Option(help="With --uri: read the tables' manifests, to find the partitions with rows.")
    ] = True,
    annotations: Annotated[
        str | None, typer.Option(metavar="github", help="Also print findings as GitHub shows them in a pull request.")
    ] = None,
    ignore: Ignore = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    as_json: Json = False,
) -> None:
    """Check contracts before they are applied.

    It finds clauses that do not do what was meant, partitions that two agents own, and partitions without an owner.

    Without --uri it only reads the files. With it (as an administrator, by ICETOWER_TOKEN) it also checks that tables,
    columns and partitions exist, and compares with other agents' contracts in force.

    Exit status: 0 no errors; 1 errors; 2 wrong usage.

    \b
    Example:
      icetower contracts check contracts/*.yaml
      icetower contracts check contracts/ --uri http://127.0.0.1:8181
    """
    if annotations not in (None, "github"):
        raise UsageError(f"--annotations {annotations}: only github is known")
    _require_known_rules(ignore)
    given = read_files(files, may_be_gone=against is not None)
    differences: list[Difference] = []
    it, findings = written(given)
    if against is not None:
        differences = _since(against, files, it)
    findings += _findings(it, uri, partitions)
    kept = [finding for finding in condensed(findings) if finding.rule not in (ignore or ())]
    if strict:
        kept = [_stricter(finding) for finding in kept]
    errors = sum(finding.severity is Severity.ERROR for finding in kept)
    if as_json:
        found = [output.finding_json(finding) for finding in kept]
        say(
            json.dumps({"findings": found, "changes": [output.difference_json(each) for each in differences]}, indent=2)
        )
    else:
        if against is not None:
            output.say_differences(differences, nothing=f"nothing has changed since {against}")
        output.say_findings(kept)
        if annotations is not None:
            for command in output.github_commands(kept, differences, {file.shown for file in given}):
                say(command)
    if errors:
        raise typer.Exit(1)


def _require_known_rules(ignore: Sequence[str] | None) -> None:
    if unknown := set(ignore or ()) - RULES.keys():
        raise UsageError(f"--ignore {', '.join(sorted(unknown))}: no such rule; the rules are {', '.join(RULES)}")


def _require_valid(contracts: Sequence[Written], uri: str, ignore: Sequence[str] | None) -> None:
    """Print the review's findings on standard error. Exits with 1 if there are errors."""
    found = condensed(_findings(contracts, uri, partitions=False))
    kept = [each for each in found if each.rule not in (ignore or ()) and each.severity is not Severity.NOTE]
    for finding in kept:
        tell_finding(f"{finding.place}: {finding.severity}: {finding.message} [{finding.rule}]")
    if errors := sorted({each.rule for each in kept if each.severity is Severity.ERROR}):
        ignoring = f"--ignore {' --ignore '.join(errors)}"
        fail(f"nothing was put in force: correct the errors, or ignore them with {ignoring}", FAILED)
        raise typer.Exit(FAILED)


def _stricter(finding: Finding) -> Finding:
    if finding.severity is not Severity.WARNING:
        return finding
    return replace(finding, severity=Severity.ERROR)


def _findings(contracts: Sequence[Written], uri: str | None, partitions: bool) -> Iterator[Finding]:
    """All findings about some contracts, with or without a tower."""
    now_ms = SystemAmbient().now_ms()
    if not uri:
        yield from review.alone(contracts, now_ms=now_ms)
        return
    for it in contracts:
        yield from review.one(it, now_ms=now_ms)
    with connect(uri) as tower:
        known = read_state(tower, token_for(uri), contracts, partitions=partitions)
    there = [table.identifier for table in known.tables]
    yield from review.together(contracts, known.in_force, now_ms=now_ms, tables=there)
    for it in contracts:
        yield from review.people(it, known.principals.get(it.contract.name, ()), known.names)
        yield from references.missing(it, there, known.nearby)
    yield from _of_tables(contracts, known, now_ms)


def _of_tables(contracts: Sequence[Written], known: TowerState, now_ms: int) -> Iterator[Finding]:
    for table in known.tables:
        yield from references.of_table(table, contracts, known.in_force, now_ms=now_ms)
        if (why := known.unread.get(table.identifier)) is not None:
            it = next(it for it in contracts if it.contract.rules_for(table.identifier))
            message = f"the partitions of {table.identifier} that have rows could not be read: {why}"
            yield it.found(Severity.NOTE, "gap.unread", message, "tables")


def _since(reference: str, files: Sequence[Path], now: Sequence[Written]) -> list[Difference]:
    """The changes since a git commit, contract by contract, even if a contract has moved to another file."""
    before, unreadable = written(files_at(reference, files))
    for finding in unreadable:
        warn(f"{finding.place} at {reference} is not a contract, and is skipped: {finding.message}")
    old = {it.contract.name: it.contract for it in before}
    new = {it.contract.name: it for it in now}
    return [Difference.between(old.get(name), new.get(name), since=reference) for name in dict.fromkeys((*new, *old))]


# ── In force ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contracts.command("diff")
def diff(files: Files, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Show what would change if contracts were applied.

    \b
    Example:
      icetower contracts diff pricing_agent.yaml
    """
    with connect(uri) as tower:
        differences = _against_force(tower, _read(files))
    if as_json:
        say(json.dumps([output.difference_json(each) for each in differences], indent=2))
    else:
        output.say_differences(differences, nothing="nothing changes: all of it is in force")


@contracts.command("apply")
def apply(
    files: Files,
    uri: Uri = DEFAULT_URI,
    message: Message = None,
    expect_version: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]VERSION",
            help="Only if this version is in force, 0 for none; may be repeated. By default: the version shown.",
        ),
    ] = None,
    ignore: Ignore = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Put contracts in force, all of them or none.

    It shows the changes first; an unchanged contract keeps its version.

    First they are checked against the tower, as by `contracts check`. Contracts with errors are refused: correct them,
    or name their rule with --ignore. At a terminal it asks before it acts. Changes that somebody else has made since
    are not overwritten.

    Exit status: 0 in force; 1 errors, or not confirmed; 2 wrong usage.

    \b
    Example:
      icetower contracts apply contracts/*.yaml --message 'new agent'
    """
    _require_known_rules(ignore)
    proposed = _read(files)
    with connect(uri) as tower:
        newest = {version["name"]: version["version"] for version in tower.contracts()}
        expected = {it.contract.name: newest.get(it.contract.name, 0) for it in proposed}
        expected |= _expected(expect_version or (), [it.contract.name for it in proposed])
        differences = _against_force(tower, proposed)
        _require_valid(proposed, uri, ignore)
        if not as_json:
            output.say_differences(differences, nothing="nothing changes: all of it is in force")
            if any(each.changes for each in differences) and not (yes or _agrees()):
                fail("nothing was applied", FAILED)
                raise typer.Exit(FAILED)
        done = tower.apply_contracts(
            [it.text for it in proposed],
            expected=[expected[it.contract.name] for it in proposed],
            message=message,
        )
    for warning in done["warnings"]:
        warn(warning)
    if as_json:
        say(json.dumps(done | {"changes": [output.difference_json(each) for each in differences]}, indent=2))
        return
    for applied in done["contracts"]:
        say(f"{applied['contract']}: version {applied['version']} is in force")


def _agrees() -> bool:
    return not at_terminal() or typer.confirm("Put this in force?")


def _expected(given: Iterable[str], names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in given:
        name, equals, version = text.rpartition("=")
        if not equals and len(names) == 1:
            name = names[0]
        if name not in names or not version.isdecimal():
            raise UsageError(f"--expect-version {text!r}: write NAME=VERSION, of one of {', '.join(names)}")
        found[name] = int(version)
    return found


def _read(files: Sequence[Path]) -> list[Written]:
    """Contracts that must all be valid. Raises `UsageError` naming those that aren't."""
    found, findings = written(read_files(files))
    if findings:
        raise UsageError("; ".join(f"{finding.place}: {finding.message}" for finding in findings))
    return found


def _against_force(tower: Tower, contracts: Sequence[Written]) -> list[Difference]:
    in_force = {version["name"]: version for version in tower.contracts() if version["text"] is not None}
    bound: dict[str, list[str]] = {}
    for person in tower.principals():
        if person["revoked_ms"] is None:
            bound.setdefault(person["contract"], []).append(person["name"])
    found: list[Difference] = []
    for it in contracts:
        name = it.contract.name
        old = in_force.get(name)
        found.append(
            Difference.between(
                None if old is None else _contract(old),
                it,
                version=None if old is None else old["version"],
                principals=bound.get(name, ()),
            )
        )
    return found


def _contract(version: Any) -> Contract:
    return Written.read(version["text"], f"version {version['version']}").contract


@contracts.command("list")
def list_contracts(uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """List the newest version of every contract.

    `state` is `in force`, `shadow mode` (in force, and refusing nothing) or `revoked`.

    \b
    Example:
      icetower contracts list
    """
    with connect(uri) as tower:
        rows = tower.contracts()
    rows = rows if as_json else [row | {"state": _state(row)} for row in rows]
    print_rows(rows, ("name", "version", "state", "applied_ms", "applied_by", "message"), as_json)


def _state(version: dict[str, Any]) -> str:
    """`revoked`, `in force`, or `shadow mode`: in force, and refusing nothing."""
    if version["text"] is None:
        return "revoked"
    return "shadow mode" if _contract(version).shadow else "in force"


@contracts.command("show")
def show(
    name: Name,
    version: Annotated[int | None, typer.Option(help="An older version.")] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Print a contract in force, or an older version of it.

    \b
    Example:
      icetower contracts show pricing_agent --version 2
    """
    with connect(uri) as tower:
        found = tower.contract(name, version)
    say(json.dumps(found) if as_json else found["text"].rstrip("\n"))


@contracts.command("history")
def history(name: Name, uri: Uri = DEFAULT_URI, as_json: Json = False) -> None:
    """Show every version of a contract.

    Who applied it, when and why, and what it changed.

    \b
    Example:
      icetower contracts history pricing_agent
    """
    with connect(uri) as tower:
        versions = tower.contract_history(name)
    before: Any = None
    rows: list[Any] = []
    for version in versions:
        old, new = (None if each is None or each["text"] is None else _written(each) for each in (before, version))
        difference = Difference.between(None if old is None else old.contract, new)
        rows.append(version | {"changes": [output.change_json(change) for change in difference.changes]})
        before = version
        if as_json:
            continue
        what = "revoked" if version["text"] is None else "applied"
        why = f": {version['message']}" if version["message"] else ""
        output.line(
            f"version {version['version']}, {what} {time_text(version['applied_ms'])} by {version['applied_by']}{why}"
        )
        for change in difference.changes:
            output.line(f"  {output.sign(change)} {name} {change.words}")
    if as_json:
        say(json.dumps(rows, indent=2))


def _written(version: Any) -> Written:
    return Written.read(version["text"], f"version {version['version']}")


@contracts.command("revoke")
def revoke(name: Name, uri: Uri = DEFAULT_URI, message: Message = None, as_json: Json = False) -> None:
    """End a contract, for all of its principals at once.

    From their next request on they may do nothing, and their tokens are revoked.

    For administrators, and for principals that the contract's `revocation` names.

    \b
    Example:
      icetower contracts revoke pricing_agent --message 'wrong prices'
    """
    with connect(uri) as tower:
        done = tower.revoke_contract(name, message=message)
    say(json.dumps(done) if as_json else f"{name} is revoked")


@contracts.command("restore")
def restore(
    name: Name,
    version: Annotated[
        int | None, typer.Option(help="The version.  [default: the last one of a revoked contract]")
    ] = None,
    uri: Uri = DEFAULT_URI,
    message: Message = None,
    ignore: Ignore = None,
    as_json: Json = False,
) -> None:
    """Put an older version of a contract in force again.

    It becomes a new version. Secrets of its principals work again; tokens from before do not.

    It is checked first, as by `contracts apply`: other contracts may own its partitions by now.

    \b
    Example:
      icetower contracts restore pricing_agent
    """
    _require_known_rules(ignore)
    with connect(uri) as tower:
        text = _to_restore(tower, name, version)
        if text is not None:
            _require_valid([Written.read(text, f"{name}, the version to restore")], uri, ignore)
        done = tower.restore_contract(name, version, message=message)
    for warning in done["warnings"]:
        warn(warning)
    say(json.dumps(done) if as_json else f"{name}: version {done['version']} is in force")


def _to_restore(tower: Tower, name: str, version: int | None) -> str | None:
    """The text to be restored; None if there is none or it may not be read: then the tower's answer says why."""
    try:
        if version is not None:
            return tower.contract(name, version)["text"]
        versions = tower.contract_history(name)
    except (Forbidden, NotFound):
        return None
    return next((each["text"] for each in reversed(versions) if each["text"] is not None), None)
