"""What random cases are made of: specs, rows, files with their statistics, and filters.

A file is invented from a handful of rows. Its partition tuple and its statistics follow from them, so that filters
mean something: whether all, some or none of its rows match can be told without asking Iceberg. Bucket numbers are the
exception: they are made up (a partition tuple is believed), as nothing here may depend on what is tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Field = dict[str, str]
Spec = list[Field]
Row = dict[str, Any]
Expression = Any
"""Iceberg's expression JSON: a dict, True or False."""

COLUMN_IDS = {"id": 1, "category": 2, "amount": 3, "day": 4, "price": 5}
EPOCH = date(1970, 1, 1)
NAN = "NaN"
"""A double that is not a number, as the case format writes it."""

# Domains are tiny, so that files meet. The days lie in two months and two years.
DOMAINS: dict[str, tuple[Any, ...]] = {
    "id": tuple(range(1, 13)),
    "category": ("a", "b", "ab", "c", None),
    "amount": (0, 1, 4, 5, 9, -3, None),
    "day": (18262, 18263, 18293, 18628, None),
    "price": (0.0, 1.5, 2.5, -1.0, NAN, None),
}

# Values at the edges of what Java and Iceberg do: code points of two units, days before 1970, the other zero.
EDGES: dict[str, tuple[Any, ...]] = {
    "category": ("", "é", "𐍈x", "\uffff"),
    "day": (-1, -31, -366, 0),
    "price": (-0.0, 1e300),
}
# These only stand in filters: no truncated partition could hold them.
LIMITS: dict[str, tuple[Any, ...]] = {"amount": (-(2**31), 2**31 - 1), "id": (-(2**63), 2**63 - 1)}

SPECS: dict[str, tuple[Spec, ...]] = {
    "unpartitioned": ([],),
    "identity": (
        [{"column": "category", "transform": "identity"}],
        [{"column": "amount", "transform": "identity"}],
        [{"column": "day", "transform": "identity"}],
        [{"column": "price", "transform": "identity"}],
    ),
    "bucket": (
        [{"column": "id", "transform": "bucket[2]"}],
        [{"column": "category", "transform": "bucket[3]"}],
        [{"column": "day", "transform": "bucket[2]"}],
    ),
    "truncate": (
        [{"column": "category", "transform": "truncate[1]"}],
        [{"column": "amount", "transform": "truncate[5]"}],
        [{"column": "id", "transform": "truncate[4]"}],
    ),
    "day": (
        [{"column": "day", "transform": "day"}],
        [{"column": "day", "transform": "month"}],
        [{"column": "day", "transform": "year"}],
    ),
    "void": ([{"column": "category", "transform": "void"}],),
    "two": (
        [{"column": "category", "transform": "identity"}, {"column": "id", "transform": "bucket[2]"}],
        [{"column": "day", "transform": "month"}, {"column": "category", "transform": "truncate[1]"}],
        [{"column": "category", "transform": "void"}, {"column": "amount", "transform": "identity"}],
    ),
}
"""The kinds of specs and their examples."""
SPEC_WEIGHTS = {"unpartitioned": 5, "identity": 6, "bucket": 2, "truncate": 2, "day": 2, "void": 1, "two": 3}

STATISTICS = {"none": 4, "tight": 8, "partial": 3, "wide": 2, "counts": 2, "bounds": 2}
"""How much a file says of its columns, and how often."""


def pick(rng: Random, weights: Mapping[str, float]) -> str:
    """One key of `weights`, by weight. The order of the mapping matters to reproduction, so it is given literally."""
    return rng.choices(list(weights), list(weights.values()))[0]


def chance(rng: Random, share: float) -> bool:
    """True in `share` (0 to 1) of the calls."""
    return rng.random() < share


def some(rng: Random, items: Sequence[T], most: int) -> list[T]:
    """Between one and `most` different items, in random order; none if there are none."""
    return rng.sample(items, min(len(items), rng.randint(1, most))) if items else []


def partition_value(field: Field, row: Row) -> Any:
    """The raw partition value of a row: Iceberg's transforms, except that a bucket is made up of the value's text."""
    value, transform = row[field["column"]], field["transform"]
    if value is None or transform == "void":
        return None
    kind, _, width = transform.rstrip("]").partition("[")
    if kind == "bucket":
        return sum(str(value).encode()) % int(width)
    if kind == "truncate":
        return value[: int(width)] if isinstance(value, str) else value - value % int(width)
    if kind in {"year", "month"}:
        on = EPOCH + timedelta(days=value)
        return on.year - 1970 if kind == "year" else (on.year - 1970) * 12 + on.month - 1
    return value


