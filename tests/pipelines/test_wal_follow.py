"""The mediator as long as it runs: what it does next, how long rows take, and a log that is pruned meanwhile."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icetower.errors import BadRequest, UpstreamFailed
from icetower.pipelines import wal_follow
from icetower.pipelines.tables import iceberg_table, load_metadata, private_session
from icetower.pipelines.wal_follow import Failure, Follower
from icetower.pipelines.wal_logs import Logs
from icetower.pipelines.wal_mediator import Job, Mediation, mediate
from icetower.pipelines.wal_pruning import Pruned, prune, removals_since
from tests.pipelines.wal_world import Crash, World, crash_at

pytestmark = pytest.mark.spark


@pytest.fixture
def world(spark: SparkSession, fresh: Callable[[], str]) -> World:
    return World(spark, fresh())


def pruned(world: World, keep_s: float = 0.0, targets: tuple[str, ...] = ()) -> Pruned:
    return prune(world.spark, world.wal, targets or (world.target,), Logs(world.spark, world.system), keep_s=keep_s)


def in_log(world: World) -> list[int]:
    return sorted(row.id for row in world.spark.table(world.wal).select("id").collect())


# ------------------------------------------------------------------------------------------------------------ pruning


def test_merged_rows_leave_the_log_and_the_mediator_reads_on(world: World) -> None:
    assert pruned(world).snapshot is None  # nothing is merged yet
    world.append((1, 1, "k1", "web"), (2, 2, "k2", "till"))
    world.append((3, 3, "k3", "web"))  # will be rejected
    world.run()
    world.append((4, 1, "k4", "web"))
    assert pruned(world, keep_s=3600) == Pruned(world.wal)
    done = pruned(world)
    assert (done.rows, in_log(world)) == (3, [4])
    assert done.snapshot == load_metadata(world.spark, world.wal)["current-snapshot-id"]
    # Sent again after that: known by its key.
    world.append((1, 1, "k1", "web"), (5, 1, "k5", "web"))
    again = world.run()
    assert (again.read, again.applied, again.duplicates) == (3, 2, 1)
    assert world.ids() == [1, 2, 4, 5]
    # And so in a log that has nothing of its past any more.
    pruned(world)
    world.expire()
    world.append((6, 2, "k6", "web"), (2, 2, "k2", "till"))
    last = world.run()
    assert (last.read, last.applied, last.duplicates, world.ids()) == (2, 1, 1, [1, 2, 4, 5, 6])


def test_a_compacted_file_goes_when_the_last_row_in_it_is_merged(world: World) -> None:
    for number in (1, 2):
        world.append((number, 1, f"k{number}", "web"))
        if number == 1:
            world.run()
    world.compact()  # one file with both rows
    assert pruned(world).snapshot is None
    assert in_log(world) == [1, 2]
    world.run()
    assert (pruned(world).rows, in_log(world)) == (2, [])
    world.append((3, 1, "k3", "web"))
    assert (world.run().read, world.ids()) == (1, [1, 2, 3])


def test_a_log_of_two_tables_is_pruned_of_what_both_have(world: World) -> None:
    world.append((1, 1, "k1", "web"))
    other = World.__new__(World)
    other.__dict__.update(world.__dict__, target=f"{world.target}2")
    world.spark.sql(
        f"CREATE TABLE {other.target} (id BIGINT, at TIMESTAMP, amount DECIMAL(9,2), _idempotency_key STRING) "
        "USING iceberg PARTITIONED BY (days(at))"
    )
    other.job = replace(world.job, target=other.target)
    world.run()
    assert pruned(world, targets=(world.target, other.target)).snapshot is None
    world.spark.sql(f"ALTER TABLE {other.target} REPLACE PARTITION FIELD days(at) WITH days(at) AS d_day")
    other.run()
    assert pruned(world, targets=(world.target, other.target)).rows == 1


def test_what_a_crashed_mediator_has_not_written_down_stays_in_the_log(world: World) -> None:
    world.append((1, 1, "k1", "web"))
    with pytest.raises(Crash):
        world.run(crash_at("committed"))
    assert pruned(world).snapshot is None
    world.run()
    assert pruned(world).rows == 1
    assert [row.idempotency_key for row in world.log("agent_dedup_log")] == ["k1"]


def test_a_target_that_goes_back_to_before_what_was_pruned_is_an_error(world: World) -> None:
    world.append((1, 1, "k1", "web"))
    first = world.run().committed_snapshot
    world.append((2, 1, "k2", "web"))
    world.run()
    pruned(world)
    world.spark.sql(f"CALL tower.system.rollback_to_snapshot('{world.target.partition('.')[2]}', {first})")
    with pytest.raises(BadRequest, match="not known to be applied") as refused:
        world.run()
    assert refused.value.rule == "wal.append-only"
    assert world.ids() == [1]


def test_rows_removed_within_files_are_known_where_the_deletes_are_about_one_file(world: World) -> None:
    """A position delete file of format version 2 may be about several data files. Then it does not name them."""
    for number in (1, 3):
        world.append((number, 1, f"k{number}", "web"), (number + 1, 1, f"k{number + 1}", "web"))
    through = world.run().through_snapshot

    def delete(granularity: str, *ids: int) -> dict[int, int]:
        properties = f"'write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = '{granularity}'"
        world.spark.sql(f"ALTER TABLE {world.wal} SET TBLPROPERTIES ({properties})")
        world.spark.sql(f"DELETE FROM {world.wal} WHERE id IN ({', '.join(map(str, ids))})")
        metadata = load_metadata(world.spark, world.wal)
        assert metadata["snapshots"][-1]["summary"]["operation"] == "delete"
        return removals_since(world.spark, world.wal, metadata, through or 0)

    known = delete("file", 1)
    assert set(known.values()) == {1}
    world.append((5, 1, "k5", "web"))
    assert world.run().applied == 1
    through = world.run().through_snapshot or through
    assert delete("partition", 2, 3) == known
    with pytest.raises(BadRequest, match="not known to be applied"):
        world.run()


def test_merged_rows_may_be_erased_by_deletion_vectors(world: World, fresh: Callable[[], str]) -> None:
    """A vector names its file, so that it shows whether the rows were merged."""
    log = World(world.spark, fresh(), log_version=3)
    log.spark.sql(f"ALTER TABLE {log.wal} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    log.append((1, 1, "k1", "web"), (2, 1, "k2", "web"))
    log.run()
    log.append((3, 1, "k3", "web"), (4, 1, "k4", "web"))
    log.spark.sql(f"DELETE FROM {log.wal} WHERE id = 1")
    assert load_metadata(log.spark, log.wal)["snapshots"][-1]["summary"]["added-dvs"] == "1"
    assert (log.run().read, log.ids()) == (2, [1, 2, 3, 4])
    log.append((5, 1, "k5", "web"), (6, 1, "k6", "web"))
    log.spark.sql(f"DELETE FROM {log.wal} WHERE id IN (2, 5)")  # 5 is not merged
    with pytest.raises(BadRequest, match="not known to be applied"):
        log.run()
    assert log.run(reread=True).applied == 1
    assert log.ids() == [1, 2, 3, 4, 6]


def test_a_log_of_format_version_1_is_not_pruned(world: World, fresh: Callable[[], str]) -> None:
    old = World(world.spark, fresh(), log_version=1)
    old.append((1, 1, "k1", "web"))
    old.run()
    with pytest.raises(BadRequest, match="'format-version' to 2") as refused:
        pruned(old)
    assert refused.value.rule == "wal.prune"


# ---------------------------------------------------------------------------------------------------------------- lag


def test_how_long_a_row_took_is_recorded_for_each_row_and_each_batch(world: World) -> None:
    decided = dt.datetime.now(dt.UTC).replace(microsecond=250_000) - dt.timedelta(seconds=100)
    at = decided.strftime("%Y-%m-%d %H:%M:%S.%f")
    rows = ", ".join(
        f"({i}, timestamp'2017-01-01 05:00:00', 1.10, 'k{i}', 'web', {written})"
        for i, written in ((1, f"timestamp'{at}'"), (2, "NULL"), (3, "NULL"))
    )
    world.spark.sql(f"INSERT INTO {world.wal} VALUES {rows}")
    logged_ms = load_metadata(world.spark, world.wal)["snapshots"][-1]["timestamp-ms"]
    done = world.run()
    assert done.lag_max_ms is not None
    assert done.committed_at_ms is not None
    assert done.lag_max_ms == done.committed_at_ms - int(decided.timestamp() * 1000)
    assert done.lag_median_ms == done.committed_at_ms - logged_ms
    keys = {row.idempotency_key: row.decided_at.timestamp() for row in world.log("agent_dedup_log")}
    assert keys == {"k1": decided.timestamp(), "k2": logged_ms / 1000, "k3": logged_ms / 1000}
    (batch,) = world.log("wal_mediations")
    assert (batch.lag_max_ms, batch.lag_median_ms) == (done.lag_max_ms, done.lag_median_ms)


# ---------------------------------------------------------------------------------------------------------- following


class Rounds:
    """Waits by doing the next thing; ends the loop after the last."""

    def __init__(self, *between: Callable[[], object]) -> None:
        self.between = [*between]
        self.waited_s: list[float] = []

    def __call__(self, seconds: float) -> bool:
        self.waited_s.append(seconds)
        if not self.between:
            return True
        self.between.pop(0)()
        return False


class Clock(wal_follow.SystemAmbient):
    """It stands still unless it is moved."""

    at_s = 0.0

    def monotonic_s(self) -> float:
        return self.at_s


def test_it_applies_what_comes_prunes_it_and_rests_when_there_is_nothing(world: World) -> None:
    heard: list[Any] = []
    mediations: list[str] = []

    def jobs() -> list[Job]:
        return [replace(world.job, snapshots_max=1)]

    def counting(*arguments: Any, **options: Any) -> Mediation:
        mediations.append("")
        return mediate(*arguments, **options)

    mediate = wal_follow.mediate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_follow, "mediate", counting)
        patch.setattr(wal_follow, "PRUNE_EVERY_S", 0.0)
        world.append((1, 1, "k1", "web"))
        rounds = Rounds(
            lambda: [world.append((2, 1, "k2", "web")), world.append((3, 1, "k3", "web"))],
            lambda: None,  # one commit a batch: the second one waits for no tick
            lambda: None,
            lambda: None,
        )
        lags: list[float] = []
        on_lag = lambda job, lag_s: lags.append(lag_s)  # noqa: E731
        follower = Follower(world.spark, jobs, heard.append, 7.0, keep_s=0.0, on_lag=on_lag, ambient=Clock())
        follower.follow(rounds)
    batches = [each for each in heard if isinstance(each, Mediation)]
    assert [each.read for each in batches] == [1, 1, 1]
    assert world.ids() == [1, 2, 3]
    assert sum(each.rows for each in heard if isinstance(each, Pruned)) == 3
    assert in_log(world) == []
    assert rounds.waited_s == [7.0, 0.0, 7.0, 7.0, 7.0]
    # Each round says how far the target is behind, and where nothing is new, that it is not.
    assert [lag_s > 0 for lag_s in lags] == [True] * 3 + [False] * (len(rounds.waited_s) - 3)
    # A pruning moves the log's head, so one look more; then the heads stand still and nothing is read.
    assert len(mediations) <= len(batches) + 2


def test_a_job_that_fails_is_tried_again_and_stops_no_other(world: World, fresh: Callable[[], str]) -> None:
    other = World(world.spark, fresh())
    broken = replace(world.job, wal=f"{world.wal}_missing")
    heard: list[Any] = []
    other.append((1, 1, "k1", "web"))
    clock = Clock()

    def later() -> None:
        clock.at_s += 1.5

    tries = Rounds(later, later, later)
    Follower(world.spark, lambda: [broken, other.job], heard.append, ambient=clock).follow(tries)
    failures = [each for each in heard if isinstance(each, Failure)]
    assert [each.again_in_s for each in failures] == [1.0, 2.0, 4.0]  # at 0, 1.5 and 4.5 s
    assert {each.to_json()["status"] for each in failures} == {"failed"}
    assert other.ids() == [1]


def test_contracts_that_cannot_be_read_for_a_time_stop_nothing(world: World) -> None:
    heard: list[Any] = []
    answers: list[Any] = [[world.job], UpstreamFailed("the tower is away"), [world.job]]

    def jobs() -> list[Job]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rounds = Rounds(lambda: world.append((1, 1, "k1", "web")), lambda: None)
    Follower(world.spark, jobs, heard.append).follow(rounds)
    assert [type(each) for each in heard] == [Failure, Mediation]
    assert world.ids() == [1]


def test_following_again_after_a_kill_goes_on_from_the_target(world: World) -> None:
    """The progress is the target's: a follower has none of its own."""
    world.append((1, 1, "k1", "web"))
    with pytest.raises(Crash):
        world.run(crash_at("committed"))
    world.append((2, 1, "k2", "web"))
    heard: list[Any] = []
    Follower(world.spark, lambda: [world.job], heard.append).follow(Rounds())
    assert [(each.applied, len(each.settled)) for each in heard] == [(1, 1)]
    assert world.ids() == [1, 2]
    assert iceberg_table(world.spark, world.target).currentSnapshot().snapshotId() == heard[0].committed_snapshot


def test_one_session_serves_all_batches_and_what_runs_on_does_not_fill_the_heap(world: World) -> None:
    """A session is never freed, for its catalog has a thread that refers to it: one a batch, and Spark dies of it."""
    sessions: list[SparkSession] = []

    def work(session: SparkSession, job: Job, **options: Any) -> Mediation:
        sessions.append(session)
        return mediate(session, job, **options)

    rounds = Rounds(*(lambda at=at: world.append((at, 1, f"k{at}", "web")) for at in (1, 2, 3)))
    Follower(world.spark, lambda: [world.job], lambda _: None, work=work).follow(rounds)
    assert world.ids() == [1, 2, 3]
    assert len(sessions) >= 3
    assert len({id(each) for each in sessions}) == 1
    assert sessions[0] is not world.spark
    assert private_session(sessions[0]) is sessions[0]
    assert private_session(world.spark) is not private_session(world.spark)
    assert sessions[0].conf.get("spark.sql.iceberg.vectorization.enabled") == "false"
