"""Hostile inputs over the wire: a real tower, agents of several kinds, and somebody who asks whether it is well."""

from __future__ import annotations

import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from icetower.gateway.connections import DRAINED_MAX_BYTES
from icetower.iceberg.manifest_writing import manifest_row, write_manifest_list
from verify.hostile.bystanders import Bystanders, Seen
from verify.hostile.generate import SCHEMA, bodies, dumped, entries, json_changed, made
from verify.hostile.inside import Failure

CONTRACTS = {
    "owner": "tables: [{table: h.t, operations: [read, append, overwrite, delete, replace], partitions: all}]",
    "reader": "reads: [h.t]",
    "shadow": "mode: shadow\ntables: [{table: h.t, operations: [read, append], partitions: all}]",
}
"""Agents of every kind; besides them the administrator, and somebody with a wrong token."""
POLITE = "tables: [{table: polite.*, operations: [read, alter], partitions: all}]"
POLITE_TABLES = 4

SENDERS = 4
TIMEOUT_S = 60.0

JUDGED_FROM = 5_000
"""Latencies and rates are judged in runs of so many inputs or more: a short one has too few to judge by."""
RSS_MAX_MIB = 1024
HEALTH_P99_MAX_S = 0.050
HEALTH_P999_MAX_S = 0.250
RATE_LEAST = 0.5
"""The polite agents commit at least at this share of the rate that they have before the attack."""


