"""The files of one table, and no others, however its metadata names them.

Who may write to a table's place can put any manifest there, in place of one that was committed. The tools read with the
storage credentials of the tower, so a file is looked at when it is opened: it must lie where the table's files go, and
on this machine no link may lead elsewhere, nor may it be anything that never ends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, InputStream, OutputFile

from icetower.admission.locations import PATHS, roots_of, steers_clients
from icetower.errors import Forbidden
from icetower.mcp.results import clean
from icetower.paths import is_under, plain_path
from icetower.storage.local_files import check_folders_below, opened_below

_LINKS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
"""What opening a link says that is not to be followed."""


class Confines:
    """Where the files of a table lie.

    Args:
        name: of the table, for errors.
        metadata: of the table; its `location` and `properties` are looked at.
    """

    def __init__(self, name: str, metadata: Mapping[str, Any]) -> None:
        properties: Mapping[str, str] = metadata.get("properties") or {}
        folder = properties.get("write.metadata.path")
        self._name = name
        self._roots = tuple(dict.fromkeys((*([folder] if folder else ()), *roots_of(metadata))))

    def root_of(self, path: str) -> str:
        """The place of the table under which a path lies. Raises `Forbidden`."""
        for root in self._roots:
            if is_under(path, root):
                return root
        raise self._outside(path)

    def opened(self, path: str) -> int:
        """A handle to a file of this machine. Raises as `root_of`, and `OSError`."""
        root = self.root_of(path)
        try:
            return opened_below(plain_path(root), plain_path(path))
        except (OSError, ValueError) as error:
            raise self._of(error, path) from error

    def is_local(self, path: str) -> bool:
        """Whether it is a path of this machine. Raises as `root_of`."""
        self.root_of(path)
        return plain_path(path).startswith("/")

    def check_folders(self, path: str) -> None:
        """Raises `Forbidden` where a link lies on the way to a file of this machine that is to be written."""
        root = self.root_of(path)
        try:
            check_folders_below(plain_path(root), plain_path(path))
        except (OSError, ValueError) as error:
            raise self._of(error, path) from error

    def _of(self, error: Exception, path: str) -> Exception:
        through_link = isinstance(error, ValueError) or getattr(error, "errno", None) in _LINKS
        return self._outside(path) if through_link else error

    def _outside(self, path: str) -> Forbidden:
        return Forbidden(
            f"{clean(path)} lies outside of {clean(self._name)}: its metadata names a file that is not where the "
            "table's files go. Nothing of it is read; ask an administrator to look at the table",
            rule="mcp.location",
            next_step="ask_owner",
            files=(path,),
        )


class ConfinedIO(FileIO):
    """Opens files of one table by another FileIO, and those of this machine itself."""

    def __init__(self, inner: FileIO, confines: Confines) -> None:
        super().__init__(inner.properties)
        self._inner = inner
        self._confines = confines
        self._opens = PY_IO_IMPL not in inner.properties

    def new_input(self, location: str) -> InputFile:
        if self._confines.is_local(location) and self._opens:
            return _LocalInput(location, self._confines)
        return self._inner.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        if self._confines.is_local(location):
            self._confines.check_folders(location)
        return self._inner.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._confines.root_of(location if isinstance(location, str) else location.location)
        self._inner.delete(location)


class _LocalInput(InputFile):
    def __init__(self, location: str, confines: Confines) -> None:
        super().__init__(location)
        self._confines = confines

    def _handle(self) -> int:
        return self._confines.opened(self.location)

    def __len__(self) -> int:
        handle = self._handle()
        try:
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def exists(self) -> bool:
        try:
            os.close(self._handle())
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        del seekable
        stream: Any = os.fdopen(self._handle(), "rb")
        return stream


class ConfinedCatalog(RestCatalog):
    """A tower as PyIceberg's catalog, whose tables open files of their own alone.

    PyIceberg lays a table's properties over the settings of the storage, and loads classes by them. A file of metadata
    may have been replaced as well as a manifest, so properties with such effects are left out.
    """

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Any:
        metadata: Any = table_response.metadata
        kept = {name: value for name, value in metadata.properties.items() if name in PATHS or not steers_clients(name)}
        harmless = metadata.model_copy(update={"properties": kept})
        return super()._response_to_table(identifier_tuple, table_response.model_copy(update={"metadata": harmless}))

    def load_table(self, identifier: str | tuple[str, ...]) -> Any:
        table: Any = super().load_table(identifier)
        metadata = {"location": table.metadata.location, "properties": table.metadata.properties}
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        table.io = ConfinedIO(table.io, Confines(name, metadata))
        return table
