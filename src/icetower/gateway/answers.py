"""A version of a table as the specification's `LoadTableResult`, built and compressed once for everybody who waits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import orjson

from icetower.table.head import HeadState


def answer(head: HeadState, config: bytes, *, compressed: bool, own: Mapping[str, str | None] | None = None) -> bytes:
    """A load or commit answer of the specification (`LoadTableResult`), built and compressed once a version.

    Args:
        own: table properties as this caller alone is given them, put over the table's (trap A6); one that is None is
            left out. Such an answer is put together for each caller, from parts that all of them share.
    """
    return b"".join(answer_parts(head, config, compressed=compressed, own=own))


def answer_parts(
    head: HeadState, config: bytes, *, compressed: bool, own: Mapping[str, str | None] | None = None
) -> tuple[bytes, ...]:
    """The same in parts. Answers to several callers share the long ones; those to one caller share all of them."""
    name = f"{compressed}:{config.decode()}"
    if own is not None:
        name = f"{name}:{orjson.dumps(own, option=orjson.OPT_SORT_KEYS).decode()}"
    kept = head.answers if own is None else head.own_answers
    if name in kept:
        return kept[name]
    prefix = b'{"metadata-location":' + orjson.dumps(head.location) + b',"metadata":'
    suffix = b',"config":' + config + b"}"
    properties = None if own is None else overlaid(head.metadata.get("properties") or {}, own)
    put_together = head.document.gzipped_parts if compressed else head.document.framed_parts
    parts = put_together(prefix, suffix, properties)
    if own is None:
        parts = (b"".join(parts),)
    kept[name] = parts
    if own is not None:
        _bound(kept, head.size_bytes)
    return parts


def _bound(kept: dict[str, tuple[bytes, ...]], max_bytes: int) -> None:
    """Forget the oldest answers to single callers but the newest; their first parts are theirs alone."""
    size = sum(len(parts[0]) for parts in kept.values())
    while size > max_bytes and len(kept) > 1:
        size -= len(kept.pop(next(iter(kept)))[0])


def etag(head: HeadState, variant: str) -> str:
    """A strong ETag of this version; `variant` tells apart answers that differ by caller (trap A6)."""
    return '"' + hashlib.sha256(f"{head.location}\n{variant}".encode()).hexdigest()[:32] + '"'


def overlaid(properties: Mapping[str, str], own: Mapping[str, str | None]) -> dict[str, str]:
    """A table's properties with others put over them; one that is None is left out."""
    return {name: value for name, value in {**properties, **own}.items() if value is not None}
