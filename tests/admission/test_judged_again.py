"""A commit that changes nothing of what its contract keeps from it is let in. By the time it goes in, it may.

An agent that repeats what a table has undid each change that an administrator made meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from icetower.contracts.document import load
from icetower.errors import CommitConflict, IcetowerError
from icetower.registry.principals import Principal, administrator
from tests.admission.test_admit import METADATA, ask, asserts, change, contract, file, ref_update, updates_of
from tests.commit.engine_world import TABLE, World, judged, run

JSON = dict[str, Any]

PART = contract("append, alter, refs")
"""Owns two days of the table."""

BRANCH = {"type": "branch", "snapshot-id": 6}
SECOND_SCHEMA = {"type": "struct", "schema-id": 1, "fields": METADATA["schemas"][0]["fields"]}


def with_properties(**properties: str) -> JSON:
    """`_` stands for a dot, and `__` for a hyphen."""
    return {"properties": METADATA["properties"] | named(properties)}


def sets(**properties: str) -> JSON:
    return {"action": "set-properties", "updates": named(properties)}


def named(properties: JSON) -> JSON:
    return {name.replace("__", "-").replace("_", "."): value for name, value in properties.items()}


def removes(name: str) -> JSON:
    return {"action": "remove-properties", "removals": [name]}


UNDONE = [
    # what the table has, an update that changes nothing of it, what the table has by then, the rule that it breaks
    ("sets what is taken away", with_properties(icetower_strict="true"), sets(icetower_strict="true"),
     with_properties()),
    ("sets what is changed", with_properties(icetower_strict="false"), sets(icetower_strict="false"),
     with_properties(icetower_strict="true")),
    ("removes what is set", with_properties(), removes("icetower.strict"), with_properties(icetower_strict="true")),
    ("weakens the level", with_properties(write_merge_isolation__level="snapshot"),
     sets(write_merge_isolation__level="snapshot"),
     with_properties(write_merge_isolation__level="serializable")),
    ("sets the old endpoint", with_properties(s3_endpoint="http://old"), sets(s3_endpoint="http://old"),
     with_properties(s3_endpoint="http://new")),
    ("sets retention", with_properties(history_expire_max__snapshot__age__ms="5"),
     sets(history_expire_max__snapshot__age__ms="5"), with_properties()),
    ("sets the old schema", {}, {"action": "set-current-schema", "schema-id": 0},
     {"schemas": [*METADATA["schemas"], SECOND_SCHEMA], "current-schema-id": 1}),
    ("sets the old spec", {}, {"action": "set-default-spec", "spec-id": 0}, {"default-spec-id": 1}),
    ("sets the old location", {}, {"action": "set-location", "location": METADATA["location"]},
     {"location": "file:///w/pricing/moved"}),
    ("removes a branch that was not there", {}, {"action": "remove-snapshot-ref", "ref-name": "new"},
     {"refs": METADATA["refs"] | {"new": BRANCH}}),
    ("makes a branch that was not there", {}, ref_update("new", 7), {"refs": METADATA["refs"] | {"new": BRANCH}}),
    ("makes a tag that was not there", {}, ref_update("new", 7, "tag"), {"refs": METADATA["refs"] | {"new": BRANCH}}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "had", "update", "has"), UNDONE, ids=[case[0] for case in UNDONE])
def test_what_changed_nothing_when_it_was_let_in_does_not_undo_what_changed_meanwhile(
    what: str, had: JSON, update: JSON, has: JSON
) -> None:
    base = {**METADATA, **had}
    admitted = ask(by=PART, requirements=[], updates=[update], metadata=base)
    assert admitted.judge_again is not None
    admitted.judge_again(base)
    admitted.judge_again({**base, "last-updated-ms": 1_600_000_000_000})
    with pytest.raises(CommitConflict, match="Load the table again") as caught:
        admitted.judge_again({**METADATA, **has})
    assert (caught.value.status, caught.value.rule, caught.value.next_step) == (409, "commit.permission", "refresh")


def test_what_is_granted_everywhere_is_not_asked_again_in_vain() -> None:
    everywhere = contract("append, alter, refs", "all")
    for _, had, update, has in UNDONE:
        if update["action"] == "set-location" or "s3.endpoint" in str(update):
            continue  # for administrators
        admitted = ask(by=everywhere, requirements=[], updates=[update], metadata={**METADATA, **had})
        assert admitted.judge_again is not None
        admitted.judge_again({**METADATA, **has})


def test_shadow_mode_lets_it_by_here_as_well() -> None:
    text = "version: 1\nagent: x\nmode: shadow\ntables:\n- table: pricing.*\n  operations: [read]\n"
    admitted = ask(by=load(text, source="test"), requirements=[], updates=[removes("write.format.default")])
    assert admitted.judge_again is not None
    admitted.judge_again({**METADATA, **with_properties(write_format_default="orc")})


def test_administrators_are_asked_again_what_holds_for_everybody() -> None:
    base = {**METADATA, **with_properties(icetower_of__a__later__release="1")}
    update = sets(icetower_of__a__later__release="1")
    admitted = ask(by=administrator("root"), requirements=[], updates=[update], metadata=base)
    assert admitted.judge_again is not None
    with pytest.raises(CommitConflict):
        admitted.judge_again(METADATA)


def test_a_commit_that_only_moves_branches_that_it_asserts_is_not_asked_again() -> None:
    """The hot path: neither check depends on anything but its own assertion."""
    assert ask(change([file("a")])).judge_again is None
    settings = [*updates_of(change([file("a")]))[:1], {**ref_update("wap", 8), "max-ref-age-ms": 5}]
    asserted = asserts(7, "wap")
    assert ask(change([file("a")]), by=PART, updates=settings, requirements=asserted).judge_again is not None


def test_the_engine_asks_again_on_the_version_that_the_commit_goes_on() -> None:
    world = World()
    text = (
        "version: 1\nagent: part\ntables:\n- {table: '**', operations: [read, append, alter], partitions: [{n: [1]}]}\n"
    )
    part = Principal("part", load(text, source="test"), 1)

    async def story() -> tuple[int, str, Mapping[str, str]]:
        await world.create(**named({"icetower_strict": "false"}))
        head = await world.head()
        updates = [{"action": "set-properties", "updates": {"icetower.strict": "false"}}]
        repeats = judged(part, TABLE, head.metadata, [], [], updates)
        declares = [{"action": "set-properties", "updates": {"icetower.strict": "true"}}]
        await world.engine.submit(judged(administrator("root"), TABLE, head.metadata, [], [], declares))
        with pytest.raises(IcetowerError) as caught:
            await world.engine.submit(repeats)
        return caught.value.status, caught.value.rule, (await world.head()).metadata["properties"]

    status, rule, properties = run(story())
    assert (status, rule, properties["icetower.strict"]) == (409, "commit.permission", "true")
