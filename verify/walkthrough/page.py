"""The page: its text from `page.md`, figures and tables from what was run. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence

from icetower.iceberg.validation import Level
from icetower_client_model.operations import Kind
from verify.walkthrough.draw import heading
from verify.walkthrough.levels import CHANGES, FORMATS, METHODS, Line, stopped_by
from verify.walkthrough.observation import APPENDS, Observation, Writer

WIDTH = 120
HEADER = "<!-- Written by `make walkthrough`: change verify/walkthrough/page.md, or the figures, and run it again. -->"
RULES = "conflicts.md#the-rules"
ENGINES = "#what-each-engine-turns-on"
MANIFESTS_SHOWN = frozenset({"9", "10"})
"""Figures that are about the entries of manifests."""
_STATUS = ("EXISTING", "ADDED", "DELETED")
_PLACE = re.compile(r"^\{(\w+)(?: ([\w-]+))?\}$", re.MULTILINE)


def page(template: str, observations: Mapping[str, Observation], lines: Sequence[Line], version: str) -> str:
    """The page.

    Args:
        template: Markdown with places to be filled, a line each: ``{figure 5}``, ``{legend}``, ``{asks}``,
            ``{trials}``; and ``{version}`` within lines.
        courses: by figure.
        lines: what the engines ask for.
        version: of Iceberg.

    Raises:
        KeyError: a place names a figure that was not run.
        ValueError: a place is unknown, or a figure that was run has none.
    """
    shown: list[Observation] = []

    def filled(place: re.Match[str]) -> str:
        match place[1], place[2]:
            case "figure", str(name):
                before = {rule for observation in shown for rule in _rules(observation)}
                shown.append(observations[name])
                return "\n".join(_figure(observations[name], lines, before))
            case "legend", None:
                return "![How to read the drawings](figures/legend.svg)"
            case "asks", None:
                return "\n".join(_asks(lines))
            case "trials", None:
                return "\n".join(_trials(lines))
            case _:
                raise ValueError(f"the page has a place {place[0]} that nothing fills")

    filled_in = _PLACE.sub(filled, template).replace("{version}", version)
    if not_shown := observations.keys() - {observation.figure.name for observation in shown}:
        raise ValueError(f"the page has no place for {', '.join(sorted(not_shown))}")
    return f"{HEADER}\n\n{filled_in}"


# ── A figure ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rules(observation: Observation) -> Iterator[str]:
    for writer in observation.writers:
        explanation = observation.lanes[writer.id].explanation
        if writer.message and explanation is not None:
            yield explanation.rule


def _figure(observation: Observation, lines: Sequence[Line], rules_told: Collection[str]) -> Iterator[str]:
    """A section. Whom a rule stops is told where the rule comes up first."""
    figure = observation.figure
    yield f"### {heading(figure.name, figure.title)}"
    yield ""
    for at, step in enumerate(figure.story, 1):
        yield _item(f"{at}. ", step)
    yield ""
    yield f"![{figure.title}](figures/{figure.name}.svg)"
    yield ""
    for writer in observation.writers:
        if writer.message:
            yield f"Iceberg to *{writer.name}*, `{writer.error}`:"
            yield ""
            yield f"    {writer.message}"
            yield ""
    if figure.name in MANIFESTS_SHOWN:
        yield from _manifests(observation)
    yield _item("- ", f"**Asked for:** {_asked(observation.writers)}.")
    for writer in observation.writers:
        if writer.message:
            yield from _refusal(observation, writer, lines, rules_told)
    yield _item("- ", f"**A reader finds** {_found(observation)}.")
    yield f"- **Replay it:** `icetower explain --figure {figure.name}`"


def _asked(writers: Sequence[Writer]) -> str:
    """Who has asked for what; those who have asked for the same together."""
    groups: dict[str, list[str]] = {}
    for writer in writers:
        if writer.kind not in APPENDS:
            methods = METHODS.get(Kind(writer.kind), {})
            asked = _and([f"`{methods.get(check, check)}`" for check in writer.asks]) or "nothing"
            groups.setdefault(asked, []).append(f"*{writer.name}*")
    return "; ".join(f"by {_and(names)} {asked}" for asked, names in groups.items())


def _refusal(
    observation: Observation, writer: Writer, lines: Sequence[Line], rules_told: Collection[str]
) -> Iterator[str]:
    explanation = observation.lanes[writer.id].explanation
    if explanation is None:
        return
    rule = explanation.rule
    again = f" ([whom it stops]({ENGINES}))" if rule in rules_told else ""
    yield _item("- ", f"**Refused by [{rule}]({RULES})**{again}: {explanation.what} {explanation.why}")
    if not again:
        stopped = [name + (f" ({_levels(levels)})" if levels else "") for name, levels in stopped_by(lines, rule)]
        yield _item("- ", f"**Whom {rule} stops:** {'; '.join(stopped)}. See [all of them]({ENGINES}).")


def _levels(levels: Sequence[Level]) -> str:
    if set(levels) == {Level.SNAPSHOT, Level.SERIALIZABLE}:
        return "both levels"
    return _and([f"{level} only" for level in levels])


def _found(observation: Observation) -> str:
    said = "; ".join(row.text + (" (**twice**)" if row.twice else "") for row in observation.found) or "no row"
    if observation.frozen:
        return f"{said}, at the moment of the figure"
    return said + (f". **Wrong:** {observation.figure.wrong}" if observation.figure.wrong else "")


def _manifests(observation: Observation) -> Iterator[str]:
    """Every entry of the last snapshot's manifests."""
    snapshot = next(each for each in observation.outcome["snapshots"] if each["id"] == observation.after)
    yield f"The manifests of snapshot {observation.after}, as Iceberg wrote them:"
    yield ""
    yield "| manifest | entry | status | since snapshot |"
    yield "|---|---|---|---|"
    for at, manifest in enumerate(snapshot["manifests"], 1):
        for status, snapshot_id, _, _, path, *_ in manifest["entries"]:
            name = path.rpartition("/")[2].partition(".")[0]
            yield f"| {at} | {name} | {_STATUS[status]} | {snapshot_id} |"
    yield ""