def partition_of(spec: Spec, row: Row) -> list[Any]:
    """The partition tuple of a row."""
    return [partition_value(field, row) for field in spec]


def order(value: Any) -> Any:
    """A value as something that Python compares as Java does: NaN after every other double, -0.0 before 0.0."""
    if value == NAN:
        return (math.inf, 1.0)
    return (value, math.copysign(1.0, value)) if isinstance(value, float) else value


def statistics(rng: Random, rows: Sequence[Row], style: str) -> dict[str, Any] | None:
    """The metrics of a file with these rows in one of `STATISTICS`' styles, or None for none at all."""
    if style == "none":
        return None
    out: dict[str, dict[str, Any]] = {"values": {}, "nulls": {}, "nans": {}, "lower": {}, "upper": {}}
    for column, number in COLUMN_IDS.items():
        key = str(number)
        values = [row[column] for row in rows]
        known = sorted((value for value in values if value not in (None, NAN)), key=order)
        out["values"][key] = len(values)
        out["nulls"][key] = values.count(None)
        if column == "price":
            out["nans"][key] = values.count(NAN)
        if known:
            out["lower"][key], out["upper"][key] = known[0], known[-1]
        elif NAN in values and chance(rng, 0.3):  # what older writers left behind
            out["lower"][key] = out["upper"][key] = NAN
        if style == "wide" and known:
            out["lower"][key], out["upper"][key] = _widened(rng, known[0], known[-1])
        if style == "partial":
            for part in out.values():
                if chance(rng, 0.4):
                    part.pop(key, None)
    keep = {"counts": ("values", "nulls", "nans"), "bounds": ("lower", "upper")}.get(style, tuple(out))
    return {part: out[part] for part in keep if out[part]} or None


