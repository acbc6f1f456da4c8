"""Pure functions, remembered by the bytes that they were given: a run reads each file of Avro once.

The towers, the clients and the judge of a run all read the same immutable files; what they get is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import orjson

from icetower.files import changes
from icetower.iceberg import avro_files, manifests
from icetower.iceberg.records import Manifest, ManifestFile

T = TypeVar("T")
_ENTRIES_MAX = 4_000


def _remembered(function: Callable[..., T]) -> tuple[Callable[..., T], dict[bytes, T]]:
    known: dict[bytes, T] = {}

    def remember(data: bytes, **bounds: Any) -> T:
        if data not in known:
            if len(known) >= _ENTRIES_MAX:
                known.clear()
            known[data] = function(data, **bounds)
        return known[data]

    return remember, known


manifest_of: Callable[..., Manifest]
manifest_list_of: Callable[..., tuple[ManifestFile, ...]]
manifest_of, _manifests = _remembered(manifests.read_manifest)
manifest_list_of, _lists = _remembered(manifests.read_manifest_list)


def _by_schema(function: Callable[..., Any]) -> Callable[..., Any]:
    """What depends on an Avro schema, and on the name of the function that renames its fields; both are few."""
    known: dict[tuple[bytes, str], Any] = {}

    def remember(schema: Any, *more: Any) -> Any:
        rest = [word.__qualname__ if callable(word) else repr(word) for word in more if not isinstance(word, dict)]
        key = (orjson.dumps(schema), " ".join(rest))
        if key not in known:
            found = function(schema, *more)
            known[key] = list(found) if isinstance(found, Iterator) else found
        return known[key]

    return remember


_SCHEMA_WORK: dict[str, Any] = {
    name: _by_schema(getattr(avro_files, name))
    for name in ("_plain", "check_shape", "named_types", "field_schema")
    if hasattr(avro_files, name)
}


@contextmanager
def shared() -> Generator[None]:
    """While this lasts, the towers read manifests through the same memory; it is empty afterwards.

    Lists they read in their own way: by the rows that they have met.
    """
    with mock.patch.object(changes, "read_manifest", manifest_of), mock.patch.multiple(avro_files, **_SCHEMA_WORK):
        try:
            yield
        finally:
            _manifests.clear()
            _lists.clear()
