"""Which version of a table a commit of an agent declares as read (`icetower.agent.known`)."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import BooleanExpression

from icetower.agent.direct import Change, Direct
from icetower.agent.known import Known, known_of, span_of
from icetower.agent.recovery import Patience
from icetower.errors import CommitConflict, UsageError
from tests.agent.scripted_tower import Clock, ScriptedAgent, ScriptedTower, numbers, refused

READ, KEY, INTENT = "icetower.read-snapshot", "icetower.idempotency-key", "icetower.intent"
EU = {"region": "eu"}


@dataclass
class Table:
    """As PyIceberg has it: a line of snapshots. What is committed to it gets the next id.

    Attributes:
        said: the snapshot properties of each commit.
        refuses: the version that a commit must have read; None: any.
    """

    snapshots: list[tuple[int, dict[str, str]]]
    said: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    refuses: CommitConflict | None = None

    @property
    def metadata(self) -> Any:
        parents = [None, *(id_ for id_, _ in self.snapshots)]
        found = [
            SimpleNamespace(
                snapshot_id=id_,
                parent_snapshot_id=parent,
                sequence_number=id_,
                summary=SimpleNamespace(additional_properties=summary),
            )
            for parent, (id_, summary) in zip(parents, self.snapshots, strict=False)
        ]
        return SimpleNamespace(snapshots=found, current_snapshot_id=found[-1].snapshot_id if found else None)

    def current_snapshot(self) -> Any:
        snapshots = self.metadata.snapshots
        return snapshots[-1] if snapshots else None

    def schema(self) -> Any:
        return SimpleNamespace(as_arrow=lambda: pa.schema({"id": pa.int64(), "region": pa.string()}))

    def name(self) -> tuple[str, ...]:
        return ("shop", "p")

    def overwrite(self, rows: Any, *, overwrite_filter: Any, snapshot_properties: dict[str, str]) -> None:
        self.said.append(snapshot_properties)
        if self.refuses is not None:
            raise self.refuses
        lease = snapshot_properties.get("icetower.leases", "").partition(":")[0]
        self.land(len(self.snapshots) + 1, {KEY: snapshot_properties[KEY], INTENT: lease})

    def land(self, id_: int, summary: dict[str, str] | None = None) -> None:
        self.snapshots.append((id_, summary or {}))


def directly(table: Table, monkeypatch: pytest.MonkeyPatch) -> Direct:
    """What commits by PyIceberg, with this table in place of PyIceberg's."""
    clock = Clock()
    direct = Direct("http://127.0.0.1:1", reason="why", patience=Patience(ambient=clock, pause=clock.pause))
    tower = SimpleNamespace(me=lambda: {"retries": None}, close=lambda: None)
    delivery = SimpleNamespace(
        pattern="direct", through=None, written="shop.p", slot=None, table="shop.p", agent="a", key_columns=("id",)
    )
    monkeypatch.setattr(direct, "_open", (None, tower, SimpleNamespace(load_table=lambda name: table)))
    monkeypatch.setattr("icetower.agent.direct.in_time", lambda *given: delivery)
    monkeypatch.setattr("icetower.agent.direct._require_selected", lambda *given: None)
    return direct


def overwrites(direct: Direct, known: Known | None, key: str, where: Any = EU) -> Any:
    change = Change("shop.p", pa.table({"id": [1], "region": ["eu"]}), key, leases="lease:1", known=known)
    return direct.overwrite(change, where, None)


