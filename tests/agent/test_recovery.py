"""What an agent does about a refusal, by its next step alone: with a clock, people and a tower that are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest
import requests
from pyiceberg.exceptions import ValidationException

from icetower.agent import Patience, Tower, carry_out, refusal_of
from icetower.ambient import SystemAmbient
from icetower.errors import CommitConflict, ContractViolation, Forbidden, IcetowerError, Unavailable

DONE = "done"


class Clock(SystemAmbient):
    """It goes on when somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.s = 1_000.0
        self.waits: list[float] = []

    def now_ms(self) -> int:
        return int(self.s * 1000)

    def monotonic_s(self) -> float:
        return self.s

    def uniform(self) -> float:
        return 0.999

    def pause(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.s += seconds


class People:
    """A tower's control API, and what people decide, one answer a look."""

    def __init__(self, *answers: Any, retries: dict[str, int] | IcetowerError | None = None) -> None:
        self.retries = retries
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    def _answer(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, IcetowerError):
            raise answer
        return answer

    def request_partitions(self, table: str, partitions: Sequence[str], **said: Any) -> dict[str, str]:
        self.asked.append((table, tuple(partitions), said["operations"], said["reason"]))
        return self._answer()

    def me(self) -> dict[str, Any]:
        if isinstance(self.retries, IcetowerError):
            raise self.retries
        return {"principal": "p", "retries": self.retries}

    def request(self, id_: str) -> dict[str, str]:
        assert id_ == "r1"
        return {"state": self._answer()}

    def requests(self) -> list[dict[str, Any]]:
        return self._answer()

    def escalations(self, *, state: str) -> list[dict[str, str]]:
        assert state == "open"
        return [{"table": table} for table in self._answer()]


class World:
    """Work that is refused a few times, and then done."""

    def __init__(self, *refusals: BaseException, people: People | None = None, **patience: Any) -> None:
        self.refusals = list(refusals)
        self.clock = Clock()
        self.people = people or People()
        self.keys: list[str] = []
        self.towers: list[Any] = []
        self.patience = Patience(ambient=self.clock, pause=self.clock.pause, **patience)

    def work(self, tower: Tower, key: str) -> str:
        self.towers.append(tower)
        self.keys.append(key)
        if self.refusals:
            raise self.refusals.pop(0)
        return DONE

    def run(self, **given: Any) -> str:
        tower = cast(Tower, self.people)
        return carry_out(self.work, tower, "ns.t", operations=["append"], reason="why", patience=self.patience, **given)


def refusal(next_step: str, **fields: Any) -> IcetowerError:
    return ContractViolation("some words", rule="some.rule", next_step=next_step, **fields)


@pytest.mark.parametrize("step", ["refresh", "retry"])
def test_what_may_be_sent_again_is_sent_again_under_its_key_and_ever_slower(step: str) -> None:
    world = World(*(refusal(step) for _ in range(8)))
    assert world.run(key="k") == DONE
    assert world.keys == ["k"] * 9
    assert world.clock.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], rel=0.01)


def test_it_retries_as_its_contract_says() -> None:
    people = People(retries={"attempts": 3, "min_wait_ms": 200, "max_wait_ms": 500})
    world = World(*(refusal("refresh") for _ in range(4)), people=people)
    with pytest.raises(ContractViolation):
        world.run(key="k")
    assert world.keys == ["k"] * 4
    assert world.clock.waits == pytest.approx([0.2, 0.4, 0.5], rel=0.01)
    # Other steps are no retries.
    world = World(*(refusal("new_key") for _ in range(4)), people=people)
    assert world.run() == DONE


def test_a_tower_that_does_not_say_its_contract_is_retried_as_ever() -> None:
    world = World(refusal("retry"), refusal("retry"), people=People(retries=Unavailable("away")))
    assert world.run() == DONE
    assert world.clock.waits == pytest.approx([0.1, 0.2], rel=0.01)


def test_wait_until_is_waited_for_and_no_longer() -> None:
    world = World(refusal("wait_until", wait_until_ms=1_030_000), refusal("wait_until", wait_until_ms=1_000))
    assert world.run() == DONE
    assert world.clock.waits == [30.0]


def test_a_key_that_stands_for_something_else_gives_way_to_a_new_one() -> None:
    world = World(refusal("retry"), refusal("new_key"), refusal("retry"))
    assert world.run(key="k") == DONE
    assert world.keys[:2] == ["k", "k"]
    assert world.keys[2] == world.keys[3] != "k"


