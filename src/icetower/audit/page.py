"""A report as one HTML page, whole in itself: a timeline of the commits, edges between them, each witness. Pure.

Only the commits that are part of something, and their neighbours, are drawn; how many lie between is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from icetower.audit.findings import MEANINGS, Checked, Edge, Report, Verdict, Violation
from icetower.audit.wording import shown, time_of, writer_of
from icetower.protocol.snapshots import Snapshot

JSON = Mapping[str, Any]
NODES_MAX = 400
"""Commits that are drawn."""
LANES_MAX = 12
"""Writers with a lane of their own; all others share one."""

_STEP, _LANE, _LEFT, _TOP = 84, 46, 190, 60
_EDGE, _LIFT_MAX, _APART = 10, 170, 26
"""Edges: room above the highest, how high they bend at most, and how much higher those that point backwards do."""
_LABEL = 22
_CSS = """
:root { color-scheme: light dark; --ink: #1d2430; --faint: #6a7383; --line: #d5dae2; --back: #ffffff; --panel:
  #f5f7fa;
  --bad: #b3261e; --maybe: #9a6700; --unknown: #5b6472; --append: #2f6fb2; --overwrite: #8250c4; --delete: #b3541e;
  --replace: #3d7f4e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --faint: #98a2b3; --line: #394150; --back: #14181f;
  --panel: #1d232d; --bad: #ff8a80; --maybe: #e3b341; --unknown: #a8b1bf; --append: #78b3f0; --overwrite: #c3a1f5;
  --delete: #f0a070; --replace: #83cf97; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 68rem; padding: 0 1.25rem; }
h1 { font-size: 1.45rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; } .faint { color: var(--faint); } code { font-family: ui-monospace, monospace; font-size: .92em;
  overflow-wrap: anywhere; }
.timeline { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--panel); }
svg { display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .faint { fill:
  var(--faint); }
.lane { stroke: var(--line); } .edge { fill: none; stroke-width: 2; } .edge.definite { stroke: var(--bad); }
.edge.possible { stroke: var(--maybe); } .edge.undeterminable { stroke: var(--unknown); } .edge.rw {
  stroke-dasharray: 6 4; } marker path { fill: context-stroke; }
.append { fill: var(--append); } .overwrite { fill: var(--overwrite); } .delete { fill: var(--delete); }
.replace { fill: var(--replace); } .other { fill: var(--faint); } .ring { fill: none; stroke-width: 2.5; }
.ring.definite { stroke: var(--bad); } .ring.possible { stroke: var(--maybe); }
.ring.undeterminable { stroke: var(--unknown); }
article { border: 1px solid var(--line); border-left-width: 5px; border-radius: 6px; padding: .8rem 1.1rem; margin:
  .8rem 0; }
article.definite { border-left-color: var(--bad); } article.possible { border-left-color: var(--maybe); }
article.undeterminable { border-left-color: var(--unknown); }
article h3 { margin: 0; font-size: 1rem; } article ol { margin: .5rem 0 .3rem; padding-left: 1.4rem; }
.mark { font-size: .8rem; font-weight: 600; padding: .05rem .5rem; border-radius: 99px; border: 1px solid
  currentColor;
  margin-left: .5rem; white-space: nowrap; }
.definite .mark { color: var(--bad); } .possible .mark { color: var(--maybe); } .undeterminable .mark { color:
  var(--unknown); }
.key span { white-space: nowrap; margin-right: 1.1rem; } .key svg { display: inline; vertical-align: -2px; }
table { border-collapse: collapse; } td { padding: .12rem 1.2rem .12rem 0; vertical-align: top; }
"""


_ARROW = (
    '<defs><marker id="to" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>'
)


def page(report: Report, chain: Sequence[JSON]) -> str:
    """The report of a branch.

    Args:
        chain: the branch's snapshots, oldest first.
    """
    checked = report.checked
    timeline = _timeline(report, chain)
    counts = {verdict: sum(each.verdict is verdict for each in report.violations) for verdict in Verdict}
    found = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    headline = f"Violations: {found}" if found else "Nothing is wrong"
    violations = "\n".join(_violation(each) for each in report.violations) or "<p>Nothing was found.</p>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in checked.undeterminable)
    unknown = f"<h2>What cannot be determined</h2><ul>{notes}</ul>" if notes else ""
    title = f"Audit of {checked.table.rpartition('/')[2]}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_CSS}</style></head><body>
<h1>{escape(headline)}</h1>
<p class="faint"><code>{escape(checked.table)}</code></p>
{_facts(checked)}
<h2>The commits</h2>
{timeline}
<h2>What was found</h2>
{violations}
{unknown}
</body></html>
"""


def _facts(checked: Checked) -> str:
    reads = ", ".join(f"{count} {word}" for word, count in checked.reads.items() if count) or "none"
    begins = " (the history before has expired)" if checked.expired and not checked.resumed else ""
    begins = " (an earlier audit had looked at those before)" if checked.resumed else begins
    rows = (
        ("branch", checked.branch),
        ("snapshots checked", f"{checked.snapshots}, from {checked.first} to {checked.head}{begins}"),
        ("what they had read", reads),
        ("manifests opened", str(checked.manifests_read)),
        ("contents", "data and delete files were opened" if checked.content else "manifests alone"),
    )
    return "<table>" + "".join(f"<tr><td class=faint>{k}</td><td>{escape(v)}</td></tr>" for k, v in rows) + "</table>"


def _violation(violation: Violation) -> str:
    steps = "".join(f"<li>{escape(step)}</li>" for step in violation.witness)
    files = "".join(f"<div><code>{escape(path)}</code></div>" for path in violation.files)
    details = f"<details><summary class=faint>files</summary>{files}</details>" if files else ""
    return (
        f'<article class="{violation.verdict}"><h3>{escape(violation.rule)}<span class=mark>{violation.verdict}</span>'
        f"</h3><p class=faint>{escape(MEANINGS[violation.rule])}</p><ol>{steps}</ol>{details}</article>"
    )


# ── The timeline ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Node:
    snapshot: JSON
    x: int
    y: int


def drawn(report: Report, chain: Sequence[JSON]) -> list[int]:
    """Which snapshots of a branch the page draws: their positions."""
    return _positions(chain, _verdicts(report))


def _verdicts(report: Report) -> dict[int, Verdict]:
    verdicts: dict[int, Verdict] = {}
    for each in sorted(report.violations, key=lambda each: list(Verdict).index(each.verdict), reverse=True):
        verdicts.update(dict.fromkeys(each.snapshots, each.verdict))
    return verdicts


def _timeline(report: Report, chain: Sequence[JSON]) -> str:
    verdicts = _verdicts(report)
    shown_at = _positions(chain, verdicts)
    if not shown_at:
        return "<p>There are no commits.</p>"
    lanes = _lanes(chain[at] for at in shown_at)
    places: dict[int, _Node] = {}
    gaps: list[tuple[int, int]] = []
    x, before = _LEFT, -1
    for at in shown_at:
        if at > before + 1:
            gaps.append((x, at - before - 1))
            x += _STEP
        lane = lanes.get(_writer(chain[at]), len(lanes) - 1)
        places[chain[at]["snapshot-id"]] = _Node(chain[at], x, lane * _LANE)
        x, before = x + _STEP, at
    if before < len(chain) - 1:
        gaps.append((x, len(chain) - 1 - before))
        x += _STEP
    bends = list(_bends(report, places))
    top = max(_TOP, *(_EDGE - bend.peak for bend in bends)) if bends else _TOP
    parts = [
        *_drawn_lanes(lanes, x),
        *(f'<text class=faint x="{at - 6}" y="-26">… {n} more</text>' for at, n in gaps),
        *(_drawn_edge(report, bend) for bend in bends),
        *(part for node in places.values() for part in _drawn_node(node, verdicts.get(node.snapshot["snapshot-id"]))),
    ]
    width, height = x + 30, top + len(lanes) * _LANE + 10
    svg = (
        f'<svg width="{width}" height="{height}" role="img" aria-label="the commits in order">{_ARROW}'
        f'<g transform="translate(0 {top})">{"".join(parts)}</g></svg>'
    )
    return f'<div class="timeline">{svg}</div>{_key()}'


def _positions(chain: Sequence[JSON], verdicts: Mapping[int, Verdict]) -> list[int]:
    """Which commits are drawn: those that are part of something, their neighbours, and the newest."""
    wanted: set[int] = set()
    for at, snapshot in enumerate(chain):
        if snapshot["snapshot-id"] in verdicts:
            wanted |= {at - 1, at, at + 1}
    wanted |= set(range(max(len(chain) - 8, 0), len(chain)))
    return sorted(at for at in wanted if 0 <= at < len(chain))[:NODES_MAX]


def _writer(snapshot: JSON) -> str:
    return writer_of(snapshot) or "not known"


def _lanes(snapshots: Iterable[JSON]) -> dict[str, int]:
    """A row for each writer, in the order in which they come."""
    lanes: dict[str, int] = {}
    for snapshot in snapshots:
        writer = _writer(snapshot)
        if writer not in lanes and len(lanes) == LANES_MAX:
            lanes.setdefault("others", LANES_MAX)
        elif len(lanes) < LANES_MAX:
            lanes.setdefault(writer, len(lanes))
    return lanes


def _drawn_lanes(lanes: Mapping[str, int], width: int) -> Iterable[str]:
    for writer, lane in lanes.items():
        y = lane * _LANE
        label = shown(writer)
        label = label if len(label) <= _LABEL else label[: _LABEL - 1] + "…"
        yield f'<line class=lane x1="{_LEFT - 20}" x2="{width}" y1="{y}" y2="{y}"/>'
        yield f'<text x="12" y="{y + 4}"><title>{escape(writer)}</title>{escape(label)}</text>'


@dataclass(frozen=True, slots=True)
class _Bend:
    """An edge as a curve over the commits between its ends; `control` is where it is pulled to."""

    edge: Edge
    one: _Node
    other: _Node
    control: int

    @property
    def peak(self) -> int:
        """How high it comes, at most."""
        return (self.control + min(self.one.y, self.other.y)) // 2 - 9


def _bends(report: Report, places: Mapping[int, _Node]) -> Iterable[_Bend]:
    for edge in report.edges:
        one, other = places.get(edge.of), places.get(edge.to)
        if one is not None and other is not None:
            lift = min(40 + abs(one.x - other.x) // 4, _LIFT_MAX) + (_APART if one.x > other.x else 0)
            yield _Bend(edge, one, other, min(one.y, other.y) - lift)


def _drawn_edge(report: Report, bend: _Bend) -> str:
    edge, one, other = bend.edge, bend.one, bend.other
    aside = 5 if one.x < other.x else -5
    path = f"M {one.x + aside} {one.y - 13} Q {(one.x + other.x) // 2} {bend.control} {other.x - aside} {other.y - 14}"
    kinds = f"edge {edge.kind} {_verdict_of(report, edge)}"
    return f'<path class="{kinds}" d="{path}" marker-end="url(#to)"><title>{escape(_edge_words(edge))}</title></path>'


def _edge_words(edge: Edge) -> str:
    if edge.kind == "rw":
        return f"snapshot {edge.of} has not seen what snapshot {edge.to} wrote where it read"
    if edge.kind == "wr":
        return f"snapshot {edge.to} has read what snapshot {edge.of} wrote"
    return f"snapshots {edge.of} and {edge.to} wrote the same"


def _verdict_of(report: Report, edge: Edge) -> Verdict:
    ends = {edge.of, edge.to}
    return next((each.verdict for each in report.violations if ends <= set(each.snapshots)), Verdict.POSSIBLE)


def _drawn_node(node: _Node, verdict: Verdict | None) -> Iterable[str]:
    operation = Snapshot(node.snapshot).operation or "other"
    kind = operation if operation in ("append", "overwrite", "delete", "replace") else "other"
    identity = str(node.snapshot["snapshot-id"])
    words = " · ".join(
        filter(None, (f"snapshot {identity}", operation, _writer(node.snapshot), time_of(node.snapshot)))
    )
    if verdict is not None:
        yield f'<circle class="ring {verdict}" cx="{node.x}" cy="{node.y}" r="12"/>'
    yield f'<circle class="{kind}" cx="{node.x}" cy="{node.y}" r="8"><title>{escape(words)}</title></circle>'
    label = identity if len(identity) <= 8 else f"…{identity[-6:]}"
    yield f'<text class=faint x="{node.x}" y="{node.y + 25}" text-anchor="middle">{label}</text>'


def _key() -> str:
    dots = "".join(
        f'<span><svg width="12" height="12"><circle class="{kind}" cx="6" cy="6" r="5"/></svg> {kind}</span>'
        for kind in ("append", "overwrite", "delete", "replace")
    )
    lines = "".join(
        f'<span><svg width="30" height="12"><path class="edge {kind} definite" d="M0 6 H30"/></svg> {words}</span>'
        for kind, words in (("ww", "wrote the same"), ("rw", "has not seen what the other wrote"))
    )
    return f'<p class="key faint">{dots}{lines}</p>'
