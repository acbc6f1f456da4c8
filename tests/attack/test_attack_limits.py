"""One agent's request, however long, keeps nobody else waiting and is not kept by everybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icetower.files.changes import SNAPSHOTS_PER_COMMIT_MAX
from icetower.protocol.commits import PARTS_MAX
from icetower.protocol.sizes import LIMITS_BYTES
from verify.kit.forger import OWNER, Forger
from verify.kit.tower_process import error_of

Forge = Callable[..., Forger]


def test_a_commit_of_too_many_snapshots_or_updates_is_refused_unplanned(forge: Forge) -> None:
    forge().create()
    agent = forge(OWNER)
    _, (add, _) = agent.snapshot([])
    first = add["snapshot"]["snapshot-id"]

    def times(count: int) -> list[dict[str, Any]]:
        return [{**add, "snapshot": {**add["snapshot"], "snapshot-id": first + i}} for i in range(count)]

    assert error_of(agent.commit([], times(SNAPSHOTS_PER_COMMIT_MAX + 1)))["rule"] == "limit.snapshots"
    nothing: dict[str, Any] = {"action": "remove-properties", "removals": []}
    assert error_of(agent.commit([], [nothing] * (PARTS_MAX + 1)))["rule"] == "limit.updates"
    assert agent.commit([], times(3)).status_code == 200


def test_a_summary_that_every_reader_would_have_to_carry_is_refused(forge: Forge) -> None:
    forge().create()
    agent = forge(OWNER)
    answer = agent.send(agent.append("a.parquet", summary={"junk": "x" * LIMITS_BYTES["summaries"]}))
    assert error_of(answer)["rule"] == "limit.summaries"
