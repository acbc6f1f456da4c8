"""What an agent does about its leases: step by step, with answers lost and leases ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from icetower.agent.asking import Asker, Credentials
from icetower.agent.deliveries import Slot
from icetower.agent.intents import Holder, Lease, SlotWish, wish_of
from icetower.agent.known import Known
from icetower.agent.recovery import Patience
from icetower.agent.steps import Lost, Pause, Request, Response, Step, Steps, driven
from icetower.ambient import SystemAmbient
from icetower.errors import Conflict, Forbidden, Unavailable

NOW = 1_000_000
ERROR = {
    "message": "it has ended", "type": "ForbiddenException", "code": 403, "rule": "intent.fenced",
    "next_step": "fix_request",
}  # fmt: skip


class Clock(SystemAmbient):
    """Time passes by pauses, and by what a request is asked to wait."""

    ms = NOW

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


def said(state: str = "held", **more: Any) -> dict[str, Any]:
    return {
        "intent": "i", "state": state, "fence": 7, "ttl_s": 60.0, "expires_ms": NOW + 60_000, "ended": None,
        "warnings": [], "waits_for": [{"principal": "bob"}],
    } | more  # fmt: skip


Answer = Mapping[str, Any] | Exception | int


class Tower:
    """Answers in order; a number is the status of a refusal."""

    def __init__(self, *answers: Answer) -> None:
        self.clock = Clock()
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []
        self.holder = Holder(Asker(Credentials("secret"), Patience(ambient=self.clock)), Patience(ambient=self.clock))

    def take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            self.clock.ms += int(step.seconds * 1000)
            return None
        assert isinstance(step, Request)
        assert step.headers["Authorization"] == "Bearer secret"
        self.asked.append((step.method, step.path, json.loads(step.body) if step.body else dict(step.params)))
        self.clock.ms += int(float(step.params.get("wait_s", 0)) * 1000)
        if step.path.endswith("/slots/next"):
            self.clock.ms += int(json.loads(step.body)["wait_s"] * 1000)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Response(answer, {}, json.dumps({"error": ERROR | {"code": answer}}).encode())
        status = answer["error"]["code"] if "error" in answer else 200
        return Response(status, {}, json.dumps(answer).encode())

    def does(self, steps: Steps[Any]) -> Any:
        return driven(steps, self.take)


def wish(wait_s: float = 0.0) -> Any:
    return wish_of("ns.t", [{"day": 1}], None, ["overwrite"], False, 60.0, wait_s)


def lost(*, sent: bool) -> Lost:
    return Lost(Unavailable("no tower answers", rule="client.connection"), sent=sent)


def test_a_lease_says_what_commits_carry() -> None:
    tower = Tower(said())
    lease = tower.does(tower.holder.declare(wish()))
    assert lease.properties == {"icetower.intent": lease.id, "icetower.fence": "7"}
    (method, path, body) = tower.asked[0]
    assert (method, path, body["intent"], body["queue"]) == ("POST", "/icetower/v1/intents", lease.id, False)
    assert body["tables"] == [
        {"table": "ns.t", "operations": ["overwrite"], "exclusive": False, "partitions": [{"day": 1}]}
    ]


def test_what_is_declared_again_after_a_lost_answer_goes_by_the_same_id() -> None:
    tower = Tower(lost(sent=True), lost(sent=False), said())
    tower.does(tower.holder.declare(wish()))
    assert len({body["intent"] for _, _, body in tower.asked}) == 1
    assert len(tower.asked) == 3


def test_it_stands_in_line_until_it_is_granted() -> None:
    tower = Tower(said("queued"), said("queued"), said())
    lease = tower.does(tower.holder.declare(wish(60.0)))
    assert lease.lost is None
    assert [(method, body.get("state")) for method, _, body in tower.asked[1:]] == [("GET", "queued")] * 2


def test_it_leaves_the_line_when_its_patience_has_passed() -> None:
    tower = Tower(said("queued"), said("queued"), said("ended"))
    with pytest.raises(Conflict, match="held by bob") as refused:
        tower.does(tower.holder.declare(wish(15.0)))
    assert refused.value.rule == "intent.held"
    assert tower.asked[-1][:2] == ("DELETE", tower.asked[-2][1])


def base(snapshot_id: int | None, **more: Any) -> dict[str, Any]:
    return said(tables=[{"table": "ns.t", "base_snapshot": snapshot_id}], declared_ms=NOW, **more)


def test_within_its_block_the_snapshot_at_the_grant_is_what_is_known() -> None:
    tower = Tower(base(5, granted_ms=NOW))
    lease = tower.holder.enter(tower.does(tower.holder.declare(wish())))
    assert tower.holder.known("ns.t") == Known(5, lease.id)
    assert tower.holder.known("ns.other") is None
    tower.holder.leave(lease)
    assert tower.holder.known("ns.t") is None


@pytest.mark.parametrize(("refs", "known"), [({"main": {"snapshot-id": 9}}, 9), ({}, None)])
def test_whoever_had_to_wait_knows_what_the_holder_before_has_left(refs: dict[str, Any], known: int | None) -> None:
    """The tower names the snapshot at the declaration, after which that holder has written."""
    tower = Tower(base(5, state="queued"), base(5, granted_ms=NOW + 9), {"metadata": {"refs": refs}})
    lease = tower.does(tower.holder.declare(wish(60.0)))
    assert lease.known == {"ns.t": Known(known, lease.id)}
    assert tower.asked[-1] == ("GET", "/v1/namespaces/ns/tables/t", {"snapshots": "refs"})


WAITING = {"error": ERROR | {"code": 409, "rule": "slot.waiting", "next_step": "wait_until", "type": "Conflict"}}
SLOT = {"column": "slot", "starts_ms": NOW, "ends_ms": NOW + 50_000, "until_ms": NOW + 55_000, "term": "slot"}


def test_a_slot_is_waited_for_and_asked_for_by_one_id() -> None:
    tower = Tower(WAITING, lost(sent=True), said(slot=SLOT, now_ms=NOW + 1_000))
    lease = tower.does(tower.holder.begin(SlotWish("ns.t", wait_s=70.0, least_s=9.0)))
    assert lease.slot == Slot("slot", NOW, NOW + 50_000, NOW + 55_000, NOW + 1_000)
    assert lease.slot.left_s == 54
    tower.clock.ms += 14_000
    assert lease.slot.left_s == 40
    assert {(method, path) for method, path, _ in tower.asked} == {("POST", "/icetower/v1/slots/next")}
    bodies = [body for _, _, body in tower.asked]
    assert [body.pop("wait_s") for body in bodies] == [20, 20, 20]
    assert bodies == [{"intent": lease.id, "table": "ns.t", "ttl_s": 60.0, "least_s": 9.0}] * 3
    assert lease.properties["icetower.intent"] == lease.id


def test_whoever_has_waited_for_a_slot_for_long_enough_is_refused() -> None:
    tower = Tower(WAITING, WAITING, WAITING)
    with pytest.raises(Conflict) as refused:
        tower.does(tower.holder.begin(SlotWish("ns.t", wait_s=45.0)))
    assert refused.value.rule == "slot.waiting"
    assert [body["wait_s"] for _, _, body in tower.asked] == [20, 20, 5]
    other = Tower({"error": WAITING["error"] | {"rule": "intent.id"}})
    with pytest.raises(Conflict):
        other.does(other.holder.begin(SlotWish("ns.t", wait_s=45.0)))
    assert len(other.asked) == 1


def held() -> Lease:
    return Lease("i", 7, 60.0, NOW + 60_000, NOW / 1000 + 60)


def test_warnings_are_heard_once_and_the_lease_is_renewed() -> None:
    heard: list[Any] = []
    first, second = {"snapshot-id": 1}, {"snapshot-id": 2}
    tower, lease = Tower(said(warnings=[first]), said(warnings=[first, second], expires_ms=NOW + 99_000)), held()
    tower.does(tower.holder.keep(lease, heard.append))
    assert heard == lease.warnings == [first, second]
    assert lease.expires_ms == NOW + 99_000
    assert [method for method, _, _ in tower.asked] == ["GET", "POST"]
    assert tower.asked[0][2] == {"wait_s": "20.000", "seen": "0", "state": "held"}
    lease.check()


def test_a_callback_that_fails_costs_no_lease(caplog: pytest.LogCaptureFixture) -> None:
    def fails(warning: Any) -> None:
        raise ValueError(warning)

    tower, lease = Tower(said(warnings=[{}]), said(warnings=[{}])), held()
    tower.does(tower.holder.keep(lease, fails))
    assert lease.lost is None
    assert "has failed" in caplog.text


ENDS: list[tuple[tuple[Answer, ...], str]] = [
    ((said("ended", ended="broken"),), "held no more (broken)"),
    ((said(), 403), "it has ended"),
    ((404,), "it has ended"),
]


@pytest.mark.parametrize(("answers", "words"), ENDS)
def test_a_lost_lease_is_known(answers: tuple[Answer, ...], words: str) -> None:
    tower, lease = Tower(*answers), held()
    tower.does(tower.holder.keep(lease, None))
    assert lease.lost is not None
    assert words in lease.lost.message
    with pytest.raises(type(lease.lost)):
        lease.check()


def test_a_tower_that_is_away_for_a_moment_costs_no_lease() -> None:
    tower, lease = Tower(lost(sent=False), said(), said()), held()
    tower.does(tower.holder.keep(lease, None))
    assert lease.lost is None
    tower.does(tower.holder.keep(lease, None))
    assert lease.lost is None
    tower = Tower(*[lost(sent=False)] * 100)
    while lease.lost is None:
        tower.does(tower.holder.keep(lease, None))
    assert not isinstance(lease.lost, Forbidden)


def test_several_tables_go_as_they_are_given() -> None:
    given: Callable[..., Any] = wish_of
    wanted = given([{"table": "a.b", "filter": True}], None, None, ["append"], True, 5.0, 0.0)
    assert wanted.tables == [{"table": "a.b", "filter": True}]
    assert given("a.b", None, True, ["append"], True, 5.0, 0.0).tables[0]["filter"] is True
