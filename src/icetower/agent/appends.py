"""Appending data files without loading the table: one request, answered when they are in it.

tower.append("sales.orders", [DataFile.of_parquet("/data/o1.parquet", uri="s3://…/data/o1.parquet")])
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from icetower.agent.channel import Channel
from icetower.agent.failures import error_of
from icetower.agent.keys import new_key
from icetower.ambient import Ambient, SystemAmbient
from icetower.errors import IcetowerError, UsageError
from icetower.protocol.names import Identifier, namespace_to_path

ATTEMPTS_MAX = 12
PATIENCE_S = 120.0
"""The time for all attempts at one append, in seconds, including waits."""

_FIRST_WAIT_S, _WAIT_MAX_S = 0.05, 5.0
_RETRYABLE = frozenset({409, 502, 503, 504})
"""Statuses of a temporary failure or an unknown outcome; with its key an append may be repeated safely."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that was written and is to be appended.

    Attributes:
        path: the path in the table's metadata: ``s3://…`` or ``file:///…``, under the table's location. It is used
            literally: nothing in it is quoted, and it may not contain ``?`` and ``#``.
        record_count: its rows.
        size_bytes: its length.
        partition: values by the partition field's name, in Iceberg's JSON form: ``{"day": "2017-01-31", "bucket": 3}``.
        spec_id: the partition spec that it was written for; None: the table's default one.
        nan_value_counts: the number of NaN in each floating-point column, by column id. Without it such a column has
            no bounds in the table's metadata, so queries cannot skip the file by it.
    """

    path: str
    record_count: int
    size_bytes: int
    partition: Mapping[str, Any] = field(default_factory=dict[str, Any])
    spec_id: int | None = None
    nan_value_counts: Mapping[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def of_parquet(
        cls,
        file: str | os.PathLike[str],
        *,
        uri: str | None = None,
        partition: Mapping[str, Any] | None = None,
        spec_id: int | None = None,
    ) -> DataFile:
        """Describe a Parquet file of this machine by its footer. Needs pyarrow, which the bare SDK does not install.

        Args:
            file: its path, or its address as ``file:///…``, which `Tower.new_data_file` gives for a local warehouse.
            uri: the path in the table's metadata, if it isn't the local path; upload the file there before the append.

        Raises:
            UsageError: pyarrow is not installed.
        """
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise UsageError(
                "DataFile.of_parquet needs pyarrow; install it, or create a DataFile with the row count yourself"
            ) from error
        place = Path(re.sub("^file:(//)?(?=/)", "", os.fspath(file))).absolute()
        rows = parquet.read_metadata(place).num_rows
        # Not `as_uri`: Iceberg's readers, and so the server, use the characters of a location literally.
        return cls(uri or f"file://{place}", rows, place.stat().st_size, partition or {}, spec_id)

    def to_json(self) -> dict[str, Any]:
        """The file in the append request."""
        document: dict[str, Any] = {
            "file-path": self.path,
            "file-format": "PARQUET",
            "record-count": self.record_count,
            "file-size-in-bytes": self.size_bytes,
            "partition": dict(self.partition),
        }
        if self.spec_id is not None:
            document["spec-id"] = self.spec_id
        if self.nan_value_counts:
            document["nan-value-counts"] = {
                "keys": list(self.nan_value_counts),
                "values": list(self.nan_value_counts.values()),
            }
        return document


@dataclass(frozen=True, slots=True)
class Appended:
    """The files are in the table.

    Attributes:
        outcome: ``appended``; ``replayed`` if these files, or an append with this key, were in the table already.
        group_size: the number of appends, of this and other callers, in the snapshot.
        queue_wait_ms: how long it waited in the server's queue.
        attempts: the number of requests.
    """

    snapshot_id: int
    sequence_number: int | None
    outcome: str
    group_size: int
    files: int
    queue_wait_ms: float
    key: str | None
    attempts: int


def checked_token(token: str | None) -> str | None:
    """The token. Raises `UsageError` where it would break the head of a request."""
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UsageError("the token has characters that are not allowed in a token; copy it again from its source")
    return token


class Appender:
    """Sends appends, and repeats them with the same key after temporary failures."""

    def __init__(self, channel: Channel, token: str | None, ambient: Ambient | None = None) -> None:
        checked_token(token)
        self._channel = channel
        self._headers = "Content-Type: application/json\r\n"
        self._headers += "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._ambient = ambient or SystemAmbient()
        self._never = threading.Event()

    def append(
        self,
        table: str,
        files: Sequence[DataFile],
        *,
        key: str | None = None,
        application: tuple[str, int] | None = None,
        ref: str = "main",
    ) -> Appended:
        """See `Tower.append`."""
        identifier = Identifier.parse(table)
        path = (
            f"/v1/namespaces/{namespace_to_path(identifier.namespace)}/tables/{quote(identifier.name, safe='')}/append"
        )
        if key is None and application is None:
            key = new_key(self._ambient)
        document: dict[str, Any] = {"files": [file.to_json() for file in files], "ref": ref}
        if key is not None:
            document["key"] = key
        if application is not None:
            document["application"] = {"id": application[0], "sequence": application[1]}
        answer, attempts = self._send(path, json.dumps(document, separators=(",", ":")).encode())
        return Appended(
            answer["snapshot-id"],
            answer["sequence-number"],
            answer["outcome"],
            answer["group-size"],
            answer["files"],
            answer["queue-wait-ms"],
            key,
            attempts,
        )

    def _send(self, path: str, body: bytes) -> tuple[dict[str, Any], int]:
        deadline_s = self._ambient.monotonic_s() + PATIENCE_S
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                status, answer = self._channel.post(path, self._headers, body)
                if status == 200:
                    return json.loads(answer), attempt
                failure = error_of(status, answer)
            except IcetowerError as error:
                failure = error
            pause_s = wait_s * (0.5 + self._ambient.uniform() / 2)
            last = attempt == ATTEMPTS_MAX or self._ambient.monotonic_s() + pause_s > deadline_s
            if last or failure.status not in _RETRYABLE or failure.next_step not in ("retry", "refresh"):
                raise failure
            self._never.wait(pause_s)
            wait_s = min(wait_s * 2, _WAIT_MAX_S)
        raise AssertionError("the last attempt either returned or raised")