# ── Engines ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _level(line: Line) -> str:
    return (line.level.value if line.level is not Level.NONE else "not set") if line.levelled else "–"


def _asks(lines: Sequence[Line]) -> Iterator[str]:
    yield "| command | level | operation | asks for |"
    yield "|---|---|---|---|"
    for line in lines:
        asks = ", ".join(f"`{name}`" for name in line.asks) or "nothing"
        yield f"| {line.name} | {_level(line)} | {line.api} | {asks} |"


def _trials(lines: Sequence[Line]) -> Iterator[str]:
    yield f"| command | level | {' | '.join(f'… {change}' for change in CHANGES)} |"
    yield f"|---|---|{'---|' * len(CHANGES)}"
    for line in lines:
        cells = " | ".join(_cell(verdicts) for verdicts in line.verdicts.values())
        yield f"| {line.name} | {_level(line)} | {cells} |"


def _cell(verdicts: Sequence[str]) -> str:
    """One verdict where all format versions agree."""
    if len(set(verdicts)) == 1:
        return verdicts[0] or "✓"
    return ", ".join(f"v{version}: {rule or '✓'}" for version, rule in zip(FORMATS, verdicts, strict=True))


# ── Words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _item(mark: str, said: str) -> str:
    """An item of a list, broken at `WIDTH`; never inside of code or a link."""
    kept = re.sub(r"`[^`]*`|\]\([^)]*\)", lambda found: found[0].replace(" ", "\0"), said)
    lines = textwrap.wrap(kept, WIDTH - len(mark), break_long_words=False, break_on_hyphens=False)
    return mark + f"\n{' ' * len(mark)}".join(lines).replace("\0", " ")


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
