"""What an agent leaves behind, and what is done about it: files that it never committed, and branches."""

from __future__ import annotations

from icetower.contracts.fields import Part, duration, listed, part, said, switch, text_like
from icetower.contracts.reading import duration_text
from icetower.counting import series

SPANS = "Such as 100ms, 30s, 10m, 24h, 7d or 2w."
REPORT, DELETE = "report", "delete"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"


@part
class Orphans(Part):
    """Files that an agent wrote and never committed: how often they are looked for, from what age, and their end."""

    detect_every_s: float = said(
        duration(), f"How often they are looked for. {SPANS}", default=86_400, name="detect_every"
    )
    older_than_s: float = said(
        duration(), f"Younger files may belong to a commit under way. {SPANS}", default=259_200, name="older_than"
    )
    delete: bool = said(switch((REPORT, DELETE), on=DELETE), "What becomes of them.", default=False, name="action")

    def __str__(self) -> str:
        end = "deleted" if self.delete else "reported"
        every, older = duration_text(self.detect_every_s), duration_text(self.older_than_s)
        return f"looked for every {every}; what is older than {older} is {end}"


@part
class Branches(Part):
    """Branches that an agent works on.

    Attributes:
        retain_s: a branch of its that nobody has written to for so long may be removed; None: its branches stay.
        checks: their names; each must have passed before a branch is published.
        checked_by: the principals that may say so; none: the one that publishes.
    """

    retain_s: float | None = said(
        duration(),
        f"A branch that was last written to so long ago may be removed. {SPANS}",
        default=None,
        name="retain",
    )
    checks: tuple[str, ...] = said(
        listed(text_like(_NAME, "is {!r}, which is no name of a check")),
        "Checks that must have passed for a branch before it is published.",
        default=(),
    )
    checked_by: tuple[str, ...] = said(
        listed(text_like(_NAME, "is {!r}, which is no principal's name")),
        "The principals whose reports on these checks count; without it those of the principal that publishes.",
        default=(),
    )

    def reporters(self, publisher: str) -> tuple[str, ...]:
        """The principals whose reports count for what one publishes."""
        return self.checked_by or (publisher,)

    def problem(self) -> tuple[str, str] | None:
        if self.checked_by and not self.checks:
            return "checked_by", "names who reports on checks where none are asked for; add 'checks'"
        return None

    def __str__(self) -> str:
        said: list[str] = []
        if self.retain_s is not None:
            said.append(f"removed when nobody has written to them for {duration_text(self.retain_s)}")
        if self.checks:
            by = f", which {series(self.checked_by, 'or')} reports" if self.checked_by else ""
            said.append(f"published after {series([f'check {name}' for name in self.checks])}{by}")
        return "; ".join(said) or "as any others"
