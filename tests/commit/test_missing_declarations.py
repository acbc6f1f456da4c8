"""A refusal names the declaration that its commit lacks, and under that declaration the same commit goes in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icetower.errors import CommitConflict
from icetower.protocol.declarations import Declaration, properties_of
from tests.commit.engine_world import World, outcomes, run

BLIND = {"icetower.blind": "true"}
MERGE = {"engine-name": "spark", "engine-version": "4.1.4", "spark.app.id": "x", "spark.merge-into.x": "1"}
STRICT = {"icetower.strict": "true"}
SNAPSHOT = properties_of(Declaration.SNAPSHOT_ISOLATION)

CASES = [
    # the stale commit                              the table      the declaration that it lacks
    ({"summary": {}}, {}, Declaration.BLIND_APPENDS),
    ({"summary": {"engine-name": "trino"}}, {}, Declaration.BLIND_APPENDS),
    ({"summary": {"icetower.blind": "false"}}, {}, None),
    ({"summary": {"source-snapshot-id": "7"}}, {}, None),
    ({"summary": {}}, STRICT, None),
    ({"summary": MERGE}, {}, Declaration.SNAPSHOT_ISOLATION),
    ({"operation": "overwrite"}, {}, Declaration.READ_SCOPE),
    ({"operation": "overwrite"}, SNAPSHOT, Declaration.READ_SCOPE),
]


async def refused(properties: dict[str, str], commit: dict[str, Any]) -> CommitConflict | None:
    """What is answered to a commit that another one has come before."""
    world = World()
    await world.create(**properties)
    ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
    stale = await bob.snapshot(**{"add": ("b",), "summary": {}, **commit})
    assert await outcomes(await ann.append("a", summary=BLIND)) == ["direct"]
    try:
        await stale.send()
    except CommitConflict as conflict:
        return conflict
    return None


@pytest.mark.parametrize(("commit", "properties", "lacking"), CASES)
def test_a_refusal_names_what_its_commit_lacks(
    commit: dict[str, Any], properties: dict[str, str], lacking: Declaration | None
) -> None:
    conflict = run(refused(properties, commit))
    assert conflict is not None
    assert (None if conflict.missing is None else conflict.missing.declaration) == lacking


@pytest.mark.parametrize(
    ("commit", "properties", "lacking"), [case for case in CASES if case[2] is not None and properties_of(case[2])]
)
def test_under_the_declaration_it_goes_in_and_the_message_has_the_command(
    commit: dict[str, Any], properties: dict[str, str], lacking: Declaration
) -> None:
    conflict = run(refused(properties, commit))
    assert conflict is not None
    assert conflict.missing is not None
    assert f"`icetower tables set {conflict.missing.table} " in conflict.message
    assert run(refused({**properties, **properties_of(lacking)}, commit)) is None


def test_an_append_of_who_may_change_rows_is_not_sent_to_declare_itself_blind() -> None:
    """It may be an upsert that has found no row: declared blind, two of them would insert one row twice."""

    async def story() -> CommitConflict:
        world = World()
        await world.create()
        ann, bob = await world.writer("ann").refresh(), await world.writer("bob").refresh()
        stale = await (await bob.append("b")).admitted()
        await (await ann.append("a")).send()
        with pytest.raises(CommitConflict) as caught:
            await world.engine.submit(replace(stale, may_change_rows=True))
        return caught.value

    conflict = run(story())
    assert (conflict.rule, "tables set" in conflict.message) == ("rebase.not-blind", False)
    assert "read_scope: owned in the contract" in conflict.message
    assert conflict.missing is not None
    assert conflict.missing.declaration == Declaration.READ_SCOPE
