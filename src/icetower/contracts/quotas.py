"""What one principal may send to a table, as contracts say it."""

from __future__ import annotations

from icetower.contracts.fields import SIZE, Part, limit, number, part
from icetower.contracts.reading import size_text
from icetower.counting import counted


@part
class Quota(Part):
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
