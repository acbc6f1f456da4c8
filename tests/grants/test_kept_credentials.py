"""Files of credentials: who can read them, and what survives a crash between any two steps."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from icetower.cli.credentials import Credentials
from icetower.errors import AlreadyExists, ConfigurationError


def test_an_answer_is_awaited_until_it_is_kept_or_known_not_to_come(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "folder")
    assert credentials.unanswered() == {}
    credentials.expect("p", "attempt-1")
    credentials.expect("q", "attempt-1")
    assert credentials.unanswered() == {"p": "attempt-1", "q": "attempt-1"}
    credentials.forget("q")
    credentials.expect("p", "attempt-2")
    assert credentials.unanswered() == {"p": "attempt-2"}
    credentials.keep("p", "id", "secret")
    assert credentials.unanswered() == {}
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["p.json"]


def test_kept_just_before_a_crash_is_kept(tmp_path: Path) -> None:
    """The file is there, and so is still the sign that the answer is awaited."""
    credentials = Credentials(tmp_path)
    credentials.expect("p", "attempt-1")
    awaited = (tmp_path / "p.awaited").read_text()
    credentials.keep("p", "id", "secret")
    (tmp_path / "p.awaited").write_text(awaited)
    assert credentials.unanswered() == {}


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path)
    credentials.expect("p", "attempt-1")
    credentials.place("p").write_text("another's")
    with pytest.raises(AlreadyExists):
        credentials.expect("p", "attempt-2")
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        credentials.keep("p", "id", "secret")
    assert credentials.place("p").read_text() == "another's"


def test_a_secret_goes_into_no_file_that_others_have_prepared(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    credentials = Credentials(tmp_path / "folder")
    credentials.expect("p", "attempt-1")
    (tmp_path / "folder" / "p.new").symlink_to(elsewhere)
    credentials.keep("p", "id", "secret")
    assert elsewhere.read_text() == ""
    assert stat.S_IMODE(credentials.place("p").lstat().st_mode) == 0o600
    assert not credentials.place("p").is_symlink()
