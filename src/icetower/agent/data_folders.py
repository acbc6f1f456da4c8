"""The folders for a caller's new data files: the tower returns each principal's own folder with the table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from icetower.agent.keys import new_key
from icetower.protocol.names import Identifier, namespace_to_path

DATA_PATH = "write.data.path"


class DataFolders:
    """The folders for new data files, by table; each is requested once. Threads may share them.

    Args:
        load: requests a route of the catalog and returns the answer.
    """

    def __init__(self, load: Callable[[str, Mapping[str, str]], Any]) -> None:
        self._load = load
        self._folders: dict[str, str] = {}
        self._lock = threading.Lock()

    def new_data_file(self, table: str) -> str:
        """See `Tower.new_data_file`."""
        with self._lock:
            folder = self._folders.get(table)
        if folder is None:
            folder = self._folder(Identifier.parse(table))
            with self._lock:
                self._folders[table] = folder
        return f"{folder}/{new_key()}.parquet"

    def forget(self, table: str) -> None:
        """Request the folder again next time, since it has changed."""
        with self._lock:
            self._folders.pop(table, None)

    def _folder(self, table: Identifier) -> str:
        route = f"/v1/namespaces/{namespace_to_path(table.namespace)}/tables/{quote(table.name, safe='')}"
        metadata = self._load(route, {"snapshots": "refs"})["metadata"]
        path = (metadata.get("properties") or {}).get(DATA_PATH) or f"{metadata['location']}/data"
        return str(path).rstrip("/")
