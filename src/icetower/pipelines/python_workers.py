"""The process from which Spark forks its Python workers, here with lists of zip files that are read once.

A worker calls `importlib.invalidate_caches` before each task. Python before 3.13 then reads the directory of every zip
file on the path anew, once for each package that was imported from it: those of PySpark and of Spark's core take 0.1 s,
which is most of a small task's time. Here a directory is read anew only if its file has changed.

`session` names this module to Spark (``spark.python.daemon.module``) where workers run on this machine.
"""

from __future__ import annotations

import os
import sys
import zipimport
from typing import Any

from pyspark import daemon

_Version = tuple[int, int, int]


def read_once() -> None:
    """From now on `invalidate_caches` leaves the directories of unchanged zip files in memory."""
    if sys.version_info >= (3, 13):  # where they are read when something is looked up
        return
    importer: Any = zipimport.zipimporter
    directories: dict[str, Any] = importer.__init__.__globals__["_zip_directory_cache"]
    read: dict[str, _Version | None] = {archive: _version(archive) for archive in directories}
    reread = importer.invalidate_caches

    def invalidate_caches(self: Any) -> None:
        version = _version(self.archive)
        if version is None or version != read.get(self.archive) or self.archive not in directories:
            reread(self)
            read[self.archive] = version
        else:
            self._files = directories[self.archive]

    importer.invalidate_caches = invalidate_caches


def _version(archive: str) -> _Version | None:
    try:
        found = os.stat(archive)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


if __name__ == "__main__":
    read_once()
    daemon.manager()
