"""The use of Numba: which functions are compiled, and how the compiled code is cached on disk.

Numba keeps a cached function as long as the function's own file has not changed, even if the functions that it calls
have. So only entry points are cached, and each holds `PROGRAM` in a closure, which Numba counts as part of the
function: when any module of this package changes, all are compiled again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def _program() -> int:
    """A checksum over this package's sources; 0 if they are not files."""
    checksum = 0
    for path in sorted(Path(__file__).parent.glob("*.py")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


PROGRAM = _program()


def compiled(function: F) -> F:
    """Compile for calls from compiled code. Arithmetic stays IEEE 754: one seed gives one result."""
    return cast("F", numba.njit(error_model="numpy")(function))


def kept(function: F) -> F:
    """Compile an entry point, cached on disk. It must close over the program's checksum (see above)."""
    return cast("F", numba.njit(cache=True, error_model="numpy")(function))
