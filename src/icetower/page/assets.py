"""The scripts and styles of the page: files of this repository, read once, with what HTTP caches go by."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_LEVEL = 9


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        packed: its content, compressed by gzip.
        etag: changes with the content, and with nothing else.
    """

    name: str
    content: bytes
    packed: bytes
    media_type: str
    etag: str

    @property
    def version(self) -> str:
        """For its URL: an address with it means this content for ever."""
        return self.etag.strip('"')[:12]


def read_assets() -> Mapping[str, Asset]:
    """All files, by name."""
    folder = resources.files("icetower.page").joinpath("assets")
    return {
        file.name: _asset(file)
        for place in (folder, folder.joinpath("vendor"))
        for file in sorted(_files(place), key=lambda each: each.name)
    }


def _files(place: Traversable) -> Iterator[Traversable]:
    return (file for file in place.iterdir() if _suffix(file.name) in _TYPES)


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


def _asset(file: Traversable) -> Asset:
    content = file.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(file.name, content, gzip.compress(content, _LEVEL, mtime=0), _TYPES[_suffix(file.name)], etag)
