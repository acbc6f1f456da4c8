"""What restrains the writes to a table: quotas, and the guard on overwrites that nobody can have meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from icetower.contracts.fields import SIZE, Part, fields_of, limit, number, part
from icetower.contracts.reading import size_text
from icetower.counting import counted

GUARD_ABOVE_ROWS = 1_000
"""An overwrite that adds no more rows than this is not looked at, unless the contract gives another number."""


class Limits(Part):
    """A part of limits alone: of several the strictest holds, and None stands where nothing is said."""

    __slots__ = ()

    @classmethod
    def strictest(cls, several: Iterable[Self]) -> Self:
        """What several come to."""
        several = tuple(several)
        said = ([v for limits in several if (v := getattr(limits, name)) is not None] for name in fields_of(cls))
        make: Callable[..., Self] = cls
        return make(*(min(values, default=None) for values in said))


@part
class Quota(Limits):
    """What one principal may send to a table; None where nothing is said."""

    commits_per_minute: int | None = limit(
        number(1), "Commits in a minute.", lambda count: f"{counted(count, 'commit')} a minute"
    )
    files_per_commit: int | None = limit(
        number(1),
        "Files that one commit adds: data files and delete files. Those that it removes do not count.",
        lambda count: f"{counted(count, 'file')} a commit",
    )
    bytes_per_commit: int | None = limit(
        SIZE,
        "Bytes of the files that one commit adds, such as 1048576, 512MiB or 1GiB.",
        lambda size: f"{size_text(size)} a commit",
    )


@part
class Guard(Limits):
    """Overwrites that nobody can have meant; None where nothing is said."""

    times: int | None = limit(
        number(1),
        "An overwrite adds at most so many times the rows that it removes. More waits for a person's approval.",
        lambda times: f"{times} rows added for each row that an overwrite removes",
    )
    above: int | None = limit(
        number(1),
        f"An overwrite that adds no more rows than this is not looked at; {GUARD_ABOVE_ROWS} without it.",
        lambda rows: f"{counted(rows, 'row')} that an overwrite adds unguarded",
    )

    def problem(self) -> tuple[str, str] | None:
        if self.above is not None and self.times is None:
            return "above", "says above how many rows overwrites are looked at, and nothing says for what; add 'times'"
        return None

    @property
    def above_rows(self) -> int:
        """Overwrites that add more rows than this are looked at."""
        return GUARD_ABOVE_ROWS if self.above is None else self.above
