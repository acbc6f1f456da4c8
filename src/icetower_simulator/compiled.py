"""Numba's door: what is compiled, and how the compiled form is kept on disk.

Numba keeps a compiled function for as long as its own file has not changed, whatever became of the functions that it
calls. So only entry points are kept, and each holds `PROGRAM` in a closure, which Numba counts as part of the function:
when any module of this room changes, all are compiled anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def _program() -> int:
    """A checksum over this room's sources; 0 where they are not files."""
    checksum = 0
    for path in sorted(Path(__file__).parent.glob("*.py")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


PROGRAM = _program()


def compiled(function: F) -> F:
    """Compile where it is called from compiled code. Arithmetic stays as IEEE has it: one seed gives one result."""
    return cast("F", numba.njit(error_model="numpy")(function))


def kept(function: F) -> F:
    """An entry point, kept on disk. It must close over the program's checksum (see above)."""
    return cast("F", numba.njit(cache=True, error_model="numpy")(function))
