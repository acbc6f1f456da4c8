"""What the tower has answered, as the results of tools."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar

from icetower.agent import Tower
from icetower.agent.failures import error_of
from icetower.agent.landings import Landed
from icetower.errors import BadRequest, IcetowerError, NotFound
from icetower.mcp import tables
from icetower.mcp.results import (
    Asked,
    Attempt,
    Checked,
    Explained,
    Figures,
    Leased,
    Metrics,
    Refusal,
    Result,
    Status,
    Untrusted,
    Who,
    clean,
)
from icetower.mcp.since import since_landed
from icetower.rules import table as rules

R = TypeVar("R", bound=Result)
ATTEMPTS_SHOWN = 20
ATTEMPTS_COUNTED = 1_000


def refused(model: type[R], error: IcetowerError, **fields: Any) -> R:
    """The answer of a tool that was refused."""
    refusal = Refusal.of(error)
    return model(ok=False, summary=f"refused: {refusal.message}", refusal=refusal, **fields)


def who_is(desk: tables.Desk, names: tuple[str, ...], *, read_only: bool) -> Who:
    """The answer of `whoami`. `names`: all tools that there are."""
    me = desk.me
    quotas = [
        clean(f"{rule.pattern}: {name.replace('_', ' ')}: {value}")
        for rule in me.contract.tables
        for name in ("commits_per_minute", "files_per_commit", "bytes_per_commit")
        if (value := getattr(rule.quota, name)) is not None
    ]
    quotas += [
        clean(f"{rule.pattern}: an overwrite adds at most {times} times the rows that it removes, or a person decides")
        for rule in me.contract.tables
        if (times := rule.guard.times) is not None
    ]
    names = me.tools(names, read_only=read_only)
    return Who(
        summary=f"you are {me.principal}, under contract {me.contract.name}"
        + (", and may only read here" if read_only else ""),
        principal=me.principal,
        contract=me.contract.name,
        contract_version=me.version,
        administrator=me.contract.administrator,
        read_only=read_only,
        grants=tables.owned_in_words(me)[:100],
        quotas=quotas[:100],
        tools=list(names),
    )


def checked(found: Mapping[str, Any]) -> Checked:
    """The answer of `check_write`."""
    error = found["error"]
    refusal = None if error is None else Refusal.of(_error(error))
    return Checked(
        ok=True,
        summary="it would be let through now" if refusal is None else f"it would be refused: {refusal.message}",
        refusal=refusal,
        allowed=bool(found["allowed"]),
        outcome=found["outcome"],
        partitions=[clean(each) for each in found["partitions"]],
        wait_ms=found["wait_ms"],
    )


def whole_files_alone(found: Checked) -> Checked:
    """A dry run of a delete by one who may not overwrite: a file that keeps other rows is rewritten."""
    return found.model_copy(
        update={
            "summary": "it would be let through now where all rows of each file go; where others stay, delete_rows "
            "rewrites the file, which is an overwrite, and would be refused"
        }
    )


def _error(error: Mapping[str, Any]) -> IcetowerError:
    """An error of an answer, as an exception."""
    return error_of(int(error["code"]), json.dumps({"error": dict(error)}).encode())


def status(desk: tables.Desk, table: str, key: str) -> Status:
    """The answer of `commit_status`."""
    ways = tables.ways_into(desk, table)
    answers = [(each, desk.tower.landed(each, key)) for each in ways]
    written_to, found = next((each for each in answers if each[1].landed is not False), answers[0])
    there = "a part of it is in the table, the rest is not" if found.partly else "it is not in the table"
    if found.error is not None:
        refusal, landed = Refusal.of(found.error), found.landed
        summary = f"{there}, and never will be" if found.fenced else "it cannot be told"
        summary = f"{summary}: {refusal.message}"
        return Status(ok=False, summary=summary, landed=landed, fenced=found.fenced, refusal=refusal)
    if not found.landed:
        return Status(
            summary=f"{there}. Make the very same call again: it has the same key, and is done once even "
            "if the first one still lands",
            landed=False,
            may_send_again=True,
        )
    at = None if found.snapshot is None else str(found.snapshot)
    since = since_landed(desk, table, written_to, key, found.snapshot)
    summary = "it has landed: do not write it again"
    if not since.nothing:
        summary = (
            f"it has landed: {since.in_words()}, and may have changed or removed its rows. Look with query_rows before "
            "you write them again, which takes another batch"
        )
    return Status(summary=summary, landed=True, snapshot=at, commits_since=since.commits)


def fence(desk: tables.Desk, table: str, key: str) -> Status:
    """The answer of `fence_write`: wherever the caller's rows may come in, nothing lands under the key."""
    before = status(desk, table, key)
    if before.landed:
        return before
    found: list[Landed] = []
    denied: IcetowerError | None = None
    for way in tables.ways_into(desk, table):
        try:
            found.append(desk.tower.fence(way, key))
        except IcetowerError as error:
            if error.status != 403:
                raise
            denied = error  # nothing of the caller comes in here
    if denied is not None and not found:
        raise denied
    if any(each.landed for each in found):  # meanwhile
        return status(desk, table, key)
    if any(each.landed is None for each in found):
        return status(desk, table, key).model_copy(update={"fenced": True})
    return Status(
        summary="it is not in the table, and never will be. The same call is refused from now on; to write its rows "
        "after all, take another batch",
        landed=False,
        fenced=True,
    )


