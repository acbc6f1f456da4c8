"""Run Iceberg's REST Compatibility Kit against `icetower serve`.

    run.py                  what Java's reference server passes must pass here, and nothing may fail (else exit 1)
    run.py --reference      run it against that reference server instead, and write reference.txt anew
    run.py --uri URI        run it against a server that is there already, which must be empty
    run.py --only NAME ...  only these test methods

The jars are fetched by the Ivy that PySpark carries (ivy.xml beside this file) into .cache/rck. The report, the whole
output of the kit and the log of the server are left in build/rck.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from tools import java

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "rck"
BUILD = ROOT / "build" / "rck"
REFERENCE = HERE / "reference.txt"
KIT = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"
START_TIMEOUT_S = 60
KIT_TIMEOUT_S = 900

# What both servers claim; a claim turns tests on that the kit otherwise aborts. Names with dots stay off: the layout of
# catalog tables that both keep joins the levels of a namespace with dots.
CLAIMS = {
    "rck.requires-namespace-create": "true",
    "rck.supports-serverside-retry": "true",
    "rck.overrides-requested-location": "false",
    "rck.supports-names-with-dot": "false",
}

Results = dict[str, tuple[str, str]]
"""Test name to (passed, aborted, skipped or failed; what it said)."""


class Trouble(Exception):
    """The kit could not be run; the message says why."""


def jars(java_path: Path) -> Path:
    """The directory that holds the kit's jars, fetched if ivy.xml has changed since the last time."""
    library = CACHE / "lib"
    stamp = CACHE / "ivy.sha256"
    digest = hashlib.sha256((HERE / "ivy.xml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return library
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise Trouble("PySpark carries no ivy-*.jar: `make setup` installs the PySpark that does")
    print("fetching the REST Compatibility Kit (about 100 MB, once)", flush=True)
    shutil.rmtree(library, ignore_errors=True)
    library.mkdir(parents=True)
    pattern = f"{library}/[artifact]-[revision](-[classifier]).[ext]"
    command = [java_path, "-jar", ivy, "-warn", "-ivy", HERE / "ivy.xml", "-cache", CACHE / "ivy"]
    for attempt in (1, 2, 3):
        done = subprocess.run(
            [*command, "-types", "jar", "bundle", "-retrieve", pattern], capture_output=True, text=True
        )
        if done.returncode == 0 and any(library.glob("iceberg-open-api-*-tests.jar")):
            stamp.write_text(digest)
            return library
        print(f"attempt {attempt} failed", file=sys.stderr, flush=True)
    raise Trouble(f"the jars could not be fetched:\n{(done.stdout + done.stderr)[-4000:]}")


@contextmanager
def process(command: list[str | Path], environment: Mapping[str, str]) -> Generator[tuple[subprocess.Popen[str], Path]]:
    """A server with its output in a file, ended when the block is left."""
    log = BUILD / "server.log"
    with log.open("a") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        try:
            yield child, log
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def icetower() -> Generator[str]:
    """Our server on a free port, with a data directory of its own; gives its URI."""
    with tempfile.TemporaryDirectory(prefix="icetower-rck-") as data:
        command = [ROOT / ".venv" / "bin" / "icetower", "serve", "--open", "--port", "0", "--data", data]
        environment = os.environ | {"COLUMNS": "1000", "PYTHONUNBUFFERED": "1"}
        with process([*command, "--config", HERE / "rck.toml"], environment) as (child, log):
            yield _ready_uri(child, log)


def _ready_uri(child: subprocess.Popen[str], log: Path) -> str:
    """The URI in the line by which the server says that it is ready; all other output goes to the log."""
    uris: queue.Queue[str | None] = queue.Queue()

    def drain() -> None:
        assert child.stdout is not None
        with log.open("a") as copy:
            for line in child.stdout:
                copy.write(line)
                if found := re.search(r"https?://\S+", line):
                    uris.put(found[0])
        uris.put(None)

    threading.Thread(target=drain, daemon=True).start()
    try:
        uri = uris.get(timeout=START_TIMEOUT_S)
    except queue.Empty:
        raise Trouble(f"icetower did not say within {START_TIMEOUT_S} s that it is ready, see {log}") from None
    if uri is None:
        raise Trouble(f"icetower ended before it was ready:\n{log.read_text()[-4000:]}")
    return uri


@contextmanager
def reference_server(java_path: Path, library: Path) -> Generator[str]:
    """Iceberg's own server on an in-memory SQLite catalog; gives its URI."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command: list[str | Path] = [java_path, "-cp", f"{library}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    # Strict, like ours: JdbcCatalog otherwise creates tables in namespaces that do not exist. (It then fails one test
    # all the same: it refuses, but not in the words that the kit expects.)
    environment = os.environ | {"CATALOG_REST_PORT": str(port), "CATALOG_JDBC_STRICT__MODE": "true"}
    with process(command, environment) as (child, log):
        uri = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_TIMEOUT_S
        while child.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{uri}/v1/config", timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                yield uri
                return
        raise Trouble(f"the reference server did not start, see {log}")


def run_kit(java_path: Path, library: Path, uri: str, only: list[str]) -> Results:
    """Run the tests, at most one at a time, and read their report."""
    selected = [f"--select-method={KIT}#{name}" for name in only] or [f"--select-class={KIT}"]
    properties = [f"-D{key}={value}" for key, value in ({"uri": uri, "rck.local": "false"} | CLAIMS).items()]
    command = [
        java_path, "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", *properties, "-cp", f"{library}/*",
        "org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner", "--disable-ansi-colors",
        "--details=tree", "--config=rck.local=false", f"--reports-dir={BUILD}", *selected,
    ]  # fmt: skip
    # The kit also reads CATALOG_* from the environment: a caller's own must not leak into the run.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CATALOG_")}
    with (BUILD / "kit.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, timeout=KIT_TIMEOUT_S)
    report = BUILD / "TEST-junit-jupiter.xml"
    if not report.exists():
        raise Trouble(f"the kit wrote no report:\n{(BUILD / 'kit.log').read_text()[-4000:]}")
    return _read(report)


def _read(report: Path) -> Results:
    results: Results = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcome, said = "passed", ""
        for tag in ("failure", "error"):
            if (found := case.find(tag)) is not None:
                outcome, said = "failed", found.get("message") or found.text or ""
        if (found := case.find("skipped")) is not None:
            said = found.text or ""
            outcome = "aborted" if "assumption was not met" in said else "skipped"
        results[case.attrib["name"]] = (outcome, " ".join(said.split()))
    return results


def read_reference() -> dict[str, str]:
    lines = (line.split(maxsplit=1) for line in REFERENCE.read_text().splitlines() if line and line[0] != "#")
    return {name: outcome for outcome, name in lines}


def write_reference(results: Results, seconds: float) -> None:
    head = (
        "# Iceberg's REST Compatibility Kit 1.11.0 against its own Java reference server (SQLite, strict), written\n"
        f"# by verify/rck/run.py --reference in {seconds:.0f} s. aborted: the kit's assumption does not hold there.\n"
    )
    REFERENCE.write_text(head + "".join(f"{results[name][0]:<8} {name}\n" for name in sorted(results)))


def judge(results: Results, reference: Mapping[str, str]) -> int:
    """Print what differs from the reference server; 0 if nothing that it passes is missing and nothing fails."""
    missing = {name for name, outcome in reference.items() if outcome == "passed"} - {
        name for name, (outcome, _) in results.items() if outcome == "passed"
    }
    failed = {name for name, (outcome, _) in results.items() if outcome == "failed"}
    width = max(map(len, results), default=0)
    for name in sorted(missing | failed):
        outcome, said = results.get(name, ("not run", ""))
        print(f"  {outcome:<8} {name:<{width}}  reference: {reference.get(name, 'unknown')}\n           {said[:400]}")
    quiet = [
        f"  {outcome:<8} {name}" for name, (outcome, _) in sorted(results.items()) if outcome in ("aborted", "skipped")
    ]
    print(f"not run here, by the kit's own assumptions ({len(quiet)}):", *quiet, sep="\n")
    beyond = [n for n, (outcome, _) in results.items() if outcome == "passed" and reference.get(n) != "passed"]
    if beyond:
        print(f"passed here, not by the reference server: {', '.join(sorted(beyond))}")
    return 1 if missing or failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Iceberg's REST Compatibility Kit against icetower serve.")
    parser.add_argument("--reference", action="store_true", help="run Java's reference server and save its results")
    parser.add_argument("--uri", help="a server that is there already, and empty")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these test methods")
    asked = parser.parse_args()
    try:
        java_path = java.find()
        library = jars(java_path)
        shutil.rmtree(BUILD, ignore_errors=True)
        BUILD.mkdir(parents=True)
        began = time.monotonic()
        if asked.reference:
            with reference_server(java_path, library) as uri:
                results = run_kit(java_path, library, uri, asked.only)
        elif asked.uri:
            results = run_kit(java_path, library, asked.uri, asked.only)
        else:
            with icetower() as uri:
                results = run_kit(java_path, library, uri, asked.only)
    except (Trouble, java.NoJava, subprocess.TimeoutExpired) as error:
        print(f"rck: {error}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - began
    reference = read_reference() if REFERENCE.exists() else {}
    if asked.reference and not asked.only:
        write_reference(results, seconds)
        reference = read_reference()
    if asked.only:
        reference = {n: outcome for n, outcome in reference.items() if n.partition("(")[0] in asked.only}
    status = judge(results, reference)
    count = {
        kind: sum(outcome == kind for outcome, _ in results.values())
        for kind in ("passed", "aborted", "skipped", "failed")
    }
    print(
        f"REST Compatibility Kit, {seconds:.0f} s: " + ", ".join(f"{number} {kind}" for kind, number in count.items())
    )
    return status if results else 1


if __name__ == "__main__":
    sys.exit(main())
