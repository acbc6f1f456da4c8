"""What one tower counts of its own work, in memory: its swaps."""

from __future__ import annotations


class Pulse:
    """Since the tower was started.

    Attributes:
        swaps: of tables' metadata, tried.
        swap_s: how long they took together, in seconds.
    """

    def __init__(self) -> None:
        self.swaps = 0
        self.swap_s = 0.0

    def swapped(self, took_s: float) -> None:
        """A swap has ended, whichever way."""
        self.swaps += 1
        self.swap_s += took_s
