"""Traces of real commits: a tower sends them to a collector on loopback, which reads OTLP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyiceberg.exceptions import ForbiddenError

from icetower.agent import new_key
from verify.kit.tower_process import SCHEMA, TowerProcess

ROWS = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})
BLIND = {"icetower.blind": "true"}
ARRIVES_WITHIN_S = 60
PHASES = ["judge", "queue", "plan", "write", "swap"]
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP.

    Attributes:
        hangs: it takes posts, and answers none.
    """

    def __init__(self, *, hangs: bool = False) -> None:
        self.spans: list[Any] = []
        self.resources: set[str] = set()
        self.posts = 0
        self.came = threading.Condition()
        self.released = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(body)
                with collector.came:
                    collector.posts += 1
                    for resource in request.resource_spans:
                        named = {each.key: each.value.string_value for each in resource.resource.attributes}
                        collector.resources.add(named["service.name"])
                        for scope in resource.scope_spans:
                            collector.spans.extend(scope.spans)
                    collector.came.notify_all()
                if hangs:
                    collector.released.wait()
                    return
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                del args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def wait(self, enough: Callable[[list[Any]], bool]) -> list[Any]:
        """All spans, once there are enough of them; it fails the test where they do not come."""
        with self.came:
            assert self.came.wait_for(lambda: enough(self.spans), ARRIVES_WITHIN_S), names(self.spans)
            return list(self.spans)


@contextmanager
def collecting(**how: bool) -> Iterator[Collector]:
    collector = Collector(**how)
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()


def names(spans: list[Any]) -> list[str]:
    return sorted(span.name.removeprefix("icetower.") for span in spans)


def said(span: Any) -> dict[str, Any]:
    """A span's attributes."""
    found: dict[str, Any] = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        if kind == "array_value":
            value = [getattr(item, item.WhichOneof("value")) for item in value.values]
        found[each.key.removeprefix("icetower.")] = value
    return found


def of(spans: list[Any], name: str, **about: object) -> list[Any]:
    """Those with a name, and some attributes."""
    return [s for s in spans if s.name == f"icetower.{name}" and about.items() <= said(s).items()]


def configured(folder: Path, collector: str, more: str = "") -> str:
    config = folder / "icetower.toml"
    config.write_text(f"[traces]\nenabled = true\nendpoint = '{collector}'\n{more}")
    return str(config)


def made(tower: TowerProcess) -> str:
    with tower.client() as http:
        http.post("/v1/namespaces", json={"namespace": ["shop"]}).raise_for_status()
        body = {"name": "t", "schema": SCHEMA, "properties": {"icetower.blind-appends": "true"}}
        http.post("/v1/namespaces/shop/tables", json=body).raise_for_status()
    return "shop.t"