def test_within_a_lease_an_overwrite_has_read_what_was_there_at_the_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have appended since, and nobody of the agent has looked at it."""
    table = Table([(1, {}), (2, {})])
    direct, known = directly(table, monkeypatch), Known(1, "lease")
    overwrites(direct, known, "k1")
    assert table.said[-1][READ] == "1"
    overwrites(direct, None, "k2")
    assert table.said[-1][READ] == "3"  # without a lease it is what is there


def test_the_agents_own_commits_within_its_lease_are_known_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table([(1, {})])
    direct, known = directly(table, monkeypatch), Known(1, "lease")
    overwrites(direct, known, "k1")  # 2
    overwrites(direct, known, "k2", {"region": "us"})  # 3: another filter, and only the agent's own before it
    assert [said[READ] for said in table.said] == ["1", "2"]
    table.land(4)  # others'
    overwrites(direct, known, "k3")  # 5: held against 4
    table.land(6)
    overwrites(direct, known, "k4")  # nothing of others came into these rows before 5
    overwrites(direct, known, "k5", {"region": "us"})  # and into those 4 may have come
    assert [said[READ] for said in table.said[2:]] == ["3", "5", "3"]


@pytest.mark.parametrize(("size", "read"), [("1", "2"), ("2", "1")])
def test_an_append_of_the_agents_own_is_known_unless_others_rows_came_with_it(
    size: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table([(1, {}), (2, {"icetower.group-size": size})])
    overwrites(directly(table, monkeypatch), Known(1, "lease", appended={2}), "k1")
    assert table.said[-1][READ] == read


@pytest.mark.parametrize(("intent", "words"), [("lease", "when intent lease was granted"), ("", "passed as read=")])
def test_what_others_did_since_is_refused_at_once_and_not_sent_again(
    intent: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = CommitConflict("it conflicts", rule="conflict.C1", snapshot=2, next_step="refresh")
    table = Table([(1, {}), (2, {})], refuses=refusal)
    with pytest.raises(CommitConflict, match=words) as raised:
        overwrites(directly(table, monkeypatch), Known(1, intent), "k1")
    assert (raised.value.rule, raised.value.next_step, raised.value.snapshot) == ("conflict.C1", "fix_request", 2)
    assert "read=table" in raised.value.message
    assert len(table.said) == 1


def test_what_came_while_it_was_committed_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt is on a table that has it, and is held against it if it stands in the way."""
    refusal = CommitConflict("it conflicts", rule="conflict.C6", snapshot=3, next_step="refresh")
    table = Table([(1, {}), (2, {})], refuses=refusal)
    with pytest.raises(CommitConflict):
        overwrites(directly(table, monkeypatch), Known(1, "lease"), "k1")
    assert len(table.said) > 1


def test_what_callers_have_read() -> None:
    table = Table([(7, {})])
    assert known_of(None) is None
    assert known_of(3) == known_of(SimpleNamespace(snapshot_id=3)) == Known(3)
    assert known_of(table) == Known(7)
    assert known_of(Table([])) == Known(None)
    for wrong in (True, "3", 1.0):
        with pytest.raises(UsageError, match="read= takes the id of a snapshot"):
            known_of(wrong)


def test_what_is_read_is_passed_on_to_what_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's word goes before the lease's; and none goes with rows that a job merges."""
    tower = ScriptedTower()
    agent, heard = ScriptedAgent(tower), list[Known | None]()

    def take(change: Change, *given: Any) -> Any:
        heard.append(change.known)
        return SimpleNamespace(table="shop.p", key=change.key, snapshot_id=1, again=False)

    monkeypatch.setattr(agent.direct, "overwrite", take)
    monkeypatch.setattr(agent.direct, "write", take)
    agent.known["shop.p"] = lease = Known(1, "lease")
    agent.write("overwrite_partition", numbers(1), where={"id": 1})
    agent.write("overwrite_partition", numbers(1), where={"id": 1}, read=9)
    agent.write("upsert", numbers(1))
    agent.write("delete", numbers(1), read=9)
    assert heard == [lease, Known(9), lease, Known(9)]
    agent.append(numbers(1))
    assert lease.appended == {100}
    tower.through["shop.p"] = ("shop.d", "collector")
    tower.answers = [refused(400, "rows.operation", "fix_request")]  # the way was remembered
    agent.clock.pause(60)
    with pytest.raises(UsageError, match="leave read= out"):
        agent.write("upsert", numbers(1), read=9)


def test_a_span_covers_all_rows_with_the_keys() -> None:
    zone = dt.UTC
    rows = pa.table(
        {"id": [3, 1, 2], "at": [dt.datetime(2026, 1, day, tzinfo=zone) for day in (1, 2, 3)], "no": [None, 1, 2]}
    )
    found = span_of(rows, ["id", "at", "no"])
    assert isinstance(found, BooleanExpression)
    text = json.dumps(json.loads(found.model_dump_json()))
    assert '"value": 1' in text
    assert '"value": 3' in text
    assert "2026-01-03T00:00:00+00:00" in text
    assert '"no"' not in text
    assert span_of(rows, ["no"]) is True
