"""The side `branches`: a rewriter works on a branch of its own, and the tower publishes it.

`WAY` takes the place of `ways.on_the_head`: it makes a branch, reads and thinks on it, overwrites there, and asks the
tower to publish. It is None as long as the tower publishes no branches; `run` leaves the side out then.
"""

from __future__ import annotations

from bench.rewriters.seats import Way

WAY: Way | None = None
