"""The sides `branches` and `branches-alone`: a rewriter works on a branch of its own, and the tower publishes it.

Who has read a partition, and overwrites it after a long thought, conflicts with every append that came to it meanwhile,
on a branch as anywhere: published as serializable, it would be refused for each. So these rewriters publish with
snapshot isolation: the rows that they have read get their next version, and rows that were appended meanwhile stand
beside them as they are, until the next rewrite. Of two rewriters of one partition only one can be published, since both
replace the same files. Nothing but an intent keeps the second from thinking in vain. On the side `branches` it is held,
other than on `intents` not exclusively: appends go on, and wait for nobody.
"""

from __future__ import annotations

from bench.rewriters.seats import NAME, Seat, Think, Way, thought
from icetower.agent import keyed, new_key

WAIT_S = 3_600.0
"""So long a rewriter stands in line."""


def _on_a_branch(seat: Seat, partition: int, think: Think) -> None:
    branch, where = seat.tower.branch(NAME, f"rewriter-{seat.agent}-{new_key()}"), f"part = {partition}"
    table = seat.table()
    found = table.scan(where, snapshot_id=table.metadata.refs[branch.name].snapshot_id).to_arrow()
    think()
    table.overwrite(thought(found), where, branch=branch.name, snapshot_properties=keyed(new_key()))
    branch.publish(isolation="snapshot", keep="squash")


def _under_an_intent(seat: Seat, partition: int, think: Think) -> None:
    with seat.tower.intent(NAME, partitions=[{"part": partition}], wait_s=WAIT_S):
        _on_a_branch(seat, partition, think)


WAY: Way = _under_an_intent
WAY_ALONE: Way = _on_a_branch
