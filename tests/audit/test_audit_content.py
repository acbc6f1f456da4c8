"""Proof from content: the rows that delete files are about, and the row ids that data files carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icetower.audit.auditor import Options
from icetower.audit.content import ROW_ID_FIELD_ID
from icetower.protocol.marks import READ_SNAPSHOT
from icetower_client_model.figures import LISTED
from icetower_client_model.sketch import append, begin, case, commit, data, op, positions, vector, write
from tests.audit.audit_world import audited, said, with_words
from verify.histories.driver import HistoryDriver
from verify.wire.deletes import written

pytestmark = pytest.mark.java

CONTENT = Options(content=True)
Rows = dict[str, dict[str, list[int]]]


def history(driver: HistoryDriver, folder: Path, given: dict[str, Any], rows: Rows) -> Any:
    """A case whose delete files are really there."""
    return driver.history(written({**given, "positions": rows}, folder))


def carrying(folder: Path, name: str, ids: list[int | None]) -> dict[str, Any]:
    """A data file whose rows carry ids."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = [
        pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"}),
        pa.field("_row_id", pa.int64(), metadata={b"PARQUET:field_id": str(ROW_ID_FIELD_ID).encode()}),
    ]
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table([list(range(len(ids))), ids], schema=pa.schema(fields)), path)
    return {**data(records=len(ids)), "path": path.as_uri(), "size": path.stat().st_size}


