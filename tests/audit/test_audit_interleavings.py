"""The known interleavings, committed by Iceberg's own Java library: each that goes wrong is found, and no other."""

from __future__ import annotations

import re

import pytest

from icetower.audit.auditor import Options
from icetower.audit.page import page
from icetower.iceberg.metadata import ancestors
from icetower.iceberg.validation import Level
from icetower_client_model.figures import FIGURES, LISTED
from icetower_client_model.sketch import append, begin, case, commit, data, op, positions, write
from tests.audit.audit_world import audited, said, with_words
from verify.histories.driver import HistoryDriver

pytestmark = pytest.mark.java

# Where nobody says what was read, the manifests alone tell.
SILENT = {
    "Fig7": ("lost-update", "possible"),
    "Fig8": ("lost-update", "possible"),
    "Fig12": ("lost-delete", "definite"),
    "Fig11-delete": ("lost-delete", "possible"),  # both meant the row gone, and it is
    "K2-without": ("lost-delete", "definite"),
    "K3-late-start": ("lost-update", "definite"),
}
# Where the writers say what they have read, as the SDK has them do. The last three are, without that, what one commit
# after the other would have left as well.
SPOKEN = {
    "Fig7": ("lost-update", "definite"),
    "Fig8": ("lost-update", "definite"),
    "U1": ("write-skew", "definite"),
    "K2-without": ("lost-delete", "definite"),
    "K3-late-start": ("lost-update", "definite"),
    "P1-none": ("lost-update", "definite"),
    "P1-snapshot": ("lost-update", "definite"),
    "W1-snapshot": ("write-skew", "definite"),
    "W2": ("write-skew", "definite"),
}
# What is wrong with these tables has nothing to do with who committed when: the cases have it so.
ODD = {
    "fact-c5-filter": "two-vectors",
    "fact-c4-filter": "lost-delete",
    "fact-append-twice": "file-twice",
    "fact-rewrite-appends": "file-twice",
    "fact-scope-elsewhere": "lost-delete",
    "fact-merge-off": "lost-delete",
    "fact-merge-on": "lost-delete",
}


@pytest.mark.parametrize("name", [name for name in LISTED if name not in ODD])
def test_each_interleaving_as_it_stands(driver: HistoryDriver, name: str) -> None:
    found = [(rule, verdict) for rule, verdict, _ in said(audited(driver.history(LISTED[name].case)))]
    assert found == ([SILENT[name]] if name in SILENT else [])


@pytest.mark.parametrize(("name", "rule"), ODD.items())
def test_odd_tables(driver: HistoryDriver, name: str, rule: str) -> None:
    assert [rule for rule, _, _ in said(audited(driver.history(LISTED[name].case)))] == [rule]


@pytest.mark.parametrize("name", SPOKEN)
def test_each_that_commits_wrongly_is_found_for_certain(driver: HistoryDriver, name: str) -> None:
    report = audited(driver.history(with_words(LISTED[name].case)))
    assert said(report) == [(*SPOKEN[name], (2, 3))]
    (violation,) = report.violations
    assert len(violation.witness) >= 3
    assert all(f"snapshot {each}" in " ".join(violation.witness).lower() for each in violation.snapshots)
    assert report.edges


RIGHT = [
    name
    for name, item in LISTED.items()
    if name not in {*SPOKEN, *SILENT, *ODD}
    and not name.startswith(("fact-c6", "fact-null", "fact-start"))
    and all(verdict == "committed" for verdict in item.expected.values())
]


@pytest.mark.parametrize("name", RIGHT)
def test_words_alone_make_nothing_wrong(driver: HistoryDriver, name: str) -> None:
    """Every interleaving in which all may commit, with the words of its writers."""
    assert not said(audited(driver.history(with_words(LISTED[name].case))))


def test_write_skew_is_what_snapshot_isolation_allows(driver: HistoryDriver) -> None:
    table = driver.history(with_words(LISTED["W1-snapshot"].case))
    assert not said(audited(table, Options(level=Level.SNAPSHOT)))
    lost = driver.history(with_words(LISTED["P1-none"].case))
    assert said(audited(lost, Options(level=Level.SNAPSHOT))) == [("lost-update", "definite", (2, 3))]


def test_a_cycle_is_drawn_as_two_arrows(driver: HistoryDriver) -> None:
    """There and back, and neither over the other; the filter in words that people write."""
    table = driver.history(with_words(LISTED["W1-snapshot"].case))
    report = audited(table)
    text = page(report, [*ancestors(table.head.metadata, 3)][::-1])
    arrows = re.findall(r'<path class="edge rw definite" d="(M [^"]*)" marker-end', text)
    assert len(set(arrows)) == 2
    assert "where id == 1" in " ".join(report.violations[0].witness)


def test_the_undelete_anomaly_by_the_number_of_rows_alone(driver: HistoryDriver) -> None:
    """Two commits delete more rows of a file than it has: some of them twice."""
    files = {**LISTED["U1"].case["files"], "P": positions(of="A", records=6), "Q": positions(of="A", records=6)}
    report = audited(driver.history({**LISTED["U1"].case, "files": files}))
    assert said(report) == [("lost-update", "definite", (2, 3))]
    assert "2 at least were deleted twice" in " ".join(report.violations[0].witness)


def test_an_append_that_a_retried_replacement_swept_away(driver: HistoryDriver) -> None:
    """Iceberg counts attempts in the name of the manifest list: the rows of the first can't replace later ones."""
    files = {name: data("red") for name in "ABC"}
    replace = op("replace-partitions", add=["C"])
    steps = (append(1, "A"), begin(3, replace), commit(3, [write(2, op("append", add=["B"]))]))
    report = audited(driver.history(case(files, *steps, specs=LISTED["P1-none"].case["specs"])))
    assert said(report) == [("lost-update", "possible", (2, 3))]
    assert "attempt 2" in " ".join(report.violations[0].witness)


def test_read_skew(driver: HistoryDriver) -> None:
    """A writer that deletes rows of a file that is gone, and of one that came after that."""
    files = {name: data() for name in "ABC"} | {"P": positions(of="A"), "Q": positions(of="C")}
    steps = (
        append(1, "A"),
        write(2, op("overwrite", remove=["A"], add=["B"])),
        append(3, "C"),
        write(4, op("row-delta", add_deletes=["P", "Q"])),
    )
    found = said(audited(driver.history(case(files, *steps))))
    assert found == [("read-skew", "definite", (2, 3, 4)), ("lost-delete", "definite", (2, 4))]


# What a subquery has read stands in no filter, so that its writer has not said it: `skew-subquery` cannot be found.
@pytest.mark.parametrize("name", [name for name in FIGURES if FIGURES[name].wrong and name != "skew-subquery"])
def test_every_figure_that_is_called_wrong_is_found(driver: HistoryDriver, name: str) -> None:
    assert said(audited(driver.history(with_words(FIGURES[name].case))))
