"""What Spark and Java say, as the jobs' own errors."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from icetower.errors import CommitConflict, CommitStateUnknown, IcetowerError, NoSuchTable, UpstreamFailed
from icetower.pipelines.tables import patiently, translating_errors


def failing(message: str) -> None:
    raise PySparkException(message)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("org.apache.iceberg.exceptions.CommitFailedException: stale", CommitConflict),
        ("Snapshot 5 is not an ancestor of 8", CommitConflict),
        ("Must use DVs for position deletes in V3: file:/t/a.parquet", CommitConflict),
        ("Unable to process: words (rule key.per-write, next step fix_request, request abc)", CommitConflict),
        ("org.apache.iceberg.exceptions.CommitStateUnknownException: 504", CommitStateUnknown),
        ("[TABLE_OR_VIEW_NOT_FOUND] `a`.`b`", NoSuchTable),
        ("[REQUIRES_SINGLE_PART_NAMESPACE] spark_catalog requires a single-part namespace", UpstreamFailed),
        ("something else", UpstreamFailed),
    ],
)
def test_an_exception_is_an_error_with_a_way_on(message: str, kind: type[IcetowerError]) -> None:
    with pytest.raises(kind) as caught:
        translating_errors("deleting rows", lambda: failing(message))
    assert caught.value.message.startswith("deleting rows: ")
    assert ("Does a server answer" in caught.value.message) is ("SINGLE_PART" in message)


@pytest.mark.parametrize("and_unknown", [False, True])
def test_conflicts_are_tried_again_and_unknown_outcomes_where_the_work_finds_out(*, and_unknown: bool) -> None:
    errors: list[IcetowerError] = [CommitConflict("a"), CommitStateUnknown("b"), CommitConflict("c")]

    def work() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    if and_unknown:
        assert patiently(work, and_unknown=True) == "done"
        return
    with pytest.raises(CommitStateUnknown):
        patiently(work)
    with pytest.raises(CommitConflict):
        patiently(work, tries=1)