def test_a_commit_is_seen_in_its_phases_and_a_group_by_its_members(
    start_tower: Callable[..., TowerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with collecting() as collector:
        tower = start_tower("--config", configured(tmp_path, collector.url))
        table = made(tower)
        tower.catalog().load_table(table).append(ROWS, snapshot_properties=BLIND)
        spans = collector.wait(lambda spans: bool(of(spans, "request")))
        assert names(spans) == sorted(["request", "group", *PHASES, "plan", "write", "swap"])
        [request], [group] = of(spans, "request"), of(spans, "group")
        [attempt] = tower.admin.commits(limit=1, table=table)
        about = said(request)
        assert about["request_id"] == attempt["request_id"]
        assert (about["principal"], about["table"], about["outcome"]) == ("admin", table, "direct")
        assert about["snapshots"] == attempt["snapshots"] == said(group)["snapshots"]
        assert about["http.route"] == "/v1/namespaces/{namespace}/tables/{table}"
        assert about["http.response.status_code"] == 200
        own = [span for span in spans if span.parent_span_id == request.span_id]
        assert [
            span.name.removeprefix("icetower.") for span in sorted(own, key=lambda s: s.start_time_unix_nano)
        ] == PHASES
        for span in own:  # within the request, one after the other
            assert request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= request.end_time_unix_nano + 1_000_000
            assert span.trace_id == request.trace_id
        [swap] = of(own, "swap")
        assert [link.span_id for link in swap.links] == [group.span_id]
        assert [link.span_id for link in group.links] == [request.span_id]
        assert said(group)["landed"] is True
        assert collector.resources == {"icetower"}

        def append(_: int) -> None:
            place = tower.catalog().load_table(table)
            place.append(ROWS, snapshot_properties={"icetower.idempotency-key": new_key(), **BLIND})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(append, range(16)))
        spans = collector.wait(lambda spans: len(of(spans, "request")) == 17 and len(of(spans, "swap")) >= 18)
        by_id = {span.span_id: span for span in spans}
        for request in of(spans, "request"):
            [swap] = [s for s in of(spans, "swap") if s.parent_span_id == request.span_id]
            group = by_id[swap.links[0].span_id]  # the one that landed it
            assert request.span_id in {link.span_id for link in group.links}
            assert said(request)["group.size"] == said(group)["group.size"]


def test_a_refusal_is_an_error_by_its_rule_and_shows_no_secret(
    start_tower: Callable[..., TowerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "tower-7")
    with collecting() as collector:
        tower = start_tower("--config", configured(tmp_path, collector.url))
        table = made(tower)
        secret = tower.principal(
            "reader", f"owner: r@example.com\ntables:\n  - table: {table}\n    operations: [read]\n"
        )
        with pytest.raises(ForbiddenError):
            tower.catalog(secret).load_table(table).append(ROWS)
        [request] = collector.wait(lambda spans: bool(of(spans, "request")))
        assert (request.status.code, request.status.message) == (2, "contract.operation")
        assert said(request)["outcome"] == "refused"
        assert secret not in str(request)
        assert collector.resources == {"tower-7"}


@pytest.mark.parametrize("caller", ["ignore", "link", "parent"])
def test_the_context_that_a_client_sends_is_a_link_or_a_parent_by_setting(
    caller: str, start_tower: Callable[..., TowerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with collecting() as collector:
        tower = start_tower("--config", configured(tmp_path, collector.url, f"caller = '{caller}'\n"))
        table = made(tower)
        sent = {"header.traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
        tower.catalog(None, **sent).load_table(table).append(ROWS, snapshot_properties=BLIND)
        [request] = of(collector.wait(lambda spans: bool(of(spans, "request"))), "request")
        linked = [(link.trace_id.hex(), link.span_id.hex()) for link in request.links]
        assert linked == ([(TRACE_ID, PARENT_ID)] if caller == "link" else [])
        assert (request.trace_id.hex() == TRACE_ID) is (caller == "parent")
        assert request.parent_span_id.hex() == (PARENT_ID if caller == "parent" else "")


def test_a_collector_that_is_dead_or_hangs_neither_delays_nor_fails_a_commit(
    start_tower: Callable[..., TowerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting(hangs=True) as collector:
        config = configured(tmp_path, collector.url, "spans_max = 64\n")
        tower = start_tower("--config", config)
        table = made(tower)
        for _ in range(20):  # 180 spans: more than may wait
            tower.catalog().load_table(table).append(ROWS, snapshot_properties=BLIND)
        assert 0 < collector.posts < 20
        assert tower.catalog().load_table(table).scan().to_arrow().num_rows == 20
        assert tower.stop() == 0  # while the collector hangs
        assert len(tower.log.read_text().splitlines()) < 20
    with collecting() as gone:
        pass
    tower = start_tower("--config", configured(tmp_path, gone.url), data="other")
    table = made(tower)
    tower.catalog().load_table(table).append(ROWS, snapshot_properties=BLIND)
    assert tower.catalog().load_table(table).scan().to_arrow().num_rows == 1


def test_without_traces_opentelemetry_is_not_even_imported() -> None:
    program = """
import sys
from icetower.ambient import SystemAmbient
from icetower.gateway.settings import Settings
from icetower.gateway.tower import open_tower
tower = open_tower(Settings.model_validate({"server": {"data": sys.argv[1]}}), SystemAmbient())
assert tower.front.traces is None
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
    with TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
