"""The options of the JVMs that tests start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import class_archive

COMPILED_MIN_MB = 128
"""What one worker's sessions of Spark compile in a run of all tests. Java's own 48 MB were full after a minute."""


@pytest.mark.parametrize("archived", [False, True])
def test_there_is_room_for_compiled_code_and_an_archive_is_used_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archived: bool
) -> None:
    archive = tmp_path / "spark.jsa"
    if archived:
        archive.touch()
    monkeypatch.setattr(class_archive, "ARCHIVE", archive)
    options = class_archive.options()
    room = re.search(r"-XX:ReservedCodeCacheSize=(\d+)m", options)
    assert room is not None
    assert int(room[1]) >= COMPILED_MIN_MB
    assert (f"-XX:SharedArchiveFile={archive}" in options) is archived