class Wire:
    """A tower in `place`, and what is done to it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        data = place / "data"
        self._log = (place / "log").open("wb")
        program = str(Path(sys.executable).parent / "icetower")
        command = [program, "serve", "--port", "0", "--data", str(data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)
        assert self.process.stdout is not None
        uri = self.process.stdout.readline().decode().split()[2]
        self._host, self._port = urlsplit(uri).hostname or "", urlsplit(uri).port or 0
        self._tokens = {"admin": (data / "admin.token").read_text().strip(), "nobody": "wrong"}
        self._table = self._created("h", "t")
        for name, contract in CONTRACTS.items():
            self._tokens[name] = self._principal(name, contract)
        self._polite = [f"t{number}" for number in range(POLITE_TABLES)]
        for name in self._polite:
            self._created("polite", name)
        self._polite_token = self._principal("polite", POLITE)

    def _created(self, namespace: str, name: str) -> dict[str, Any]:
        """A table's metadata."""
        if self._send("admin", "GET", f"/v1/namespaces/{namespace}", b"")[0] == 404:
            self._answer("POST", "/v1/namespaces", {"namespace": [namespace]})
        body = {"name": name, "schema": SCHEMA, "properties": {"format-version": "2"}}
        return self._answer("POST", f"/v1/namespaces/{namespace}/tables", body)["metadata"]

    def _principal(self, name: str, contract: str) -> str:
        """A contract in force, and the secret of who has it."""
        proposals = {"contracts": [{"text": f"version: 1\nagent: {name}\n{contract}\n"}], "message": "hostile"}
        self._answer("POST", "/icetower/v1/contracts/apply", proposals)
        return self._answer("POST", "/icetower/v1/principals", {"name": name, "contract": name})["secret"]

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self._log.close()

    def _send(self, who: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            headers = {"Authorization": f"Bearer {self._tokens[who]}", "Content-Type": "application/json"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _answer(self, method: str, path: str, body: Any) -> Any:
        status, data = self._send("admin", method, path, orjson.dumps(body))
        assert status < 300, f"{method} {path}: {status} {data[:300]!r}"
        return orjson.loads(data) if data else None

    def run(
        self, start: int, count: int | None, seconds: float, *, alone_s: float = 0.0
    ) -> tuple[dict[str, Any], list[Failure]]:
        """So many inputs, or for so long: a table of figures, and what failed.

        `alone_s`: for so long the polite agents are alone first; then they are judged by their rate of that time.
        """
        paths = [f"/v1/namespaces/polite/tables/{name}" for name in self._polite]
        bystanders = Bystanders(self._host, self._port, self._polite_token, paths)
        time.sleep(alone_s)
        attacked_s = time.monotonic()
        attack = _Attack(self, start, count, attacked_s + seconds)
        senders = [threading.Thread(target=attack.send) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        ended_s = time.monotonic()
        seen = bystanders.stop()
        rss_mib = max(attack.rss_mib, self.rss_mib())
        inputs = sum(attack.statuses.values())
        figures: dict[str, Any] = {"inputs over the wire": inputs, "statuses": dict(sorted(attack.statuses.items()))}
        figures["largest RSS, MiB"] = rss_mib
        failures = attack.failures + [Failure("bystander", 0, why) for why in seen.refused]
        judged = _latencies(seen, attacked_s, figures) + _rates(seen, attacked_s, ended_s, alone_s, figures)
        failures += judged if inputs >= JUDGED_FROM else []
        if rss_mib >= RSS_MAX_MIB:
            failures.append(Failure("wire", start, f"the tower held {rss_mib} MiB, of {RSS_MAX_MIB}"))
        return figures, failures

    def rss_mib(self) -> int:
        """What the tower holds of the machine's memory."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGESIZE") // (1024 * 1024)

    def one(self, seed: int) -> tuple[int, str | None]:
        """One input: how it was answered, and what is wrong with that."""
        source = random.Random(f"wire:{seed}")
        who = source.choice(sorted(self._tokens))
        if source.random() < 0.15:
            return self._raw(source), None
        method, path, body = source.choice((self._request, self._commit, self._register, self._append))(source)
        try:
            status, data = self._send(who, method, path, body)
        except (OSError, http.client.HTTPException) as error:
            # What was answered is read no further than this; whoever sends on without reading is cut off.
            if isinstance(error, ConnectionError) and len(body) > DRAINED_MAX_BYTES:
                return 0, None
            return 0, f"{who} {method} {path}: {type(error).__name__}: {error}"
        return status, f"{who} {method} {path}: {status} {data[:300]!r}" if status >= 500 else None

    def _request(self, source: random.Random) -> tuple[str, str, bytes]:
        base = "/v1/namespaces/h"
        paths = ("/tables/t", "/tables", "/register", "/tables/t/append", "/properties", "/tables/t/metrics")
        places = [base + path for path in paths]
        places += ["/v1/namespaces", "/v1/transactions/commit", "/v1/tables/rename", "/v1/oauth/tokens", "/v1/config"]
        body = made("json", source.randrange(2**40)) if source.random() < 0.8 else source.randbytes(200)
        return source.choice(("POST", "POST", "POST", "PUT", "DELETE", "GET")), source.choice(places), body

    def _file(self, source: random.Random, kind: str, name: str) -> str:
        path = Path(self._table["location"].removeprefix("file://")) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        match source.randrange(20):
            case 0:
                path.symlink_to("/dev/zero")
            case 1:
                os.mkfifo(path)
            case 2:
                with path.open("wb") as file:
                    file.truncate(3 << 30)
            case _:
                path.write_bytes(made(kind, source.randrange(2**40)))
        return f"file://{path}"

    def _commit(self, source: random.Random) -> tuple[str, str, bytes]:
        name = f"metadata/{source.randrange(2**30)}"
        shape: dict[str, Any] = {"spec_fields": (), "spec_id": 0, "schema": SCHEMA, "content": 0, "snapshot_id": 7}
        if source.random() < 0.5:
            listed = self._file(source, "list", f"{name}.avro")
        else:
            path = self._file(source, "manifest", f"{name}-m0.avro")
            row = manifest_row(path, bytes(1000), entries(), sequence_number=1, **shape)
            ids: dict[str, Any] = {"snapshot_id": 7, "parent_id": None, "sequence_number": 1, "first_row_id": None}
            listed = f"{self._table['location']}/{name}.avro"
            data = write_manifest_list([row], format_version=2, **ids)
            Path(listed.removeprefix("file://")).write_bytes(data)
        commit = bodies()[0]
        commit["requirements"] = []
        commit["updates"][0]["snapshot"] |= {"manifest-list": listed, "snapshot-id": source.randrange(1, 2**60)}
        commit["updates"][1]["snapshot-id"] = commit["updates"][0]["snapshot"]["snapshot-id"]
        changed = json_changed(source, commit, 1) if source.random() < 0.2 else commit
        return "POST", "/v1/namespaces/h/tables/t", dumped(changed)

    def _register(self, source: random.Random) -> tuple[str, str, bytes]:
        path = self._file(source, "metadata", f"metadata/{source.randrange(2**30)}.metadata.json")
        body = {"name": f"r{source.randrange(2**30)}", "metadata-location": path}
        return "POST", "/v1/namespaces/h/register", orjson.dumps(body)

    def _append(self, source: random.Random) -> tuple[str, str, bytes]:
        path = self._file(source, "parquet", f"data/{source.randrange(2**30)}.parquet")
        place = Path(path.removeprefix("file://"))
        size = place.stat().st_size if place.is_file() and not place.is_symlink() else 500
        file = {"file-path": path, "record-count": 3, "file-size-in-bytes": size, "partition": {}}
        return "POST", "/v1/namespaces/h/tables/t/append", orjson.dumps({"files": [file]})

    def _raw(self, source: random.Random) -> int:
        """Bytes that are hardly HTTP. Whatever is answered, the connection ends or the answer is no 5xx."""
        parts = [
            b"GET /healthz HTTP/1.1\r\n",
            b"Host: x\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Length: 5\r\n",
        ]
        parts += [b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"X: " + b"a" * 9_000 + b"\r\n", source.randbytes(50)]
        data = b"".join(source.choice(parts) for _ in range(source.randrange(1, 8)))
        try:
            with socket.create_connection((self._host, self._port), timeout=5) as raw:
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                answer = raw.recv(100)
        except OSError:
            return 0
        return int(answer[9:12]) if answer[9:12].isdigit() else 0


class _Attack:
    """Inputs by several senders, each after the one before it was answered."""

    def __init__(self, wire: Wire, start: int, count: int | None, ends_s: float) -> None:
        self._wire = wire
        self._start, self._count, self._ends_s = start, count, ends_s
        self._lock = threading.Lock()
        self._next = start
        self.statuses: Counter[int] = Counter()
        self.failures: list[Failure] = []
        self.rss_mib = 0

    def send(self) -> None:
        """Until the last input, or the end of the time."""
        while (at := self._taken()) is not None:
            status, why = self._wire.one(at)
            rss_mib = self._wire.rss_mib() if at % 20 == 0 else 0
            with self._lock:
                self.statuses[status] += 1
                self.rss_mib = max(self.rss_mib, rss_mib)
                if why is not None:
                    self.failures.append(Failure("wire", at, why))

    def _taken(self) -> int | None:
        with self._lock:
            at = self._next
            over = time.monotonic() >= self._ends_s if self._count is None else at - self._start >= self._count
            self._next += not over
            return None if over else at


def _latencies(seen: Seen, attacked_s: float, figures: dict[str, Any]) -> list[Failure]:
    failures: list[Failure] = []
    for name, asked in (("tower", seen.health), ("control", seen.control)):
        times = sorted(took_s for at_s, took_s in asked if at_s >= attacked_s) or [0.0]
        p50, p99, p999 = (times[min(len(times) - 1, int(len(times) * p))] for p in (0.5, 0.99, 0.999))
        text = f"{1000 * p50:.1f}, {1000 * p99:.1f}, {1000 * p999:.1f} ms of {len(times)}"
        figures[f"/healthz, {name}: p50, p99, p99.9"] = text
        if name == "tower" and (p99 >= HEALTH_P99_MAX_S or p999 >= HEALTH_P999_MAX_S):
            failures.append(Failure("bystander", 0, f"/healthz took {text}"))
    return failures


def _rates(seen: Seen, attacked_s: float, ended_s: float, alone_s: float, figures: dict[str, Any]) -> list[Failure]:
    figures["polite commits"] = len(seen.commits)
    if not alone_s:
        return []
    alone, beside = seen.rate(attacked_s - alone_s, attacked_s), seen.rate(attacked_s, ended_s)
    figures["polite commits/s, alone, beside"] = f"{alone:.1f}, {beside:.1f}"
    if beside >= RATE_LEAST * alone:
        return []
    return [Failure("bystander", 0, f"polite agents made {beside:.1f} commits/s, and {alone:.1f} without the attack")]
