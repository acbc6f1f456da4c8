"""Ask Iceberg itself what becomes of a case: a Java process runs it on an in-memory catalog.

    with Oracle() as oracle:
        outcome = oracle.run(case)

A case is one table's life, as JSON: `name`, `format`, `specs`, `properties`, `files` and `steps`; its format is told
in `icetower_client_model.cases`. Beyond that:

* `format` is 2, a file's `content` data, its `spec` 0, its `partition` empty, its `records` 10 and its `size` 100
  where the case says nothing.
* A removed file that is to come from the writer's scan, but is not live there, is built afresh.
* `rewrite-manifests` lists the new manifests in the order in which this writer first met their clusters, over all its
  attempts. Iceberg orders them by a hash; the keys are made so that this is their order. 16 clusters at most.
* `merge_manifests` writes its manifest as `w<id>-merged.avro`.
* `expire` is Iceberg's own expiry without its cleaning up: it refuses a snapshot that a branch points to.

An outcome is `verdicts` (by writer: committed, refused or exhausted), `failures` (steps without a writer that Iceberg
refused), `snapshots` (with manifests and entries), `main`, `branches`, `format` and `last_sequence_number`. Iceberg's
messages stand there verbatim; file names in them hold `w<id>` for the random part. `attempts` counts how often the
writer validated; it is 0 for one that was refused when it began.

A case that breaks the format is answered with {"error": "..."}.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tools import jars, java

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = sorted((HERE / "java").glob("*.java"))
CACHE = ROOT / ".cache" / "differential"
COMPILE_TIMEOUT_S = 300
START_TIMEOUT_S = 60
ANSWER_TIMEOUT_S = 60
WINDOW_CASES = 64
RESTARTS_MAX = 3
LOG_LINES_KEPT = 60
# A small heap and the quick compiler: the process lives for seconds, and its work is spread over much code.
JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dslf4j.internal.verbosity=ERROR")

Case = Mapping[str, Any]
Outcome = dict[str, Any]


class OracleError(Exception):
    """Iceberg could not be asked; the message says why, and what the process wrote last."""


def classpath() -> list[Path]:
    """Iceberg's runtime for Spark, and the logging interface that it expects beside it. Raises `OracleError`."""
    iceberg = jars.find()
    if iceberg is None:
        raise OracleError("Iceberg's runtime for Spark is not in Spark's jar cache: run `make jars`")
    logging = sorted(path for place in pyspark() for path in (place / "jars").glob("slf4j-api-*.jar"))
    if not logging:
        raise OracleError("there is no slf4j-api among PySpark's jars: run `make setup`")
    return [iceberg, *logging]


