"""Contracts for a table of which the rows are known: regions that hold some of them and cut through others."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from icetower.contracts.model import Operation
from verify.oracle import values
from verify.oracle.cases import Case, Extent, Region, Row, Rule, Term
from verify.oracle.tables import applied

OPERATIONS = (
    *((Operation.OVERWRITE,),) * 8,
    *((Operation.APPEND,), (Operation.DELETE,), (Operation.REPLACE,), (Operation.APPEND, Operation.DELETE)),
    *((Operation.READ,), (Operation.APPEND, Operation.REPLACE), (Operation.OVERWRITE, Operation.ALTER)),
)


class Contracts:
    """Draws rules for a table of which the rows are known."""

    def __init__(self, rng: Random, made: Case, rows: Sequence[Row]) -> None:
        self._rng = rng
        self._case = made
        self._rows = rows

    def rules(self) -> tuple[Rule, ...]:
        prove = self._rng.random() < 0.1
        return tuple(self._rule(prove=prove) for _ in range(self._rng.choices((1, 2, 3), (6, 3, 2))[0]))

    def _rule(self, *, prove: bool) -> Rule:
        rng = self._rng
        operations = frozenset(rng.choice(OPERATIONS))
        regions = None if rng.random() < 0.15 else self._regions(rng.choices((1, 2, 3, 0), (8, 6, 3, 0.2))[0])
        excluded = self._regions(rng.choice((1, 1, 2))) if regions != () and rng.random() < 0.25 else ()
        return Rule(operations, regions, excluded, prove)

    def _regions(self, count: int) -> tuple[Region, ...]:
        """Regions of the same terms lie beside each other, as people write them; others have terms of their own."""
        found: list[Region] = []
        for _ in range(count):
            if found and self._rng.random() < 0.5:
                found.append(tuple((term, self._extent(term)) for term, _ in found[-1]))
            else:
                found.append(self._region())
        return tuple(found)

    def _region(self) -> Region:
        terms = dict.fromkeys(self._term() for _ in range(self._rng.choice((1, 1, 1, 2))))
        named = {str(term): term for term in terms}
        return tuple((term, self._extent(term)) for _, term in sorted(named.items()))

    def _term(self) -> Term:
        rng, case = self._rng, self._case
        fields = [field for spec in case.specs for field in spec]
        field = rng.choice(fields) if fields and rng.random() < 0.9 else None
        if field is not None and field.transform != "void" and rng.random() < 0.4:
            return Term(field.name)
        at = rng.randrange(len(case.columns)) if field is None else field.column
        column = case.columns[at]
        transform = field.transform if field is not None and rng.random() < 0.35 else "void"
        if transform == "void":
            transform = rng.choice(values.transforms_of(column.kind))
        return Term(column.name or column.before or "gone", transform)

    def _extent(self, term: Term) -> Extent:
        rng = self._rng
        transform, at = self._meaning(term)
        kind = self._case.columns[at].kind
        if (transform in values.TIMES or kind.startswith("timestamp")) and rng.random() < 0.12:
            return self._relative(transform)
        found = list(dict.fromkeys(applied(transform, kind, row[at]) for row in self._rows))
        known = sorted(value for value in found if value is not None)
        if not known or (transform.startswith("bucket") and rng.random() < 0.5) or rng.random() < 0.35:
            chosen = rng.sample(found, rng.randint(1, len(found)))
            if transform.startswith("bucket"):
                chosen += [bucket for bucket in range(int(transform[7:-1])) if rng.random() < 0.4]
            texts = [None if v is None else values.text_of(transform, kind, v) for v in dict.fromkeys(chosen)]
            written = tuple(t for t, v in zip(texts, dict.fromkeys(chosen), strict=True) if v is None or t is not None)
            return Extent(written or (None,))
        return self._range(transform, kind, known)

    def _range(self, transform: str, kind: str, known: list[Any]) -> Extent:
        rng = self._rng
        low, high = sorted((rng.randrange(len(known)), rng.randrange(len(known))))
        end = known[high] if high > low and rng.random() < 0.6 else _next(kind, known[high])
        start_text, end_text = (values.text_of(transform, kind, value) for value in (known[low], end))
        if transform in values.TIMES[1:] and rng.random() < 0.3:  # a coarser beginning
            start_text = start_text and start_text[: rng.choice((4, 7))]
        if transform.startswith("bucket") and end > int(transform[7:-1]):
            end_text = None
        if start_text is not None and end_text is not None and rng.random() < 0.35:
            start_text, end_text = rng.choice(((start_text, None), (None, end_text)))
        if start_text is None and end_text is None:
            return Extent((None,))
        return Extent(None, start_text, end_text)

    def _relative(self, transform: str) -> Extent:
        unit = {"hour": "h", "day": "d", "month": "w", "year": "w"}.get(transform, self._rng.choice("mh"))
        if self._rng.random() < 0.2 and transform != "identity":
            return Extent(("now",))
        start, length = self._rng.choice((-30, -2, -1, 0)), self._rng.choice((1, 2, 30))
        return Extent(None, f"now{start}{unit}" if start else "now", f"now{start + length:+d}{unit}")

    def _meaning(self, term: Term) -> tuple[str, int]:
        """One of the things that a term may mean; others than this may find its texts unreadable."""
        if term.transform is not None:
            some = [at for at, c in enumerate(self._case.columns) if (c.name or c.before) == term.name]
            fit = [at for at in some if term.transform in values.transforms_of(self._case.columns[at].kind)]
            return term.transform, self._rng.choice(fit)
        fields = [field for spec in self._case.specs for field in spec]
        field = next(field for field in fields if field.name == term.name and field.transform != "void")
        return field.transform, field.column


def _next(kind: str, value: Any) -> Any:
    """A value somewhat above: the end of a range that holds it."""
    if isinstance(value, str):
        return value + "a"
    if isinstance(value, bytes):
        if kind == "binary":
            return value + b"\x00"
        return min(int.from_bytes(value) + 1, 256 ** len(value) - 1).to_bytes(len(value))
    return value + 1
