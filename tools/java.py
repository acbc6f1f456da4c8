"""Find Java 17 or later; on Debian, as root, install it.

    java.py [--jdk]              prints the path of `java`, or says how to get it (exit 1)
    java.py --install [--jdk]    installs Debian's package if there is none and this is possible

With --jdk a Java counts only if its compiler, `javac`, stands beside it. `JAVA_HOME` is respected: if it is set, that
Java is used or refused, never another one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
JRE_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
JDK_PACKAGES = ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "default-jdk-headless")
ADVICE = f"""Java {OLDEST} or later is needed (by Spark, and by Iceberg's compatibility kit), and none was found.
  Debian, Ubuntu   apt-get install openjdk-17-jre-headless
  Fedora           dnf install java-21-openjdk-headless
  macOS            brew install openjdk@17
or unpack any build of OpenJDK and set JAVA_HOME to it."""
JDK_ADVICE = f"""A JDK {OLDEST} or later is needed (the differential test compiles against Iceberg), and none was found:
a Java without `javac` is not enough.
  Debian, Ubuntu   apt-get install openjdk-17-jdk-headless
  Fedora           dnf install java-21-openjdk-devel
  macOS            brew install openjdk@17
or unpack any JDK and set JAVA_HOME to it."""


class NoJava(Exception):
    """There is no usable Java; the message says what to do."""


def find(jdk: bool = False) -> Path:
    """The `java` to use; with `jdk` one whose compiler stands beside it. Raises `NoJava`."""
    advice, wanted = (JDK_ADVICE, "JDK") if jdk else (ADVICE, "Java")
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not _fits(java, jdk):
            raise NoJava(
                f"JAVA_HOME is {home}, and {java} is no {wanted} {OLDEST} or later: correct or unset it.\n{advice}"
            )
        return java
    on_path = shutil.which("java")
    for java in ([Path(on_path)] if on_path else []) + sorted(Path("/usr/lib/jvm").glob("*/bin/java")):
        if _fits(java, jdk):
            return java
    raise NoJava(advice)


def compiler(java: Path) -> Path:
    """The `javac` of a `java` that was found with `jdk`: on the path, both may be links into the same JDK."""
    return java.resolve().with_name("javac")


def _fits(java: Path, jdk: bool) -> bool:
    return _major(java) >= OLDEST and (not jdk or os.access(compiler(java), os.X_OK))


def _major(java: Path) -> int:
    """The major version that a `java` says it is; 0 if it does not start."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', said.stderr)
    return int(found[1]) if found and said.returncode == 0 else 0


def install(jdk: bool = False) -> None:
    """Debian's package, if this is Debian and we may. Raises `NoJava`."""
    packages, advice = (JDK_PACKAGES, JDK_ADVICE) if jdk else (JRE_PACKAGES, ADVICE)
    if os.environ.get("JAVA_HOME") or not shutil.which("apt-get") or os.geteuid() != 0:
        raise NoJava(advice)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment)
    for package in packages:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode == 0:
            return
    raise NoJava(f"apt-get could not install any of {', '.join(packages)}.\n{advice}")


def main() -> int:
    jdk = "--jdk" in sys.argv[1:]
    try:
        try:
            java = find(jdk)
        except NoJava:
            if "--install" not in sys.argv[1:]:
                raise
            install(jdk)
            java = find(jdk)
    except NoJava as error:
        print(error, file=sys.stderr)
        return 1
    if "--install" not in sys.argv[1:]:
        print(java)
    return 0


if __name__ == "__main__":
    sys.exit(main())
