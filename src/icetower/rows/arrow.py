"""pyarrow, imported where it is needed first: it takes a third of a second, and most towers' commits do without."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def pyarrow() -> Any:
    return import_module("pyarrow")


@cache
def compute() -> Any:
    return import_module("pyarrow.compute")


@cache
def parquet() -> Any:
    return import_module("pyarrow.parquet")
