"""Write skew: two writers each keep a rule, and together they break it. The skews that the levels allow, as figures.

Neither document has these. Snapshot isolation is known to allow write skew; some of it passes even at the level that
Iceberg calls serializable, contrary to its name.
"""

from __future__ import annotations

from icetower.iceberg.validation import Level
from icetower_client_model.interleavings import COMMITTED
from icetower_client_model.isolation import Command
from icetower_client_model.picture import Figure, delta, life, person, rewrite, story_steps
from icetower_client_model.sketch import append, begin, commit, eq

_SI, _SERIALIZABLE = Level.SNAPSHOT, Level.SERIALIZABLE


def _recoloured(name: str, title: str, level: Level, ending: str, verdict: str, rule: str) -> Figure:
    """All red rows become blue, while all blue rows become red."""
    rows = {"data-1": ("jack, red",), "data-2": ("sarah, blue",), "data-3": ("jack, blue",), "data-4": ("sarah, red",)}
    steps = (
        append(1, "data-1", "data-2"),
        begin(2, rewrite(eq("category", "red"), level, "data-1", "data-3")),
        begin(3, rewrite(eq("category", "blue"), level, "data-2", "data-4")),
    )
    story = f"""
        - Writer 1 makes everything red blue, writer 2 makes everything blue red. Both have read snapshot 1.
        - One after the other, they would leave one colour, whichever goes first.
        - {ending}
        """
    return Figure(
        name,
        title,
        "write skew; in neither document",
        story_steps(story),
        life(rows, *steps, commit(2), commit(3)),
        {1: "Setup", 2: "Writer 1", 3: "Writer 2"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: verdict},
        rule=rule,
        wrong="" if rule else "neither order of the two gives this",
    )


def _skew() -> Figure:
    ending = "They replace different files, so both commit: the colours have changed places, which neither order gives."
    return _recoloured("skew", "Write skew at snapshot isolation", _SI, ending, COMMITTED, "")


def _skew_serializable() -> Figure:
    ending = "Writer 2 is told of data-3: it is blue, and would have been repainted. Run again, it leaves all red."
    where = 'ref(name="category") == "blue"'
    found = f"Found conflicting files that can contain records matching {where}: [mem://t/data/data-3.parquet]"
    return _recoloured(
        "skew-serializable", "Write skew, serializable: the second one is refused", _SERIALIZABLE, ending, found, "C1"
    )


_ON_CALL = {"data-1": ("jack, on call",), "data-2": ("sarah, on call",)}


def _skew_subquery() -> Figure:
    rows = {**_ON_CALL, "data-3": ("jack, off",), "data-4": ("sarah, off",)}
    steps = (
        append(1, "data-1", "data-2"),
        begin(2, rewrite(person("jack"), _SERIALIZABLE, "data-1", "data-3")),
        begin(3, rewrite(person("sarah"), _SERIALIZABLE, "data-2", "data-4")),
    )
    return Figure(
        "skew-subquery",
        "Serializable, but the rule was read by a subquery: nobody is on call",
        "write skew; in neither document",
        story_steps(
            """
            - Somebody must be on call. jack signs off if a subquery counts two people on call; sarah does the
              same at the same time. Both count two.
            - The filter of jack's update is his own row, and that is all that Iceberg hears of. What the
              subquery has read is in no filter.
            - Each adds data outside of the other's filter and replaces another file: both commit, at the
              strictest level that there is.
            """
        ),
        life(rows, *steps, commit(2), commit(3)),
        {1: "Setup", 2: "jack signs off", 3: "sarah signs off"},
        rows,
        {1: COMMITTED, 2: COMMITTED, 3: COMMITTED},
        wrong="nobody is on call",
    )


def _skew_deletes() -> Figure:
    strikes = {"delete-1": ("data-1", "jack, on call"), "delete-2": ("data-2", "sarah, on call")}
    where = eq("category", "on call")
    steps = (
        append(1, "data-1", "data-2"),
        begin(2, delta(where, _SERIALIZABLE, Command.DELETE, "delete-1")),
        begin(3, delta(where, _SERIALIZABLE, Command.DELETE, "delete-2", of="data-2")),
    )
    return Figure(
        "skew-deletes",
        "Two serializable merge-on-read DELETEs: the filter covers everything, and still nobody is told",
        "write skew; in neither document",
        story_steps(
            """
            - The same rule, kept by DELETEs that write delete files. This time the filter of both is everybody
              on call.
            - Serializable minds data that was added. A DELETE adds none, and it does not ask for new delete
              files.
            - Both commit: nobody is on call.
            """
        ),
        life(_ON_CALL, *steps, commit(2), commit(3), strikes=strikes),
        {1: "Setup", 2: "jack signs off", 3: "sarah signs off"},
        _ON_CALL,
        {1: COMMITTED, 2: COMMITTED, 3: COMMITTED},
        strikes=strikes,
        wrong="nobody is on call",
    )


SKEWS = (_skew(), _skew_serializable(), _skew_subquery(), _skew_deletes())
"""From the skew that is known to be allowed to the least expected one."""
