"""`Tower`: appends of data files, a tower's control API, and the settings for PyIceberg and Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

from icetower import errors
from icetower.agent import landings
from icetower.agent.appends import Appended, Appender, DataFile
from icetower.agent.channel import Channel
from icetower.agent.data_folders import DataFolders
from icetower.agent.deliveries import Delivery, Slot
from icetower.agent.exchanges import Exchanges
from icetower.agent.failures import error_of
from icetower.agent.landings import Landed
from icetower.agent.publishing import Keep, PublishedBranch, body
from icetower.protocol.names import Identifier, namespace_to_path

TIMEOUT_S = 30.0
PAGE_MAX = 1_000
ANSWER_WITHIN_S = 60.0
"""A server may take up to `server.queue_deadline_s` to answer an append."""


class Tower:
    """A tower, for agents and their operators. Threads may share one.

    Args:
        uri: as `icetower serve` prints it.
        token: a principal's secret or access token; None for an open tower.
        timeout_s: of every call, in seconds.

    Every method raises the `IcetowerError` that the server answered with, and `Unavailable` if there is no answer.
    """

    def __init__(self, uri: str, token: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self.uri = uri.rstrip("/")
        self._token = token
        self._channel = Channel(self.uri, timeout_s=max(timeout_s, ANSWER_WITHIN_S))  # checks the address, too
        self._http = Exchanges(self.uri, token, timeout_s=timeout_s)
        self._appender = Appender(self._channel, token)
        self._folders = DataFolders(lambda route, params: self._http.ask("GET", route, params=dict(params)))

    def __enter__(self) -> Tower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()
        self._channel.close()

    # -- appends --------------------------------------------------------------------------------------------------

    def append(
        self,
        table: str,
        files: Sequence[DataFile],
        *,
        key: str | None = None,
        application: tuple[str, int] | None = None,
        ref: str = "main",
    ) -> Appended:
        """Append data files that are in the table's location already; returns when they are in the table.

        The caller loads no table and writes no manifest: the server reads each file's footer, and commits concurrent
        appends of many callers as one snapshot. An append that may succeed later is sent again with the same key.

        Args:
            table: ``namespace.table``.
            key: the same for every attempt at the same append, across crashes of the caller; by default a new one for
                this call.
            application: (application, sequence), for callers that number their appends instead of keeping keys: an
                append whose number is not above the last one in the table is already done.
            ref: the branch.
        """
        try:
            return self._appender.append(table, files, key=key, application=application, ref=ref)
        except errors.Forbidden as error:
            if error.rule == "contract.location":
                self._folders.forget(table)
            raise

    def new_data_file(self, table: str) -> str:
        """A new path for a Parquet file in the folder for the caller's data files, for `append`. Nothing is written.

        Under a contract that folder is the principal's own, and a file elsewhere is refused. The folder is requested
        once for each table, and again after such a refusal.

        Args:
            table: ``namespace.table``.
        """
        return self._folders.new_data_file(table)

    def check(
        self,
        table: str,
        *,
        commit: Mapping[str, Any] | None = None,
        operation: str | Sequence[str] = "append",
        partitions: Sequence[str | Mapping[str, Any]] = (),
        files: int = 0,
        size_bytes: int = 0,
    ) -> dict[str, Any]:
        """A dry run: would this be let through now? Nothing is committed, and nothing counts against the caller.

        Returns `allowed`, the `outcome` that it would have, and the `error` that would refuse it (None: none).

        Args:
            table: ``namespace.table``.
            commit: the body of a commit, as the commit route takes it; its manifests are written already.
            operation, partitions, files, size_bytes: without a commit, what is intended: partitions by name, as
                refusals have it, or one value or a list of them for each field of the table's partition spec.
        """
        intent = {"operation": operation, "partitions": [*partitions], "files": files, "bytes": size_bytes}
        path = landings.route(table, "check")
        return self._http.ask("POST", path, json={"intent": intent} if commit is None else dict(commit))

    def landed(
        self,
        table: str,
        key: str | None = None,
        *,
        application: tuple[str, int] | None = None,
        snapshot_id: int | None = None,
        ref: str = "main",
        principal: str | None = None,
    ) -> Landed:
        """Whether a write is in the table, after a lost answer.

        Args:
            table: ``namespace.table``.
            key, application, snapshot_id: one of them: the write's key, its (application, sequence), or the id of its
                snapshot.
            ref: the branch that it was sent for.
            principal: the writer, if it is not the caller; for administrators.

        Rows that `icetower.Agent` has sent under a key are found by it, too. Where only some of their requests have
        landed, the answer is `partly`, and the same call under the key brings what is missing.
        """

        def ask(name: str | None) -> Landed:
            params = landings.query(name, application, snapshot_id, ref, principal)
            return Landed.of(self._http.ask("GET", landings.route(table, "landed"), params=params))

        return landings.of_names(ask, key)

    def fence(
        self,
        table: str,
        key: str | None = None,
        *,
        application: tuple[str, int] | None = None,
        ref: str = "main",
        principal: str | None = None,
    ) -> Landed:
        """Make sure that a write never lands, unless it has landed already: then it stays, and the answer says so.

        Once this returns, no request under that key, or that number, can land at any tower; nor does `icetower.Agent`
        begin, or go on, to send rows under that key. Of what is `partly` there, the rest never lands. Arguments as of
        `landed`.
        """

        def ask(name: str | None) -> Landed:
            body = landings.fence(name, application, ref, principal)
            return Landed.of(self._http.ask("POST", landings.route(table, "fence"), json=body, timeout=ANSWER_WITHIN_S))

        return landings.of_names(ask, key)

    def publish(
        self,
        table: str,
        branch: str,
        *,
        key: str,
        to: str = "main",
        keep: Keep = "each",
        isolation: str | None = None,
        read: Mapping[str, Any] | None = None,
        blind: bool = False,
        unchecked: bool = False,
    ) -> PublishedBranch:
        """Publish a branch, once. Arguments as of `Agent.publish`.

        Args:
            unchecked: though checks that the contracts of the branch's authors name have not passed; where the contract
                of who publishes names checks, these must pass all the same.
        """
        wanted = body(branch, to, keep, key, isolation, read, blind) | ({"unchecked": True} if unchecked else {})
        answer = self._http.ask("POST", landings.route(table, "publish"), json=wanted, timeout=ANSWER_WITHIN_S)
        return PublishedBranch.of(answer)

    def report_check(
        self,
        table: str,
        snapshot_id: int,
        check: str,
        *,
        passed: bool,
        details: str = "",
        manifest_list: str | None = None,
    ) -> None:
        """Report that a check has passed, or failed, for a snapshot that waits to be published.

        Args:
            manifest_list: of the snapshot that the check has read: the report is refused if the table has another
                snapshot under this id by now.
        """
        said = {"snapshot-id": snapshot_id, "check": check, "passed": passed, "details": details}
        said |= {} if manifest_list is None else {"manifest-list": manifest_list}
        self._http.ask("POST", landings.route(table, "verdicts"), json=said)

    def load(self, table: str) -> dict[str, Any]:
        """A table as the catalog's protocol has it: `metadata`, `metadata-location`, `config`."""
        identifier = Identifier.parse(table)
        return self._http.ask(
            "GET", f"/v1/namespaces/{namespace_to_path(identifier.namespace)}/tables/{_quoted(identifier.name)}"
        )

    def commit(
        self, table: Identifier, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> None:
        """Send a commit that is put together already, once.

        Raises `CommitStateUnknown` if there is no answer: it may have landed.
        """
        path = f"/v1/namespaces/{namespace_to_path(table.namespace)}/tables/{_quoted(table.name)}"
        body = {
            "identifier": {"namespace": list(table.namespace), "name": table.name},
            "requirements": list(requirements),
            "updates": list(updates),
        }
        try:
            self._http.ask("POST", path, json=body, timeout=ANSWER_WITHIN_S)
        except errors.Unavailable as error:
            if error.rule != "client.connection":
                raise
            raise errors.CommitStateUnknown(f"{error.message}; the commit may have landed") from error

    # -- clients of the same tower --------------------------------------------------------------------------------

    def pyiceberg_properties(self) -> dict[str, str]:
        """For `pyiceberg.catalog.load_catalog(name, **…)`."""
        properties = {"type": "rest", "uri": self.uri}
        return properties if self._token is None else properties | {"token": self._token}

    def spark_properties(self, catalog: str = "tower") -> dict[str, str]:
        """Spark configuration of a catalog of that name; the Iceberg runtime must be on Spark's class path."""
        base = f"spark.sql.catalog.{catalog}"
        properties = {base: "org.apache.iceberg.spark.SparkCatalog", f"{base}.type": "rest", f"{base}.uri": self.uri}
        return properties if self._token is None else properties | {f"{base}.token": self._token}

    # -- contracts and principals ---------------------------------------------------------------------------------

    def me(self) -> dict[str, Any]:
        """The token's principal, and the contract that binds it (`text`: YAML; None for administrators)."""
        return self._json("GET", "/me")

    def delivery(self, table: str, operation: str = "append", *, least_s: float = 0.0) -> Delivery:
        """How the caller's rows come into a table by an operation, as its contract says now: `icetower.agent.send`
        goes by that.

        Args:
            table: ``namespace.table``.
            operation: as contracts name it: ``append``, ``overwrite`` or ``delete``.
            least_s: of the slot that goes on, so many seconds must be left; else it is the next one.
        """
        params = {"table": table, "operation": operation, "least_ms": str(round(least_s * 1000))}
        return Delivery.of(self._json("GET", "/me/delivery", params=params))

    def next_slot(self, table: str, operation: str = "append", *, least_s: float = 0.0) -> Slot:
        """The caller's slot that goes on, or else its next one. Arguments as of `delivery`.

        Raises:
            UsageError: its contract has no slots for that.
        """
        found = self.delivery(table, operation, least_s=least_s)
        if found.slot is None:
            raise errors.UsageError(
                f"contract {found.agent} has no slots for {operation} on {table}; its pattern is {found.pattern}"
            )
        return found.slot

    def contracts(self) -> list[dict[str, Any]]:
        """The newest version of every contract."""
        return self._json("GET", "/contracts")["contracts"]

    def contract(self, name: str, version: int | None = None) -> dict[str, Any]:
        """A contract in force, or an older version of it: `contract`, `version`, `text`, `applied_ms`, `applied_by`,
        `message`."""
        params = {} if version is None else {"version": str(version)}
        return self._json("GET", f"/contracts/{_quoted(name)}", params=params)

    def contract_history(self, name: str) -> list[dict[str, Any]]:
        """Every version of a contract, oldest first; the text of a revocation is None."""
        return self._json("GET", f"/contracts/{_quoted(name)}/history")["versions"]

    def apply_contract(self, text: str) -> dict[str, Any]:
        """Put a contract (YAML) in force: `contract`, `version`."""
        return self._json("POST", "/contracts", content=text.encode())

    def apply_contracts(
        self, texts: Sequence[str], *, expected: Sequence[int | None] = (), message: str | None = None
    ) -> dict[str, Any]:
        """Put contracts (YAML) in force, all or none.

        Returns `contracts`, of each its `contract`, `version` and whether it `changed`, and `warnings`.

        Args:
            expected: for each, the newest version that the caller has seen (0: none); None: any version.
            message: the reason; it is kept with the versions.

        Raises:
            Conflict: another version is in force than was expected; nothing was applied.
        """
        seen = [*expected, *[None] * (len(texts) - len(expected))]
        contracts = [{"text": text, "expected": version} for text, version in zip(texts, seen, strict=True)]
        return self._json("POST", "/contracts/apply", json={"contracts": contracts, "message": message})

    def restore_contract(self, name: str, version: int | None = None, *, message: str | None = None) -> dict[str, Any]:
        """Put an older version in force again, as a new one: `contract`, `version`, `changed`, `warnings`.

        Without a version: the last one that a revoked contract had.
        """
        return self._json("POST", f"/contracts/{_quoted(name)}/restore", json={"version": version, "message": message})

    def revoke_contract(self, name: str, *, message: str | None = None) -> dict[str, Any]:
        """End a contract: its principals may do nothing from the next request on, and their tokens are revoked.

        For administrators, and for principals that the contract's `revocation` names.
        """
        params = {} if message is None else {"message": message}
        return self._json("DELETE", f"/contracts/{_quoted(name)}", params=params)

    def principals(self) -> list[dict[str, Any]]:
        return self._json("GET", "/principals")["principals"]

    def create_principal(self, name: str, contract: str) -> str:
        """Create a principal under a contract (or ``administrator``). Returns its secret, which is shown only once."""
        return self._json("POST", "/principals", json={"name": name, "contract": contract})["secret"]

    def rotate_principal(self, name: str, *, grace_s: float = 0.0) -> str:
        """Create a new secret; the old ones and their tokens end after `grace_s` seconds (a week at most)."""
        return self._json("POST", f"/principals/{_quoted(name)}/rotate", json={"grace_s": grace_s})["secret"]

    def revoke_principal(self, name: str) -> None:
        """End a principal: it is unknown from the next request on."""
        self._json("DELETE", f"/principals/{_quoted(name)}")

    def commits(
        self,
        *,
        limit: int = 100,
        table: str | None = None,
        principal: str | None = None,
        refused: bool = False,
        since_ms: int | None = None,
        request_id: str | None = None,
        outcome: str | None = None,
    ) -> list[dict[str, Any]]:
        """The newest attempts, newest first; an agent sees its own.

        Args:
            limit: the most attempts, read from as many pages as needed.
            principal: only attempts of this principal; for administrators.
            refused: only attempts that were not committed: refused, in conflict, or with an unknown outcome.
            since_ms: only attempts from this time on, in milliseconds since 1970.
            request_id: only attempts whose request ids begin with this; errors name the ids.
            outcome: only attempts that ended so, such as ``rebased`` or ``conflict``.
        """
        filters = {"table": table, "principal": principal, "since_ms": since_ms, "request_id": request_id}
        filters |= {"outcome": outcome}
        params = {name: str(value) for name, value in filters.items() if value is not None}
        params |= {"refused": "true"} if refused else {}
        found: list[dict[str, Any]] = []
        while len(found) < limit:
            page = self._json("GET", "/commits", params=params | {"limit": str(min(limit - len(found), PAGE_MAX))})
            found += page["attempts"]
            if page.get("next_page_token") is None:
                break
            params["page_token"] = str(page["next_page_token"])
        return found

    def commits_after(self, number: int, limit: int = PAGE_MAX) -> dict[str, Any]:
        """The first `attempts` that were logged after the one with this number, oldest first, each with its `id`.

        `oldest`, `newest`: numbers of the whole log. For administrators who copy it.
        """
        return self._json("GET", "/commits/log", params={"after": str(number), "limit": str(limit)})

    def commits_summary(self) -> dict[str, Any]:
        """How commits ended and how long they took, by table and principal."""
        return self._json("GET", "/commits/summary")

    def ready(self) -> dict[str, Any]:
        """Whether the tower can take commits: `status`, and the state of each of `components`. For anybody."""
        response = self._http.sent("GET", "/readyz")
        if response.status_code not in (200, 503):
            raise error_of(response.status_code, response.content)
        return self._http.parsed(response)

    def readiness(self) -> dict[str, Any]:
        """Whether everything that commits need works: `ready`, and the state and details of each of `components`."""
        return self._json("GET", "/readiness")

    def bypasses(self, *, limit: int = 100) -> list[dict[str, Any]]:
        """Commits to tables that bypassed the tower since it was started, newest first. For administrators."""
        return self._json("GET", "/bypasses", params={"limit": str(limit)})["bypasses"]

    def report_orphans(self, tables: Sequence[str], orphans: Sequence[Mapping[str, Any]]) -> None:
        """Tell the tower which orphaned files were found: `table`, `principal`, `files`, `bytes`. For administrators.

        Args:
            tables: those that were looked through; one that has no orphans now has 0.
        """
        self._json(
            "PUT", "/metrics/orphans", json={"tables": list(tables), "orphans": [dict(each) for each in orphans]}
        )

    def report_audit(self, tables: Mapping[str, bool], findings: Sequence[Mapping[str, Any]]) -> None:
        """Tell the tower what an audit found: `table`, `rule`, `verdict`, `times`, `witness`. For administrators.

        Args:
            tables: those that were audited; whether from their beginning, so that earlier findings are replaced.
        """
        audited = [{"table": table, "whole": whole} for table, whole in tables.items()]
        self._json("PUT", "/metrics/audit", json={"tables": audited, "findings": [dict(each) for each in findings]})

    def report_lag(self, kind: Literal["wal", "collector"], lags_s: Mapping[str, float]) -> None:
        """Tell the tower how far tables are behind what was sent to them, in seconds.

        For administrators, and for a principal with the role `pipeline` whose contract lets it write to these tables.

        Args:
            kind: rows come from a write-ahead log, or from a delta table.
            lags_s: by the table that rows come into, `namespace.table`.
        """
        lags = [{"table": table, "lag_s": lag_s} for table, lag_s in lags_s.items()]
        self._json("PUT", f"/metrics/{kind}-lag", json={"lags": lags})

    def metrics(
        self, *, since_ms: int = 0, principal: str | None = None, table: str | None = None, limit: int = 100,
        page_token: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """What attempts came to, by agent, table and five minutes (`windows`, newest first) and since ever (`totals`).

        An agent gets its own. `page_token`: the `next_page_token` of the page before (docs/metrics.md).
        """
        given = {"since_ms": str(since_ms), "limit": str(limit)}
        given |= {} if principal is None else {"principal": principal}
        given |= {} if table is None else {"table": table}
        given |= {} if page_token is None else {"page_token": page_token}
        return self._json("GET", "/metrics", params=given)

    def alerts(self) -> dict[str, Any]:
        """`alerts`, those that fire first, and the `rules` in force. An agent gets its own alerts."""
        return self._json("GET", "/alerts")

    def silence(self, *, id_: str | None = None, rule: str | None = None, for_s: float, reason: str) -> dict[str, Any]:
        """Nobody is told of an alert, or of what a rule finds, for so many seconds. For administrators."""
        about = {"id": id_} if rule is None else {"rule": rule}
        return self._json("POST", "/alerts/silence", json={**about, "for_s": for_s, "reason": reason})

    def end_silence(self, *, id_: str | None = None, rule: str | None = None) -> None:
        """End what `silence` began. For administrators."""
        self._json("DELETE", "/alerts/silence", json={"id": id_} if rule is None else {"rule": rule})

    def forget(self, text: str) -> int:
        """Take a text, such as a person's id, out of the partitions and messages of the tower's log of attempts.

        How many attempts had it. For administrators (docs/erasure.md).
        """
        return int(self._json("POST", "/commits/forget", json={"text": text})["attempts"])

    def undeclared(self, *, table: str | None = None, limit: int = 1_000) -> list[dict[str, Any]]:
        """Commits refused for lack of a declaration since the tower was started, by table and principal; most first.

        Each has a `declaration`, the number of `refused` commits, `first_ms`, `last_ms`, and the `command` that makes
        the declaration for the table (None if it belongs into a contract). An agent sees its own.
        """
        params = {"limit": str(limit)} | ({} if table is None else {"table": table})
        return self._json("GET", "/undeclared", params=params)["undeclared"]

    def shadow_report(self, contract: str | None = None) -> list[dict[str, Any]]:
        """What contracts in shadow mode would have refused, by principal, with counts; and the effect of rebasing.

        Of all contracts in shadow mode, or of one in any mode. For administrators.
        """
        params = {} if contract is None else {"contract": contract}
        return self._json("GET", "/shadow", params=params)["contracts"]

    # -- intents --------------------------------------------------------------------------------------------------

    def declare_intent(self, tables: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """Declare an intent: `intent`, `state` (``held``, ``queued``), `fence`, `expires_ms` (docs/intents.md).

        `Agent.intent` does that, renews it, and releases it.

        Args:
            tables: each with `table`, and `partitions` or `filter`, `operations`, `exclusive`.
            more: `ttl_s`, `wait_s`, `queue`, and `intent`, an id of the caller's own.
        """
        return self._json("POST", "/intents", json={"tables": [dict(each) for each in tables], **more})

    def renew_intent(self, id_: str, *, ttl_s: float | None = None) -> dict[str, Any]:
        """Let an intent live on for its time from now. Raises `Forbidden` (``intent.fenced``) where it has ended."""
        return self._json("POST", f"/intents/{_quoted(id_)}/renew", json={} if ttl_s is None else {"ttl_s": ttl_s})

    def release_intent(self, id_: str) -> dict[str, Any]:
        """End an intent. An administrator ends anybody's."""
        return self._json("DELETE", f"/intents/{_quoted(id_)}")

    def intent(self, id_: str, *, wait_s: float = 0.0, state: str | None = None, seen: int = 0) -> dict[str, Any]:
        """An intent and its `warnings`.

        Args:
            wait_s: wait so long, 30 s at most, until it is in another state than `state`, or has more warnings than
                were `seen`.
        """
        given = {"wait_s": str(wait_s), "seen": str(seen)} | ({} if state is None else {"state": state})
        return self._json("GET", f"/intents/{_quoted(id_)}", params=given)

    def intents(self, *, table: str | None = None, principal: str | None = None, limit: int = 100) -> dict[str, Any]:
        """`intents` that are held or wait, in the order in which they were declared. An agent sees its own."""
        given = {"limit": str(limit)} | ({} if table is None else {"table": table})
        return self._json("GET", "/intents", params=given | ({} if principal is None else {"principal": principal}))

    def take_slot(self, table: str, **more: Any) -> dict[str, Any]:
        """Take the next slot, as an intent. `more`: `wait_s`, `ttl_s`, `least_s`, `intent`. See `Agent.next_slot`."""
        return self._json("POST", "/slots/next", json={"table": table, **more})

    def slots(self, *, table: str | None = None) -> list[dict[str, Any]]:
        """Of each contract the slot that goes on or comes next, and by whom it is held."""
        return self._json("GET", "/slots", params={} if table is None else {"table": table})["slots"]

    def ignored_intents(self, *, table: str | None = None, limit: int = 1_000) -> list[dict[str, Any]]:
        """Commits that landed in rows of others' intents since the tower was started, by table and principal."""
        given = {"limit": str(limit)} | ({} if table is None else {"table": table})
        return self._json("GET", "/intents/ignored", params=given)["ignored"]

    # -- what waits for a person ------------------------------------------------------------------------------------

    def escalations(self, *, state: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Escalations, newest first; an agent sees its own. `state`: ``open`` or ``closed`` ones only."""
        return self._json("GET", "/escalations", params=_listing_params(limit, state))["escalations"]

    def escalation(self, id_: str) -> dict[str, Any]:
        """One escalation: the stopped principal and table, the time, the failures, and the people notified."""
        return self._json("GET", f"/escalations/{quote(id_, safe='')}")

    def close_escalation(self, id_: str, note: str) -> dict[str, Any]:
        """Let a stopped agent continue. For administrators; `note` records the findings and the remedy."""
        return self._json("POST", f"/escalations/{quote(id_, safe='')}/close", json={"note": note})

    def request_partitions(
        self, table: str, partitions: Sequence[str], *, operations: Sequence[str], reason: str
    ) -> dict[str, Any]:
        """Ask the owner of one's contract for partitions, after a refusal with `request_partition` as its next step.

        Args:
            table: ``namespace.table``.
            partitions: as the refusal named them; none: the whole table.
            operations: as contracts name them, such as ``append``.
            reason: for the person who decides.

        Returns the request; if the same one is open already, that one. `request` with its `id` shows later whether it
        was ``granted`` or ``denied`` (`state`), and why (`note`).
        """
        params = {"table": table, "partitions": list(partitions), "operations": list(operations), "reason": reason}
        return self._json("POST", "/requests", json=params)

    def requests(self, *, state: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Requests for partitions, newest first; an agent sees its own. `state`: ``open`` or ``closed`` ones only."""
        return self._json("GET", "/requests", params=_listing_params(limit, state))["requests"]

    def request(self, id_: str) -> dict[str, Any]:
        """One request for partitions, and its decision."""
        return self._json("GET", f"/requests/{quote(id_, safe='')}")

    def close_request(self, id_: str, decision: str, note: str) -> dict[str, Any]:
        """Decide a request: ``granted`` or ``denied``. For administrators. This does not change any contract."""
        return self._json("POST", f"/requests/{quote(id_, safe='')}/close", json={"decision": decision, "note": note})

    def _json(self, method: str, path: str, **options: Any) -> Any:
        return self._http.ask(method, "/icetower/v1" + path, **options)


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _listing_params(limit: int, state: str | None) -> dict[str, str]:
    return {"limit": str(limit)} | ({} if state is None else {"state": state})
