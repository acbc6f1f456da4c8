"""Find Java 17 or later; on Debian, as root, install it.

    java.py              prints the path of `java`, or says how to get it (exit 1)
    java.py --install    installs Debian's openjdk-17-jre-headless if there is none and this is possible

`JAVA_HOME` is respected: if it is set, that Java is used or refused, never another one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
ADVICE = f"""Java {OLDEST} or later is needed (by Spark, and by Iceberg's compatibility kit), and none was found.
  Debian, Ubuntu   apt-get install openjdk-17-jre-headless
  Fedora           dnf install java-21-openjdk-headless
  macOS            brew install openjdk@17
or unpack any build of OpenJDK and set JAVA_HOME to it."""


class NoJava(Exception):
    """There is no usable Java; the message says what to do."""


def find() -> Path:
    """The `java` to use. Raises `NoJava`."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if _major(java) < OLDEST:
            raise NoJava(
                f"JAVA_HOME is {home}, and {java} is no Java {OLDEST} or later: correct or unset it.\n{ADVICE}"
            )
        return java
    on_path = shutil.which("java")
    for java in ([Path(on_path)] if on_path else []) + sorted(Path("/usr/lib/jvm").glob("*/bin/java")):
        if _major(java) >= OLDEST:
            return java
    raise NoJava(ADVICE)


def _major(java: Path) -> int:
    """The major version that a `java` says it is; 0 if it does not start."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', said.stderr)
    return int(found[1]) if found and said.returncode == 0 else 0


def install() -> None:
    """Debian's package, if this is Debian and we may. Raises `NoJava`."""
    if os.environ.get("JAVA_HOME") or not shutil.which("apt-get") or os.geteuid() != 0:
        raise NoJava(ADVICE)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment)
    for package in PACKAGES:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode == 0:
            return
    raise NoJava(f"apt-get could not install any of {', '.join(PACKAGES)}.\n{ADVICE}")


def main() -> int:
    try:
        try:
            java = find()
        except NoJava:
            if "--install" not in sys.argv[1:]:
                raise
            install()
            java = find()
    except NoJava as error:
        print(error, file=sys.stderr)
        return 1
    if "--install" not in sys.argv[1:]:
        print(java)
    return 0


if __name__ == "__main__":
    sys.exit(main())
