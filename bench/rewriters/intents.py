"""The side `intents`: a rewriter reserves its partition before it reads it, and nothing else comes in while it thinks.

`WAY` takes the place of `ways.on_the_head`: it declares an exclusive intent on the partition, waits until it is held,
reads, thinks, overwrites with the intent and its fence in the summary, and releases. It is None as long as the tower
has no intents; `run` leaves the side out then.
"""

from __future__ import annotations

from bench.rewriters.seats import Way

WAY: Way | None = None
