"""A tower in memory that does what a test says: it loses requests and answers, refuses, changes ways, forgets."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from icetower.agent.asking import Asker, Credentials
from icetower.agent.direct import Direct
from icetower.agent.journal import Journal
from icetower.agent.known import Known
from icetower.agent.recovery import Patience
from icetower.agent.steps import Lost, Pause, Request, Response, Step, Steps, Work, driven
from icetower.agent.writing import Writer
from icetower.agent.written import Written
from icetower.ambient import SystemAmbient
from icetower.errors import Unavailable
from icetower.protocol.row_limits import ARROW_TYPE

COLUMNS = ("id", "s")
CHANGES = (*COLUMNS, "_agent", "_operation", "_event_time", "_idempotency_key")


class Clock(SystemAmbient):
    """It goes on when somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.s = 1_800_000_000.0
        self.waits: list[float] = []

    def now_ms(self) -> int:
        return int(self.s * 1000)

    def monotonic_s(self) -> float:
        return self.s

    def uniform(self) -> float:
        return 0.999

    def pause(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.s += seconds


class Died(BaseException):
    """The agent's process ends at this step."""


@dataclass(frozen=True)
class Answer:
    """What comes of a request of rows instead of what the tower would do.

    Attributes:
        status: of a refusal; 0: no answer.
        arrives: whether the rows land all the same.
        sent: whether the request was sent at all.
        body: in place of an error's.
    """

    status: int = 0
    rule: str = "some.rule"
    next_step: str = "retry"
    arrives: bool = False
    sent: bool = True
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: bytes | None = None


LOST_BEFORE = Answer()
LOST_AFTER = Answer(arrives=True)
NOT_SENT = Answer(sent=False)


def refused(status: int, rule: str, next_step: str, **more: Any) -> Answer:
    return Answer(status, rule, next_step, more=more)


class ScriptedTower:
    """Takes an agent's steps. What is in `answers` comes first, one for a request of rows.

    Attributes:
        through: a table's log or delta table, and its pattern.
        away: nothing listens where it is.
        at_rows: called before a request of rows is answered.
        before: called before each step.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.tables: dict[str, Sequence[str]] = {"shop.p": COLUMNS, "shop.d": CHANGES}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.keys: dict[tuple[str, str], int] = {}
        self.through: dict[str, tuple[str, str]] = {}
        self.slot: Callable[[], dict[str, Any] | None] = lambda: None
        self.answers: list[Answer | None] = []
        self.requests: list[Request] = []
        self.control: list[Any] = []
        self.me: dict[str, Any] | Answer = {"principal": "p", "retries": None}
        self.lifetime = "PT86400S"
        self.secret: str | None = None
        self.away = False
        self.before: Callable[[Step], None] = lambda step: None
        self.at_rows: Callable[[], None] = lambda: None

    def take(self, step: Step) -> Any:
        self.before(step)
        if isinstance(step, Pause):
            return self.clock.pause(step.seconds)
        if isinstance(step, Work):
            return step.call()
        return self._answered(step)

    @property
    def doors(self) -> list[Request]:
        """The requests of rows."""
        return [each for each in self.requests if each.path.endswith("/rows")]

    def ids(self, table: str = "shop.p") -> list[int]:
        return sorted(row["id"] for row in self.rows.get(table, ()))

    def _answered(self, request: Request) -> Response:
        self.requests.append(request)
        if self.away:
            raise Lost(Unavailable("no tower answers", rule="client.connection"), sent=False, refused=True)
        if self.secret is not None and request.headers.get("Authorization") != f"Bearer {self.secret}":
            return _error(refused(401, "authentication", "authenticate"))
        if request.path.endswith("/rows"):
            return self._rows(request)
        match request.path:
            case "/icetower/v1/me/delivery":
                return self._delivery(request.params["table"], request.params["operation"])
            case "/icetower/v1/me":
                return _error(self.me) if isinstance(self.me, Answer) else _json(self.me)
            case "/v1/config":
                return _json({"idempotency-key-lifetime": self.lifetime} if self.lifetime else {})
            case path if path.startswith("/icetower/v1"):
                answer = self.control.pop(0)
                return _error(answer) if isinstance(answer, Answer) else _json(answer)
            case path if path.endswith("/check"):
                key = json.loads(request.body)["landed"]["key"]
                snapshot = self.keys.get((_table_in(path.removesuffix("/check")), key))
                return _json(
                    {"outcome": "new" if snapshot is None else "replayed", "snapshot": snapshot, "error": None}
                )
            case path:
                return self._table(_table_in(path))

    def _delivery(self, table: str, operation: str) -> Response:
        through, pattern = self.through.get(table, (None, "direct"))
        answer = {"table": table, "operation": operation, "agent": "clerk", "pattern": pattern, "through": through}
        answer |= {"blind": True, "key_columns": ["id"], "slot": self.slot(), "now_ms": self.clock.now_ms()}
        return _json(answer)

    def _table(self, table: str) -> Response:
        fields = [{"id": at, "name": name, "type": "string"} for at, name in enumerate(self.tables[table])]
        schema = {"schema-id": 0, "fields": fields}
        return _json({"metadata": {"schemas": [schema], "current-schema-id": 0}})

    def _rows(self, request: Request) -> Response:
        self.at_rows()
        answer = self.answers.pop(0) if self.answers else None
        if answer is None or answer.arrives:
            table, key = _table_in(request.path.removesuffix("/rows")), request.headers["Idempotency-Key"]
            to, _ = self.through.get(table, (table, ""))
            act, rows = request.params["operation"], rows_in(request)
            if to == table and act != "append":
                return _error(refused(400, "rows.operation", "fix_request"))
            outcome = "replayed" if (to, key) in self.keys else "appended"
            if outcome == "appended":
                filled = {} if to == table else {"_operation": "delete" if act == "delete" else "upsert"}
                self.rows.setdefault(to, []).extend({**filled, **row} for row in rows)
                self.keys[to, key] = 100 + len(self.keys)
            done = {"table": to, "snapshot-id": self.keys[to, key], "sequence-number": 1, "outcome": outcome}
            if answer is None:
                return _json(done | {"rows": len(rows), "group-size": 1, "queue-wait-ms": 0.0})
        if answer.status:
            return _error(answer)
        raise Lost(Unavailable("no tower answers", rule="client.connection"), sent=answer.sent)


def rows_in(request: Request) -> list[dict[str, Any]]:
    if request.headers["Content-Type"] == ARROW_TYPE:
        return pa.ipc.open_stream(io.BytesIO(request.body)).read_all().to_pylist()
    return json.loads(request.body)["rows"]


class ScriptedAgent:
    """An agent of a scripted tower, driven without a transport."""

    def __init__(self, tower: ScriptedTower, journal: Any = None, *, token: Any = None, **given: Any) -> None:
        self.tower = tower
        self.clock = tower.clock
        patience = Patience(ambient=self.clock, pause=self.clock.pause, **given.pop("patience", {}))
        self.journal = None if journal is None else Journal(journal, ambient=self.clock)
        self.direct = Direct("http://127.0.0.1:1", reason="why", patience=patience)
        asker = Asker(Credentials(token), patience)
        self.leases = ""
        self.known: dict[str, Known] = {}
        self.writer = Writer(
            asker,
            self.direct,
            lambda: self.leases,
            self.known.get,
            reason="why",
            patience=patience,
            journal=self.journal,
            **given,
        )

    def run(self, steps: Steps[Written]) -> Written:
        return driven(steps, self.tower.take)

    def append(self, rows: Any, table: str = "shop.p", **given: Any) -> Written:
        return self.run(self.writer.write("append", table, rows, **given))

    def write(self, operation: Any, rows: Any, table: str = "shop.p", **given: Any) -> Written:
        return self.run(self.writer.write(operation, table, rows, **given))

    def together(self, *given: tuple[str, Any], table: str = "shop.p", key: str | None = None) -> Written:
        return self.run(self.writer.write_together(table, given, key))

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()


def numbers(*ids: int) -> list[dict[str, Any]]:
    return [{"id": each, "s": f"row {each}"} for each in ids]


def table_of(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [f"row {each}" for each in ids]})


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def _table_in(path: str) -> str:
    _, _, _, namespace, _, name = path.split("/")
    return f"{unquote(namespace)}.{unquote(name)}"


def _json(document: Any) -> Response:
    return Response(200, {}, json.dumps(document).encode())


def _error(answer: Answer) -> Response:
    named = {"message": "no", "type": "", "code": answer.status, "rule": answer.rule, "next_step": answer.next_step}
    body = json.dumps({"error": {**named, **answer.more}}).encode() if answer.body is None else answer.body
    return Response(answer.status, answer.headers, body)
