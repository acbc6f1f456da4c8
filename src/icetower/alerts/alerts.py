"""Looks at the figures every few seconds, keeps the alerts that stand, and has people told once of each that fires.

Whoever was told that one fires is told that it has ended.

Everything stands in the control database, so every tower on it comes to the same, and a ticket of an alert is opened
once, whichever tower does. It is delivered as escalations are, again until it arrives.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from icetower.alerts.readings import read_values
from icetower.alerts.rules import (
    Alert,
    Reading,
    Rule,
    Silence,
    State,
    advanced,
    message_of,
    silence_of,
)
from icetower.ambient import Ambient
from icetower.errors import BadRequest, IcetowerError, NotFound
from icetower.escalations.escalations import Escalations
from icetower.escalations.store import close_now, open_now, tell_end_now
from icetower.escalations.tickets import Closing, Decision, Kind, Ticket, subject_of
from icetower.ledger.measures import Measures
from icetower.ledger.metrics import DISK, Report
from icetower.observe.events import one_line
from icetower.registry.registry import Registry
from icetower.registry.schema import alerts as alerts_table
from icetower.registry.schema import silences as silences_table
from icetower.threads import Threads

EVERY_S = 15.0
DISK_WAIT_S = 5.0
SILENCES_MAX = 1_000
SILENT_MAX_S = 30 * 24 * 3600
REASON_CHARACTERS_MAX = 1_000
RULE = "rule:"
BY = "icetower"

log = logging.getLogger("icetower")


@dataclass(frozen=True, slots=True)
class Recipients:
    """Who hears of alerts: the name of a webhook in the settings, and an address of mail."""

    webhook: str | None = None
    mail: str | None = None


class Alerts:
    """One a tower. `start` it on the event loop, and `close` it there.

    Args:
        name: of this tower, where its disk is meant.
        free_bytes: what is free on its disk; asked away from the event loop. None: it cannot be asked.
        every_s: how often the figures are looked at, in seconds.
    """

    def __init__(
        self,
        registry: Registry,
        measures: Measures,
        escalations: Escalations,
        ambient: Ambient,
        rules: Sequence[Rule],
        recipients: Recipients,
        *,
        name: str = "",
        free_bytes: Callable[[], int | None] = lambda: None,
        every_s: float = EVERY_S,
    ) -> None:
        self.rules = tuple(rules)
        self._registry = registry
        self._measures = measures
        self._escalations = escalations
        self._ambient = ambient
        self._recipients = recipients
        self._every_s = every_s
        self._name = name
        self._free_bytes = free_bytes
        self._threads = Threads(1, "disk")
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        self._threads.close(wait=False)

    async def _run(self) -> None:
        while True:
            await self._ambient.sleep(self._every_s)
            try:
                await self.look()
            except IcetowerError as error:
                log.warning("alerts could not be looked at: %s", error.message)
            except Exception:
                log.exception("alerts could not be looked at")  # and the loop goes on

    async def look(self) -> None:
        """Read the figures, and bring the alerts up to them."""
        await self._measures.count()
        try:
            free_bytes = await self._threads.run(self._free_bytes, DISK_WAIT_S)
        except TimeoutError:  # a disk that hangs says nothing of its room
            free_bytes = None
        now_ms = self._ambient.now_ms()
        if free_bytes is not None:
            await self._measures.report([Report(DISK, "", self._name, float(free_bytes), now_ms)])
        readings = await self._measures.read(lambda connection: read_values(connection, self.rules, now_ms))
        before, silences = await self._kept()
        if advanced(self.rules, before, readings, now_ms) == before and not self._untold(before, silences, now_ms):
            return
        if await self._registry.change(lambda c: self._bring_up(c, readings, now_ms), quietly=True):
            self._escalations.wake()

    def _untold(self, alerts: Mapping[str, Alert], silences: Mapping[str, Silence], now_ms: int) -> list[Alert]:
        """Those that fire, and of which people should hear and have not."""
        return [
            each
            for each in alerts.values()
            if each.state is State.FIRING and each.told is None and silence_of(each, silences, now_ms) is None
        ]

    def _bring_up(self, connection: Connection, readings: Sequence[Reading], now_ms: int) -> bool:
        """In one transaction: the alerts, and the tickets of those that have begun or ended. Whether word goes out."""
        before, silences = _read(connection)
        after = advanced(self.rules, before, readings, now_ms)
        word = False
        for alert in self._untold(after, silences, now_ms):
            ticket = self._ticket(alert, now_ms)
            word |= open_now(connection, ticket)
            after[alert.id] = replace(alert, told=ticket.id)
        for name, alert in before.items():
            left = after.get(name)
            if alert.told is not None and (left is None or left.state is State.RESOLVED):
                close_now(connection, alert.told, Closing(now_ms, BY, Decision.RESOLVED, "the value is back"))
                tell_end_now(connection, alert.told, now_ms)
                word = True
                if left is not None:
                    after[name] = replace(left, told=None)
        changed = [alert for name, alert in after.items() if before.get(name) != alert]
        gone = [name for name in before if name not in after] + [alert.id for alert in changed]
        if gone:
            connection.execute(delete(alerts_table).where(alerts_table.c.id.in_(gone)))
        if changed:
            connection.execute(insert(alerts_table), [_row(alert) for alert in changed])
        connection.execute(delete(silences_table).where(silences_table.c.until_ms <= now_ms))
        return word

    def _ticket(self, alert: Alert, now_ms: int) -> Ticket:
        rule = next(each for each in self.rules if each.name == alert.rule)
        return Ticket(
            id=self._ambient.uuid7(),
            kind=Kind.ALERT,
            subject=subject_of(Kind.ALERT, "", alert.id),
            principal=alert.principal,
            contract="",
            table=one_line(alert.table),
            contact=self._recipients.mail,
            details={
                "alert": alert.id,
                "rule": rule.name,
                "metric": rule.metric.value,
                "value": alert.value,
                "threshold": rule.threshold,
                "partitions": list(alert.partitions),
                "message": one_line(message_of(rule, alert)),
                "advice": rule.advice,
            },
            opened_ms=now_ms,
            deliveries=self._escalations.deliveries(self._recipients.webhook, self._recipients.mail, now_ms),
        )

    async def _kept(self) -> tuple[dict[str, Alert], dict[str, Silence]]:
        return (await self._registry.read(_read))[1]

    # ---------------------------------------------------------------------------------------------------- people

    async def shown(self, principal: str | None) -> list[dict[str, Any]]:
        """The alerts as the control API shows them, those that fire first; of one principal, or all."""
        alerts, silences = await self._kept()
        now_ms = self._ambient.now_ms()
        by_name = {rule.name: rule for rule in self.rules}
        order = {State.FIRING: 0, State.PENDING: 1, State.RESOLVED: 2}
        found = [each for each in alerts.values() if each.rule in by_name and principal in (None, each.principal)]
        found.sort(key=lambda each: (order.get(each.state, 3), -each.since_ms, each.id))
        return [_shown(by_name[each.rule], each, silence_of(each, silences, now_ms)) for each in found]

    async def silence(self, about: str, for_s: float, by: str, reason: str) -> Silence:
        """Nobody is told of an alert, or of what a rule finds (`rule:NAME`), for a time.

        Raises:
            NotFound: there is no such alert or rule.
            BadRequest: too many are silenced already.
        """
        silence = Silence(about, self._ambient.now_ms() + int(for_s * 1000), by, one_line(reason))
        names = {rule.name for rule in self.rules}

        def work(connection: Connection) -> None:
            alerts, silences = _read(connection)
            known = about.removeprefix(RULE) in names if about.startswith(RULE) else about in alerts
            if not known:
                way = "`icetower alerts list` shows them"
                if about in names:
                    way = f"a rule is silenced by `icetower alerts silence --rule {about}`"
                what = f"rule {about.removeprefix(RULE)}" if about.startswith(RULE) else f"alert {about}"
                raise NotFound(f"there is no {what}; {way}", rule="alert.exists")
            if len(silences) >= SILENCES_MAX and about not in silences:
                raise BadRequest(f"{SILENCES_MAX} alerts are silenced, which is the most", rule="alert.silences")
            connection.execute(delete(silences_table).where(silences_table.c.about == about))
            row = {"about": about, "until_ms": silence.until_ms, "by": by, "reason": silence.reason}
            connection.execute(insert(silences_table), [row])

        await self._registry.change(work, quietly=True)
        return silence

    async def speak(self, about: str) -> bool:
        """End a silence. Whether there was one."""

        def work(connection: Connection) -> bool:
            return bool(connection.execute(delete(silences_table).where(silences_table.c.about == about)).rowcount)

        return await self._registry.change(work, quietly=True)

    async def counts(self) -> dict[tuple[str, str], int]:
        """How many alerts there are by rule and state, for every rule."""
        found = {(rule.name, State.FIRING.value): 0 for rule in self.rules}
        for each in await self.shown(None):
            key = (str(each["rule"]), str(each["state"]))
            found[key] = found.get(key, 0) + 1
        return found


def _shown(rule: Rule, alert: Alert, silence: Silence | None) -> dict[str, Any]:
    silent = silence is not None and alert.state is not State.RESOLVED
    about = {"principal": alert.principal, "table": alert.table}
    return {
        "id": alert.id,
        "rule": alert.rule,
        "state": State.SILENCED.value if silent else alert.state.value,
        "since_ms": alert.since_ms,
        "value": alert.value,
        "threshold": rule.threshold,
        "about": {name: value for name, value in about.items() if value},
        "partitions": list(alert.partitions),
        "message": one_line(message_of(rule, alert)),
        "advice": rule.advice,
        "ticket": alert.told,
        "silenced_until_ms": silence.until_ms if silence is not None else None,
        "silenced_by": silence.by if silence is not None else None,
        "silence_reason": silence.reason if silence is not None else None,
    }


def _read(connection: Connection) -> tuple[dict[str, Alert], dict[str, Silence]]:
    alerts = {
        row.id: Alert(
            row.id,
            row.rule,
            row.principal,
            row.target,
            State(row.state),
            row.since_ms,
            row.value,
            tuple(json.loads(row.partitions)),
            row.told,
        )
        for row in connection.execute(select(alerts_table))
    }
    silences = {
        row.about: Silence(row.about, row.until_ms, row.by, row.reason)
        for row in connection.execute(select(silences_table))
    }
    return alerts, silences


def _row(alert: Alert) -> dict[str, Any]:
    return {
        "id": alert.id,
        "rule": alert.rule,
        "principal": alert.principal,
        "target": alert.table,
        "state": alert.state.value,
        "since_ms": alert.since_ms,
        "value": alert.value,
        "partitions": json.dumps(alert.partitions),
        "told": alert.told,
    }
