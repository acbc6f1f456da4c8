"""Find Chromium for the tests of the page; on Debian, as root, install it.

    chromium.py              prints its path, or says how to get it (exit 1)
    chromium.py --install    installs Debian's chromium if there is none and this is possible

The browser is the system's: Playwright's own downloads are not used. Where there is none, the tests that need it are
skipped, so that `--install` fails for that with CI=true alone. `ICETOWER_TEST_CHROMIUM` names another program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ADVICE = """Chromium is needed by the browser tests of the page, and none was found.
  Debian           apt-get install chromium
  Fedora           dnf install chromium
  macOS            brew install --cask chromium
or set ICETOWER_TEST_CHROMIUM to the program."""


class NoChromium(Exception):
    """There is no browser; the message says what to do."""


def find() -> Path:
    """The program. Raises `NoChromium`."""
    given = os.environ.get("ICETOWER_TEST_CHROMIUM")
    found = shutil.which(given) if given else next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise NoChromium(ADVICE)
    return Path(found)


def install() -> None:
    """Debian's package, if this is Debian and we may. Raises `NoChromium`."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise NoChromium(ADVICE)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
    if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode != 0:
        raise NoChromium(f"apt-get could not install chromium.\n{ADVICE}")


def main() -> int:
    installing = "--install" in sys.argv[1:]
    try:
        try:
            program = find()
        except NoChromium:
            if not installing:
                raise
            install()
            program = find()
    except NoChromium as error:
        print(error, file=sys.stderr)
        if not installing or os.environ.get("CI") == "true":
            return 1
        print("Until then those tests are skipped.", file=sys.stderr)
    else:
        if not installing:
            print(program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
