"""What an agent does about each answer: with a tower in memory, and without a transport."""

from __future__ import annotations

import datetime as dt
from email.utils import format_datetime
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.agent.keys import new_key, next_key, request_key
from icetower.errors import (
    BadRequest,
    CommitStateUnknown,
    ContractViolation,
    DiskFull,
    Forbidden,
    IcetowerError,
    KeyMisused,
    NotAuthenticated,
    TooManyRequests,
    Unavailable,
    UsageError,
)
from tests.agent.scripted_tower import (
    LOST_AFTER,
    LOST_BEFORE,
    NOT_SENT,
    Answer,
    ScriptedAgent,
    ScriptedTower,
    numbers,
    refused,
    rows_in,
    table_of,
)


@pytest.fixture
def tower() -> ScriptedTower:
    return ScriptedTower()


@pytest.fixture
def agent(tower: ScriptedTower) -> ScriptedAgent:
    return ScriptedAgent(tower)


# -- keys and results -------------------------------------------------------------------------------------------------


def test_rows_land_and_the_result_says_where(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    done = agent.append(numbers(1, 2))
    assert (done.operation, done.table, done.written_to) == ("append", "shop.p", "shop.p")
    assert (done.outcome, done.snapshot_id, done.rows) == ("appended", 100, 2)
    assert UUID(done.key).version == 7
    (landed,) = done.requests
    assert (landed.key, landed.snapshot_id, landed.rows, landed.attempts) == (done.key, 100, 2, 1)
    (request,) = tower.doors
    assert (request.method, request.path) == ("POST", "/v1/namespaces/shop/tables/p/rows")
    assert request.headers == {"Content-Type": "application/json", "Idempotency-Key": done.key}
    assert rows_in(request) == tower.rows["shop.p"] == numbers(1, 2)


def test_a_key_of_the_caller_is_kept(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    key = new_key()
    first, second = agent.append(numbers(1), key=key), agent.append(numbers(1), key=key)
    assert [first.outcome, second.outcome] == ["appended", "replayed"]
    assert first.key == second.key == tower.doors[0].headers["Idempotency-Key"] == key
    assert first.snapshot_id == second.snapshot_id
    assert tower.ids() == [1]


def test_a_key_that_is_a_text_goes_as_the_same_uuid(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    for _ in range(2):
        assert agent.append(numbers(1), key="file 7 of 2026-01-01").key == "file 7 of 2026-01-01"
    sent = {request.headers["Idempotency-Key"] for request in tower.doors}
    assert [UUID(each).version for each in sent] == [7]
    assert tower.ids() == [1]


def test_no_rows_are_nothing_to_do(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    for rows in ([], table_of([])):
        done = agent.append(rows)
        assert (done.outcome, done.snapshot_id, done.rows, done.requests) == ("empty", None, 0, ())
    assert tower.requests == []


@pytest.mark.parametrize("form", [numbers, lambda *ids: table_of(ids)], ids=["JSON", "Arrow"])
def test_many_rows_go_in_several_requests_under_keys_that_follow(tower: ScriptedTower, form: Any) -> None:
    key = new_key()
    done = [ScriptedAgent(tower, rows_max=3).append(form(*range(8)), key=key) for _ in range(2)]
    assert [each.rows for each in done[0].requests] == [3, 3, 2]
    assert [each.key for each in done[0].requests] == [request_key(key, number, 3) for number in range(3)]
    assert [each.key for each in done[0].requests] == [each.key for each in done[1].requests]
    assert [each.outcome for each in done] == ["appended", "replayed"]
    assert tower.rows["shop.p"] == numbers(*range(8))


def test_a_call_that_was_half_done_is_finished(tower: ScriptedTower) -> None:
    agent, key = ScriptedAgent(tower, rows_max=2, patience={"attempts_max": 2}), new_key()
    tower.answers = [None, LOST_AFTER, LOST_BEFORE]
    with pytest.raises(CommitStateUnknown, match=key):
        agent.append(numbers(*range(6)), key=key)
    assert tower.ids() == [0, 1, 2, 3]
    done = agent.append(numbers(*range(6)), key=key)
    assert [each.outcome for each in done.requests] == ["replayed", "replayed", "appended"]
    assert done.outcome == "appended"
    assert tower.ids() == [*range(6)]


def test_a_branch(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    agent.append(numbers(1), ref="audit")
    assert tower.doors[0].params == {"operation": "append", "ref": "audit"}
    tower.through["shop.p"] = ("shop.d", "collector")
    with pytest.raises(UsageError, match=r"go through shop\.d, which has no branch audit"):
        ScriptedAgent(tower).append(numbers(2), ref="audit")


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error", "step"),
    [
        (refused(400, "rows.values", "fix_request"), BadRequest, "fix_request"),
        (refused(400, "limit.rows", "fix_request"), BadRequest, "fix_request"),
        (refused(401, "authentication", "authenticate"), NotAuthenticated, "authenticate"),
        (refused(403, "contract.key", "ask_owner"), Forbidden, "ask_owner"),
        (refused(404, "table.exists", "fix_request"), IcetowerError, "fix_request"),
        (refused(413, "limit.body", "fix_request"), IcetowerError, "fix_request"),
        (refused(422, "key.gone", "ask_owner"), KeyMisused, "ask_owner"),
        (refused(507, "disk.full", "ask_owner"), DiskFull, "ask_owner"),
    ],
)
def test_what_cannot_be_helped_is_raised_at_once(
    tower: ScriptedTower, agent: ScriptedAgent, answer: Answer, error: type[IcetowerError], step: str
) -> None:
    tower.answers = [answer]
    with pytest.raises(error) as refusal:
        agent.append(numbers(1))
    assert (refusal.value.status, refusal.value.rule, refusal.value.next_step) == (answer.status, answer.rule, step)
    assert len(tower.doors) == 1
    assert tower.clock.waits == []


@pytest.mark.parametrize(
    "answer",
    [
        refused(409, "append.schema", "refresh"),
        refused(429, "limit.in-flight", "retry"),
        refused(500, "internal", "none"),
        refused(502, "upstream", "retry"),
        refused(503, "available", "retry"),
        refused(504, "commit.unknown", "refresh"),
        refused(408, "limit.slow", "retry"),
        Answer(502, body=b"<html>"),
        Answer(503, body=b""),
        Answer(429, body=b"slow down"),
        Answer(200, body=b"<html>"),
        LOST_BEFORE,
        LOST_AFTER,
        NOT_SENT,
    ],
    ids=lambda answer: f"{answer.status} {answer.rule}" if answer.body is None else f"{answer.status} of a proxy",
)
def test_what_may_succeed_is_sent_again_under_its_key(
    tower: ScriptedTower, agent: ScriptedAgent, answer: Answer
) -> None:
    tower.answers = [answer, answer]
    done = agent.append(numbers(1))
    assert done.requests[0].attempts == 3
    assert {request.headers["Idempotency-Key"] for request in tower.doors} == {done.key}
    assert tower.ids() == [1]
    assert tower.clock.waits == pytest.approx([0.1, 0.2], rel=0.01)


def test_a_refusal_has_its_eight_fields(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    more = {"partitions": ["day=2"], "snapshot": 5, "files": ["f"], "owner": "bob", "wait_until_ms": 7}
    tower.answers = [refused(403, "contract.key", "ask_owner", escalated_to="ann", **more)]
    with pytest.raises(Forbidden) as raised:
        agent.append(numbers(1))
    found = raised.value
    assert (found.rule, found.partitions, found.snapshot, found.files) == ("contract.key", ("day=2",), 5, ("f",))
    assert (found.next_step, found.owner, found.wait_until_ms, found.escalated_to) == ("ask_owner", "bob", 7, "ann")


def test_the_contract_says_how_often_it_retries(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.me = {"principal": "p", "retries": {"attempts": 2, "min_wait_ms": 200, "max_wait_ms": 300}}
    tower.answers = [refused(409, "commit.stale", "refresh")] * 3
    with pytest.raises(IcetowerError):
        agent.append(numbers(1))
    assert len(tower.doors) == 3
    assert tower.clock.waits == pytest.approx([0.2, 0.3], rel=0.01)


def test_being_held_back_is_no_failure(tower: ScriptedTower) -> None:
    tower.me = {"principal": "p", "retries": {"attempts": 1, "min_wait_ms": 200, "max_wait_ms": 300}}
    busy = refused(429, "limit.in-flight", "retry")
    tower.answers = [busy] * 30
    assert ScriptedAgent(tower, patience={"attempts_max": 3}).append(numbers(1)).requests[0].attempts == 31
    tower.answers = [busy] * 1000
    with pytest.raises(TooManyRequests):  # within the patience, for all that
        ScriptedAgent(tower, patience={"total_s": 60}).append(numbers(2))
    assert 10 < len(tower.doors) - 31 < 100
    assert tower.ids() == [1]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_waited_for(tower: ScriptedTower, agent: ScriptedAgent, status: int) -> None:
    date = format_datetime(dt.datetime.fromtimestamp(tower.clock.s + 40, dt.UTC), usegmt=True)
    tower.answers = [
        Answer(status, "limit.in-flight", "retry", headers={"retry-after": value})
        for value in ("7", date, "soon", "-3")
    ]
    agent.append(numbers(1))
    assert tower.clock.waits == pytest.approx([7, 33, 0.4, 0.8], rel=0.01)


def test_retry_after_beyond_the_patience_is_not_waited_for(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.answers = [Answer(503, "available", "retry", headers={"retry-after": "86400"})]
    with pytest.raises(CommitStateUnknown):
        agent.append(numbers(1))
    assert tower.clock.waits == []


def test_what_may_be_there_is_not_called_failed(tower: ScriptedTower) -> None:
    agent = ScriptedAgent(tower, patience={"attempts_max": 3})
    for answers in ([LOST_AFTER] * 3, [LOST_AFTER, NOT_SENT, refused(503, "available", "retry")]):
        tower.answers = [*answers]
        with pytest.raises(CommitStateUnknown, match=r"the rows may be in shop\.p\. Send the same rows again"):
            agent.append(numbers(1))
    tower.answers = [NOT_SENT] * 3
    with pytest.raises(Unavailable):
        agent.append(numbers(1))


def test_a_part_that_has_landed_is_told(tower: ScriptedTower) -> None:
    tower.answers = [None, refused(403, "contract.partitions", "ask_owner")]
    with pytest.raises(ContractViolation.__mro__[1], match="1 of the 2 requests with these rows have landed") as raised:
        ScriptedAgent(tower, rows_max=1).append(numbers(1, 2), key="k")
    assert "again under the key k" in str(raised.value)


def test_a_key_that_was_rolled_back_gives_way_to_the_next(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    key = new_key()
    tower.answers = [refused(422, "key.rolled-back", "new_key")]
    done = agent.append(numbers(1), key=key)
    assert [request.headers["Idempotency-Key"] for request in tower.doors] == [key, next_key(key)]
    assert (done.key, done.requests[0].key) == (key, next_key(key))
    assert [request.params.get("seed") for request in tower.doors] == [None, key]  # by which the rows keep theirs


def test_partitions_are_asked_for(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.answers = [refused(403, "contract.partitions", "request_partition", partitions=["day=2"])]
    tower.control = [{"id": "r1"}, {"state": "open"}, {"state": "granted"}]
    assert agent.append(numbers(1)).outcome == "appended"
    (asked,) = [each for each in tower.requests if each.method == "POST" and each.path.endswith("/requests")]
    assert asked.body == b'{"table": "shop.p", "partitions": ["day=2"], "operations": ["append"], "reason": "why"}'
    assert tower.clock.waits == [5.0]


def test_an_escalation_is_waited_for(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.answers = [refused(403, "contract.escalated", "escalated_to", escalated_to="ann")]
    tower.control = [{"escalations": [{"table": "shop.p"}]}, {"escalations": []}]
    assert agent.append(numbers(1)).outcome == "appended"


def test_a_new_token_is_asked_for_when_the_last_one_is_refused(tower: ScriptedTower) -> None:
    tokens = iter(("old", "new"))
    agent = ScriptedAgent(tower, token=lambda: next(tokens))
    tower.secret = "new"
    assert agent.append(numbers(1)).outcome == "appended"
    tower.secret = "newest"
    with pytest.raises(StopIteration):
        next(tokens)
    with pytest.raises(NotAuthenticated):
        ScriptedAgent(tower, token="new").append(numbers(2))
    with pytest.raises(UsageError, match="characters that are not allowed"):
        ScriptedAgent(tower, token="a\nb")


def test_a_tower_that_is_away_before_anything_is_sent(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    def away(step: Any) -> None:
        if tower.clock.waits == [] and not isinstance(step, type(None)) and hasattr(step, "path"):
            from icetower.agent.steps import Lost

            raise Lost(Unavailable("away", rule="client.connection"), sent=True)

    tower.before = away
    with pytest.raises(Unavailable):
        ScriptedAgent(tower, patience={"attempts_max": 1}).append(numbers(1))
    assert agent.append(numbers(1)).outcome == "appended"


# -- a wrong address --------------------------------------------------------------------------------------------------


def test_an_address_at_which_nothing_ever_answered_is_soon_said_to_be_wrong(
    tower: ScriptedTower, agent: ScriptedAgent
) -> None:
    tower.away, began = True, tower.clock.s
    with pytest.raises(Unavailable, match="no tower answers"):
        agent.append(numbers(1))
    assert 1 < tower.clock.s - began < 5


def test_a_tower_that_restarts_before_the_first_answer_is_met_again_if_it_is_quick(
    tower: ScriptedTower, agent: ScriptedAgent
) -> None:
    tower.away = True
    tower.before = lambda step: setattr(tower, "away", not tower.clock.waits)
    agent.append(numbers(1))
    assert tower.ids() == [1]


def test_a_tower_that_restarts_while_an_agent_is_at_work_is_waited_for(
    tower: ScriptedTower, agent: ScriptedAgent
) -> None:
    agent.append(numbers(1))
    back_s = tower.clock.s + 40
    tower.before = lambda step: setattr(tower, "away", tower.clock.s < back_s)
    agent.append(numbers(2))
    assert tower.ids() == [1, 2]
    assert tower.clock.s >= back_s


# -- ways -------------------------------------------------------------------------------------------------------------


def test_rows_go_through_a_delta_table_by_the_same_door(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.through["shop.p"] = ("shop.d", "collector")
    key = new_key()
    for form, outcome in ((numbers(1, 2), "appended"), (table_of([1, 2]), "replayed")):
        done = agent.write("upsert", form, key=key)
        assert (done.operation, done.table, done.written_to, done.outcome) == ("upsert", "shop.p", "shop.d", outcome)
    agent.write("delete", [{"id": 1}])
    agent.append(numbers(3))
    assert [request.params["operation"] for request in tower.doors] == ["upsert", "upsert", "delete", "append"]
    assert {request.path for request in tower.doors} == {"/v1/namespaces/shop/tables/p/rows"}
    assert [row["_operation"] for row in tower.rows["shop.d"]] == ["upsert", "upsert", "delete", "upsert"]
    assert "shop.p" not in tower.rows


def test_a_slot_is_waited_for(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    starts = int(tower.clock.s * 1000) + 30_000
    tower.slot = lambda: {"column": None, "starts_ms": starts, "ends_ms": starts + 9, "until_ms": starts + 9}
    agent.append(numbers(1))
    assert tower.clock.waits == [30.0]
    starts = int(tower.clock.s * 1000) + 10**9
    with pytest.raises(ContractViolation, match="begins in 1000000 s"):
        agent.append(numbers(2))


def test_an_upsert_replaces_whole_rows(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.through["shop.p"] = ("shop.d", "collector")
    for rows in ([{"id": 1, "s": "a"}, {"id": 2}], table_of([1]).select(["id"])):
        with pytest.raises(UsageError, match=r"replaces whole rows, and these lack s of shop\.p"):
            agent.write("upsert", rows)
    assert tower.doors == []


def test_what_a_pattern_does_not_take(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.through["shop.p"] = ("shop.d", "mediator")
    with pytest.raises(UsageError, match="a write-ahead log takes no deletes"):
        agent.write("delete", [{"id": 1}])
    with pytest.raises(UsageError, match=r"no partition is overwritten through shop\.d"):
        agent.write("overwrite_partition", numbers(1), where={"id": 1})


def test_the_contract_moves_the_agent(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    """The way is remembered for a while, and the tower has the last word on it."""
    assert agent.append(numbers(1)).written_to == "shop.p"
    tower.through["shop.p"] = ("shop.d", "collector")
    done = agent.append(numbers(2))
    assert (done.written_to, tower.ids(), tower.ids("shop.d")) == ("shop.d", [1], [2])
    assert agent.write("upsert", numbers(3)).written_to == "shop.d"
    tower.through.clear()
    assert agent.append(numbers(4)).written_to == "shop.p"
    tower.through["shop.p"] = ("shop.d", "collector")
    tower.answers = [refused(400, "rows.operation", "fix_request")]  # of a moment in between
    assert agent.write("upsert", numbers(5)).written_to == "shop.d"
    tower.answers = [refused(403, "contract.pattern", "fix_request")] * 9
    with pytest.raises(Forbidden):
        agent.append(numbers(6))
    assert tower.clock.waits == []


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("back", [False, True])
def test_what_may_be_there_is_looked_for_before_it_goes_another_way(
    tower: ScriptedTower, agent: ScriptedAgent, landed: bool, back: bool
) -> None:
    """Nothing of it is in two tables, however the contract was changed meanwhile."""
    ways: list[dict[str, tuple[str, str]]] = [{}, {"shop.p": ("shop.d", "collector")}]
    if back:
        ways.reverse()
    tower.through = ways[0]
    tower.answers = [LOST_AFTER if landed else LOST_BEFORE]

    def moved(step: Any) -> None:
        if tower.clock.waits:
            tower.through = ways[1]

    tower.before = moved
    done = agent.append(numbers(1))
    before, after = ("shop.d", "shop.p") if back else ("shop.p", "shop.d")
    assert done.written_to == (before if landed else after)
    assert (done.outcome, done.rows) == ("replayed" if landed else "appended", 1)
    assert tower.ids(done.written_to) == [1]
    assert tower.ids() + tower.ids("shop.d") == [1]


# -- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_is_one_request(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    done = agent.together(("append", numbers(1, 2)), ("append", []), ("append", {"id": 3, "s": "c"}))
    assert (done.operation, done.outcome, done.rows, len(done.requests)) == ("transaction", "appended", 3, 1)
    agent.together(("append", table_of([4])), ("append", table_of([5, 6])))
    assert len(tower.doors) == 2
    assert tower.ids() == [1, 2, 3, 4, 5, 6]
    assert agent.together(("append", [])).outcome == "empty"


def test_a_transaction_lands_as_a_whole_or_is_refused(tower: ScriptedTower) -> None:
    agent = ScriptedAgent(tower, rows_max=3)
    with pytest.raises(UsageError, match="the 4 rows of the transaction do not fit into one request"):
        agent.together(("append", numbers(1, 2)), ("append", numbers(3, 4)))
    with pytest.raises(UsageError, match="takes appends alone"):
        agent.together(("append", numbers(1)), ("delete", numbers(2)))
    with pytest.raises(UsageError, match="pass one form"):
        agent.together(("append", numbers(1)), ("append", table_of([2])))
    assert tower.doors == []


def test_a_transaction_of_changes(tower: ScriptedTower, agent: ScriptedAgent) -> None:
    tower.through["shop.p"] = ("shop.d", "collector")
    agent.together(("upsert", numbers(1)), ("delete", [{"id": 2}]), ("upsert", numbers(1)))
    tables = [table_of([1]), table_of([2]).select(["id"]), table_of([1])]
    agent.together(*zip(("upsert", "delete", "append"), tables, strict=True))
    assert [row["_operation"] for row in tower.rows["shop.d"]] == ["upsert", "delete", "upsert"] * 2
    assert len(tower.doors) == 2
    tower.tables["shop.q"] = ("id",)
    tower.through = {}
    with pytest.raises(UsageError, match="takes appends alone"):
        ScriptedAgent(tower).together(("append", numbers(1)), ("delete", numbers(2)))


# -- any answers ------------------------------------------------------------------------------------------------------

ANSWERS = st.sampled_from(
    [
        None,
        LOST_BEFORE,
        LOST_AFTER,
        NOT_SENT,
        refused(409, "commit.stale", "refresh"),
        refused(429, "limit.in-flight", "retry"),
        refused(503, "available", "retry"),
        Answer(502, body=b"<html>", arrives=True),
        Answer(504, "commit.unknown", "refresh", arrives=True),
        refused(403, "contract.partitions", "ask_owner"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ANSWERS, max_size=24), st.integers(1, 4), st.integers(0, 7))
def test_each_acknowledged_row_is_there_once(answers: list[Answer | None], rows_max: int, moves_at: int) -> None:
    """Whatever is lost, and though the rows are given another way meanwhile; no row is there twice."""
    tower = ScriptedTower()
    with TemporaryDirectory() as folder:
        agent = ScriptedAgent(tower, f"{folder}/journal", rows_max=rows_max, patience={"attempts_max": 3})
        try:
            _send(tower, agent, answers, moves_at)
        finally:
            agent.close()


def _send(tower: ScriptedTower, agent: ScriptedAgent, answers: list[Answer | None], moves_at: int) -> None:
    tower.answers = answers

    def moved(step: Any) -> None:
        if len(tower.doors) == moves_at and not tower.through:
            tower.clock.s += 10
            tower.through["shop.p"] = ("shop.d", "collector")

    tower.before = moved
    acknowledged: list[int] = []
    for batch in range(4):
        ids = [batch * 10 + at for at in range(5)]
        key = new_key()
        for _ in range(3):  # the caller goes on under its key, while it does not know
            try:
                done = agent.append(numbers(*ids), key=key)
            except CommitStateUnknown:
                continue
            except IcetowerError:
                break
            assert sum(each.rows for each in done.requests) == 5
            acknowledged += ids
            break
    there = sorted(tower.ids() + tower.ids("shop.d"))
    assert len({*there}) == len(there)
    assert {*acknowledged} <= {*there}
