"""`make scan-planning`: what its proxy notes, and how it compares two tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import httpx2
import pytest
from pyspark.sql import SparkSession

from verify.scan_planning.proxy import Noted, proxy
from verify.scan_planning.run import STATEMENTS, run


@pytest.fixture
def catalog() -> Iterator[str]:
    """A catalog that answers everything with the body that it was sent."""

    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(409 if b"stale" in body else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_the_proxy_notes_plans_and_commits_and_lets_all_else_by(catalog: str) -> None:
    with proxy(catalog) as (uri, noted), httpx2.Client(base_url=uri) as client:
        for path, body in (
            ("/v1/namespaces/ns/tables/t/plan", {"snapshot-id": 7}),
            ("/v1/namespaces/ns/tables/t/metrics", {}),
            ("/v1/main/namespaces/ns/tables/t", {"updates": []}),
            ("/v1/namespaces/ns/tables/t", {"stale": True}),
        ):
            answer = client.post(path, content=json.dumps(body))
            assert answer.json() == body
        assert noted.take() == [
            ("plan", "t", {"snapshot-id": 7}, 200),
            ("commit", "t", {"updates": []}, 200),
            ("commit", "t", {"stale": True}, 409),
        ]
        assert noted.take() == []


class Session:
    """Spark, whose statements plan once and commit, and whose rows are those that are given for each side."""

    def __init__(self, noted: Noted, rows: Mapping[str, Sequence[tuple[Any, ...]]], *, base: int = 7) -> None:
        self._noted, self._rows, self._base = noted, rows, base
        self._found: Sequence[tuple[Any, ...]] = ()

    def sql(self, text: str) -> Session:
        if text.startswith(("UPDATE server", "DELETE FROM server", "MERGE INTO server")):
            snapshot = {"action": "add-snapshot", "snapshot": {"parent-snapshot-id": self._base}}
            self._noted.seen.append(("plan", "t", {"snapshot-id": 7, "filter": True}, 200))
            self._noted.seen.append(("commit", "t", {"updates": [snapshot]}, 200))
        if text.startswith("SELECT"):
            self._found = self._rows["server" if "_server" in text else "client"]
        return self

    def collect(self) -> Sequence[tuple[Any, ...]]:
        return self._found


@pytest.mark.parametrize(
    ("server", "base", "rows", "lineage", "on_base"),
    [
        ([(1, 0, "a", 5, 1)], 7, True, True, True),
        ([(1, 0, "a", 5, 2)], 7, True, False, True),
        ([(1, 0, "b", 5, 1)], 7, False, False, True),
        ([(1, 0, "a", 5, 1)], 8, True, True, False),
    ],
)
def test_both_tables_are_compared_after_each_statement(
    server: Sequence[tuple[Any, ...]], base: int, rows: bool, lineage: bool, on_base: bool
) -> None:
    noted = Noted()
    session = Session(noted, {"client": [(1, 0, "a", 5, 1)], "server": server}, base=base)
    found = list(run(cast(SparkSession, session), noted))
    assert len(found) == 4 * len(STATEMENTS)
    newest = [each for each in found if each.version == 3]
    assert {(each.rows, each.lineage, each.on_base, each.plans) for each in newest} == {(rows, lineage, on_base, 1)}
    assert {each.filters for each in found} == {("true",)}