def plain(folder: Path, name: str, count: int) -> dict[str, Any]:
    """A data file whose rows have the ids that its manifest gives them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    field = pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
    pq.write_table(pa.table([list(range(count))], schema=pa.schema([field])), path)
    return {**data(records=count), "path": path.as_uri(), "size": path.stat().st_size}


# ── Delete files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_undelete_anomaly_is_proven_by_its_delete_files_alone(driver: HistoryDriver, tmp_path: Path) -> None:
    """U1 as its writers left it: nobody has said what was read."""
    table = history(driver, tmp_path, LISTED["U1"].case, {"P": {"A": [4]}, "Q": {"A": [4]}})
    assert said(audited(table)) == []
    report = audited(table, CONTENT)
    assert said(report) == [("lost-update", "definite", (2, 3))]
    assert "row 4 of A.parquet" in report.violations[0].witness[0]
    assert report.checked.content


def test_deletes_of_other_rows_are_fine(driver: HistoryDriver, tmp_path: Path) -> None:
    given = with_words({**LISTED["U1"].case})
    for step in given["steps"]:
        if "op" in step and "summary" in step["op"]:  # the version alone, and no filter
            step["op"]["summary"] = {READ_SNAPSHOT: step["op"]["summary"][READ_SNAPSHOT]}
    table = history(driver, tmp_path, given, {"P": {"A": [4]}, "Q": {"A": [5]}})
    assert said(audited(table)) == [("lost-update", "possible", (2, 3))]
    assert said(audited(table, CONTENT)) == []


def merging(driver: HistoryDriver, folder: Path, rows: Rows, *, update: bool = False, records: int = 10) -> Any:
    """Two that delete further rows of a file, each putting one file in the place of its older deletes, at once."""
    counts = {name: positions(of="A", records=len(about["A"])) for name, about in rows.items()}
    files = {"A": data(records=records), "B": data(records=1), **counts}
    one = op("row-delta", remove_deletes=["P"], add_deletes=["Q"])
    other = op("row-delta", remove_deletes=["P"], add_deletes=["R"], **({"add": ["B"]} if update else {}))
    steps = (
        append(1, "A"),
        write(2, op("row-delta", add_deletes=["P"])),
        begin(4, other),
        write(3, one),
        commit(4),
    )
    table = history(driver, folder, case(files, *steps), rows)
    assert {each["verdict"] for each in table.outcome["verdicts"].values()} == {"committed"}
    return table


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("records", [4, 10])
def test_older_deletes_that_two_have_taken_over_are_fine(
    driver: HistoryDriver, tmp_path: Path, update: bool, records: int
) -> None:
    """Both files have the rows of the one that they replaced: by their number alone they look deleted twice."""
    rows: Rows = {"P": {"A": [0, 1]}, "Q": {"A": [0, 1, 2]}, "R": {"A": [0, 1, 3]}}
    table = merging(driver, tmp_path, rows, update=update, records=records)
    assert said(audited(table)) == []
    assert said(audited(table, CONTENT)) == []


def test_a_row_beside_them_that_was_deleted_and_updated_is_found(driver: HistoryDriver, tmp_path: Path) -> None:
    rows: Rows = {"P": {"A": [0, 1]}, "Q": {"A": [0, 1, 2]}, "R": {"A": [0, 1, 2]}}
    found = said(audited(merging(driver, tmp_path, rows, update=True), CONTENT))
    assert found == [("lost-update", "definite", (3, 4))]


def test_a_row_that_two_have_deleted_is_gone_as_both_would_have_it(driver: HistoryDriver, tmp_path: Path) -> None:
    files = {"A": data(records=1), "P": positions(of="A", records=1), "Q": positions(of="A", records=1)}
    steps = (append(1, "A"), *(write(at, op("row-delta", add_deletes=[name])) for at, name in ((2, "P"), (3, "Q"))))
    table = history(driver, tmp_path, case(files, *steps), {"P": {"A": [0]}, "Q": {"A": [0]}})
    assert said(audited(table)) == []
    assert said(audited(table, CONTENT)) == []


def test_deletes_of_a_whole_partition_are_opened_too(driver: HistoryDriver, tmp_path: Path) -> None:
    files = {"A": data(), "B": data(), "C": data(), "P": positions(records=2), "Q": positions(of="A")}
    first, second = op("row-delta", add=["C"], add_deletes=["P"]), op("row-delta", add_deletes=["Q"])
    given = case(files, append(1, "A", "B"), write(2, first), write(3, second))
    table = history(driver, tmp_path, given, {"P": {"A": [1], "B": [2]}, "Q": {"A": [1]}})
    assert said(audited(table, CONTENT)) == [("lost-update", "definite", (2, 3))]
    other = history(driver, tmp_path, given, {"P": {"A": [1], "B": [2]}, "Q": {"A": [2]}})
    assert said(audited(other, CONTENT)) == []


def test_delete_files_that_are_not_there_are_told(driver: HistoryDriver, tmp_path: Path) -> None:
    table = history(driver, tmp_path, LISTED["U1"].case, {"P": {"A": [4]}, "Q": {"A": [4]}})
    (tmp_path / "P.parquet").write_bytes(b"nothing")
    report = audited(table, CONTENT)
    assert said(report) == []
    assert any("P.parquet" in note for note in report.checked.undeterminable)


@pytest.mark.parametrize(("rows", "found"), [([3, 4], ["undelete"]), ([1, 2], []), ([1, 2, 3], [])])
def test_a_vector_has_the_rows_of_the_one_it_supersedes(
    driver: HistoryDriver, tmp_path: Path, rows: list[int], found: list[str]
) -> None:
    files = {"A": data(), "V": vector("A"), "W": vector("A")}
    first = op("row-delta", add_deletes=["V"])
    second = op("row-delta", start=2, remove_deletes=["V"], add_deletes=["W"])
    given = case(files, append(1, "A"), write(2, first), write(3, second), format_version=3)
    table = history(driver, tmp_path, given, {"V": {"A": [1, 2]}, "W": {"A": rows}})
    report = audited(table, CONTENT)
    assert [rule for rule, _, _ in said(report)] == found
    assert said(audited(table)) == []  # there are as many rows as before: manifests don't tell
    if found:
        assert "rows 1, 2 of A.parquet" in report.violations[0].witness[0]


@pytest.mark.parametrize(("rows", "found"), [([1], []), ([2], ["undelete"]), ([1, 2], [])])
def test_a_vector_of_a_revert_has_the_rows_of_the_one_before_what_it_takes_back(
    driver: HistoryDriver, tmp_path: Path, rows: list[int], found: list[str]
) -> None:
    files = {"A": data(), "U": vector("A"), "V": vector("A"), "W": vector("A")}
    first = op("row-delta", add_deletes=["U"])
    second = op("row-delta", start=2, remove_deletes=["U"], add_deletes=["V"])
    back = op("row-delta", start=3, remove_deletes=["V"], add_deletes=["W"], summary={"icetower.reverts": "3"})
    given = case(files, append(1, "A"), write(2, first), write(3, second), write(4, back), format_version=3)
    deleted = {"U": {"A": [1]}, "V": {"A": [1, 2]}, "W": {"A": rows}}
    report = audited(history(driver, tmp_path, given, deleted), CONTENT)
    assert [rule for rule, _, _ in said(report)] == found


# ── Row ids ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_id_that_is_live_twice_is_a_lost_update(driver: HistoryDriver, tmp_path: Path) -> None:
    """Figures 7 and 8 in format version 3, where each row says who it is."""
    files = {
        "A": plain(tmp_path, "A", 3),
        "B": carrying(tmp_path, "B", [0, 1, 2]),
        "C": carrying(tmp_path, "C", [0, 1, None]),
    }
    first, second = op("overwrite", remove=["A"], add=["B"]), op("overwrite", remove=["A"], add=["C"])
    steps = (append(1, "A"), begin(2, first), begin(3, second), commit(2), commit(3))
    table = driver.history(case(files, *steps, format_version=3))
    assert said(audited(table)) == [("lost-update", "possible", (2, 3))]
    report = audited(table, CONTENT)
    assert said(report) == [("lost-update", "definite", (2, 3))]
    assert "row ids 0, 1" in report.violations[0].witness[0]
    assert "2 rows are live twice" in report.violations[0].witness[-1]


def test_a_row_id_that_was_dead_and_lives_is_an_undelete(driver: HistoryDriver, tmp_path: Path) -> None:
    """A rewrite that does not know of a deletion vector, in place of as many rows."""
    files = {
        "A": plain(tmp_path, "A", 3),
        "B": carrying(tmp_path, "B", [0, 1]),
        "V": vector("A"),
    }
    delete = op("row-delta", add_deletes=["V"])
    rewrite = op("overwrite", remove=["A"], remove_deletes=["V"], add=["B"])
    given = case(files, append(1, "A"), write(2, delete), write(3, rewrite), format_version=3)
    report = audited(history(driver, tmp_path / "deletes", given, {"V": {"A": [1]}}), CONTENT)
    assert said(report) == [("undelete", "definite", (3,))]
    assert "row id 1" in report.violations[0].witness[0]


def test_a_row_id_that_comes_out_of_nowhere(driver: HistoryDriver, tmp_path: Path) -> None:
    files = {"A": plain(tmp_path, "A", 3), "B": plain(tmp_path, "B", 2), "C": carrying(tmp_path, "C", [0, 3])}
    drop = op("delete", remove=["A"])
    rewrite = op("overwrite", remove=["B"], add=["C"])
    given = case(files, append(1, "A", "B"), write(2, drop), write(3, rewrite), format_version=3)
    report = audited(driver.history(given), CONTENT)
    assert said(report) == [("undelete", "definite", (3,))]
    assert "row id 0" in report.violations[0].witness[0]


def test_rewrites_that_carry_their_own_rows_are_fine(driver: HistoryDriver, tmp_path: Path) -> None:
    """Copy-on-write, merge-on-read and compaction, one after the other, all with row ids."""
    files = {
        "A": plain(tmp_path, "A", 4),
        "B": carrying(tmp_path, "B", [0, 1, 2, 3]),
        "V": vector("B"),
        "C": carrying(tmp_path, "C", [1, None]),
        "D": carrying(tmp_path, "D", [0, 2, 3, 1, None]),
    }
    given = case(
        files,
        append(1, "A"),
        write(2, op("overwrite", remove=["A"], add=["B"])),
        write(3, op("row-delta", add=["C"], add_deletes=["V"])),
        write(4, op("rewrite", start=3, remove=["B", "C"], remove_deletes=["V"], add=["D"])),
        format_version=3,
    )
    table = history(driver, tmp_path / "deletes", given, {"V": {"B": [1]}})
    outcome = table.outcome["verdicts"]
    assert {each["verdict"] for each in outcome.values()} == {"committed"}
    report = audited(table, CONTENT)
    assert said(report) == []
    assert not any("not known" in note for note in report.checked.undeterminable)
