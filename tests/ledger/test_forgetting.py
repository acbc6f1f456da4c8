"""A text is taken out of the log of attempts, and nothing else: on SQLite, and on PostgreSQL (full)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icetower.ledger.ledger import Attempt, Batch, Ledger, Outcome
from icetower.ledger.shadow import Shadowed
from tests.ledger.test_ledger import clock, database, ledger, run

__all__ = ["clock", "database", "ledger"]  # fixtures

ONE = Attempt("p", "ns.t", "append", Outcome.REFUSED, rule="contract.partitions", partitions=("day=1",), message="no")


@pytest.mark.parametrize(
    ("text", "attempt"),
    [
        ("p-4711", replace(ONE, message="customer=p-4711 belongs to others")),
        ("p-4711", replace(ONE, partitions=("day=1", "customer=p-4711"))),
        ("Zoë", replace(ONE, partitions=("customer=Zoë",))),
        ("100%_", replace(ONE, message="at 100%_ of it")),
    ],
    ids=["message", "partition", "escaped", "wildcards"],
)
def test_partitions_and_messages_with_the_text_go(ledger: Ledger, text: str, attempt: Attempt) -> None:
    shadowed = Shadowed("p", "c", 1, "ns.t", "append", "contract.partitions", f"not {text}", ("day=1",), 1_000)
    run(ledger.write(Batch(attempts=(ONE, attempt, ONE), shadowed=(shadowed,))))
    before = run(ledger.recent())
    assert run(ledger.forget(text)) == 2
    expected = [
        replace(each, partitions=(), message=None) if number == 1 else each for number, each in enumerate(before)
    ]
    assert run(ledger.recent()) == expected
    (counted,) = run(ledger.shadowed())
    assert (counted.count, counted.last.message, counted.last.partitions) == (1, "", ())
    assert run(ledger.forget(text)) == 0
