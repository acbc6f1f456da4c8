"""The SDK's append over a socket: one request on a kept connection; again under the same key where it is worth it."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icetower.agent import DataFile
from icetower.agent.appends import ATTEMPTS_MAX, Appender
from icetower.agent.channel import Channel
from icetower.ambient import SystemAmbient
from icetower.errors import BadRequest, CommitConflict, Forbidden, Unavailable, UsageError

FILE = DataFile("s3://b/t/a.parquet", 3, 100, {"day": "2017-01-31"})
DONE = {
    "snapshot-id": 5,
    "sequence-number": 2,
    "outcome": "appended",
    "group-size": 4,
    "files": 1,
    "queue-wait-ms": 1.5,
}


def answer(status: int, body: Any, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


def error(status: int, rule: str, next_step: str, kind: str = "CommitFailedException") -> bytes:
    return answer(
        status, {"error": {"message": "no", "type": kind, "code": status, "rule": rule, "next_step": next_step}}
    )


class Server:
    """Answers requests as it is told, and keeps them: (connection's number, head, body)."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.requests: list[tuple[int, str, dict[str, Any]]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            with connection, connection.makefile("rb") as stream:
                while self._one(number, connection, stream):
                    pass

    def _one(self, number: int, connection: socket.socket, stream: Any) -> bool:
        lines = list(iter(stream.readline, b"\r\n")) if (first := stream.readline()) else []
        if not first:
            return False
        head = (first + b"".join(lines)).decode()
        length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
        self.requests.append((number, head, json.loads(stream.read(length))))
        told = self.answers.pop(0) if self.answers else answer(200, DONE)
        if told is None:  # closes without a word
            return False
        connection.sendall(told)
        return b"Connection: close" not in told

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class Hurried(SystemAmbient):
    """No wait is long."""

    def uniform(self) -> float:
        return -1.0


@pytest.fixture
def appender(server: Server) -> Iterator[Appender]:
    channel = Channel(server.uri, timeout_s=10)
    yield Appender(channel, "secret", Hurried())
    channel.close()


def test_one_request_is_all(server: Server, appender: Appender) -> None:
    told = appender.append("sales.eu.orders", [FILE])
    assert (told.snapshot_id, told.sequence_number, told.outcome, told.group_size) == (5, 2, "appended", 4)
    assert (told.files, told.queue_wait_ms, told.attempts) == (1, 1.5, 1)
    ((_, head, body),) = server.requests
    assert head.startswith("POST /v1/namespaces/sales%1Feu/tables/orders/append HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in head
    assert body == {
        "files": [
            {
                "file-path": "s3://b/t/a.parquet",
                "file-format": "PARQUET",
                "record-count": 3,
                "file-size-in-bytes": 100,
                "partition": {"day": "2017-01-31"},
            }
        ],
        "ref": "main",
        "key": told.key,
    }
    assert told.key is not None
    assert told.key[14] == "7"


def test_numbers_instead_of_keys(server: Server, appender: Appender) -> None:
    assert appender.append("n.t", [FILE], application=("ingest", 7), ref="audit").key is None
    ((_, _, body),) = server.requests
    assert (body["application"], body["ref"], "key" in body) == ({"id": "ingest", "sequence": 7}, "audit", False)


def test_the_connection_is_kept(server: Server, appender: Appender) -> None:
    for _ in range(3):
        appender.append("n.t", [FILE])
    server.answers = [answer(200, DONE, "Connection: close")]
    appender.append("n.t", [FILE])
    appender.append("n.t", [FILE])
    assert [number for number, _, _ in server.requests] == [1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    "first",
    [
        error(409, "queue.deadline", "retry"),
        error(409, "swap.lost", "refresh"),
        error(503, "available", "retry", "ServiceUnavailableException"),
        error(504, "commit.unknown", "refresh", "CommitStateUnknownException"),
        answer(502, "a proxy's page"),
        None,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 99\r\n\r\n{",
    ],
)
def test_what_may_succeed_later_is_sent_again_under_the_same_key(
    server: Server, appender: Appender, first: bytes | None
) -> None:
    server.answers = [first]
    told = appender.append("n.t", [FILE])
    assert told.attempts == 2
    (_, _, one), (_, _, two) = server.requests
    assert one["key"] == two["key"] == told.key


def test_a_kept_connection_that_was_closed_meanwhile_costs_nothing(server: Server, appender: Appender) -> None:
    appender.append("n.t", [FILE])
    server.answers = [None]
    assert appender.append("n.t", [FILE]).attempts == 1
    assert [number for number, _, _ in server.requests] == [1, 1, 2]


@pytest.mark.parametrize(
    ("told", "raised"),
    [
        (error(403, "contract.partitions", "ask_owner", "ForbiddenException"), Forbidden),
        (error(400, "append.size", "fix_request", "ValidationException"), BadRequest),
        (error(409, "append.repeated", "none"), CommitConflict),
    ],
)
def test_what_stays_wrong_is_not_sent_again(
    server: Server, appender: Appender, told: bytes, raised: type[Exception]
) -> None:
    server.answers = [told]
    with pytest.raises(raised):
        appender.append("n.t", [FILE])
    assert len(server.requests) == 1


def test_patience_has_an_end(server: Server, appender: Appender) -> None:
    server.answers = [error(409, "queue.full", "retry")] * (ATTEMPTS_MAX + 5)
    with pytest.raises(CommitConflict):
        appender.append("n.t", [FILE])
    assert len(server.requests) == ATTEMPTS_MAX


def test_a_body_in_chunks(server: Server, appender: Appender) -> None:
    data = json.dumps(DONE).encode()
    chunks = b"".join(b"%x;x=y\r\n%s\r\n" % (len(part), part) for part in (data[:10], data[10:]))
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.answers = [head + chunks + b"0\r\nTrailer: x\r\n\r\n"]
    assert appender.append("n.t", [FILE]).snapshot_id == 5
    assert appender.append("n.t", [FILE]).snapshot_id == 5  # nothing of it is left over
    assert [number for number, _, _ in server.requests] == [1, 1]


@pytest.mark.parametrize(
    "nonsense",
    [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"],
)
def test_what_is_no_http_is_no_answer(server: Server, nonsense: bytes) -> None:
    server.answers = [nonsense + b"Connection: close"]
    channel = Channel(server.uri, timeout_s=5)
    with pytest.raises(Unavailable):
        channel.post("/x", "", b"{}")
    channel.close()


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable, match="that the server runs"):
        Channel(f"http://127.0.0.1:{port}", timeout_s=1).post("/x", "", b"")


@pytest.mark.parametrize("uri", ["ftp://x", "localhost:8181", "http://"])
def test_an_address_must_be_one(uri: str) -> None:
    with pytest.raises(BadRequest):
        Channel(uri, timeout_s=1)


def test_a_token_cannot_bring_headers_of_its_own(server: Server) -> None:
    with pytest.raises(UsageError):
        Appender(Channel(server.uri, timeout_s=1), "a\r\nX: y")


@pytest.mark.parametrize("name", ["a.parquet", "a b%20+ü&=.parquet"])
def test_a_parquet_file_is_described_by_its_footer(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    pq.write_table(pa.table({"id": [1, 2, 3]}), place)
    file = DataFile.of_parquet(place, partition={"p": 1}, spec_id=2)
    assert (file.path, file.record_count, file.size_bytes) == (f"file://{place}", 3, place.stat().st_size)
    assert DataFile.of_parquet(f"file://{place}", partition={"p": 1}, spec_id=2) == file
    assert DataFile.of_parquet(place, uri="s3://b/a.parquet").path == "s3://b/a.parquet"
    counted = DataFile("p", 1, 2, nan_value_counts={3: 0}).to_json()
    assert counted["nan-value-counts"] == {"keys": [3], "values": [0]}
    assert file.to_json()["spec-id"] == 2


def test_without_pyarrow_a_file_is_described_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow"):
        DataFile.of_parquet(tmp_path / "a.parquet")
