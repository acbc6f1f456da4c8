"""Waiting for an agent's slot, by the tower's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from icetower.agent.client import Tower
from icetower.agent.deliveries import Delivery, Slot
from icetower.agent.recovery import Patience
from icetower.agent.steps import Pause, Steps, Work, driven
from icetower.errors import ContractViolation, IcetowerError, UsageError

T = TypeVar("T")


def wait_for_slot(
    tower: Tower, table: str, operation: str = "append", *, least_s: float = 0.0, patience: Patience | None = None
) -> Slot:
    """Wait until the caller's slot goes on, and return it: its `value` is what to write into its `column`.

    Times are the tower's, so that the agent's own clock may be wrong. A commit that comes when the slot and its grace
    have ended is refused (``contract.slot``): then wait for the next one, and write the rows anew.

    Args:
        operation, least_s: as of `Tower.delivery`.
        patience: how long to wait at most, and how.

    Raises:
        ContractViolation: the slot does not come within the patience.
        UsageError: the contract has no slots for that.
    """
    slot = in_time(tower, table, operation, least_s, patience or Patience()).slot
    if slot is None:
        raise UsageError(f"the contract has no slots for {operation} on {table}; any time is right")
    return slot


def in_time(tower: Tower, table: str, operation: str, least_s: float, patience: Patience) -> Delivery:
    """The delivery of an operation once its rows may be written. Arguments and errors as of `wait_for_slot`."""

    def ask() -> Steps[Delivery]:
        return (yield Work(lambda: tower.delivery(table, operation, least_s=least_s)))

    return driven(once_in_time(ask, table, operation, patience), patience.take)


def once_in_time(ask: Callable[[], Steps[Delivery]], table: str, operation: str, patience: Patience) -> Steps[Delivery]:
    """The same, where `ask` asks the tower for the delivery."""
    until_s = patience.ambient.monotonic_s() + patience.total_s
    while True:
        found = yield from ask()
        if found.slot is None or found.slot.starts_in_s <= 0:
            return found
        if patience.ambient.monotonic_s() + found.slot.starts_in_s > until_s:
            raise ContractViolation(
                f"the next slot of {found.agent} for {operation} on {table} begins in {found.slot.starts_in_s:.0f} s, "
                f"and the patience is {patience.total_s:.0f} s",
                rule="contract.slot",
                next_step="wait_until",
                wait_until_ms=found.slot.starts_ms,
            )
        yield Pause(found.slot.starts_in_s)


def in_the_next(
    work: Callable[[Tower, str], T], refusal_of: Callable[[BaseException], IcetowerError | None]
) -> Callable[[Tower, str], T]:
    """Work that makes its rows for the slot that goes on, for `carry_out`: where that ends meanwhile, it waits for the
    next one. The same rows would be refused there, too, so that the tower says `fix_request`; these are made anew.
    """

    def attempt(using: Tower, key: str) -> T:
        try:
            return work(using, key)
        except Exception as raised:
            refusal = refusal_of(raised)
            if refusal is None or refusal.rule != "contract.slot" or refusal.wait_until_ms is None:
                raise
            refusal.next_step = "wait_until"
            raise refusal from raised

    return attempt
