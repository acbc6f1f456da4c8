"""Keys over crashes: the journal as a file, and agents that die at every step."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icetower.agent.deliveries import Sent
from icetower.agent.journal import DEAD_LINES_MAX, Journal, Pending
from icetower.agent.keys import new_key
from icetower.agent.steps import Pause, Request
from icetower.errors import (
    CommitConflict,
    CommitStateUnknown,
    Forbidden,
    IcetowerError,
    KeyMisused,
    Unavailable,
    UsageError,
)
from tests.agent.scripted_tower import (
    LOST_AFTER,
    LOST_BEFORE,
    NOT_SENT,
    Answer,
    Died,
    ScriptedAgent,
    ScriptedTower,
    numbers,
    refused,
)

WAY, OTHER = "shop.p", "shop.d"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.journal"


def begun(journal: Journal, rows: str = "r1", to: str = WAY) -> Pending:
    pending = journal.fresh("append", "shop.p", rows, 10, to)
    journal.begin(pending)
    return pending


def again(path: Path, **given: Any) -> Journal:
    """As a new process has it."""
    return Journal(path, **given)


# -- the file ---------------------------------------------------------------------------------------------------------


def test_what_has_no_end_is_there_after_a_restart(path: Path) -> None:
    journal = Journal(path)
    first, second = begun(journal), begun(journal, "r2")
    journal.ended(second)
    journal.moved(first, 3, OTHER)
    journal.close()
    journal = again(path)
    (found,) = journal.pending()
    assert (found.key, found.act, found.table, found.rows, found.most) == (first.key, "append", "shop.p", "r1", 10)
    assert [found.way(number) for number in (0, 2, 3, 9)] == [WAY, WAY, OTHER, OTHER]
    claimed = journal.claim("append", "shop.p", "r1")
    assert claimed is not None
    assert (claimed.key, claimed.again) == (first.key, True)
    for other in (("append", "shop.p", "r2"), ("upsert", "shop.p", "r1"), ("append", "shop.q", "r1")):
        assert journal.claim(*other) is None
    journal.close()


def test_a_key_is_for_one_call_at_a_time(path: Path) -> None:
    """Two that send equal rows at once mean two of them."""
    journal = Journal(path)
    first = begun(journal)
    assert journal.claim("append", "shop.p", "r1") is None
    second = begun(journal)
    assert first.key != second.key
    journal.release(first)
    claimed = journal.claim("append", "shop.p", "r1")
    assert claimed is not None
    assert claimed.key == first.key
    assert journal.claim("append", "shop.p", "r1") is None
    journal.close()


def test_a_key_of_the_caller_is_for_one_set_of_rows(path: Path) -> None:
    journal, key = Journal(path), new_key()
    assert journal.claim("append", "shop.p", "r1", key) is None
    journal.begin(journal.fresh("append", "shop.p", "r1", 10, WAY, key))
    claimed = journal.claim("append", "shop.p", "r1", key)
    assert claimed is not None
    assert claimed.key == key
    with pytest.raises(UsageError, match="stands for other rows"):
        journal.claim("append", "shop.p", "r2", key)
    journal.close()


def test_every_torn_end_is_read_as_what_came_before(path: Path) -> None:
    journal = Journal(path)
    empty = len(path.read_bytes())
    first = begun(journal)
    one = len(path.read_bytes())
    second = begun(journal, "r2")
    journal.close()
    whole = path.read_bytes()
    for length in range(empty - 1, len(whole) + 1):
        path.write_bytes(whole[:length])
        journal = again(path)
        keys = [each.key for each in journal.pending()]
        # The newline may be missing: the line stands without it.
        assert keys == [first.key][: length >= one - 1] + [second.key][: length >= len(whole) - 1], length
        third = begun(journal, "r3")
        journal.close()
        journal = again(path)
        assert [each.key for each in journal.pending()] == [*keys, third.key]
        journal.close()


@pytest.mark.parametrize("damage", [b"\0\0\0\0", b"{", b'{"begin": 1}', b'{"begin": "k", "at": "x"}', b"[]", b"\xff"])
def test_a_line_that_is_damaged_in_the_middle_is_not_passed_over(path: Path, damage: bytes) -> None:
    journal = Journal(path)
    begun(journal)
    journal.close()
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], damage, *lines[1:], b""]))
    with pytest.raises(UsageError, match="line 2 is damaged"):
        again(path)
    path.write_bytes(b"")
    again(path).close()  # and it lets go of the lock


@pytest.mark.parametrize("content", [b"hello\n", b'{"icetower-journal": 2}\n', b"{}\n", b'{"end": "k"}\n'])
def test_another_file_is_not_taken_for_a_journal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no journal of an agent"):
        Journal(path)
    assert path.read_bytes() == content


def test_a_journal_is_of_one_process_at_a_time(path: Path) -> None:
    first = Journal(path)
    with pytest.raises(UsageError, match="is the journal of another agent that runs"):
        Journal(path)
    begun(first)
    first.close()
    second = Journal(path)
    assert len(second.pending()) == 1
    second.close()


def test_it_stays_small_and_bounded(path: Path) -> None:
    journal = Journal(path, pending_max=3)
    kept = begun(journal, "kept")
    for number in range(DEAD_LINES_MAX):
        journal.ended(begun(journal, str(number)))
    assert len(path.read_bytes().splitlines()) <= DEAD_LINES_MAX + 10
    begun(journal)
    begun(journal)
    with pytest.raises(UsageError, match="3 sends have no end, and a journal keeps 3"):
        begun(journal)
    journal.forget(kept.key)
    with pytest.raises(UsageError, match="has no send under the key"):
        journal.forget(kept.key)
    journal.close()
    journal = again(path)
    assert len(journal.pending()) == 2
    journal.close()


def test_a_disk_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent that is not on the disk; what has landed has landed, whatever the disk does."""
    journal = Journal(path)
    first = begun(journal)
    fsync = os.fsync

    def fails(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(UsageError, match="cannot be used: No space left on device"):
        begun(journal, "r2")
    journal.ended(first)
    monkeypatch.setattr(os, "fsync", fsync)
    assert journal.pending() == ()
    third = begun(journal, "r3")
    journal.close()
    journal = again(path)
    assert [each.key for each in journal.pending()] == [third.key]
    journal.close()
    with pytest.raises(UsageError, match="cannot be used"):
        Journal("/dev/null/journal")


def test_the_file_holds_no_rows(path: Path, tmp_path: Path) -> None:
    tower = ScriptedTower()
    agent = ScriptedAgent(tower, path)
    tower.answers = [LOST_AFTER] * 30
    with pytest.raises(CommitStateUnknown):
        agent.append([{"id": 1, "s": "a secret"}])
    agent.close()
    text = path.read_text()
    assert "secret" not in text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["agent.journal", "agent.journal.lock"]
    header, line = map(json.loads, text.splitlines())
    assert header == {"icetower-journal": 1}
    assert line.keys() == {"begin", "act", "table", "rows", "most", "to", "at"}


# -- an agent with one ------------------------------------------------------------------------------------------------


def test_the_same_call_gets_its_key_back_until_it_is_done(path: Path) -> None:
    tower = ScriptedTower()
    tower.answers = [LOST_AFTER] * 3
    agent = ScriptedAgent(tower, path, patience={"attempts_max": 3})
    with pytest.raises(CommitStateUnknown):
        agent.append(numbers(1))
    tower.answers = [LOST_AFTER]
    other = agent.append(numbers(2))
    agent.close()
    agent = ScriptedAgent(tower, path)
    done = agent.append(numbers(1))
    assert done.outcome == "replayed"
    assert done.key == tower.doors[0].headers["Idempotency-Key"] != other.key
    new = agent.append(numbers(1))  # rows that are equal, and others: the first ones are known to be there
    assert (new.outcome, new.key == done.key) == ("appended", False)
    assert tower.ids() == [1, 1, 2]
    assert agent.journal is not None
    assert agent.journal.pending() == ()
    agent.close()


@pytest.mark.parametrize("answer", [refused(403, "contract.partitions", "ask_owner"), NOT_SENT])
def test_what_was_refused_leaves_no_key(path: Path, answer: Answer) -> None:
    tower = ScriptedTower()
    agent = ScriptedAgent(tower, path, patience={"attempts_max": 1})
    assert agent.journal is not None
    tower.answers = [answer]
    with pytest.raises(Exception, match="no"):
        agent.append(numbers(1))
    assert agent.journal.pending() == ()
    tower.answers = [None, answer]  # but a part of it is there
    agent.writer._rows_max = 1  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Exception, match="1 of the 2 requests"):
        agent.append(numbers(2, 3))
    assert len(agent.journal.pending()) == 1
    tower.answers = [LOST_BEFORE, refused(403, "contract.partitions", "ask_owner")]  # or may be
    agent = ScriptedAgent(tower, path.with_name("other"))
    with pytest.raises(Forbidden):
        agent.append(numbers(4))
    assert agent.journal is not None
    assert len(agent.journal.pending()) == 1


