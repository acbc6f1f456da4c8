"""`make bench-clients` in short: its writers write, and what they wrote is looked at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.clients import run as clients

PYICEBERG, SPARK = (each for each in clients.CLIENTS if each.name in ("pyiceberg", "spark"))


@pytest.mark.parametrize(
    ("client", "operation"), [(PYICEBERG, "upsert"), (SPARK, "delete")], ids=["PyIceberg", "Spark"]
)
def test_the_writers_of_a_client_land(client: clients.Client, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = str(Path(clients.__file__).with_name("python_driver.py"))
    monkeypatch.setattr(clients, "command", lambda name, operation: [sys.executable, driver, name, operation])
    (outcome,) = clients.run(client, operation, ["tower, declared"], writers=2, rounds=1).values()
    assert (outcome.landed, outcome.failed, outcome.wrong) == (2, [], "")