def explained(tower: Tower, request_id: str | None, rule: str | None) -> Explained:
    """The answer of `explain_refusal`."""
    attempts: list[Attempt] = []
    messages: list[dict[str, Any]] = []
    if rule is None:
        found = tower.commits(limit=ATTEMPTS_SHOWN, refused=request_id is None, request_id=request_id)
        attempts = [attempt_of(each) for each in found]
        messages = [
            {"request_id": each.request_id, "message": clean(each.message)} for each in attempts if each.message
        ]
        rule = next((each.rule for each in attempts if each.rule), None)
    known = None if rule is None else rules().rules.get(rule)
    if known is None and not attempts:
        raise NotFound("nothing of yours was refused by that; leave both arguments out for your last refusals")
    steps = {each.next_step: rules().next_steps.get(each.next_step, "") for each in known.refusals} if known else {}
    return Explained(
        summary=f"{rule}: {known.meaning}" if known else "see the attempts",
        rule=rule,
        meaning=None if known is None else known.meaning,
        next_steps=[f"{name}: {meaning}" for name, meaning in steps.items()],
        attempts=[each.model_copy(update={"message": None}) for each in attempts],
        untrusted=Untrusted(source="the log of attempts", rows=messages) if messages else None,
    )


def attempt_of(found: Mapping[str, Any]) -> Attempt:
    """An attempt of the log."""
    return Attempt(
        at_ms=found["at_ms"],
        table=clean(found["table"]),
        operation=clean(found["operation"]),
        outcome=found["outcome"],
        rule=found["rule"],
        request_id=found["request_id"],
        snapshots=[str(each) for each in found["snapshots"]],
        partitions=[clean(each) for each in found["partitions"]],
        message=found["message"],
    )


def asked_of(found: Mapping[str, Any], summary: str) -> Asked:
    """The answer of `request_partition`."""
    note = found.get("note")
    rows = [{"note": clean(str(note))}] if note else []
    untrusted = Untrusted(source="the person who decided", rows=rows) if rows else None
    return Asked(summary=summary, id=str(found["id"]), state=str(found["state"]), untrusted=untrusted)


def leased(found: Mapping[str, Any]) -> Leased:
    """The answer of the tools of intents."""
    state, warnings = str(found["state"]), list(found["warnings"])
    said = {
        "held": "the rows are yours: do the work, renew it in time, and release it",
        "queued": "others have the rows: renew it while you wait, until it is held",
    }
    rows = [
        {"principal": clean(str(each["principal"])), "partitions": [clean(str(one)) for one in each["partitions"]][:20]}
        for each in warnings[-20:]
    ]
    others = [{"before you": clean(str(each["principal"]))} for each in found["waits_for"][:20]]
    untrusted = Untrusted(source="the names of others", rows=[*others, *rows]) if others or rows else None
    return Leased(
        summary=said.get(state, f"it has ended ({found['ended']})"),
        intent=str(found["intent"]),
        state=state,
        fence=found["fence"],
        expires_ms=found["expires_ms"],
        warnings=len(warnings),
        untrusted=untrusted,
    )


def metrics_of(desk: tables.Desk, since_ms: int) -> Metrics:
    """The answer of `my_metrics`: the tower's own figures, or what the log of attempts says."""
    me = desk.me.principal
    try:
        found = desk.tower.metrics(since_ms=since_ms)["totals"]
        counted = [_figures(each["table"], each) for each in found if each["principal"] == me]
    except (NotFound, BadRequest):
        by_table: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for each in desk.tower.commits(limit=ATTEMPTS_COUNTED, since_ms=since_ms, principal=me):
            if each["operation"] != "read" and each["outcome"] != "done":
                of = by_table[each["table"]]
                of["attempts"] += 1
                of[_COUNTED.get(each["outcome"], "landed")] += 1
        counted = [_figures(name, of) for name, of in sorted(by_table.items())]
    attempts, landed = sum(each.attempts for each in counted), sum(each.landed for each in counted)
    return Metrics(summary=f"{attempts} attempts, {landed} landed", since_ms=since_ms, tables=counted[:100])


_COUNTED = {"refused": "refused", "conflict": "conflicts", "unknown": "unknown", "replayed": "replayed"}


def _figures(table: str, of: Mapping[str, Any]) -> Figures:
    numbers = {name: int(of.get(name) or 0) for name in (*_COUNTED.values(), "attempts", "landed")}
    decided = numbers["attempts"] - numbers["replayed"]
    rate = round(numbers["landed"] / decided, 4) if decided else None
    return Figures(table=clean(table), success_rate=rate, **numbers)
