"""`icetower advise`: a table's writers as its history shows them, before any of them has a contract."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from icetower.audit.advice import GROUP_MS, Advice, advise, in_order
from icetower.audit.auditor import Options, Walk
from icetower.audit.commits import Commit
from icetower.audit.wording import listed
from icetower.cli.declarations import print_undeclared
from icetower.cli.printing import SafeConsole, show
from icetower.cli.registry import Json, connect, print_rows
from icetower.cli.tables import DEFAULT_CATALOG, CatalogName, Copied, PlacedFiles, Properties, StorageOptions, place_of
from icetower.cli.terminal import say, writing
from icetower.cli.timelines import FAINT
from icetower.counting import counted
from icetower.errors import BadRequest, NotFound, UsageError, ValidationFailed
from icetower.iceberg.metadata import MAIN
from icetower.iceberg.partitions import spec_of
from icetower.protocol.marks import GROUP_FILE
from icetower.protocol.names import Identifier
from icetower.table.groups import Group, read_group
from icetower.texts import escaped

PARTITIONS_SHOWN = 12
WRITER_CHARACTERS = 24
IGNORED_COLUMNS = ("table", "principal", "landed", "holders", "first_ms", "last_ms")
OF_A_FILE = Identifier(("namespace",), "table")
"""The table's name in contracts if the command was given a metadata file."""


