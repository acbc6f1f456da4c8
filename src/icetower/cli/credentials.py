"""Credentials of new principals: each in a file that only its owner can read, and nowhere else.

A catalog returns a principal's secret once, in its answer to the request that creates it. So a file is written before
the request is sent; it has the id of the attempt, which is also in the principal's properties. If the answer is lost,
the file shows it, and only that principal may be given new credentials.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from icetower.errors import AlreadyExists, ConfigurationError

_AWAITED = ".awaited"


class Credentials:
    """A folder of credentials. Every method raises `ConfigurationError` if the folder cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, principal: str) -> Path:
        return self._folder / f"{principal}.json"

    def unanswered(self) -> Mapping[str, str]:
        """Principal → the attempt whose answer was lost."""
        try:
            attempts = {
                file.name.removesuffix(_AWAITED): file.read_text().strip() for file in self._folder.glob(f"*{_AWAITED}")
            }
            return {name: attempt for name, attempt in attempts.items() if not self.place(name).exists()}
        except OSError as error:
            raise self._broken(error) from error

    def require_room(self, principal: str) -> None:
        """Raises `AlreadyExists` if there are credentials for such a principal; they may be another catalog's."""
        if self.place(principal).exists():
            raise AlreadyExists(
                f"{self.place(principal)} exists, but there is no principal {principal}; move the file away, or choose "
                "another folder with --credentials",
                rule="grants.credentials",
            )

    def expect(self, principal: str, attempt: str) -> None:
        """Record that an answer with credentials is awaited."""
        self.require_room(principal)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._awaited(principal), attempt + "\n")
        except OSError as error:
            raise self._broken(error) from error

    def keep(self, principal: str, client_id: str, client_secret: str) -> Path:
        """Store the credentials of the answer."""
        text = json.dumps({"principal": principal, "client_id": client_id, "client_secret": client_secret})
        place = self.place(principal)
        unfinished = place.with_suffix(".new")
        try:
            _write(unfinished, text + "\n")
            os.link(unfinished, place)  # unlike a rename, it replaces nothing
            unfinished.unlink()
        except OSError as error:
            raise self._broken(error) from error
        self.forget(principal)
        return place

    def forget(self, principal: str) -> None:
        """Record that no answer is awaited any more."""
        self._awaited(principal).unlink(missing_ok=True)

    def _awaited(self, principal: str) -> Path:
        return self._folder / f"{principal}{_AWAITED}"

    def _broken(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"credentials cannot be kept in {self._folder}: {error.strerror or type(error).__name__}; choose another "
            "folder with --credentials",
            rule="grants.credentials",
        )


def _write(path: Path, text: str) -> None:
    """Write a new file that only its owner can read; an old one at the path is deleted first."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
