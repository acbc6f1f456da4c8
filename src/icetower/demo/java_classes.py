"""The demo's two Java classes for Spark: the slow FileIO, and the count of commit attempts.

They are compiled in the running JVM by Janino, the compiler that Spark itself uses for queries. So the demo needs no
JDK and ships no binary.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from icetower.demo.latency import PROFILES

_SOURCES = ("SlowFileIO", "CommitAttempts")


def add_to(spark: Any, folder: Path) -> None:
    """Compile the classes into `folder` and put them on the class path of a session, before its catalog is used."""
    jvm = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _SOURCES:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(resources.files("icetower.demo").joinpath(f"{name}.java").read_text(encoding="utf-8"))
        for class_name, code in dict(compiler.getBytecodes()).items():
            path = folder.joinpath(*class_name.split(".")).with_suffix(".class")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(code))
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())


def properties(profile: str, attempts: Path) -> dict[str, str]:
    """Properties of a Spark catalog that wait as `profile` says, and count the attempts of each commit in a file."""
    chosen = {"metrics-reporter-impl": "icetower.demo.CommitAttempts", "commit-attempts.file": str(attempts)}
    return chosen | _latency(profile)


def _latency(name: str) -> dict[str, str]:
    if name == "none":
        return {}
    profile = PROFILES[name]
    return {
        "io-impl": "icetower.demo.SlowFileIO",
        "latency.get-median-ms": str(profile.get_median_ms),
        "latency.get-sigma": str(profile.get_sigma),
        "latency.put-base-ms": str(profile.put_base_ms),
        "latency.put-ms-per-mib": str(profile.put_ms_per_mib),
        "latency.put-sigma": str(profile.put_sigma),
        "latency.floor-ms": str(profile.floor_ms),
    }


def attempts_counted(file: Path) -> list[int]:
    """The attempts of each commit that landed, in order."""
    return [int(line) for line in file.read_text(encoding="utf-8").split()] if file.exists() else []
