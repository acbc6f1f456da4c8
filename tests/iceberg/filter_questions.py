"""Random questions about filters, from a seed, for `Filters.java`, and our own answers to them.

A question is JSON: `schema`, `spec`, `filter`, some `partitions`, `files` (`partition` by its index, `records`, and the
five maps of statistics, bounds in hex), `manifests` (null, or [contains null, contains NaN, lower, upper] by partition
field, bounds in hex), `applied` ([transform, type, value]) and `literals` ([type, literal]). Values in it are internal
ones; bytes are hex, floating-point numbers and decimals texts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from icetower.errors import ValidationFailed
from icetower.iceberg.expressions import bind, from_json, rewrite_not, text, to_json
from icetower.iceberg.literals import LONG_MAX, LONG_MIN, Range, convert, order_key, value_text
from icetower.iceberg.partitions import PartitionSpec, resolve_fields
from icetower.iceberg.pruning import NULL_POINTER, OVERFLOW, Pruner, can_contain
from icetower.iceberg.records import FieldSummary
from icetower.iceberg.transforms import apply
from tests.iceberg.filter_world import COLUMNS, EPOCH, SCHEMA, STATISTICS, data_file, manifest_row, single_value

Json = dict[str, Any]
LEAVES = [column for column in COLUMNS.values() if not column.type.startswith("struct")]
TEXTS = ["", "a", "ab", "abc", "abd", "b", "ba", "é", "\U0001f600", "\U0001f600a", "a\U0001f600b", "zz", "\uffff"]
MISFITS = [True, 5, 1.5, "x", "2020-01-31", 2**40, -(2**40), 2**31, -(2**31) - 1, "1E+1", "0.005", 1e300, "10:15", "0a"]
BUCKETED = ("int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "string", "uuid", "binary",
            "fixed[2]", "decimal(9, 2)")  # fmt: skip


def question(seed: int) -> Json:
    return _Asker(Random(seed)).question()


class _Asker:
    """Draws from a few values a type, so that filters, bounds and partitions meet often."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._pools: dict[str, list[Any]] = {}

    def question(self) -> Json:
        r = self._random
        fields = [
            {"name": f"p{at}", "transform": self._transform(column.type), "source-id": column.id, "field-id": 1000 + at}
            for at, column in enumerate(r.sample(LEAVES, r.choice([0, 1, 1, 1, 2, 3])))
        ]
        spec = _spec(fields)
        names = [field.source_name for field in spec.fields] * 3 + [column.name for column in LEAVES]
        names = r.sample(names, min(len(names), r.choice([1, 2, 3, 6])))
        if r.random() < 0.03:
            names.append(r.choice(["st", "nope"]))
        partitions = [[self._partition_value(field) for field in spec.fields] for _ in range(3)]
        return {
            "schema": SCHEMA,
            "spec": {"spec-id": 0, "fields": fields},
            "filter": self._filter(names, r.choice([0, 0, 1, 2, 3])),
            "partitions": [[_json(value) for value in partition] for partition in partitions],
            "files": [self._file() for _ in range(3)],
            "manifests": [
                None
                if r.random() < 0.05
                else [self._summary(field.transform, field.result_type) for field in spec.fields]
                for _ in range(2)
            ],
            "applied": [
                [self._transform(column.type), column.type, _json(self._value(column.type))]
                for column in r.sample(LEAVES, 3)
            ],
            "literals": [[column.type, self._literal(column.type)] for column in r.sample(LEAVES, 3)],
        }

    def _transform(self, kind: str) -> str:
        options = ["identity", "identity", "void", "zorder"]
        if kind in BUCKETED:
            options += [f"bucket[{self._random.choice([1, 2, 4, 16])}]"] * 2
        if kind in ("int", "long", "string", "binary", "decimal(9, 2)"):
            options += [f"truncate[{self._random.choice([1, 2, 3, 10])}]"] * 3
        if kind == "date" or kind.startswith("timestamp"):
            options += ["year", "month", "day"] * 2 + ["hour"] * 2 * (kind != "date")
        return self._random.choice(options)

    def _value(self, kind: str) -> Any:
        """An internal value, mostly one that was drawn before."""
        if kind not in self._pools:
            self._pools[kind] = [self._fresh(kind) for _ in range(self._random.choice([2, 3, 5]))]
        return self._random.choice(self._pools[kind]) if self._random.random() < 0.9 else self._fresh(kind)

    def _fresh(self, kind: str) -> Any:
        r = self._random
        match kind:
            case "boolean":
                return r.random() < 0.5
            case "int":
                return r.choice([r.randint(-12, 12), r.randint(-12, 12), 2**31 - 1, -(2**31)])
            case "long":
                return r.choice([r.randint(-12, 12), r.randint(-12, 12), LONG_MAX, LONG_MIN])
            case "date":
                return r.choice([r.randint(-40, 40), r.randint(-800, 800), 18_293, -1, 0, 1, -365, -366, 365])
            case "time":
                return r.randint(0, 86_400 * 10**6 - 1)
            case "timestamp" | "timestamptz" | "timestamp_ns":
                second = 10**9 if kind == "timestamp_ns" else 10**6
                unit_s = r.choice([1, 3600, 86_400])
                return r.randint(-40, 40) * unit_s * second + r.choice([-2, -1, 0, 1, 2, second - 1, second // 2])
            case "float" | "double":
                return r.choice([0.0, -0.0, 1.5, -1.5, 3.25, float("nan"), float("inf"), float(r.randint(-4, 4))])
            case "string":
                return r.choice(TEXTS)
            case "uuid":
                return r.choice([bytes(16), b"\xff" * 16, b"\x7f" * 16, b"\x80" * 16, r.randbytes(16)])
            case "decimal(9, 2)":
                return Decimal(r.choice([r.randint(-1500, 1500), r.randint(-(10**9) + 1, 10**9 - 1)])).scaleb(-2)
            case _:
                length = 2 if kind == "fixed[2]" else r.randint(0, 4)
                return bytes(r.choice([0, 1, 65, 66, 255]) for _ in range(length))

    def _partition_value(self, field: Any) -> Any:
        if self._random.random() < 0.15 or field.transform == "zorder":
            return None
        return apply(field.transform, field.source_type, self._value(field.source_type))

    def _filter(self, names: list[str], depth: int) -> Any:
        r = self._random
        kind = r.choice(["leaf", "leaf", "and", "and", "or", "or", "not"]) if depth else "leaf"
        match kind:
            case "leaf":
                return self._predicate(r.choice(names)) if r.random() < 0.97 else r.random() < 0.5
            case "not":
                return {"type": "not", "child": self._filter(names, depth - 1)}
            case _:
                return {"type": kind, "left": self._filter(names, depth - 1), "right": self._filter(names, depth - 1)}

    def _predicate(self, name: str) -> Json:
        r = self._random
        kind = COLUMNS[name].type if name in COLUMNS else "nope"
        drawn = r.random()
        if drawn < 0.12 or kind == "nope" or kind.startswith("struct"):
            return {"type": r.choice(["is-null", "not-null"]), "term": name}
        if drawn < 0.2 and (kind in ("float", "double") or r.random() < 0.1):
            return {"type": r.choice(["is-nan", "not-nan"]), "term": name}
        if drawn < 0.4:
            length = r.choice([0, 1, 2, 2, 3, 5]) if r.random() < 0.97 else 203
            values = [self._literal(kind) for _ in range(length)]
            return {"type": r.choice(["in", "not-in"]), "term": name, "values": values}
        if (kind == "string" and drawn < 0.65) or r.random() < 0.01:
            return {"type": r.choice(["starts-with", "not-starts-with"]), "term": name, "value": r.choice(TEXTS)}
        op = r.choice(["lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq"])
        return {"type": op, "term": name, "value": self._literal(kind)}

    def _literal(self, kind: str) -> Any:
        """A literal as JSON has it; a few fit no type well."""
        value, r = self._value(kind), self._random
        if r.random() < 0.05:
            return r.choice(MISFITS)
        match kind:
            case "float" | "double":
                return value if abs(value) < 100 else 1.25
            case "date":
                return (date(1970, 1, 1) + timedelta(value)).isoformat() if r.random() < 0.9 else value
            case "time":
                return (EPOCH + timedelta(microseconds=value)).time().isoformat()
            case "timestamp" | "timestamptz":
                zone = r.choice(["Z", "+00:00", "+02:00", "-00:30"]) if kind == "timestamptz" else ""
                return (EPOCH + timedelta(microseconds=value)).isoformat() + zone
            case "timestamp_ns":
                whole, rest = divmod(value, 10**9)
                return f"{(EPOCH + timedelta(seconds=whole)).isoformat()}.{rest:09d}"
            case "uuid":
                digits = value.hex()
                return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
            case "decimal(9, 2)":
                return r.choice([str(value), str(value), r.randint(-20, 20), 1.5, "1.5", "1"])
            case _:
                return _json(value)

    def _ends(self, kind: str, *, same: float) -> tuple[bytes, bytes]:
        lower, upper = sorted((self._value(kind), self._value(kind)), key=lambda value: order_key(value, kind))
        if self._random.random() < same:
            upper = lower
        return single_value(lower, kind), single_value(upper, kind)

    def _file(self) -> Json:
        r = self._random
        maps: dict[str, dict[str, Any] | None] = {name: None if r.random() < 0.12 else {} for name in STATISTICS}

        def put(name: str, column_id: int, value: Any, share: float) -> None:
            found = maps[name]
            if found is not None and r.random() < share:
                found[str(column_id)] = value

        for column in LEAVES:
            put("value_counts", column.id, r.choice([10, 10, 10, 5]), 0.9)
            put("null_value_counts", column.id, r.choice([0, 0, 0, 3, 10]), 0.85)
            if column.type in ("float", "double"):
                put("nan_value_counts", column.id, r.choice([0, 0, 0, 3, 10]), 0.8)
            lower, upper = self._ends(column.type, same=0.3)
            put("lower_bounds", column.id, lower.hex(), 0.85)
            put("upper_bounds", column.id, upper.hex(), 0.85)
        return {"partition": r.randrange(3), "records": r.choice([10] * 7 + [0, 1, -1]), **maps}

    def _summary(self, transform: str, kind: str) -> list[Any]:
        r = self._random
        lower, upper = (None, None) if r.random() < 0.15 or transform == "zorder" else self._ends(kind, same=0.4)
        flags = [r.random() < 0.4, r.choice([None, True, False, False])]
        return [*flags, None if lower is None else lower.hex(), None if upper is None else upper.hex()]


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value_text(value) if isinstance(value, float | Decimal) else value


def _python(value: Any, kind: str) -> Any:
    if value is None:
        return None
    match kind:
        case "double":
            return float(value)
        case "float":
            return struct.unpack("<f", struct.pack("<f", float(value)))[0]
        case "decimal(9, 2)":
            return Decimal(value)
        case "uuid" | "binary" | "fixed[2]":
            return bytes.fromhex(value)
        case _:
            return value


def _spec(fields: list[Json]) -> PartitionSpec:
    return PartitionSpec(0, resolve_fields(fields, [SCHEMA]))


def answer(asked: Json) -> Json:
    """Our answers to a question, in the form of `Filters.java`; what is refused is the error itself."""
    filter_, spec = from_json(asked["filter"]), _spec(asked["spec"]["fields"])
    pruner = Pruner(filter_, spec, COLUMNS)
    partitions = [
        tuple(_python(value, field.result_type) for value, field in zip(partition, spec.fields, strict=True))
        for partition in asked["partitions"]
    ]
    files = [_data_file(file, partitions[file["partition"]]) for file in asked["files"]]
    rows = [manifest_row(None if each is None else [_field_summary(s) for s in each]) for each in asked["manifests"]]
    return {
        "applied": [
            _attempt(lambda e=each: _shown(apply(e[0], e[1], _python(e[2], e[1])))) for each in asked["applied"]
        ],
        "literals": [_attempt(lambda e=each: _shown(convert(e[1], e[0]))) for each in asked["literals"]],
        "text": text(filter_),
        "json": to_json(filter_),
        "without not": text(rewrite_not(filter_)),
        "bound": _attempt(lambda: bind(filter_, COLUMNS) is not None),
        "partition might": [_attempt(lambda p=each: pruner.partition_might_match(p)) for each in partitions],
        "partition must": [_attempt(lambda p=each: pruner.partition_must_match(p)) for each in partitions],
        "residual": [_attempt(lambda p=each: text(pruner.residual(p))) for each in partitions],
        "rows might": [_attempt(lambda f=each: pruner.rows_might_match(f)) for each in files],
        "rows must": [_attempt(lambda f=each: pruner.rows_must_match(f)) for each in files],
        "residual might": [_attempt(lambda f=each: pruner.residual_might_match(f)) for each in files],
        "residual must": [_attempt(lambda f=each: pruner.residual_must_match(f)) for each in files],
        "manifest might": [_attempt(lambda r=each: pruner.manifest_might_match(r)) for each in rows],
        "can contain": [can_contain(row, spec, [(0, partition)]) for row in rows for partition in partitions],
    }


def _attempt(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except ValidationFailed as error:
        return error


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Range):
        return {Range.ABOVE: "aboveMax", Range.BELOW: "belowMin"}[value]
    return value.hex() if isinstance(value, bytes) else value_text(value)


def _data_file(file: Json, partition: tuple[Any, ...]) -> Any:
    maps = {
        name: found and {int(key): bytes.fromhex(each) if "bounds" in name else each for key, each in found.items()}
        for name in STATISTICS
        for found in [file[name]]
    }
    return data_file(partition, file["records"], **maps)


def _field_summary(listed: list[Any]) -> FieldSummary:
    null, nan, *ends = listed
    return FieldSummary(null, nan, *(None if end is None else bytes.fromhex(end) for end in ends))


RULES_OF_FAILURES = {"NullPointerException": NULL_POINTER, "ArithmeticException": OVERFLOW}


def agree(theirs: Any, ours: Any) -> bool:
    """Whether an answer of Iceberg's and one of ours are the same; a refusal has to have the same words.

    Where Iceberg's parsers of dates and numbers give up, it has to be refused, in words of our own.
    """
    if not isinstance(ours, ValidationFailed):
        return theirs == ours
    if not isinstance(theirs, list):
        return False
    kind, message = theirs
    if kind == "ValidationException":
        return ours.message == message
    if (rule := RULES_OF_FAILURES.get(kind)) is not None and ours.rule == rule:
        return ours.message == message
    return kind.endswith("Exception")
