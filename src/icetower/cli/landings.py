"""After a lost answer: whether a write has landed (`icetower landed`), and that it never will (`icetower fence`)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from icetower.agent import Landed, Tower
from icetower.cli.completion import complete_agent, complete_table
from icetower.cli.known import named, require_agent
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.terminal import FOUND, say
from icetower.contracts.model import ADMINISTRATOR_NAME
from icetower.errors import UsageError
from icetower.texts import escaped

Table = Annotated[str, typer.Argument(help="namespace.table", autocompletion=complete_table)]
Key = Annotated[str | None, typer.Option(help="The write's idempotency key.")]
Application = Annotated[str | None, typer.Option(help="The application that numbers its writes; with --sequence.")]
Sequence = Annotated[int | None, typer.Option(min=0, help="The write's number.")]
SnapshotId = Annotated[int | None, typer.Option(min=0, help="The id of the write's snapshot.")]
Ref = Annotated[str, typer.Option(help="The branch that it was sent for.")]
Agent = Annotated[
    str | None,
    typer.Option(
        help="The principal that sent it, if not yourself. For administrators.", autocompletion=complete_agent
    ),
]


def landed(
    table: Table,
    key: Key = None,
    application: Application = None,
    sequence: Sequence = None,
    snapshot_id: SnapshotId = None,
    ref: Ref = "main",
    agent: Agent = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Show whether a write is in its table, after a lost answer.

    The exit status is 0 if it has landed, 3 if the table does not have it now, or not all of it, and 1 if that is
    unknown. A write that is not there may be on its way yet; `icetower fence` makes sure that it never lands.

    \b
    Example:
      icetower landed shop.sales --key 01a1fe03-73b8-78ac-b3d5-6bcc4d844630
      icetower landed shop.sales --application ingest --sequence 7 --agent ingest-1
    """
    numbered = _numbered(application, sequence)
    if (key is not None) + (numbered is not None) + (snapshot_id is not None) != 1:
        raise UsageError("name the write by one of --key, --application with --sequence, and --snapshot-id")
    with connect(uri) as tower:
        found = tower.landed(table, key, application=numbered, snapshot_id=snapshot_id, ref=ref, principal=agent)
        writer = "" if found.landed else _writer_text(tower, agent, snapshot_id)
    if found.landed is None and found.error is not None:
        raise found.error
    if as_json:
        say(json.dumps(_to_json(found)))
    elif found.landed:
        say(f"it has landed{_as_snapshot(found)}")
    elif found.partly:
        rest = "the rest never lands: it is fenced" if found.fenced else "the same call under its key brings the rest"
        say(f"a part of it has landed, the last of it{_as_snapshot(found)}; {rest}")
    elif found.fenced:
        say(escaped(f"{writer}it is not in the table, and never will be: it is fenced"))
    else:
        way = "`icetower fence` makes sure that it never lands"
        say(escaped(f"{writer}it is not in the table now; it may be on its way. {way}"))
    if not found.landed:
        raise typer.Exit(FOUND)


def fence(
    table: Table,
    key: Key = None,
    application: Application = None,
    sequence: Sequence = None,
    ref: Ref = "main",
    agent: Agent = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Make sure that a write never lands, unless it has landed already.

    The exit status is 0 if it never lands, and 3 if it has landed. What it was to write may then be written under a new
    key.

    \b
    Example:
      icetower fence shop.sales --key 01a1fe03-73b8-78ac-b3d5-6bcc4d844630
    """
    numbered = _numbered(application, sequence)
    if (key is None) == (numbered is None):
        raise UsageError("name the write by one of --key, and --application with --sequence")
    with connect(uri) as tower:
        writer = _writer_text(tower, agent, None)
        found = tower.fence(table, key, application=numbered, ref=ref, principal=agent)
    if as_json:
        say(json.dumps(_to_json(found)))
    elif found.landed:
        say(f"it has landed{_as_snapshot(found)}")
    elif found.partly:
        say(f"a part of it has landed, the last of it{_as_snapshot(found)}; the rest is fenced: it never lands")
    else:
        say(escaped(f"{writer}it is fenced: it never lands"))
        if found.error is not None:
            say(escaped(f"whether it had landed before is unknown: {found.error.message}"))
    if found.landed:
        raise typer.Exit(FOUND)


def _writer_text(tower: Tower, agent: str | None, snapshot_id: int | None) -> str:
    """The writer that is asked about, for the answer that a write is not there: others use the same keys for theirs.

    Raises `NotFound` for a name that nobody has.
    """
    if snapshot_id is not None:
        return ""
    if agent is not None:
        require_agent(agent, named(tower, agent))
        return f"as a write of {agent}, "
    me = tower.me()
    more = " (--agent names another's)" if me["contract"] == ADMINISTRATOR_NAME else ""
    return f"as a write of {me['principal']}{more}, "


def _numbered(application: str | None, sequence: int | None) -> tuple[str, int] | None:
    if (application is None) != (sequence is None):
        raise UsageError("--application and --sequence belong together")
    return None if application is None or sequence is None else (application, sequence)


def _as_snapshot(found: Landed) -> str:
    return "" if found.snapshot is None else f" as snapshot {found.snapshot}"


def _to_json(found: Landed) -> dict[str, Any]:
    error = None if found.error is None else {"rule": found.error.rule, "message": found.error.message}
    return {
        "landed": found.landed,
        "partly": found.partly,
        "snapshot": found.snapshot,
        "fenced": found.fenced,
        "error": error,
    }
