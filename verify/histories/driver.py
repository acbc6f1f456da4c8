"""Histories by Iceberg's own Java library: a case is run in memory, and what it leaves in storage is handed back.

    with HistoryDriver() as driver:
        history = driver.history(case)
        report = asyncio.run(audit(history.head, history.files))

A case is one of the differential test (`verify.differential.oracle`); its operations may have a `summary`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from icetower.iceberg.metadata import parse
from icetower.table.head import HeadState
from verify.differential import oracle
from verify.histories.memory import MemoryFiles, Table

HERE = Path(__file__).resolve().parent


class HistoryDriver(oracle.Oracle):
    """A Java process that runs cases, one after the other."""

    main = "org.apache.iceberg.HistoryDriver"
    sources: ClassVar[list[Path]] = [*oracle.SOURCES, *sorted((HERE / "java").glob("*.java"))]

    def history(self, case: Mapping[str, Any]) -> Table:
        """The table that a case leaves. Raises `OracleError`."""
        outcome = self.run(case)
        if "error" in outcome:
            raise oracle.OracleError(f"case {case.get('name')}: {outcome['error']}")
        files = {path: base64.b64decode(data) for path, data in outcome["files"].items()}
        location = outcome["metadata"]
        return Table(HeadState(location, parse(files[location])), MemoryFiles(files), outcome)
