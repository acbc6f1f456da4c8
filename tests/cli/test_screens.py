"""Screens of the terminal: `status`, `agents`, `tables list`, `commits`, `alerts`, `top`, of towers with data."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.cli.attempts import folded, followed
from icetower.cli.figures import by
from tests.cli.conftest import Run
from verify.kit.tower_process import SCHEMA, TowerProcess, command

CONTRACT = """owner: {name}@example.com
tables:
  - table: shop.sales
    operations: [append]
    partitions: [{{region: [{name}]}}]
escalation: {{after_failures: 3, within: 10m, to: Dana Ito <dana@example.com>}}
"""
ESCAPE = "\x1b[31m"
NOW_MS = 1_795_000_000_000


def named(name: str) -> str:
    return CONTRACT.format(name=name)


@pytest.fixture
def busy(untouched: TowerProcess, monkeypatch: pytest.MonkeyPatch) -> TowerProcess:
    """A tower with an agent that is refused until it is stopped, and a request with a hostile reason."""
    monkeypatch.setenv("ICETOWER_URI", untouched.uri)
    monkeypatch.setenv("ICETOWER_TOKEN", untouched.secret)
    secret = untouched.principal("east", named("east"))
    with untouched.client() as admin:
        admin.post("/v1/namespaces", json={"namespace": ["shop"]}).raise_for_status()
        spec = {"fields": [{"source-id": 2, "field-id": 1000, "name": "region", "transform": "identity"}]}
        table = {"name": "sales", "schema": SCHEMA, "partition-spec": spec}
        admin.post("/v1/namespaces/shop/tables", json=table).raise_for_status()
    with untouched.client(secret) as agent:
        for _ in range(5):
            sets = [{"action": "set-properties", "updates": {"a": "b"}}]
            answer = agent.post("/v1/namespaces/shop/tables/sales", json={"requirements": [], "updates": sets})
            assert answer.status_code == 403
    with Tower(untouched.uri, secret) as tower:
        tower.request_partitions("shop.sales", ["region=west"], operations=["append"], reason=f"late {ESCAPE} rows")
    return untouched


def test_status_shows_who_is_stopped_why_and_what_waits(run: Run, busy: TowerProcess) -> None:
    status, out, err = run("status")
    assert (status, err) == (0, "")
    for expected in ("ready", "upstream ok", "disk ok", "east", "shop.sales", "contract.", "region=west"):
        assert expected in out
    found = json.loads(run("status", "--json")[1])
    assert found["ready"]
    assert found["outcomes"]["refused"] >= 5
    assert [each["principal"] for each in found["requests"]] == ["east"]
    if found["escalations"]:
        assert f"icetower escalations close {found['escalations'][0]['id']}" in out
    assert found["refused"][0]["times"] >= 3
    assert ESCAPE not in out


def test_status_and_leases_show_who_waits_for_whose_rows(
    run: Run, busy: TowerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tower(busy.uri, busy.secret) as tower:
        first = tower.declare_intent([{"table": "shop.sales"}], ttl_s=600)
        assert "nobody" in run("status")[1].partition("waiting for rows (1 lease held)")[2]
        tower.declare_intent([{"table": "shop.sales"}], ttl_s=600, queue=True)
    out = run("status")[1]
    assert f"icetower leases break {first['intent']}" in out.partition("waiting for rows")[2]
    monkeypatch.setenv("COLUMNS", "300")
    status, listed, err = run("leases", "list")
    assert (status, err) == (0, ""), err
    assert all(name in listed for name in ("since", "waits for"))
    held, waits = json.loads(run("leases", "list", "--json")[1])["intents"]
    assert (held["waits_for"], [each["intent"] for each in waits["waits_for"]]) == ([], [first["intent"]])
    found = json.loads(run("status", "--json")[1])
    assert [(len(found[name]), found[name][0]["principal"]) for name in ("waiting", "holding")] == [(1, "admin")] * 2


def test_status_of_an_agent_shows_its_own(run: Run, busy: TowerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICETOWER_TOKEN", busy.principal("west", named("west")))
    status, out, err = run("status", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["attempts"], found["refused"], found["requests"]) == (0, [], [])
    assert found["bypasses"] is None
    assert found["components"]["disk"] == {"state": "ok"}


def test_refusals_are_one_row_with_a_count(run: Run, busy: TowerProcess) -> None:
    _, out, _ = run("commits", "--refused")
    rows = [line for line in out.splitlines() if "shop.sales" in line]
    raw = json.loads(run("commits", "--refused", "--json")[1])
    assert len(raw) >= 5 > len(rows)
    assert len([line for line in run("commits", "--refused", "--each")[1].splitlines() if "shop.sales" in line]) == len(
        raw
    )
    rule = raw[0]["rule"]
    assert {row["rule"] for row in json.loads(run("commits", "--rule", rule, "--json")[1])} == {rule}
    assert json.loads(run("commits", "--outcome", "rebased", "--json")[1]) == []
    assert run("commits", "--outcome", "nosuch")[0] == 1


def test_commits_are_followed_until_ctrl_c(busy: TowerProcess) -> None:
    process = subprocess.Popen(
        command("commits", "--follow", "--every", "1s", "--since", "1h", "--json"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert first["principal"] in ("east", "admin")
    with busy.client() as admin:
        admin.post("/v1/namespaces", json={"namespace": ["later"]}).raise_for_status()
    while json.loads(process.stdout.readline())["table"] != "later":
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()


def test_agents_and_tables_are_listed_and_shown(run: Run, busy: TowerProcess) -> None:
    listed = {each["name"]: each for each in json.loads(run("agents", "list", "--json")[1])}
    assert listed["east"]["not_landed"] >= 5
    assert listed["admin"]["contract"] == "administrator"
    _, out, _ = run("agents", "show", "east")
    for expected in ("contract east", "refused", "contract in force", "agent: east"):
        assert expected in out
    assert ESCAPE not in out
    tables = {each["name"]: each for each in json.loads(run("tables", "list", "--json")[1])}
    assert tables["shop.sales"]["refused"] >= 5
    assert json.loads(run("tables", "list", "nosuch", "--json")[1]) == []
    status, _, err = run("agents", "show", "eats")
    assert status == 1
    assert "did you mean east?" in err


def test_the_role_of_a_viewer_is_given_by_name(run: Run, busy: TowerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = run("principals", "create", "dana", "--role", "viewer")[1].strip()
    monkeypatch.setenv("ICETOWER_TOKEN", secret)
    for words in (("status",), ("agents", "list"), ("agents", "show", "east"), ("tables", "list"), ("commits",)):
        status, out, err = run(*words)
        assert status == 0, err
        assert "shop.sales" in out or "east" in out, words
    status, _, err = run("contracts", "revoke", "east", "--json")
    assert status == 1
    assert json.loads(err)["error"]["rule"] == "permission.viewer"


# ── What is folded and followed ──────────────────────────────────────────────────────────────────────────────────────


def attempt(at_ms: int, outcome: str = "refused", **other: Any) -> dict[str, Any]:
    row = {"at_ms": at_ms, "request_id": f"r{at_ms}", "principal": "p", "table": "a.b", "operation": "append"}
    return row | {"outcome": outcome, "rule": "contract.partitions", "partitions": ["x=1"]} | other


def test_equal_refusals_alone_are_folded() -> None:
    rows = [
        attempt(9),
        attempt(8, principal="q"),
        attempt(7, "direct"),
        attempt(6),
        attempt(5, partitions=["x=2"]),
        attempt(4, "direct"),
        attempt(3),
        attempt(2, "conflict"),
    ]
    found = [(row["at_ms"], row["times"], row["first_ms"]) for row in folded(rows)]
    assert found == [(9, 3, 3), (8, 1, 8), (7, 1, 7), (5, 1, 5), (4, 1, 4), (2, 1, 2)]


def test_each_attempt_is_followed_once_even_where_it_is_logged_late() -> None:
    answers = [[attempt(100)], [attempt(102), attempt(100)], [attempt(102), attempt(101), attempt(100)], []]
    asked: list[int] = []

    def ask(since_ms: int) -> list[dict[str, Any]]:
        asked.append(since_ms)
        return answers[len(asked) - 1]

    waits = iter([True, True, True, False])
    found = [[row["at_ms"] for row in fresh] for fresh in followed(ask, 50, lambda: next(waits))]
    assert found == [[100], [102], [101], []]
    assert asked == [50] * 4  # a late one may be a minute older than the newest


def test_figures_are_added_up_by_table_and_agent() -> None:
    hot = [{"partition": "d=1", "attempts": 9, "conflicts": 2}]
    rows = [
        metrics("a", "s.t", landed=4, attempts=5, first_tries=5, first_try_landed=4, hot_partitions=hot),
        metrics("b", "s.t", landed=1, attempts=5, first_tries=5, first_try_landed=1, hot_partitions=hot),
    ]
    (table,) = by("table", rows)
    assert (table.counts["landed"], table.first_try_rate, table.hottest) == (5, 0.5, [("d=1", 4)])
    assert [each.name for each in by("principal", rows)] == ["a", "b"]
    assert by("table", []) == []


# ── Alerts and metrics, of a stand-in with the same routes ────────────────────────────────────────────────────────────


def metrics(principal: str, table: str, **given: Any) -> dict[str, Any]:
    names = ("attempts", "landed", "refused", "conflicts", "unknown", "retries", "first_tries", "first_try_landed")
    row: dict[str, Any] = {"principal": principal, "table": table, **dict.fromkeys(names, 0)}
    return row | {"latency_p50_ms": 20.0, "latency_p99_ms": 90.0, "hot_partitions": []} | given


ALERT = {
    "id": "a1b2", "rule": "retry-rate", "state": "firing", "since_ms": NOW_MS - 90_000, "value": 0.25, "threshold": 0.1,
    "about": {"principal": f"east{ESCAPE}", "table": "shop.sales"}, "partitions": ["day=1"], "silenced_until_ms": None,
    "silenced_by": None, "message": "25 % of the attempts are retries", "advice": "look at icetower tables show",
}  # fmt: skip
RULE = {
    "name": "retry-rate",
    "metric": "agent_write_retry_rate",
    "above": 0.1,
    "clears_at": 0.05,
    "window_s": 300,
    "for_s": 0,
}


class Routes(BaseHTTPRequestHandler):
    """`/icetower/v1/metrics` and `/alerts` as the tower answers them."""

    asked: list[tuple[str, str, Any]]
    fails = False

    def do_GET(self) -> None:
        self.asked.append(("GET", self.path, None))
        if self.fails:
            self._answer(503, {"error": {"message": "busy", "type": "ServiceUnavailableException", "code": 503}})
        elif "/metrics" in self.path:
            rows = [
                metrics("north", "shop.sales", attempts=60, landed=60, first_tries=60, first_try_landed=57),
                metrics(f"east{ESCAPE}", "shop.sales", attempts=9, refused=9, first_tries=3),
            ]
            second = "page_token" in self.path
            now_ms = SystemAmbient().now_ms()
            old = metrics("long ago", "old.t", attempts=1) | {"window_ms": now_ms - 3_600_000}
            rows = [row | {"window_ms": now_ms - now_ms % 300_000} for row in rows]
            page = {
                "window_s": 300,
                "now_ms": now_ms,
                "windows": [rows[1], old] if second else rows[:1],
                "totals": [old],
            }
            self._answer(200, page | {"next_page_token": None if second else "2"})
        else:
            self._answer(200, {"alerts": [ALERT, ALERT | {"id": "c3", "state": "resolved"}], "rules": [RULE]})

    def do_POST(self) -> None:
        self._changed("POST")

    def do_DELETE(self) -> None:
        self._changed("DELETE")

    def _changed(self, method: str) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((method, self.path, body))
        self._answer(200, body)

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Routes]]:
    kind = type("Asked", (Routes,), {"asked": [], "fails": False})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("ICETOWER_URI", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("ICETOWER_TOKEN", "t")
        yield kind
        server.shutdown()


def test_alerts_say_what_they_are_about_and_what_to_do(run: Run, stand_in: type[Routes]) -> None:
    status, out, err = run("alerts", "list")
    assert (status, err) == (0, "")
    for expected in (
        "firing",
        "retry-rate",
        "on shop.sales",
        "25 % of the attempts",
        "hot: day=1",
        "icetower tables show",
    ):
        assert expected in out
    assert "resolved" not in out
    assert ESCAPE not in out
    _, out, _ = run("alerts", "list", "--all")
    assert "resolved" in out
    assert "above 10%" in out


def test_alerts_are_silenced_and_unsilenced(run: Run, stand_in: type[Routes]) -> None:
    assert run("alerts", "silence", "a1", "--for", "2h", "--reason", "backfill")[0] == 0
    assert run("alerts", "unsilence", "--rule", "retry-rate")[0] == 0
    changed = [each for each in stand_in.asked if each[0] != "GET"]
    place = "/icetower/v1/alerts/silence"
    assert changed == [
        ("POST", place, {"id": "a1b2", "for_s": 7200.0, "reason": "backfill"}),
        ("DELETE", place, {"rule": "retry-rate"}),
    ]


def test_top_without_a_terminal_is_one_screen(run: Run, stand_in: type[Routes]) -> None:
    status, out, err = run("top")
    assert (status, err) == (0, "")
    assert "shop.sales" in out
    assert "north" in out
    assert "95.0 %" in out  # of the agent north; of the table 57 of 63
    assert "90.5 %" in out
    assert ESCAPE not in out
    found = json.loads(run("top", "--json")[1])
    assert 300 <= found["seconds"] < 600  # the windows that the last five minutes touch
    assert found["tables"][0]["commits_per_s"] == pytest.approx(60 / found["seconds"])
    assert "old.t" not in out
    assert found["agents"][0]["name"] == "north"


@contextmanager
def in_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program in a terminal of 24 lines; yields the process and the terminal's other end."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "24"}
    process = subprocess.Popen(
        command(*words), stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    try:
        yield process, master
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)


def read_until(master: int, wanted: bytes, within_s: float = 60) -> bytes:
    text = b""
    while wanted not in text:
        assert select.select([master], [], [], within_s)[0], text
        text += os.read(master, 65_536)
    return text


def test_top_is_live_and_q_puts_the_terminal_back(stand_in: type[Routes]) -> None:
    with in_terminal("top", "--every", "1s") as (process, master):
        read_until(master, b"shop.sales")
        stand_in.fails = True
        read_until(master, b"busy")  # it goes on where the tower does not answer
        stand_in.fails = False
        os.write(master, b"q")
        read_until(master, b"\x1b[?1049l")  # the screen that was there before
        assert process.wait(30) == 0


def test_top_ends_cleanly_at_ctrl_c(stand_in: type[Routes]) -> None:
    with in_terminal("top") as (process, master):
        read_until(master, b"shop.sales")
        process.send_signal(signal.SIGINT)
        said = read_until(master, b"\x1b[?1049l")
        assert process.wait(30) == 0
        assert b"Traceback" not in said


def test_metrics_of_a_tower_that_has_none_are_one_paragraph(run: Run, untouched: TowerProcess, tmp_path: Path) -> None:
    status, _, err = run("top", "--uri", untouched.uri, "--json")
    assert status in (0, 1)
    assert not err or json.loads(err)["error"]
