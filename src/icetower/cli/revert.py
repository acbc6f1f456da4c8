"""`icetower revert`: takes back one agent's writes in one new commit, or names the commits that build on them."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Annotated, Any, cast

import httpx2
import typer
from rich.text import Text

from icetower.agent import Tower, new_key
from icetower.agent.causes import cause_of, unreachable
from icetower.agent.failures import error_of
from icetower.ambient import SystemAmbient
from icetower.audit.wording import listed, name
from icetower.cli.known import Named, named, require_agent
from icetower.cli.lake import JSON, Lake
from icetower.cli.printing import SafeConsole
from icetower.cli.promises import promises_of
from icetower.cli.registry import Json, token_for
from icetower.cli.snapshots import TIMEOUT_S, Place, place_in_catalog
from icetower.cli.tables import DEFAULT_CATALOG, CatalogName, PlacedFiles, StorageOptions, pairs
from icetower.cli.terminal import at_terminal, say, warn
from icetower.cli.timelines import BAD, FAINT, GOOD, hanging
from icetower.cli.times import since_ms
from icetower.counting import counted, series
from icetower.errors import CommitConflict, CommitStateUnknown, IcetowerError, Unavailable, UpstreamFailed, UsageError
from icetower.iceberg.metadata import MAIN
from icetower.protocol.marks import KEY
from icetower.protocol.names import Identifier
from icetower.revert.agents import Agent, Naming, Wanted
from icetower.revert.reverting import Plan
from icetower.revert.taking_back import Draft
from icetower.storage.file_io import FileIOStorage
from icetower.texts import escaped

REFUSED = 3
"""Exit status if other commits build on the agent's writes."""
ATTEMPTS_MAX = 5
SHOWN_MAX = 20
"""The most blocking commits that are shown on the terminal."""

WAY_OUT = (
    "Commits that may have read it do not declare their reads. If you know that none of them used these rows, run the "
    "command again with --assume-unread. A writer declares its reads in the snapshot's summary (icetower.agent: "
    "keyed(key, blind=True) or having_read), a contract by blind_appends or read_scope: owned. Contracts count if an "
    "administrator runs this command."
)
COMMIT_TIMEOUT_S = 90.0