@pytest.mark.parametrize(
    ("refusal", "heard", "pending"),
    [
        (Unavailable("away", rule="client.connection"), CommitStateUnknown, 1),
        (CommitStateUnknown("perhaps"), CommitStateUnknown, 1),
        (CommitConflict("stale"), CommitConflict, 1),
        (Forbidden("not yours", rule="contract.partitions"), Forbidden, 0),
        (UsageError("no such column"), UsageError, 0),
    ],
)
def test_what_the_agent_commits_itself_keeps_its_key_while_it_may_be_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, refusal: IcetowerError, heard: type[IcetowerError], pending: int
) -> None:
    agent = ScriptedAgent(ScriptedTower(), path)
    assert agent.journal is not None
    keys: list[str] = []
    answers: list[Any] = [refusal, Sent("direct", "shop.p", "k", again=True, snapshot_id=5)]

    def write(change: Any, operation: str, token: str | None) -> Any:
        keys.append(change.key)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(agent.direct, "write", write)
    with pytest.raises(heard):
        agent.write("upsert", numbers(1))
    assert len(agent.journal.pending()) == pending
    done = agent.write("upsert", numbers(1))
    assert (done.outcome, done.snapshot_id, done.written_to) == ("replayed", 5, "shop.p")
    assert (keys[0] == keys[1] == done.key) == bool(pending)
    assert agent.journal.pending() == ()
    agent.close()


