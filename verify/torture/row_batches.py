"""The rows of the exactness run, their requests, and the journals of the agents. Pure.

A row's agent, its request and all of its values follow from its id, so that the table can be judged row by row. The
rows of a request are a function of the seed, its agent and its number: an agent that was killed sends the same again.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

ROWS_MAX = 10_000
"""Of one request."""

BATCHES_MAX = 1_000_000
"""Of one agent."""

PARTS = 7
JSON, NDJSON, ARROW = "json", "ndjson", "arrow"


@dataclass(frozen=True)
class Batch:
    """One request of rows.

    Attributes:
        agent: number of its agent; from 900 on they are writers past the towers.
        number: of the request among the agent's.
        rows: how many.
        form: in which it is sent.
        bad: whether one of its rows does not fit, so that it has to be refused.
    """

    agent: int
    number: int
    rows: int
    form: str = JSON
    bad: bool = False

    @cached_property
    def id(self) -> int:
        """Its own; the ids of its rows are this times `ROWS_MAX`, and on."""
        return self.agent * BATCHES_MAX + self.number

    @property
    def key(self) -> str:
        """Under which it is sent: always the same."""
        return f"01a1fe03-73b8-7{self.agent:03x}-8000-{self.number:012x}"

    @property
    def ids(self) -> range:
        """Of its rows."""
        return range(self.id * ROWS_MAX, self.id * ROWS_MAX + self.rows)


def id_of_key(key: str | None) -> int | None:
    """The id of the request that is sent under a key; None: under no key of this run."""
    parts = (key or "").split("-")
    if len(parts) != 5 or parts[0] != "01a1fe03":
        return None
    return int(parts[2][1:], 16) * BATCHES_MAX + int(parts[4], 16)


def batch(seed: int, agent: int, number: int, rows_most: int = ROWS_MAX, *, arrow: bool = True) -> Batch:
    """The request of that number: small ones, middle ones and large ones."""
    chance = random.Random(f"{seed}-{agent}-{number}")
    most = chance.choice((1, 1, 1, 10, 10, 10, 100, 100, 1_000, ROWS_MAX))
    rows = chance.randint(1, min(most, rows_most))
    form = chance.choice((JSON, NDJSON, ARROW))
    return Batch(agent, number, rows, form if arrow or form != ARROW else NDJSON, chance.random() < 0.02)


def cents(id_: int) -> int:
    """The price of a row, in cents."""
    return id_ % 100_000


def body(of: Batch) -> tuple[str, bytes]:
    """Content type and body, without the key."""
    if of.form == ARROW:
        return "application/vnd.apache.arrow.stream", _stream(of)
    lines = [
        f'{{"id":{id_},"agent":{of.agent},"part":{id_ % PARTS},"price":"{cents(id_) // 100}.{cents(id_) % 100:02}",'
        f'"note":"row {id_}"}}'
        for id_ in of.ids
    ]
    if of.bad:
        lines[len(lines) // 2] = json.dumps({"id": f"no number {of.id}"})
    if of.form == NDJSON:
        return "application/x-ndjson", "\n".join(lines).encode()
    return "application/json", ('{"rows":[' + ",".join(lines) + "]}").encode()


def _stream(of: Batch) -> bytes:
    import pyarrow as pa  # agents that send none do without it

    ids = list(of.ids)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "agent": pa.array([of.agent] * len(ids), pa.int32()),
        "part": pa.array([id_ % PARTS for id_ in ids], pa.int32()),
        "price": pa.array([cents(id_) for id_ in ids], pa.int64()).cast(pa.decimal128(20, 0)),
        "note": pa.array([f"row {id_}" for id_ in ids]),
    }
    # Cents are units of a decimal with two places: the same bytes under another type.
    columns["price"] = columns["price"].view(pa.decimal128(12, 2))
    if of.bad:
        columns["id"] = pa.array([None, *ids[1:]], pa.int64())
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


# ── Journals ───────────────────────────────────────────────────────────────────────────────────────────

BEGUN, ACKNOWLEDGED, REFUSED, GIVEN_UP, ANSWER = "B", "A", "R", "G", "N"


@dataclass(slots=True)
class Journal:
    """The requests of an agent by the lines that it has written: ``B`` before it sends one, the others afterwards.

    Attributes:
        rows: of each request that was begun, by its number.
        ended: how, by number: ``A``, ``R`` or ``G``; a number that is missing is still under way.
        answers: how often each was heard.
    """

    rows: dict[int, int] = field(default_factory=dict[int, int])
    ended: dict[int, str] = field(default_factory=dict[int, str])
    answers: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def read(cls, lines: Iterable[str]) -> Journal:
        """Of its lines, each of which was written at once."""
        found = cls()
        for line in lines:
            kind, *rest = line.split()
            if kind == ANSWER:
                found.answers[" ".join(rest)] += 1
            elif kind == BEGUN:
                found.rows[int(rest[0])] = int(rest[1])
            else:
                found.ended[int(rest[0])] = kind
        return found

    @property
    def under_way(self) -> list[int]:
        """Requests of which the end is not known, oldest first."""
        return sorted(self.rows.keys() - self.ended.keys())

    @property
    def acknowledged_rows(self) -> int:
        return sum(self.rows[number] for number, how in self.ended.items() if how == ACKNOWLEDGED)
