"""Whoever only listens to commits changes nothing about them: neither a landed one into a failure, nor its answer."""

from __future__ import annotations

import logging

import pytest

from icetower.ambient import SystemAmbient
from icetower.errors import CommitConflict
from icetower.ledger.attempts import Attempt
from icetower.observe.events import Events
from icetower.service.attempts import Attempts, Ended, Known


def test_a_listener_that_fails_is_a_line_on_the_log(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Attempt] = []

    def fails(ended: Ended) -> None:
        raise ValueError(ended.kept.table)

    attempts = Attempts(SystemAmbient(), Events(SystemAmbient()), kept.append, heard=[fails])
    with caplog.at_level(logging.ERROR):
        attempts.ended("ann", "shop.t", "append", 0.0, None, known=Known(request_id="0123456789abcdef"))
        attempts.ended("ann", "shop.t", "append", 0.0, CommitConflict("stale"))
    assert kept[0].request_id == "0123456789abcdef"
    assert len(caplog.records) == 2
    assert "0123456789abcdef" in caplog.text


def test_an_attempt_has_the_id_that_its_request_has_and_an_error_keeps_its_own() -> None:
    kept: list[Attempt] = []
    attempts = Attempts(SystemAmbient(), Events(SystemAmbient()), kept.append)
    error = CommitConflict("stale")
    attempts.ended("ann", "shop.t", "append", 0.0, error, known=Known(request_id="a" * 16))
    attempts.ended("bob", "shop.t", "append", 0.0, error, known=Known(request_id="b" * 16))  # of an equal request
    assert [each.request_id for each in kept] == ["a" * 16] * 2