def revert(
    table: Annotated[str, typer.Argument(help="namespace.table")],
    agent: Annotated[
        str, typer.Option(help="The principal, or the contract of the principals, whose commits are taken back.")
    ],
    since: Annotated[
        str | None, typer.Option(help="The earliest time: 2026-11-21T08:00Z, or how long ago: 90m, 2h, 1d.")
    ] = None,
    snapshot: Annotated[
        list[int] | None,
        typer.Option(help="The id of a snapshot: the agent's part in it, and nothing else. May be given repeatedly."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    assume_unread: Annotated[
        bool,
        typer.Option(
            "--assume-unread", help="Assume that commits without declared reads have not read what the agent wrote."
        ),
    ] = False,
    catalog: CatalogName = DEFAULT_CATALOG,
    branch: Annotated[str, typer.Option(help="The branch on which it wrote.")] = MAIN,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    storage: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Take back what one agent wrote to a table.

    It takes back what it wrote since a time, or in some snapshots. The result is the table with the other agents'
    commits alone.

    It makes one new commit; history is not changed. If another commit depends on the agent's writes (has replaced them,
    deleted rows of them, or read them), nothing is done, and the commit is named.

    At a terminal it shows what it would do and asks; otherwise it acts at once.

    Exit status: 0 done, or nothing to do; 3 other commits depend on it; 1 an error; 2 wrong usage.

    \b
    Example:
      icetower revert shop.sales --agent pricing-1 --since 2h --dry-run
    """
    if since is None and not snapshot:
        raise UsageError("say what is to be taken back: --since a time, or --snapshot and its id")
    if not re.match(r"https?://", catalog):
        raise UsageError("a revert is committed through a REST catalog, such as a tower: name it with --catalog URI")
    asks = at_terminal() and not yes and not as_json
    since_when_ms = 0 if since is None else since_ms(since, SystemAmbient().now_ms())
    who = _named(catalog, agent)
    wanted = Wanted(agent, since_when_ms, branch, who.principals, frozenset(snapshot) if snapshot else None)
    done = asyncio.run(_Reverting(table, catalog, storage or [], wanted, assume_unread, dry_run, asks).run())
    if done.no_commits:
        require_agent(agent, who)
    if as_json:
        say(json.dumps(done.to_json()))
    else:
        done.show()
    if done.refused:
        raise typer.Exit(REFUSED)


def _named(catalog: str, agent: str) -> Named:
    """The principals of the name; with a doubt if the catalog does not list principals."""
    try:
        with Tower(catalog, token_for(catalog)) as tower:
            return named(tower, agent)
    except IcetowerError:
        return Named((agent,), f"it is not known whether there is such a principal, since {catalog} lists none")


class _Result:
    """The result of a revert."""

    def __init__(self, wanted: Wanted, plan: Plan, assumed: bool, snapshot_id: int | None, dry_run: bool) -> None:
        self._wanted = wanted
        self._plan = plan
        self._snapshot_id = snapshot_id
        self._dry_run = dry_run
        self._blocking = [each for each in plan.dependencies if each.certain or not assumed]

    @property
    def refused(self) -> bool:
        return bool(self._blocking)

    @property
    def no_commits(self) -> bool:
        """Whether the table has no commit of the agent since then."""
        return not self._plan.snapshots

    @property
    def _who(self) -> str:
        agent, principals = self._wanted.agent, self._wanted.principals
        return agent if principals in ((), (agent,)) else f"{agent} ({series(principals)})"

    def to_json(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "agent": self._wanted.agent,
            "principals": list(self._wanted.principals),
            "since_ms": self._wanted.since_ms,
            "asked": None if self._wanted.only is None else sorted(self._wanted.only),
            "snapshots": list(plan.snapshots),
            "reverts": list(plan.reverts),
            "remove": [item.path for item in plan.remove],
            "restore": [item.path for item in plan.restore],
            "delete": [{"path": item.path, "rows": rows} for item, rows in plan.rows_deleted],
            "dependencies": [
                {"snapshot": each.snapshot_id, "why": each.why, "certain": each.certain} for each in plan.dependencies
            ],
            "refused": self.refused,
            "committed": self._snapshot_id,
        }

    def show(self, *, planned: bool = False) -> None:
        console, plan = SafeConsole(), self._plan
        if not plan.snapshots:
            since = "since then" if self._wanted.only is None else "in these snapshots of this branch"
            console.print(f"{self._who} has not committed {since}")
            return
        console.print(f"{counted(len(plan.written), 'commit')} of {self._who}: {listed([*map(str, plan.written)])}")
        if plan.reverts:
            console.print(
                f"{counted(len(plan.reverts), 'earlier revert')} of these: {listed([*map(str, plan.reverts)])}"
            )
        for verb, items in (("to remove", plan.remove), ("to bring back", plan.restore)):
            for item in items:
                hanging(
                    console,
                    f"  {verb}",
                    Text(escaped(f"{item.what} {name(item.path)}, {counted(item.records, 'row')}")),
                    width=18,
                )
        for item, rows in plan.rows_deleted:
            own = Text(escaped(f"{counted(rows, 'row')} of {item.records} in {name(item.path)}"))
            hanging(console, "  to delete", own, width=18)
        if self.refused:
            console.print(Text("Nothing is taken back:", BAD))
            for each in self._blocking[:SHOWN_MAX]:
                hanging(console, "  ·", Text(escaped(each.why)))
            if len(self._blocking) > SHOWN_MAX:
                console.print(f"  · and {len(self._blocking) - SHOWN_MAX} more (--json lists them all)")
            if not all(each.certain for each in self._blocking):
                console.print(WAY_OUT)
        elif plan.nothing:
            console.print("Nothing of it is left: there is nothing to take back")
        elif planned:
            return
        elif self._dry_run:
            console.print(Text("Nothing blocks it. It was not committed (--dry-run)", FAINT))
        else:
            console.print(Text(f"Taken back by snapshot {self._snapshot_id}", GOOD))


class _Reverting:
    """Plans on the head, and plans again if another commit was faster."""

    def __init__(
        self, table: str, catalog: str, storage: list[str], wanted: Wanted, assumed: bool, dry_run: bool, asks: bool
    ) -> None:
        self._table = table
        self._catalog = catalog
        self._storage = pairs(storage, "--storage")
        self._wanted = wanted
        self._assumed = assumed
        self._dry_run = dry_run
        self._asks = asks

    async def run(self) -> _Result:
        """Plan and commit. Raises `IcetowerError`."""
        for _ in range(ATTEMPTS_MAX):
            place = place_in_catalog(self._catalog, self._table, token_for(self._catalog), self._storage)
            try:
                return await self._attempt(place)
            except CommitConflict as conflict:
                if conflict.rule == "intent.held":  # who holds the rows is not done in a moment
                    raise
                warn(f"somebody else has committed meanwhile ({conflict.rule}): planning again")
        raise CommitConflict(
            f"{self._table} is committed to faster than a revert can be planned: nothing was done; try again when "
            "there are fewer commits",
            rule="revert.attempts",
        )

    async def _attempt(self, place: Place) -> _Result:
        files = PlacedFiles(place)
        try:
            agent = Agent(place.head, files, _within(self._wanted, place))
            plan = await agent.plan(promises_of(self._catalog, self._table, place.head))
            blocking = [each for each in plan.dependencies if each.certain or not self._assumed]
            if blocking or plan.nothing or self._dry_run:
                return _Result(self._wanted, plan, self._assumed, None, self._dry_run)
            if self._asks:
                _Result(self._wanted, plan, self._assumed, None, dry_run=False).show(planned=True)
                if not typer.confirm("Take this back?"):
                    raise UsageError("nothing was taken back: the answer was no")
            ambient = SystemAmbient()
            words = {"engine-name": "icetower", KEY: new_key()}
            naming = Naming(ambient.snapshot_id(), ambient.now_ms(), words, ambient.uuid4)
            draft = await agent.draft(plan, naming)
            await self._commit(place, draft)
            return _Result(self._wanted, plan, self._assumed, draft.snapshot["snapshot-id"], self._dry_run)
        finally:
            await files.close()

    async def _commit(self, place: Place, draft: Draft) -> None:
        storage = FileIOStorage(place.storage)
        try:
            await asyncio.gather(*(storage.write(path, data) for path, data in draft.files.items()))
            try:
                with _Routes(self._catalog, token_for(self._catalog)) as routes:
                    routes.commit(self._table, draft)
            except (CommitStateUnknown, Unavailable, UpstreamFailed):
                raise  # it may be committed, and then the table needs its files
            except IcetowerError:
                await storage.delete_many(draft.files)
                raise
        finally:
            await storage.close()


def _within(wanted: Wanted, place: Place) -> Wanted:
    """Of some snapshots, since when history must be there. Raises `UsageError`: the table has none of this id."""
    if wanted.only is None:
        return wanted
    known = place.head.snapshots
    unknown = sorted(wanted.only - known.keys())
    if unknown:
        raise UsageError(
            f"the table has no snapshot {unknown[0]}: it has expired, or never was one. `icetower commits` names "
            "snapshots"
        )
    return replace(wanted, since_ms=max(wanted.since_ms, min(known[each]["timestamp-ms"] for each in wanted.only)))


class _Routes:
    """A catalog's Iceberg REST routes. Every call has a time limit."""

    def __init__(self, uri: str, token: str | None) -> None:
        self.uri = uri.rstrip("/")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=self.uri, headers=headers, timeout=TIMEOUT_S)

    def __enter__(self) -> _Routes:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, where: str, **parameters: str) -> JSON:
        """The object at a path. Raises the `IcetowerError` of its status, `Unavailable` if there is no answer."""
        try:
            response = self._http.get(where, params=parameters)
        except httpx2.HTTPError as error:
            raise Unavailable(unreachable("catalog", self.uri, error)) from error
        if not response.is_success:
            raise error_of(response.status_code, response.content)
        return cast("JSON", response.json())

    def commit(self, table: str, draft: Draft) -> None:
        """Send a commit. Raises the `IcetowerError` of its status; `CommitStateUnknown` if there is no answer."""
        identifier = Identifier.parse(table)
        body = {
            "identifier": {"namespace": list(identifier.namespace), "name": identifier.name},
            "requirements": list(draft.requirements),
            "updates": list(draft.updates),
        }
        where = Lake(self).path(identifier)
        try:
            response = self._http.post(where, json=body, timeout=COMMIT_TIMEOUT_S)
        except httpx2.HTTPError as error:
            raise CommitStateUnknown(
                f"{self.uri} gave no answer to the commit ({cause_of(error)}): check whether snapshot "
                f"{draft.snapshot['snapshot-id']} is in the table before trying again"
            ) from error
        if not response.is_success:
            raise error_of(response.status_code, response.content)
