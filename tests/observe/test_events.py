"""The server's log: one line for each record, whatever clients write, and a bound on each kind."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.ambient import SystemAmbient
from icetower.observe.events import LINES_MAX, WINDOW_S, Event, Events, Form, LineFormatter

OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


class Clock(SystemAmbient):
    def __init__(self) -> None:
        super().__init__()
        self.s = 0.0

    def monotonic_s(self) -> float:
        return self.s


class Lines(logging.Handler):
    def __init__(self, form: Form = Form.LOGFMT) -> None:
        super().__init__()
        self.setFormatter(LineFormatter(form))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("icetower")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def record(form: Form, *, message: str = "x", **fields: object) -> str:
    made = logging.makeLogRecord({"name": "icetower", "levelname": "WARNING", "msg": "%s", "args": (message,)})
    if fields:
        made.event_fields = {"event": "refused", **fields}
    return LineFormatter(form).format(made)


@given(st.text(), st.sampled_from(Form))
def test_whatever_a_client_writes_is_one_line_of_plain_characters(text: str, form: Form) -> None:
    for line in (record(form, principal=text, partitions=[text, text]), record(form, message=text)):
        assert line.isascii()
        assert line.isprintable()
    assert json.loads(record(Form.JSON, principal=text))["event"] == "refused"


def test_a_value_cannot_pose_as_another_field() -> None:
    line = record(Form.LOGFMT, principal='eve principal=admin"', table="a.b")
    assert line.endswith(' event=refused principal="eve principal=admin\\"" table=a.b')


def test_lines_are_bounded_and_passwords_left_out() -> None:
    line = record(Form.LOGFMT, message="x" * 10_000, partitions=[f"p={n}" for n in range(100)])
    assert len(line) < 1_000
    assert 'partitions="p=0,p=1,p=2,p=3,p=4,and 95 more"' in line
    assert "hunter2" not in record(Form.LOGFMT, message="no answer from postgresql://me:hunter2@db/x")
    assert "4711aaaa" not in record(Form.LOGFMT, message="no table ict_4711aaaabbbbccccddddeeeeffff in x")


def test_a_traceback_is_one_line_too() -> None:
    try:
        raise ValueError("first\nlevel=error second")
    except ValueError as error:
        made = logging.makeLogRecord({"name": "icetower", "exc_info": (ValueError, error, error.__traceback__)})
    assert LineFormatter(Form.LOGFMT).format(made).isprintable()


def test_of_each_kind_so_many_are_written_and_the_rest_is_counted(lines: Lines) -> None:
    clock = Clock()

    async def story() -> None:
        events = Events(clock)
        for number in range(LINES_MAX + 7):
            events.say(Event.REFUSED, number=number)
        events.say(Event.SWAP_SLOW, took_ms=1)
        assert len(lines.lines) == LINES_MAX + 1  # one kind does not take the place of another
        clock.s = WINDOW_S
        events.say(Event.REFUSED, number=-1)
        assert [re.sub(r".*logger=icetower ", "", line) for line in lines.lines[-2:]] == [
            "event=left-out of=refused count=7",
            "event=refused number=-1",
        ]
        for _ in range(LINES_MAX + 1):
            events.say(Event.REFUSED)
        events.close()
        assert lines.lines[-1].endswith("event=left-out of=refused count=2")

    asyncio.run(story())


def test_what_was_left_out_is_said_even_if_nothing_more_happens(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("icetower.observe.events.WINDOW_S", 0.0)

    async def story() -> None:
        written = asyncio.Event()
        monkeypatch.setattr(lines, "emit", lambda record: (lines.lines.append(lines.format(record)), written.set()))
        events = Events(clock, lines_max=0)
        events.say(Event.REFUSED)
        await asyncio.wait_for(written.wait(), 10)

    asyncio.run(story())
    assert lines.lines[-1].endswith("event=left-out of=refused count=1")


@pytest.mark.parametrize("event", Event)
def test_every_kind_is_documented(event: Event) -> None:
    assert f"| `{event}` |" in OPERATIONS