@pytest.mark.parametrize("key", ["k", "01a215c9-ae01-7648-a27c-49626974b28c"], ids=["a text", "a UUID"])
def test_whoever_sends_a_write_again_comes_to_the_same_other_key(key: str) -> None:
    """Its own key is answered as ever, and under a new one drawn by chance the rows would be there twice."""
    first, later = World(refusal("new_key"), refusal("new_key")), World(refusal("new_key"), refusal("new_key"))
    assert (first.run(key=key), later.run(key=key)) == (DONE, DONE)
    assert first.keys == later.keys
    assert len({*first.keys}) == 3
    if len(key) == 36:  # as the header requires it, and no newer than the write
        assert all(UUID(each).version == 7 and each[:13] == key[:13] for each in first.keys)


def test_partitions_are_asked_for_and_written_to_when_they_are_granted(caplog: pytest.LogCaptureFixture) -> None:
    people = People({"id": "r1"}, "open", Unavailable("away"), "open", "granted")
    world = World(refusal("request_partition", partitions=("day=1", "day=2")), people=people)
    assert world.run(key="k") == DONE
    assert people.asked == [("ns.t", ("day=1", "day=2"), ["append"], "why")]
    assert world.clock.waits == [5.0, 5.0, 5.0]
    assert world.keys == ["k", "k"]
    (said,) = caplog.messages  # it does not look as if it hung
    assert said.startswith("request r1 for ns.t is open")
    assert said.endswith("at most 600 s")


STOPS: list[tuple[str, list[Any], str]] = [
    ("denied", [{"id": "r1"}, "open", "denied"], "request_partition"),
    ("nobody answers", [{"id": "r1"}, *["open"] * 200], "request_partition"),
    ("it may not ask", [Forbidden("no")], "request_partition"),
    ("its request is gone", [{"id": "r1"}, Forbidden("revoked meanwhile")], "request_partition"),
    ("nobody closes it", [["ns.t"]] * 200, "escalated_to"),
    ("nobody new", [], "authenticate"),
    ("wrong", [], "fix_request"),
    ("not granted", [], "ask_owner"),
    ("no way", [], "none"),
    ("a word of a later release", [], "levitate"),
]


@pytest.mark.parametrize(("answers", "step"), [stop[1:] for stop in STOPS], ids=[stop[0] for stop in STOPS])
def test_where_there_is_no_way_it_stops_and_says_why(answers: list[Any], step: str) -> None:
    first = refusal(step, partitions=("day=1",))
    world = World(first, people=People(*answers))
    with pytest.raises(ContractViolation) as stopped:
        world.run()
    assert stopped.value is first
    assert len(world.keys) == 1
    assert world.clock.s <= 1_000 + world.patience.total_s


@pytest.mark.parametrize(
    ("answers", "said"),
    [([{"id": "r1"}, *["open"] * 200], True), ([{"id": "r1"}, "open", "denied"], False), ([Forbidden("no")], False)],
)
def test_who_gives_up_names_the_request_that_nobody_has_answered(answers: list[Any], said: bool) -> None:
    world = World(refusal("request_partition", partitions=("day=1",)), people=People(*answers))
    with pytest.raises(ContractViolation) as stopped:
        world.run()
    assert ("request r1 for it has not been answered" in str(stopped.value)) == said


def test_what_was_granted_and_is_refused_again_is_not_asked_for_again() -> None:
    again = refusal("request_partition", partitions=("day=1",))
    world = World(again, again, people=People({"id": "r1"}, "granted"))
    with pytest.raises(ContractViolation):
        world.run()
    assert len(world.people.asked) == 1
    other = refusal("request_partition", partitions=("day=2",))
    more = World(again, other, people=People({"id": "r1"}, "granted", {"id": "r1"}, "granted"))
    assert more.run() == DONE


def test_a_stopped_agent_waits_until_a_person_has_closed_the_escalation_of_its_table() -> None:
    people = People(["ns.t", "ns.u"], ["ns.t"], ["ns.u"])
    world = World(refusal("escalated_to", escalated_to="Dana"), people=people, poll_s=20.0)
    assert world.run() == DONE
    assert world.clock.waits == [20.0, 20.0]