def advise_table(
    table: Annotated[str | None, typer.Argument(help="namespace.table, or a metadata file: its path or URI.")] = None,
    catalog: CatalogName = DEFAULT_CATALOG,
    properties: Properties = None,
    branch: Annotated[str, typer.Option(help="The branch whose history is read.")] = MAIN,
    writer_key: Annotated[
        str, typer.Option(help="The summary property that names the writer; by default principal, application, engine.")
    ] = "",
    contracts: Annotated[
        Path | None, typer.Option(help="A folder for first contracts, one file for each writer.")
    ] = None,
    storage: StorageOptions = None,
    copied: Copied = False,
    tower: Annotated[
        bool,
        typer.Option("--tower", help="Show refusals that declarations would have avoided since the tower was started."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a table's writers and their partitions, and draft contracts.

    It shows the swaps that the writers lost to each other, and writes a first contract for each writer.

    It reads the existing history of any Iceberg table, whichever engine wrote it, and writes nothing to the table.

    With --tower it shows the commits that a running tower refused for lack of a declaration, to one table or to
    all, and the command that makes the declaration; and the commits that landed in rows of another agent's intent,
    which intents: required would refuse.

    \b
    Example:
      icetower advise shop.sales --catalog prod --contracts new/
      icetower advise --tower
    """
    if tower:
        _advise_of_tower(table, catalog, as_json=as_json)
        return
    if table is None:
        raise UsageError("name a table, namespace.table; or ask a running tower about all of its tables: --tower")
    if contracts is not None and contracts.exists() and any(contracts.glob("*.y*ml")):
        raise UsageError(f"{contracts} has contracts already, which are not overwritten: name an empty folder")
    found = asyncio.run(_look(table, catalog, properties, storage, copied, branch, writer_key or None))
    if contracts is not None:
        if found.writers and not found.contracts:
            raise UsageError(
                f"no contract can name {found.table} alone, since '*' and '.' have a meaning in contracts: rename it, "
                "or leave out --contracts"
            )
        with writing(contracts):
            contracts.mkdir(parents=True, exist_ok=True)
            for writer in found.writers:
                (contracts / f"{writer.agent}.yaml").write_text(found.contracts[writer.name], encoding="utf-8")
    if as_json:
        say(json.dumps(found.to_json()))
    else:
        _show(found, contracts)


def _advise_of_tower(table: str | None, uri: str, *, as_json: bool) -> None:
    if not re.match(r"https?://", uri):
        raise UsageError(f"--tower needs a running tower, and {uri!r} is not an address: --catalog http://host:port")
    with connect(uri) as client:
        rows, ignored = client.undeclared(table=table), client.ignored_intents(table=table)
    if as_json:
        say(json.dumps({"undeclared": rows, "ignored_intents": ignored}))
    else:
        print_undeclared(rows)
        say("")
        _print_ignored(ignored)


def _print_ignored(rows: list[dict[str, Any]]) -> None:
    """Print the commits that `intents: required` would have refused, and how it is set."""
    if not rows:
        say("No commit landed in rows that another agent's intent held")
        return
    print_rows(rows, IGNORED_COLUMNS, as_json=False)
    say("")
    landed = counted(sum(row["landed"] for row in rows), "commit")
    say(f"{landed} landed in rows that others held, and would have been refused where intents are required:")
    for command in dict.fromkeys(row["command"] for row in rows):
        say(escaped(f"  {command}"))


async def _look(
    table: str,
    catalog: str,
    properties: list[str] | None,
    storage: list[str] | None,
    copied: bool,
    branch: str,
    writer_key: str | None,
) -> Advice:
    place = await place_of(table, catalog, properties, storage, copied=copied)
    files = PlacedFiles(place)
    try:
        walk = Walk(place.head, files, Options(branch))
        await walk.run()
        groups = await _groups(walk.line.commits, files)
    finally:
        await files.close()
    metadata = place.head.metadata
    try:
        identifier = Identifier.parse(table)
    except BadRequest:
        identifier = OF_A_FILE
    identifier = OF_A_FILE if "/" in table or table.endswith((".json", ".gz")) else identifier
    return advise(identifier, walk.line.commits, spec_of(metadata, metadata["default-spec-id"]), writer_key, groups)


async def _groups(commits: Iterable[Commit], files: PlacedFiles) -> dict[int, Group]:
    """Of each commit that stands for several appends, whose they are; without those whose group file is gone."""
    found: dict[int, Group] = {}
    for commit in commits:
        path = commit.summary.get(GROUP_FILE)
        if path is not None:
            with suppress(NotFound, ValidationFailed):
                found[commit.id] = read_group(await files.read(str(path)))
    return found


def _show(found: Advice, contracts: Path | None) -> None:
    console = SafeConsole()
    writers = Table(box=None)
    writers.add_column("writer", overflow="fold", min_width=WRITER_CHARACTERS)
    for title in ("commits", "files", "rows", "retried", "lost swaps", "partitions", "of others"):
        writers.add_column(title)
    for writer in found.writers:
        did = ", ".join(f"{count} {operation}" for operation, count in writer.commits.most_common())
        cells = (writer.files, writer.rows, writer.retried, writer.retries, len(writer.places), len(writer.shared))
        writers.add_row(Text(escaped(writer.name)), Text(escaped(did)), *map(str, cells))
    show(writers)
    console.print()
    if found.fields:
        owners = Table(*found.fields, "likely owner", "others", box=None)
        others = {place: [w.name for w in found.writers if place in w.shared] for place in found.owners}
        contested = sorted(found.owners, key=lambda place: (-len(others[place]), in_order(place)))
        for place in contested[:PARTITIONS_SHOWN]:
            owners.add_row(
                *(Text("null" if value is None else escaped(value)) for value in place),
                Text(escaped(found.owners[place])),
                Text(escaped(listed(others[place]))),
            )
        show(owners)
        if len(contested) > PARTITIONS_SHOWN:
            console.print(Text(f"and {counted(len(contested) - PARTITIONS_SHOWN, 'more partition')} (--json)", FAINT))
        console.print()
    if not found.commits:
        console.print("The branch has no commits, so there is no advice")
        return
    if writer_key_hint := found.hint:
        console.print(writer_key_hint)
    saved = found.savings
    if saved.counted:
        console.print(
            f"{counted(saved.lost_swaps, 'lost swap')} of {counted(saved.counted, 'commit')} whose clients count their "
            "attempts: a tower rebases such commits"
        )
    if saved.counted < saved.swaps:
        console.print(f"The attempts of {counted(saved.swaps - saved.counted, 'commit')} are not known")
    together = f"were commits within {GROUP_MS / 1000:g} s of each other one"
    console.print(f"{counted(saved.swaps, 'swap')} would have been {saved.grouped}, {together}")
    if saved.missing:
        console.print(
            f"{counted(saved.missing, 'sequence number')} without a commit here: staged, rolled back, or another branch"
        )
    if contracts is None:
        console.print(Text("--contracts FOLDER writes a first contract for each writer", FAINT))
    else:
        console.print(
            f"{counted(len(found.contracts), 'contract')} written to {contracts}: "
            f"icetower contracts check {contracts}/*.yaml"
        )