def _widened(rng: Random, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Bounds that are true, but not met by any row: writers may cut long values."""
    if isinstance(lower, str):
        return lower[: rng.randint(0, len(lower))], upper + "z"
    return lower - rng.randint(0, 2), upper + rng.randint(0, 2)


def literal(column: str, value: Any) -> Any:
    """A raw value as the literal of an expression: dates are text there."""
    return (EPOCH + timedelta(days=value)).isoformat() if column == "day" else value


def predicate(kind: str, column: str, *values: Any) -> Expression:
    """One predicate in Iceberg's expression JSON."""
    out: dict[str, Any] = {"type": kind, "term": column}
    if kind in {"in", "not-in"}:
        out["values"] = [literal(column, value) for value in values]
    elif values:
        out["value"] = literal(column, values[0])
    return out


def joined(kind: str, expressions: Iterable[Expression]) -> Expression:
    """The expressions under nested `and`s or `or`s; true (or false) if there are none."""
    out: Expression = None
    for expression in expressions:
        out = expression if out is None else {"type": kind, "left": out, "right": expression}
    return (kind == "and") if out is None else out


def equals(column: str, value: Any) -> Expression:
    """Rows whose column has this value, null and NaN included."""
    if value is None:
        return predicate("is-null", column)
    return predicate("is-nan", column) if value == NAN else predicate("eq", column, value)


def holds(expression: Expression, row: Row) -> bool:
    """Does a row match? Close to SQL: a null matches no comparison, but does match its negation."""
    if isinstance(expression, bool):
        return expression
    kind = expression["type"]
    if kind in {"and", "or"}:
        left, right = holds(expression["left"], row), holds(expression["right"], row)
        return (left and right) if kind == "and" else (left or right)
    if kind == "not":
        return not holds(expression["child"], row)
    column = expression["term"]
    value = row[column]
    if kind in {"is-null", "not-null"}:
        return (value is None) == (kind == "is-null")
    if kind in {"is-nan", "not-nan"}:
        return (value == NAN) == (kind == "is-nan")
    negated = kind.startswith("not-")
    if value is None:
        return negated
    mine = literal(column, value)
    if kind in {"in", "not-in"}:
        return (mine in expression["values"]) != negated
    other = expression["value"]
    if kind in {"starts-with", "not-starts-with"}:
        return mine.startswith(other) != negated
    mine, other = order(mine), order(other)
    return {
        "eq": mine == other, "not-eq": mine != other, "lt": mine < other,
        "lt-eq": mine <= other, "gt": mine > other, "gt-eq": mine >= other,
    }[kind]  # fmt: skip


class Material:
    """Invents the files and filters of one case; `files` is what the case will name."""

    def __init__(self, rng: Random, specs: Sequence[Spec]) -> None:
        self.rng = rng
        self.specs = specs
        self.files: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[Row]] = {}
        self.notes: list[str] = []
        self._counts: dict[str, int] = {}

    # --- files -------------------------------------------------------------------------------------------------

    def data(self, spec: int, like: str | None = None, records: int | None = None) -> str:
        """A new data file of the spec; `like` an old one, it shares its partition (if the specs agree) and range."""
        rows = self._rows(spec, self.rows.get(like or "", []))
        if records is None and chance(self.rng, 0.01):
            records = 0
        if records is not None:
            rows = (rows * max(records, 1))[:records]
        return self._file("data", "D", spec, partition_of(self.specs[spec], rows[0]) if rows else None, rows, records)

    def vector(self, target: str) -> str:
        """A new deletion vector for a data file; now and then with another partition than the file's."""
        return self._for("dv", "V", target, {"references": target}, astray=0.2)

    def position_deletes(self, target: str, other: str | None = None) -> str:
        """New v2 position deletes for a data file: by partition, by reference, by path bounds, equal or not."""
        scope = pick(self.rng, {"partition": 5, "reference": 3, "path": 3, "paths": 1})
        extra: dict[str, Any] = {}
        if scope == "reference":
            extra["references"] = target
        elif scope in {"path", "paths"}:
            last = other if scope == "paths" and other else target
            extra["path_bounds"] = sorted((target, last))
        self.notes.append(f"position deletes:{scope}")
        return self._for("position-deletes", "P", target, extra, astray=0.15 if extra else 0.04)

    def equality_deletes(self, target: str | None, spec: int) -> str:
        """New equality deletes in the target's partition, or global ones if spec 0 has no partition fields."""
        if target is None or (not self.specs[0] and chance(self.rng, 0.4)):
            spec, rows = (spec if target is None else 0), self._rows(spec, self.rows.get(target or "", []))
        else:
            spec = self.files[target]["spec"]
            rows = self._rows(spec, self.rows[target]) if chance(self.rng, 0.5) else self.rows[target][:1]
        columns = self.rng.choice((["id"], ["id"], ["category"], ["amount"], ["id", "category"], ["price"], ["day"]))
        kept = [{column: row[column] if column in columns else None for column in COLUMN_IDS} for row in rows]
        partition = partition_of(self.specs[spec], rows[0]) if rows else None
        if target is not None and spec == self.files[target]["spec"]:
            partition = self.files[target]["partition"]
        name = self._file("equality-deletes", "E", spec, partition, kept, len(kept))
        self.files[name]["equality_ids"] = [COLUMN_IDS[column] for column in columns]
        metrics = self.files[name].get("metrics")
        if metrics:
            ids = {str(COLUMN_IDS[column]) for column in columns}
            trimmed = {part: {key: value for key, value in of.items() if key in ids} for part, of in metrics.items()}
            self.files[name]["metrics"] = {part: of for part, of in trimmed.items() if of}
        return name

    def _for(self, content: str, letter: str, target: str, extra: dict[str, Any], astray: float) -> str:
        aim = self.files[target]
        spec, partition = aim["spec"], aim["partition"]
        if chance(self.rng, astray):
            spec = self.rng.randrange(len(self.specs)) if chance(self.rng, 0.3) else spec
            partition = partition_of(self.specs[spec], self._rows(spec, [])[0])
        name = self._file(content, letter, spec, partition, [], 1)
        self.files[name].update(extra)
        return name

    def _file(
        self, content: str, letter: str, spec: int, partition: list[Any] | None, rows: list[Row], records: int | None
    ) -> str:
        number = self._counts[letter] = self._counts.get(letter, 0) + 1
        name = f"{letter}{number}"
        if partition is None:
            partition = partition_of(self.specs[spec], self._rows(spec, [])[0])
        out: dict[str, Any] = {"content": content, "spec": spec, "partition": partition}
        out["records"] = len(rows) if records is None else records
        if rows:
            style = pick(self.rng, STATISTICS)
            self.notes.append(f"statistics:{style}")
            metrics = statistics(self.rng, rows, style)
            if metrics is not None:
                out["metrics"] = metrics
        self.files[name], self.rows[name] = out, rows
        return name

    def _rows(self, spec: int, like: Sequence[Row]) -> list[Row]:
        """One to three rows of one partition, near to others if there are any."""
        first = dict(self.rng.choice(like)) if like and chance(self.rng, 0.8) else self._row()
        held = {field["column"] for field in self.specs[spec] if field["transform"] != "void"}
        rows = [first]
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            row = self._row()
            rows.append(row | {column: first[column] for column in held})
        return rows

    def _row(self) -> Row:
        row = {column: self.rng.choice(domain) for column, domain in DOMAINS.items()}
        if chance(self.rng, 0.06):
            column = self.rng.choice(tuple(EDGES))
            row[column] = self.rng.choice(EDGES[column])
        return row

    # --- filters -----------------------------------------------------------------------------------------------

    def filter(self, target: str | None = None) -> Expression:
        """A filter: of a partition, of statistics, mixed, nested, true or false; often one that a file's rows match."""
        shape = pick(
            self.rng,
            {"partition": 4, "all rows": 3, "one": 5, "both": 3, "either": 2, "not": 2, "true": 2, "false": 0.5},
        )
        if target is None and shape in {"partition", "all rows"}:
            shape = "one"
        self.notes.append(f"filter:{shape}")
        match shape:
            case "partition":
                return self.of_partition(target or "")
            case "all rows":
                return self.of_rows(target or "")
            case "one":
                return self._predicate(target)
            case "both" | "either":
                parts = [self._predicate(target) for _ in range(self.rng.choice((2, 2, 3)))]
                return joined("and" if shape == "both" else "or", parts)
            case "not":
                inner = self.filter(target) if chance(self.rng, 0.3) else self._predicate(target)
                return {"type": "not", "child": inner}
            case _:
                return shape == "true"

    def of_partition(self, target: str) -> Expression:
        """The filter that says which partition a file is in, as far as its rows tell; true if it has none."""
        held = [
            (field["column"], field["transform"])
            for field in self.specs[self.files[target]["spec"]]
            if field["transform"] != "void"
        ]
        row = (self.rows[target] or [self._row()])[0]
        return joined("and", [self._near(column, transform, row[column]) for column, transform in held])

    def _near(self, column: str, transform: str, value: Any) -> Expression:
        if value is None or transform == "identity" or transform == "day" or transform.startswith("bucket"):
            return equals(column, value)
        if isinstance(value, str):
            return predicate("starts-with", column, value[:1])
        low = value - value % 5 if transform.startswith("truncate") else value - value % 31
        bounds = [predicate("gt-eq", column, low), predicate("lt", column, low + (5 if low < 1000 else 366))]
        return joined("and", bounds)

    def of_rows(self, target: str) -> Expression:
        """A filter that all rows of a file match, by the range of one column."""
        column = self.rng.choice(("id", "id", "amount", "category", "day"))
        values = [row[column] for row in self.rows[target]]
        known = sorted((value for value in values if value is not None), key=order)
        if not known:
            return predicate("is-null", column)
        if known[0] == known[-1] and chance(self.rng, 0.5):
            return equals(column, known[0])
        return joined("and", [predicate("gt-eq", column, known[0]), predicate("lt-eq", column, known[-1])])

    def _predicate(self, target: str | None) -> Expression:
        rng = self.rng
        column = rng.choice(("id", "id", "category", "category", "amount", "day", "price"))
        near = [row[column] for row in self.rows.get(target or "", [])]
        pool = near if near and chance(rng, 0.6) else DOMAINS[column]
        value = rng.choice(pool)
        if value is None or value == NAN or chance(rng, 0.05):
            kinds = ["is-null", "not-null", *(["is-nan", "not-nan"] if column == "price" else [])]
            return predicate(rng.choice(kinds), column)
        if chance(rng, 0.04):
            edges = EDGES | LIMITS
            value = rng.choice(edges[column])
        if column == "id" and chance(rng, 0.01):  # more than Iceberg looks at
            return predicate("in", column, *range(1, 202))
        if chance(rng, 0.2):
            known = [item for item in DOMAINS[column] if item not in (None, NAN)]
            return predicate(rng.choice(("in", "in", "not-in")), column, *dict.fromkeys((value, *some(rng, known, 2))))
        if column == "category" and chance(rng, 0.3):
            return predicate(rng.choice(("starts-with", "starts-with", "not-starts-with")), column, value[:1])
        return predicate(rng.choice(("eq", "eq", "eq", "lt", "lt-eq", "gt", "gt-eq", "not-eq")), column, value)

    def has_null_text(self, name: str) -> bool:
        """Whether the file is in a partition that its rows' category makes null."""
        file = self.files[name]
        return any(
            field["column"] == "category" and field["transform"].startswith(("identity", "truncate")) and value is None
            for field, value in zip(self.specs[file["spec"]], file["partition"], strict=True)
        )

    def match(self, expression: Expression, name: str) -> str:
        """Whether `all`, `some` or `none` of a file's rows match."""
        found = [holds(expression, row) for row in self.rows.get(name, [])]
        return "all" if found and all(found) else "some" if any(found) else "none"
