"""The figures of two articles as cases, to be replayed by name; and the write skews.

One is a short introduction to Iceberg's optimistic concurrency, the other Vanlightly's "Understanding Apache Iceberg's
Consistency Model Part 2". The people and files are the pictures', the text is ours. A figure that shows only one moment
is replayed as the whole interleaving that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from icetower.iceberg.validation import Level
from icetower_client_model.facts import FACTS
from icetower_client_model.interleavings import COMMITTED, TABLE, Listed
from icetower_client_model.isolation import Command
from icetower_client_model.picture import Figure, delta, life, person, rewrite, story_steps
from icetower_client_model.sketch import JSON, append, begin, both, commit, eq, op
from icetower_client_model.skews import SKEWS

_SI, _SERIALIZABLE = Level.SNAPSHOT, Level.SERIALIZABLE
_START = {"data-1": ("jack, red", "sarah, blue")}
_FRUITS = {"data-1": ("jack, apple", "sarah, cherry")}
_TWO_FILES = {**_START, "data-2": ("anna, green", "tom, grey")}


def _missing(name: str) -> str:
    return f"Missing required files to delete: mem://t/data/{name}.parquet"


# ── The introduction ────────────────────────────────────────────────────────────────────────────────────────────


def _rebase() -> Figure:
    rows = {"data-1": ("jack, red", "sarah, red"), "data-2": ("anna, blue",), "data-3": ("jack, red",)}
    delete = rewrite(both(eq("category", "red"), person("sarah")), _SERIALIZABLE, "data-1", "data-3")
    steps = (append(1, "data-1"), begin(3, delete), begin(2, op("append", add=["data-2"])))
    return Figure(
        "introduction-rebase",
        "The swap is lost, but nothing conflicts: the same files are committed on the new head",
        "an introduction, conflict and retry, first case",
        story_steps(
            """
            - Writer A and writer B both start from the same metadata file. A appends anna to the partition
              blue, B deletes sarah from the partition red.
            - A swaps first. B's swap expects the old head and is turned down: nothing of B's is in the
              table.
            - B reads the new head, finds nothing new in its own partition, writes a new manifest list and
              swaps again. Its data files are not written again.
            """
        ),
        life(rows, *steps, commit(3, [commit(2)]), by_category=True),
        {1: "Setup", 2: "Writer A", 3: "Writer B"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: COMMITTED},
    )


def _same_row() -> Figure:
    rows = {**_START, "data-2": ("sarah, blue",), "data-3": ("sarah, blue",)}
    return Figure(
        "introduction-conflict",
        "Both delete the same row: the second one is refused, whatever it retries",
        "an introduction, conflict and retry, second case",
        story_steps(
            """
            - Writer A and writer B both delete jack's row, and both write sarah's into a new file.
            - A swaps first.
            - B loses the swap, reads the new head and finds that the file which it replaces is gone: a
              refusal is final, only a lost swap is tried again.
            """
        ),
        life(
            rows,
            append(1, "data-1"),
            begin(2, rewrite(person("jack"), _SI, "data-1", "data-2")),
            begin(3, rewrite(person("jack"), _SI, "data-1", "data-3")),
            commit(3, [commit(2)]),
        ),
        {1: "Setup", 2: "Writer A", 3: "Writer B"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: _missing("data-1")},
        rule="C6",
    )


# ── Vanlightly: the commit ──────────────────────────────────────────────────────────────────────────────────────


def _figure_1() -> Figure:
    rows = {**_START, "data-2": ("jack, pink", "sarah, blue")}
    return Figure(
        "1",
        "The steps of one write",
        "Vanlightly, figure 1",
        story_steps(
            """
            - Read: the engine loads the table's newest metadata, which says snapshot 1, and scans what its
              command needs.
            - Write: new data files go to storage. Nobody sees them, as no snapshot names them.
            - Commit, first part: refresh the metadata, and check what others have committed since the read.
              Here nobody has.
            - Second part: write manifests, a manifest list and a metadata file with snapshot 2 in it. Still
              nobody sees them.
            - Third part: the catalog swaps its pointer to the new metadata file, if it still stands where the
              writer last saw it. Now readers find snapshot 2.
            """
        ),
        life(rows, append(1, "data-1"), begin(2, rewrite(person("jack"), _SI, "data-1", "data-2")), commit(2)),
        {1: "Setup", 2: "Writer"},
        rows,
        {1: COMMITTED, 2: COMMITTED},
    )


def _disjoint(name: str, title: str, story: tuple[str, ...], *ending: JSON) -> Figure:
    rows = {**_TWO_FILES, "data-3": ("jack, pink", "sarah, blue"), "data-4": ("anna, black", "tom, grey")}
    steps = (
        append(1, "data-1", "data-2"),
        begin(2, rewrite(person("jack"), _SERIALIZABLE, "data-1", "data-3")),
        begin(3, rewrite(person("anna"), _SERIALIZABLE, "data-2", "data-4")),
    )
    return Figure(
        name,
        title,
        f"Vanlightly, figure {name}",
        story,
        life(rows, *steps, *ending),
        {1: "Setup", 2: "Writer 1", 3: "Writer 2"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: COMMITTED},
    )


def _figure_2() -> Figure:
    story = story_steps(
        """
        - Both writers read snapshot 1. Writer 1 changes jack in data-1, writer 2 changes anna in data-2.
        - Writer 1 is quick and commits snapshot 2.
        - Writer 2 refreshes only now, so that it sees snapshot 2 at once; what came with it cannot hold
          anna's row, the check passes, and the first swap wins.
        """
    )
    return _disjoint("2", "The other commit comes before the refresh: checked once, swapped once", story, *_IN_TURN)


def _figure_3() -> Figure:
    story = story_steps(
        """
        - The same two writers, but writer 2 refreshes and checks before writer 1 has committed.
        - Writer 1 commits snapshot 2 while writer 2 writes its metadata.
        - Writer 2's swap is turned down. It refreshes, checks again, this time against snapshot 2, and the
          second swap wins.
        """
    )
    return _disjoint("3", "The other commit comes after the refresh: the swap is lost, then retried", story, _BETWEEN)


_IN_TURN = (commit(2), commit(3))
_BETWEEN = commit(3, [commit(2)])


def _figure_4() -> Figure:
    rows = {
        **_TWO_FILES,
        "data-3": ("jack, pink", "sarah, blue"),
        "data-4": ("anna, black", "tom, grey"),
        "data-5": ("anna, green", "tom, white"),
    }
    steps = (
        append(1, "data-1", "data-2"),
        begin(2, rewrite(person("jack"), _SI, "data-1", "data-3")),
        begin(3, rewrite(person("anna"), _SI, "data-2", "data-4")),
        begin(4, rewrite(person("tom"), _SI, "data-2", "data-5")),
    )
    return Figure(
        "4",
        "Disjoint files coexist; the same file is an overlap, whichever rows in it were meant",
        "Vanlightly, figure 4",
        story_steps(
            """
            - Three writers have read snapshot 1. Writer 1 replaces data-1, writers 2 and 3 replace data-2.
            - Writers 1 and 2 share no file: both commit, one after the other.
            - Writer 3 changes another row than writer 2, but in the same file. What it would put in the place
              of data-2 knows nothing of anna's new colour, so it is refused.
            - That is overlap at snapshot isolation, which looks at what is written. A serializable writer also
              minds new data that its filter could have read: see the figures `skew` and `skew-serializable`.
            """
        ),
        life(rows, *steps, commit(2), commit(3), commit(4)),
        {1: "Setup", 2: "Writer 1", 3: "Writer 2", 4: "Writer 3"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: COMMITTED, 4: _missing("data-2")},
        rule="C6",
    )


def _figure_5() -> Figure:
    rows = {**_START, "data-2": ("jack, pink", "sarah, blue"), "data-3": ("jack, red", "sarah, black")}
    steps = (
        append(1, "data-1"),
        begin(2, rewrite(person("jack"), _SI, "data-1", "data-2")),
        begin(3, rewrite(person("sarah"), _SI, "data-1", "data-3")),
        _BETWEEN,
    )
    return Figure(
        "5",
        "The conflict shows only on the retry",
        "Vanlightly, figure 5",
        story_steps(
            """
            - Both writers replace data-1. Writer 2 checks before writer 1 has committed, and finds
              nothing.
            - Writer 1 commits snapshot 2; writer 2's swap is turned down.
            - The second check sees that data-1 is gone, and writer 2 gives up.
            """
        ),
        life(rows, *steps),
        {1: "Setup", 2: "Writer 1", 3: "Writer 2"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: _missing("data-1")},
        rule="C6",
    )


def _figure_6() -> Figure:
    rows = {
        "data-1": ("sarah, blue",),
        "data-2": ("emma, red",),
        "data-3": ("tom, blue",),
        "data-4": ("sarah, blue",),
        "data-5": ("jack, blue", "anna, blue"),
    }
    update = rewrite(both(eq("category", "blue"), person("sarah")), _SERIALIZABLE, "data-1", "data-4")
    insert = [begin(writer, op("append", add=[name])) for writer, name in ((2, "data-2"), (3, "data-3"), (4, "data-5"))]
    found = 'Found conflicting files that can contain records matching (ref(name="category") == "blue" and '
    return Figure(
        "6",
        "The conflict filter skips what cannot match, by partition and by statistics",
        "Vanlightly, figure 6",
        story_steps(
            """
            - The update has pushed down: blue, and sarah's id. It is serializable, so added files count.
            - emma's file is in the partition red: its whole manifest is skipped. tom's is blue, but its
              statistics say that sarah's id, 2, is not in it.
            - The third file is blue, and its ids run from 1 to 3: it can hold a 2. It does not, but nobody
              opens data files to see, so that it is a conflict.
            """
        ),
        life(
            rows,
            append(1, "data-1"),
            begin(5, update),
            *insert,
            commit(2),
            commit(3),
            commit(4),
            commit(5),
            by_category=True,
        ),
        {1: "Setup", 2: "Insert emma", 3: "Insert tom", 4: "Insert jack, anna", 5: "Update sarah"},
        rows,
        {
            1: COMMITTED,
            2: COMMITTED,
            3: COMMITTED,
            4: COMMITTED,
            5: found + 'ref(name="id") == 2): [mem://t/data/data-5.parquet]',
        },
        rule="C1",
    )


# ── Vanlightly: copy-on-write ───────────────────────────────────────────────────────────────────────────────────


def _unchecked_rewrites(name: str, title: str, story: tuple[str, ...]) -> Figure:
    rows = {**_START, "data-2": ("jack, pink", "sarah, blue"), "data-3": ("jack, red", "sarah, black")}
    steps = (
        append(1, "data-1"),
        begin(2, op("overwrite", remove=["data-1"], add=["data-2"])),
        begin(3, op("overwrite", remove=["data-1"], add=["data-3"])),
    )
    return Figure(
        name,
        title,
        f"Vanlightly, figure {name}",
        story,
        life(rows, *steps, *_IN_TURN),
        {1: "Setup", 2: "Operation A", 3: "Operation B"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: COMMITTED},
        wrong="values that contradict each other",
    )


def _figure_7() -> Figure:
    story = story_steps(
        """
        - Operations A and B have both read snapshot 1. A changes jack, B changes sarah; both rewrite data-1
          as a whole.
        - A has just committed snapshot 2, in which data-2 stands for data-1. This is the moment of the
          figure.
        - B, too, says: data-1 goes, data-3 comes. It has turned no check on, so that nobody tells it that
          data-1 is gone already. Figure 8 looks at what it leaves behind.
        """
    )
    return _unchecked_rewrites("7", "Two copy-on-write updates of one file, nothing checked", story)


def _figure_8() -> Figure:
    story = story_steps(
        """
        - The same two operations as in figure 7.
        - B refreshes after A's commit, and builds on a snapshot in which data-1 is gone: there is nothing
          left to remove.
        - data-2 and data-3 are both live: jack and sarah are in the table twice, each once with a value that
          somebody had replaced.
        """
    )
    return _unchecked_rewrites("8", "What figure 7 leaves behind: rows twice, with contradicting values", story)


_THREE = {**_START, "data-2": ("anna, green",), "data-3": ("anna, black",)}


def _figure_9() -> Figure:
    steps = (append(1, "data-1", "data-2"), begin(2, rewrite(person("anna"), _SI, "data-2", "data-3")), commit(2))
    return Figure(
        "9",
        "Missing-path check: the file that is to go is there",
        "Vanlightly, figure 9",
        story_steps(
            """
            - The operation removes data-2. Reading the head's manifests it finds data-2 live, and turns
              that entry into a deleted one.
            - Every file that it wanted to remove has such an entry, so it may commit.
            """
        ),
        life(_THREE, *steps),
        {1: "Setup", 2: "The operation"},
        _THREE,
        {1: COMMITTED, 2: COMMITTED},
    )


def _figure_10() -> Figure:
    steps = (
        append(1, "data-1", "data-2"),
        begin(3, rewrite(person("anna"), _SI, "data-2", "data-3")),
        begin(2, op("delete", remove=["data-2"])),
    )
    return Figure(
        "10",
        "Missing-path check: the file that is to go is gone already",
        "Vanlightly, figure 10",
        story_steps(
            """
            - B has read snapshot 1 and wants to replace data-2. Meanwhile A deletes data-2.
            - No live entry of data-2 is left to be turned into a deleted one: B is refused.
            """
        ),
        life(_THREE, *steps, *_IN_TURN),
        {1: "Setup", 2: "Operation A", 3: "Operation B"},
        _THREE,
        {1: COMMITTED, 2: COMMITTED, 3: _missing("data-2")},
        rule="C6",
    )


# ── Vanlightly: merge-on-read ───────────────────────────────────────────────────────────────────────────────────

_MIXED = {**_START, "data-2": ("sarah, blue",), "data-3": ("sarah, black",)}
_SARAH = {"delete-1": ("data-1", "sarah, blue")}


def _mixed(name: str, title: str, story: tuple[str, ...], operation: JSON, verdict: str, rule: str) -> Figure:
    steps = (append(1, "data-1"), begin(2, rewrite(person("jack"), _SI, "data-1", "data-2")), begin(3, operation))
    return Figure(
        name,
        title,
        f"Vanlightly, figure {name}",
        story,
        life(_MIXED, *steps, *_IN_TURN, strikes=_SARAH),
        {1: "Setup", 2: "Operation A", 3: "Operation B"},
        _MIXED,
        {1: COMMITTED, 2: COMMITTED, 3: verdict},
        strikes=_SARAH,
        rule=rule,
        wrong="" if rule else "values that contradict each other",
    )


def _figure_11() -> Figure:
    story = story_steps(
        """
        - A deletes jack by copy-on-write: data-1 goes, data-2 with sarah's row comes.
        - B has read snapshot 1 and updates sarah by merge-on-read: delete-1 strikes her row out of data-1,
          data-3 has the new one.
        - data-1 was removed since B read it. Where delete-1 points there is nothing any more, so B is
          refused.
        """
    )
    update = delta(person("sarah"), _SI, Command.UPDATE, "delete-1", add=("data-3",))
    gone = "Cannot commit, missing data files: [mem://t/data/data-1.parquet]"
    return _mixed("11", "A delete file for a data file that was just removed", story, update, gone, "C4")


def _figure_12() -> Figure:
    story = story_steps(
        """
        - The same two operations as in figure 11, but B names neither the snapshot that it read nor the file
          that delete-1 is about.
        - B commits.
        - sarah is in the table twice, with the old value and with the new one, and delete-1 strikes a row out
          of a file that is no longer there.
        """
    )
    update = op("row-delta", add=["data-3"], add_deletes=["delete-1"])
    return _mixed("12", "What figure 11 would leave behind if nothing were checked", story, update, COMMITTED, "")


def _undelete() -> Figure:
    rows = {**_FRUITS, "data-2": ("jack, banana",)}
    strikes = {"delete-1": ("data-1", "jack, apple"), "delete-2": ("data-1", "jack, apple")}
    steps = (
        append(1, "data-1"),
        begin(2, delta(person("jack"), _SI, Command.UPDATE, "delete-1", add=("data-2",))),
        begin(3, delta(person("jack"), _SI, Command.DELETE, "delete-2")),
        *_IN_TURN,
    )
    return Figure(
        "undelete",
        "A row that both orders of the two commands would have removed is still there",
        'Vanlightly, "No new delete files validation"',
        story_steps(
            """
            - Writer 1 updates jack's fruit, writer 2 deletes jack; both have read snapshot 1, both write
              delete files.
            - Writer 1 commits: jack's old row is struck out, data-2 has the new one.
            - Writer 2 commits: it strikes out the old row once more and knows nothing of data-2. A DELETE
              at snapshot isolation does not ask about new delete files, and added data counts at
              serializable only.
            - jack, banana is still there: whichever command had come first, no row of jack would be left.
            """
        ),
        life(rows, *steps, strikes=strikes),
        {1: "Setup", 2: "Writer 1", 3: "Writer 2"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: COMMITTED},
        strikes=strikes,
        wrong="jack should be gone, whichever came first",
    )


def _all() -> Mapping[str, Figure]:
    figures = (
        _rebase(),
        _same_row(),
        _figure_1(),
        _figure_2(),
        _figure_3(),
        _figure_4(),
        _figure_5(),
        _figure_6(),
        _figure_7(),
        _figure_8(),
        _figure_9(),
        _figure_10(),
        _figure_11(),
        _figure_12(),
        _undelete(),
        *SKEWS,
    )
    return MappingProxyType({figure.name: figure for figure in figures})


FIGURES = _all()
"""All figures by name."""


def _of_figures() -> Mapping[str, Listed]:
    """The rows of the table that Vanlightly draws."""
    drawn = (figure for name, figure in FIGURES.items() if name.isdecimal())
    return {
        name: Listed(name, name, figure.title, {"name": name, **figure.case}, figure.expected, figure.rule)
        for name, figure in ((f"Fig{figure.name}", figure) for figure in drawn)
    }


LISTED: Mapping[str, Listed] = MappingProxyType({**_of_figures(), **TABLE, **FACTS})
"""Every interleaving with a known outcome, by name: the table's rows first, then the further facts."""