def pyspark() -> list[Path]:
    """Where PySpark stands. It is not imported: that takes longer than most cases."""
    spec = importlib.util.find_spec("pyspark")
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def compiled(java_path: Path, libraries: list[Path], sources: list[Path]) -> Path:
    """The directory of the sources' classes, made now if these or the libraries are new. Raises `OracleError`.

    Several processes may do so at once: each compiles aside and moves the result into its place.
    """
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for path in libraries:
        digest.update(f"{path.name} {path.stat().st_size if path.is_file() else 0}".encode())
    classes = CACHE / digest.hexdigest()[:16]
    if classes.is_dir():
        return classes
    CACHE.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="compiling-", dir=CACHE))
    try:
        command: list[str | Path] = [java.compiler(java_path), "--release", str(java.OLDEST), "-d", aside]
        command += ["-cp", os.pathsep.join(map(str, libraries)), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        if done.returncode != 0:
            raise OracleError(f"javac refused the sources:\n{done.stdout}{done.stderr}")
        try:
            aside.rename(classes)
        except OSError:
            if not classes.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return classes


class Oracle:
    """A Java process that answers cases, started with `start()` or `with`. Not for several threads.

    A process that dies or hangs is started anew, and what it has not answered is asked again; after `RESTARTS_MAX`
    of that, `OracleError`.
    """

    main: ClassVar[str] = "org.apache.iceberg.Oracle"
    sources: ClassVar[list[Path]] = SOURCES

    def __init__(self, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._answer_timeout_s = answer_timeout_s
        self._restarts = 0
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._log: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self._logger: threading.Thread | None = None
        self._command: list[str] = []

    def start(self) -> None:
        """Compile if needed, and start. Raises `OracleError`, also when there is no JDK."""
        if not self._command:
            try:
                java_path = java.find(jdk=True)
            except java.NoJava as error:
                raise OracleError(str(error)) from error
            libraries = self.libraries()
            path = os.pathsep.join(map(str, [compiled(java_path, libraries, self.sources), *libraries]))
            self._command = [str(java_path), *JVM, "-cp", path, self.main]
        self._spawn()
        self._send({"name": "start", "specs": [[]], "steps": []})
        if "error" in (said := self._receive("start", START_TIMEOUT_S)):
            self.close()
            raise OracleError(f"the oracle does not work: {said['error']}\n{self._last_words()}")

    def libraries(self) -> list[Path]:
        """The jars that the process needs. Raises `OracleError`."""
        return classpath()

    def run(self, case: Case) -> Outcome:
        """The outcome of one case. Raises `OracleError`."""
        return next(self.run_many([case]))

    def run_many(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        """The outcomes, in the order of the cases; some cases are sent ahead. Raises `OracleError`."""
        unanswered: deque[Case] = deque()
        if self._process is None:
            self.start()
        try:
            for case in cases:
                if len(unanswered) == WINDOW_CASES:
                    yield self._answer(unanswered)
                unanswered.append(case)
                self._send(case)
            while unanswered:
                yield self._answer(unanswered)
        finally:
            # Whoever stops early leaves answers behind, and they must not be taken for those of other cases.
            if unanswered:
                self.close()

    def close(self) -> None:
        """End the process. It may be started again."""
        process, self._process = self._process, None
        if process is not None:
            self._lines.put(None)
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, unanswered: deque[Case]) -> Outcome:
        """The outcome of the oldest case, which is taken off."""
        while True:
            try:
                outcome = self._receive(str(unanswered[0].get("name", "unnamed")), self._answer_timeout_s)
            except OracleError:
                self._restarts += 1
                if self._restarts > RESTARTS_MAX:
                    raise
                self.start()
                for case in unanswered:
                    self._send(case)
            else:
                unanswered.popleft()
                return outcome

    def _send(self, case: Case) -> None:
        self._lines.put(json.dumps(case, separators=(",", ":")) + "\n")

    def _receive(self, name: str, timeout_s: float) -> Outcome:
        """The next answer. Raises `OracleError`, and then the process is gone."""
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            line, trouble = None, f"did not answer within {timeout_s:g} s"
        else:
            trouble = "ended"
        if line is not None:
            return json.loads(line)
        self.close()
        raise OracleError(f"the oracle {trouble}, at case {name}\n{self._last_words()}")

    def _spawn(self) -> None:
        self.close()
        # The threads of an earlier process keep its own queues and log.
        self._lines, self._answers, self._log = queue.Queue(), queue.Queue(), deque(maxlen=LOG_LINES_KEPT)
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )
        self._process = process
        for target, other in ((_feed, self._lines), (_take, self._answers)):
            threading.Thread(target=target, args=(process, other), daemon=True).start()
        self._logger = threading.Thread(target=_keep, args=(process, self._log), daemon=True)
        self._logger.start()

    def _last_words(self) -> str:
        """What the process wrote last on standard error, once it has ended."""
        if self._logger is not None:
            self._logger.join(timeout=1)
        return "".join(self._log) or "it wrote nothing on standard error"


def _feed(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Write what is sent, so that no sender ever waits for a process that hangs; None ends it."""
    assert process.stdin is not None
    # A process that has ended is told, with its last words, to whoever waits for its answer.
    with suppress(BrokenPipeError), process.stdin as stdin:
        while (line := lines.get()) is not None:
            stdin.write(line)
            stdin.flush()


def _take(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
    """Read answers as they come, so that the process never waits for its reader; None once it has ended."""
    assert process.stdout is not None
    with process.stdout as stdout:
        for line in stdout:
            answers.put(line)
    answers.put(None)


def _keep(process: subprocess.Popen[str], log: deque[str]) -> None:
    """Read what it logs."""
    assert process.stderr is not None
    with process.stderr as stderr:
        log.extend(stderr)