def test_rows_are_parted_as_they_were(path: Path) -> None:
    tower = ScriptedTower()
    tower.answers = [None, LOST_BEFORE]
    agent = ScriptedAgent(tower, path, rows_max=2, patience={"attempts_max": 1})
    with pytest.raises(CommitStateUnknown):
        agent.append(numbers(1, 2, 3))
    agent.close()
    agent = ScriptedAgent(tower, path, rows_max=3)
    assert [each.rows for each in agent.append(numbers(1, 2, 3)).requests] == [2, 1]
    assert [each.rows for each in agent.append(numbers(1, 2, 3)).requests] == [3]
    agent.close()


def test_a_key_that_the_tower_may_have_forgotten_is_for_a_person(path: Path) -> None:
    tower = ScriptedTower()
    tower.answers = [LOST_AFTER]
    agent = ScriptedAgent(tower, path, patience={"attempts_max": 1})
    with pytest.raises(CommitStateUnknown):
        agent.append(numbers(1))
    tower.clock.s += 24 * 3600
    with pytest.raises(KeyMisused, match=r"sent to shop\.p 24 hours ago") as raised:
        agent.append(numbers(1))
    assert (raised.value.rule, raised.value.next_step) == ("key.gone", "ask_owner")
    tower.lifetime = ""  # a tower that does not say how long it remembers keys
    assert agent.append(numbers(1)).outcome == "replayed"
    agent.close()


