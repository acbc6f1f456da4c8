"""What Java's exceptions say, as refusals: made-up Java objects, whose classes and messages are Iceberg's."""

from __future__ import annotations

from typing import Any, cast

import pytest

from icetower.agent import Patience, Tower
from icetower.ambient import SystemAmbient
from icetower.errors import CommitStateUnknown, Forbidden, IcetowerError, KeyMisused
from icetower.protocol.tails import with_tail
from icetower.spark import carry_out, refusal_of

ICEBERG = "org.apache.iceberg.exceptions."


class Throwable:
    """Of Java, as Py4J shows it."""

    def __init__(self, name: str, message: str | None, cause: Throwable | None = None) -> None:
        self.name, self.message, self.cause = name, message, cause

    def getClass(self) -> Throwable:  # noqa: N802 - Java's
        return self

    def getName(self) -> str:  # noqa: N802 - Java's
        return self.name

    def getMessage(self) -> str | None:  # noqa: N802 - Java's
        return self.message

    def getCause(self) -> Throwable | None:  # noqa: N802 - Java's
        return self.cause


class Captured(Exception):
    """As PySpark raises it."""

    def __init__(self, *chain: tuple[str, str | None]) -> None:
        super().__init__("Job aborted")
        at = None
        for name, message in reversed(chain):
            at = Throwable(name, message, at)
        self._origin = at


def told(status_of: type[IcetowerError], rule: str, next_step: str, **fields: Any) -> str:
    error = status_of("words", rule=rule, next_step=next_step, **fields)
    error.request_id = "abc123"
    return with_tail(error)


WRAPPER = ("org.apache.spark.SparkException", "Writing job aborted")


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (
            [WRAPPER, (f"{ICEBERG}ForbiddenException", "Forbidden: " + told(Forbidden, "contract.table", "ask_owner"))],
            (403, "contract.table", "ask_owner"),
        ),
        ([(f"{ICEBERG}CommitFailedException", "Commit failed: words")], (409, "commit.stale", "refresh")),
        ([(f"{ICEBERG}ValidationException", "Found conflicting files")], (409, "client.validation", "refresh")),
        # A 502 means that nothing was committed, and the client does not know that: the answer itself is the cause.
        (
            [
                WRAPPER,
                (f"{ICEBERG}CommitStateUnknownException", "Cannot determine whether the commit was successful"),
                (f"{ICEBERG}ServiceFailureException", "Server error: " + told(CommitStateUnknown, "upstream", "retry")),
            ],
            (504, "upstream", "retry"),
        ),
        ([(f"{ICEBERG}CommitStateUnknownException", None)], (504, "commit.unknown", "refresh")),
        (
            [(f"{ICEBERG}RESTException", "Unable to process: " + told(KeyMisused, "key.rolled-back", "new_key"))],
            (422, "key.rolled-back", "new_key"),
        ),
        (
            [(f"{ICEBERG}RESTException", "Error occurred"), ("java.net.ConnectException", "refused")],
            (503, "client.connection", "retry"),
        ),
    ],
)
def test_an_exception_of_java_is_a_refusal(chain: list[Any], expected: tuple[int, str, str]) -> None:
    refusal = refusal_of(Captured(*chain))
    assert refusal is not None
    assert (refusal.status, refusal.rule, refusal.next_step) == expected


def test_a_streaming_query_has_its_refusal_in_its_text() -> None:
    answer = f"{ICEBERG}ForbiddenException: Forbidden: " + told(Forbidden, "contract.partitions", "request_partition")
    refusal = refusal_of(RuntimeError(f"[STREAM_FAILED] Query terminated: Job aborted\n{answer}\n\tat java.lang"))
    assert refusal is not None
    assert (refusal.status, refusal.rule, refusal.next_step) == (403, "contract.partitions", "request_partition")
    assert refusal_of(RuntimeError(f"{ICEBERG}ForbiddenException: by somebody else")) is None


def test_what_is_no_refusal() -> None:
    for raised in (Captured(("java.lang.IllegalStateException", "x")), Captured((f"{ICEBERG}RESTException", "x"))):
        assert refusal_of(raised) is None
    assert refusal_of(Captured(("org.apache.spark.sql.AnalysisException", None))) is None


def test_a_wait_until_a_time_is_read_back() -> None:
    refusal = refusal_of(
        Captured(
            (f"{ICEBERG}CommitFailedException", told(Forbidden, "contract.quota", "wait_until", wait_until_ms=1234))
        )
    )
    assert refusal is not None
    assert refusal.wait_until_ms == 1234


def test_an_unknown_outcome_under_whose_key_something_has_landed_is_done() -> None:
    """Trap K3: Spark writes other files at the second attempt, and the key tells that the first has landed."""
    unknown = Captured((f"{ICEBERG}CommitStateUnknownException", "unknown"))
    landed = Captured((f"{ICEBERG}RESTException", told(KeyMisused, "key.per-write", "fix_request")))
    raised = [unknown, landed]

    def work(tower: Tower, key: str) -> None:
        raise raised.pop(0)

    tower = cast(Tower, Retrying())
    patience = Patience(pause=lambda seconds: None)
    carry_out(work, tower, "ns.t", operations=["append"], reason="r", key="k", patience=patience)
    assert raised == []
    raised = [landed]
    with pytest.raises(KeyMisused):  # nothing was unknown: another write of this program has this key
        carry_out(work, tower, "ns.t", operations=["append"], reason="r", key="k", patience=patience)


class Retrying:
    """A tower that says no contract, and whose log of attempts comes late."""

    looks = 0

    def me(self) -> dict[str, Any]:
        return {"retries": None}

    def commits(self, *, limit: int, request_id: str) -> list[dict[str, Any]]:
        assert (limit, request_id) == (1, "abc123")
        self.looks += 1
        return [] if self.looks < 3 else [{"partitions": ["region=south"]}]

    def request_partitions(self, table: str, partitions: Any, **said: Any) -> dict[str, str]:
        assert partitions == ("region=south",)
        return {"id": "r"}

    def request(self, id_: str) -> dict[str, str]:
        return {"state": "granted"}


def test_the_partitions_are_taken_from_the_log_of_attempts() -> None:
    refused = Captured((f"{ICEBERG}ForbiddenException", told(Forbidden, "contract.partitions", "request_partition")))
    raised = [refused]

    def work(tower: Tower, key: str) -> str:
        if raised:
            raise raised.pop()
        return key

    tower = Retrying()
    patience = Patience(pause=lambda seconds: None, ambient=SystemAmbient())
    given = {"operations": ["append"], "reason": "r", "key": "k", "patience": patience}
    assert carry_out(work, cast(Tower, tower), "ns.t", **given) == "k"
    assert tower.looks == 3
