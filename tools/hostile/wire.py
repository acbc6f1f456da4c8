"""Hostile inputs over the wire: a real tower, agents of several kinds, and somebody who asks whether it is well."""

from __future__ import annotations

import http.client
import http.server
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

from hostile.generate import SCHEMA, bodies, dumped, entries, json_changed, made
from hostile.inside import Failure
from icetower.table.manifest_writing import manifest_row, write_manifest_list

CONTRACTS = {
    "owner": "tables: [{table: h.t, operations: [read, append, overwrite, delete, replace], partitions: all}]",
    "reader": "reads: [h.t]",
    "shadow": "mode: shadow\ntables: [{table: h.t, operations: [read, append], partitions: all}]",
}
"""Agents of every kind; besides them the administrator, and somebody with a wrong token."""

TIMEOUT_S = 60.0


class _Nothing(http.server.BaseHTTPRequestHandler):
    """The control: a server that does nothing else."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:  # type: ignore[override]
        return


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
        self._answer("POST", "/v1/namespaces", {"namespace": ["h"]})
        body = {"name": "t", "schema": SCHEMA, "properties": {"format-version": "2"}}
        self._table = self._answer("POST", "/v1/namespaces/h/tables", body)["metadata"]
        for name, contract in CONTRACTS.items():
            text = f"version: 1\nagent: {name}\n{contract}\n"
            proposals = {"contracts": [{"text": text}], "message": "hostile"}
            self._answer("POST", "/icetower/v1/contracts/apply", proposals)
            made_ = self._answer("POST", "/icetower/v1/principals", {"name": name, "contract": name})
            self._tokens[name] = made_["secret"]

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

    def run(self, start: int, count: int | None, seconds: float) -> tuple[dict[str, Any], list[Failure]]:
        """So many inputs, or for so long: a table of figures, and what failed."""
        self._over = threading.Event()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Nothing)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        health: dict[str, list[float]] = {"tower": [], "control": []}
        probes = [
            threading.Thread(target=self._probe, args=(health["tower"], self._host, self._port)),
            threading.Thread(target=self._probe, args=(health["control"], "127.0.0.1", server.server_port)),
        ]
        for probe in probes:
            probe.start()
        statuses: Counter[int] = Counter()
        failures: list[Failure] = []
        ends_s, at, rss_mib = time.monotonic() + seconds, start, 0
        while at - start < count if count is not None else time.monotonic() < ends_s:
            status, why = self._one(at)
            statuses[status] += 1
            if why is not None:
                failures.append(Failure("wire", at, why))
            at += 1
            rss_mib = max(rss_mib, self._rss_mib()) if at % 20 == 0 else rss_mib
        self._over.set()
        for probe in probes:
            probe.join()
        server.shutdown()
        figures: dict[str, Any] = {"inputs over the wire": at - start, "statuses": dict(sorted(statuses.items()))}
        figures["largest RSS, MiB"] = max(rss_mib, self._rss_mib())
        for name, times in health.items():
            times.sort()
            at_ = [f"{1000 * times[min(len(times) - 1, int(len(times) * p))]:.1f}" for p in (0.5, 0.99, 0.999)]
            figures[f"/healthz, {name}: p50, p99, p99.9"] = f"{', '.join(at_)} ms of {len(times)}"
        return figures, failures

    def _rss_mib(self) -> int:
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGESIZE") // (1024 * 1024)

    def _probe(self, times: list[float], host: str, port: int) -> None:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        while not self._over.wait(0.01):
            started_s = time.perf_counter()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            times.append(time.perf_counter() - started_s)
        connection.close()

    def _one(self, seed: int) -> tuple[int, str | None]:
        source = random.Random(f"wire:{seed}")
        who = source.choice(sorted(self._tokens))
        if source.random() < 0.15:
            return self._raw(source), None
        method, path, body = source.choice((self._request, self._commit, self._register, self._append))(source)
        try:
            status, data = self._send(who, method, path, body)
        except (OSError, http.client.HTTPException) as error:
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