OPEN = {"id": "r1", "table": "ns.t", "state": "open", "guard": {"rows_added": 9}}
USED = {"id": "r0", "table": "ns.t", "state": "granted", "guard": {"rows_added": 9, "taken_by": "another"}}
GUARDED = ContractViolation("nobody can have meant that", rule="guard.rows", next_step="escalated_to")


def test_an_overwrite_that_nobody_can_have_meant_waits_until_a_person_has_approved_it() -> None:
    people = People([{"id": "r2", "table": "ns.t"}, {**OPEN, "table": "ns.u", "id": "r3"}, OPEN], "open", "granted")
    world = World(GUARDED, people=people)
    assert world.run(key="k") == DONE
    assert world.keys == ["k", "k"]
    assert world.clock.waits == [5.0]


@pytest.mark.parametrize(
    "answers", [[[OPEN], "denied"], [[]], [[USED]], [Forbidden("no")]], ids=["denied", "none", "used", "no"]
)
def test_an_overwrite_that_is_not_approved_stops(answers: list[Any]) -> None:
    world = World(GUARDED, people=People(*answers))
    with pytest.raises(ContractViolation) as stopped:
        world.run()
    assert stopped.value is GUARDED
    assert len(world.keys) == 1


def test_new_credentials_are_taken_up() -> None:
    world, anew = World(refusal("authenticate"), refusal("retry")), People()
    assert world.run(authenticate=lambda: anew) == DONE
    assert world.towers == [world.people, anew, anew]


def test_its_patience_ends() -> None:
    world = World(*(refusal("retry") for _ in range(100)), attempts_max=4)
    with pytest.raises(ContractViolation):
        world.run()
    assert len(world.keys) == 4
    world = World(*(refusal("wait_until", wait_until_ms=1_061_000) for _ in range(3)), total_s=60.0)
    with pytest.raises(ContractViolation):
        world.run()
    assert world.clock.waits == []  # not even begun
    assert len(world.keys) == 1


def test_what_is_no_refusal_is_nobodys_to_recover_from() -> None:
    world = World(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        world.run()


# ------------------------------------------------------------------------------------------- what other clients raise


def answered(status: int, body: bytes) -> requests.HTTPError:
    response = requests.Response()
    response.status_code, response._content = status, body
    return requests.HTTPError("words", response=response)


BODY = (
    b'{"error": {"message": "m", "type": "CommitFailedException", "code": 409, "rule": "r", '
    b'"next_step": "wait_until", "wait_until_ms": 5}}'
)


def test_the_refusal_is_found_behind_an_exception_of_pyicebergs() -> None:
    class Failed(Exception):
        pass

    def raised(cause: BaseException | None) -> BaseException:
        failed = Failed("CommitFailedException: m")
        failed.__cause__ = cause
        return failed

    found = refusal_of(raised(answered(409, BODY)))
    assert isinstance(found, CommitConflict)
    assert (found.rule, found.next_step, found.wait_until_ms) == ("r", "wait_until", 5)
    assert refusal_of(answered(409, BODY)) is not None
    away = refusal_of(requests.ConnectionError(request=requests.Request("GET", "http://127.0.0.1").prepare()))
    assert away is not None
    assert (away.status, away.next_step) == (503, "retry")
    overtaken = refusal_of(ValidationException("Added data files were found matching the filter for snapshots {5}"))
    assert overtaken is not None
    assert (overtaken.next_step, overtaken.message[:10]) == ("refresh", "Added data")
    assert refusal_of(raised(None)) is None
    assert refusal_of(raised(FileNotFoundError("a file of its own"))) is None
    conflict = CommitConflict("m")
    assert refusal_of(conflict) is conflict


def test_carrying_out_knows_them_too() -> None:
    failed = RuntimeError("words")
    failed.__cause__ = answered(409, BODY)
    assert World(failed).run() == DONE
    final = RuntimeError("words")
    final.__cause__ = answered(403, BODY.replace(b"wait_until", b"ask_owner"))
    with pytest.raises(Forbidden) as stopped:
        World(final).run()
    assert stopped.value.__cause__ is final


def test_work_is_told_apart_by_what_it_raises_and_not_by_its_words() -> None:
    """The same words, other next steps: the one goes on, the other stops."""
    words: Callable[[str], IcetowerError] = lambda step: CommitConflict("please refresh and retry", next_step=step)  # noqa: E731
    assert World(words("retry")).run() == DONE
    with pytest.raises(CommitConflict):
        World(words("none")).run()
