"""Several runs of one Flink job commit to a tower by Iceberg's own committer: `make flink-sink`.

It needs Maven and a JDK: Iceberg's runtime for Flink comes from Maven Central (1.12.0 has none there), Hadoop's classes
from PySpark. Each checkpoint must be in the table once, and the runs that were set back must be refused. Exit status 1:
it was otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from verify.kit.forger import Forger
from verify.kit.tower_process import TowerProcess

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "flink-sink"
MAIN = "org.apache.iceberg.flink.sink.FlinkRuns"
WANTED = (
    "first 1 done",
    "second 1 done",
    "first 2 done",
    "first 3 done",
    "third 2 RESTException sink.behind",
    "fourth 3 RESTException sink.differs",
    "fifth 3 done",
    "sixth 4 done",
    "records 18",
)


def classpath() -> str:
    """Fetch what is missing, and compile."""
    jars = CACHE / "jars"
    if not jars.is_dir():
        command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={jars}"], check=True)
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    path = os.pathsep.join((f"{jars}/*", *map(str, hadoop), str(CACHE / "classes")))
    (CACHE / "classes").mkdir(exist_ok=True)
    source = str(HERE / "FlinkRuns.java")
    subprocess.run(["javac", "-nowarn", "-d", str(CACHE / "classes"), "-cp", path, source], check=True)
    return path


def short(line: str) -> str:
    """A line of the program without the words of a refusal."""
    rule = next((word for word in ("sink.behind", "sink.differs") if f"rule {word}" in line), "")
    return " ".join((*line.split()[:3], rule)).strip()


def main() -> int:
    """Run it once, and compare."""
    path = classpath()
    with tempfile.TemporaryDirectory(prefix="flink-sink-") as home:
        tower = TowerProcess(Path(home) / "data")
        with tower.client() as http:
            http.post("/v1/namespaces", json={"namespace": ["ns"]}).raise_for_status()
            Forger(http, "ns").create(spec=None)
        command = ["java", "-cp", path, MAIN, tower.uri, tower.secret, "ns.t"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        tower.stop()
    found = tuple(short(line) for line in said.stdout.splitlines())
    print("\n".join(found))
    if found != WANTED:
        print(f"wanted:\n{chr(10).join(WANTED)}\n{said.stderr}", file=sys.stderr)
    return 0 if found == WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
