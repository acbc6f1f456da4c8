"""Find PostgreSQL for the tests; on Debian, as root, install it.

    postgres.py              prints the directory of `initdb` and `postgres`, or says how to get them (exit 1)
    postgres.py --install    installs Debian's postgresql if there is none and this is possible

Only its programs are wanted: the tests start a server of their own. Where there are none, the tests that need them are
skipped, so that `--install` fails for that with CI=true alone. With `ICETOWER_TEST_POSTGRES_URL` nothing is installed:
the tests use the server that it names.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 13
PROGRAMS = ("initdb", "postgres")
USER = "postgres"
# Debian, Fedora's and PostgreSQL's own packages, Homebrew on both kinds of Mac: few of them put servers on the PATH.
PLACES = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql*/bin",
    "usr/local/opt/postgresql*/bin",
)
ADVICE = f"""PostgreSQL {OLDEST} or later is needed by the tests of catalogs in it, and none was found.
  Debian, Ubuntu   apt-get install postgresql
  Fedora           dnf install postgresql-server
  macOS            brew install postgresql@17
or put the directory of initdb on the PATH, or set ICETOWER_TEST_POSTGRES_URL to a database that tests may write to:
postgresql+psycopg://user:password@host/name"""


class NoPostgres(Exception):
    """There is no usable PostgreSQL; the message says what to do."""


def find() -> Path:
    """The directory of its programs: what is on the PATH, or else the newest. Raises `NoPostgres`."""
    on_path = shutil.which("initdb")
    if on_path and _major(chosen := Path(on_path).resolve().parent) >= OLDEST:
        return _for_us(chosen)
    found = [directory for place in PLACES for directory in Path("/").glob(place)]
    newest = max(found, key=_major, default=None)
    if newest is None or _major(newest) < OLDEST:
        raise NoPostgres(ADVICE)
    return _for_us(newest)


def _major(directory: Path) -> int:
    """The major version of the programs in a directory; 0 if one is missing or does not start."""
    versions: set[int] = set()
    for program in PROGRAMS:
        try:
            said = subprocess.run([directory / program, "--version"], capture_output=True, text=True, timeout=60)
        except OSError:
            return 0
        found = re.search(r"\(PostgreSQL\) (\d+)", said.stdout)
        versions.add(int(found[1]) if found and said.returncode == 0 else 0)
    return min(versions)


def _for_us(directory: Path) -> Path:
    """The same directory, unless its programs would not run for us: they refuse root."""
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(USER)
        except KeyError:
            raise NoPostgres(
                f"PostgreSQL is in {directory}, but refuses to run as root, and there is no user {USER} to run it as: "
                f"add one (useradd --system {USER}), or run the tests as somebody else."
            ) from None
    return directory


def install() -> None:
    """Debian's package, if this is Debian and we may. Raises `NoPostgres`."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise NoPostgres(ADVICE)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"]
    if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode != 0:
        raise NoPostgres(f"apt-get could not install postgresql.\n{ADVICE}")


def main() -> int:
    installing = "--install" in sys.argv[1:]
    if installing and os.environ.get("ICETOWER_TEST_POSTGRES_URL"):
        return 0
    try:
        try:
            directory = find()
        except NoPostgres:
            if not installing:
                raise
            install()
            directory = find()
    except NoPostgres as error:
        print(error, file=sys.stderr)
        if not installing or os.environ.get("CI") == "true":
            return 1
        print("Until then those tests are skipped.", file=sys.stderr)
    else:
        if not installing:
            print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