def test_rows_and_what_is_done_with_them_are_told_apart(path: Path) -> None:
    tower = ScriptedTower()
    agent = ScriptedAgent(tower, path, patience={"attempts_max": 1})
    assert agent.journal is not None
    tower.through["shop.p"] = ("shop.d", "collector")
    calls: list[tuple[Any, Any, dict[str, Any]]] = [
        ("append", numbers(1), {}),
        ("append", numbers(1, 2), {}),
        ("append", numbers(2, 1), {}),
        ("upsert", numbers(1), {}),
        ("upsert", numbers(1), {"keys": ["id"]}),
        ("delete", numbers(1), {}),
    ]
    for _ in range(2):
        for operation, rows, more in calls:
            tower.answers = [LOST_AFTER]
            with pytest.raises(CommitStateUnknown):
                agent.write(operation, rows, **more)
        assert len(agent.journal.pending()) == len(calls)
    assert len(tower.rows["shop.d"]) == 8
    agent.close()


def steps_of(call: Any) -> int:
    """How many steps a call takes when nothing goes wrong."""
    with TemporaryDirectory() as folder:
        tower, seen = ScriptedTower(), Counter[str]()
        tower.before = lambda step: seen.update(["steps"])
        agent = ScriptedAgent(tower, f"{folder}/journal", rows_max=2)
        call(agent)
        agent.close()
    return seen["steps"]


@pytest.mark.parametrize("arrives", [True, False], ids=["the request arrives", "it does not"])
def test_an_agent_that_dies_at_any_step_has_its_rows_there_once(tmp_path: Path, arrives: bool) -> None:
    def call(agent: ScriptedAgent) -> Any:
        return agent.append(numbers(1, 2, 3, 4, 5))

    for dies_at in range(steps_of(call)):
        tower, seen = ScriptedTower(), [0]

        def dies(step: Any, tower: ScriptedTower = tower, seen: list[int] = seen, dies_at: int = dies_at) -> None:
            seen[0] += 1
            if seen[0] == dies_at + 1:
                if arrives and isinstance(step, Request) and step.path.endswith("/rows"):
                    tower._rows(step)  # pyright: ignore[reportPrivateUsage]
                raise Died

        tower.before = dies
        agent = ScriptedAgent(tower, tmp_path / f"journal {dies_at}", rows_max=2)
        with pytest.raises(Died):
            call(agent)
        agent.close()
        agent = ScriptedAgent(tower, tmp_path / f"journal {dies_at}", rows_max=2)
        assert call(agent).rows == 5
        assert tower.ids() == [1, 2, 3, 4, 5], dies_at
        assert agent.journal is not None
        assert agent.journal.pending() == ()
        agent.close()


LOSSES = st.sampled_from([None, None, None, LOST_BEFORE, LOST_AFTER, Answer(503, "available", "retry", arrives=True)])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=5),
    st.lists(LOSSES, max_size=15),
    st.lists(st.integers(1, 25), max_size=5),
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=3),
)
def test_a_program_that_dies_and_goes_on_has_each_of_its_rows_there_once(
    work: list[list[int]], answers: list[Answer | None], lives: list[int], moves: list[tuple[int, bool]]
) -> None:
    """It notes a batch when it is acknowledged, and after each death begins with the first that is not. Batches may be
    equal, and the contract gives the rows one way and another."""
    tower, steps = ScriptedTower(), [0, 0]
    tower.answers = answers

    def move() -> None:
        due = [each for each in moves if each[0] <= steps[1]]
        if due:
            tower.through = {"shop.p": ("shop.d", "collector")} if due[-1][1] else {}
            moves[:] = [each for each in moves if each not in due]
            tower.clock.s += 10  # so long the agent does not remember the way

    def before(step: Any) -> None:
        steps[0] += 1
        steps[1] += 1
        # Never between the tower's word on the way and the request that goes by it.
        if isinstance(step, Pause) or (isinstance(step, Request) and step.path.endswith("/delivery")):
            move()
        if lives and steps[0] >= lives[0]:
            lives.pop(0)
            raise Died

    tower.before = before
    done = 0
    with TemporaryDirectory() as folder:
        while done < len(work):
            agent = ScriptedAgent(tower, f"{folder}/journal", rows_max=1, patience={"attempts_max": 2})
            steps[0] = 0
            try:
                while done < len(work):
                    move()
                    agent.append(numbers(*work[done]))
                    done += 1
            except (Died, CommitStateUnknown):
                continue
            finally:
                agent.close()
    there = Counter(tower.ids() + tower.ids("shop.d"))
    assert there == Counter(each for batch in work for each in batch)
