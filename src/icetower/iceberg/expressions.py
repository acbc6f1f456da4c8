"""Row filters: Iceberg's expressions as values, with its simplifications, its JSON and its words.

Unbound filters speak of columns by name; `bind` looks the columns up and turns literals into their internal values.
Source: Iceberg 1.12, `Expressions`, `UnboundPredicate`, `Binder`, `RewriteNot` and `ExpressionParser`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from icetower.errors import ValidationFailed
from icetower.iceberg.literals import (
    FLOATING,
    LONG_MAX,
    LONG_MIN,
    Range,
    Value,
    convert,
    identity_key,
    is_nan,
    java_class,
    literal_class,
    literal_text,
    value_text,
)

NESTING_MAX = 200
"""How deep a filter may nest; deeper ones would exhaust the stack."""

UNARY = ("is-null", "not-null", "is-nan", "not-nan")
COMPARING = ("lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "starts-with", "not-starts-with")
SETS = ("in", "not-in")

_OPPOSITE_PAIRS = (
    ("is-null", "not-null"),
    ("is-nan", "not-nan"),
    ("lt", "gt-eq"),
    ("lt-eq", "gt"),
    ("eq", "not-eq"),
    ("in", "not-in"),
    ("starts-with", "not-starts-with"),
)
_OPPOSITE = dict(_OPPOSITE_PAIRS) | {right: left for left, right in _OPPOSITE_PAIRS}


@dataclass(frozen=True, slots=True)
class Column:
    """A column that filters may name.

    `type`: Iceberg's name of it. `required`: it is, and so is every struct around it. `nested`: it stands in a struct.
    `label`: the column as Iceberg prints it in messages.
    """

    id: int
    name: str
    type: str
    required: bool
    nested: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Always:
    """Matches every row, or none."""

    value: bool


@dataclass(frozen=True, slots=True)
class Predicate:
    """A test of one column, found by name. `op` as in Iceberg's JSON (``lt-eq``); `literals` as they were written."""

    op: str
    column: str
    literals: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """A test of a column that was found; `literals` are internal values of its type, each once."""

    op: str
    column: Column
    literals: tuple[Value, ...] = ()
    _keys: frozenset[Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Lists of thousands of values are asked about thousands of files.
        keys = (identity_key(each, self.column.type) for each in self.literals) if self.op in SETS else ()
        object.__setattr__(self, "_keys", frozenset(keys))

    def lists(self, value: Value) -> bool:
        """Whether a Java set of the literals holds a value."""
        return identity_key(value, self.column.type) in self._keys


@dataclass(frozen=True, slots=True)
class And:
    """Matches what both sides match."""

    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Or:
    """Matches what a side matches."""

    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Not:
    """Matches what its child doesn't match."""

    child: Expression


Expression: TypeAlias = Always | Predicate | Bound | And | Or | Not
TRUE, FALSE = Always(True), Always(False)


def both(left: Expression, right: Expression) -> Expression:
    """Left and right, without the constants that don't matter."""
    if FALSE in (left, right):
        return FALSE
    if left == TRUE:
        return right
    return left if right == TRUE else And(left, right)


def either(left: Expression, right: Expression) -> Expression:
    """Left or right, without the constants that don't matter."""
    if TRUE in (left, right):
        return TRUE
    if left == FALSE:
        return right
    return left if right == FALSE else Or(left, right)


def negate(expr: Expression) -> Expression:
    """Not this; a constant and a `Not` are turned round at once."""
    match expr:
        case Always(value):
            return Always(not value)
        case Not(child):
            return child
        case _:
            return Not(expr)


def rewrite_not(expr: Expression) -> Expression:
    """The same filter without `Not`: predicates are turned into their opposites."""
    return rebuild(expr, lambda leaf: leaf, _opposite)


def _opposite(expr: Expression) -> Expression:
    match expr:
        case Always(value):
            return Always(not value)
        case Predicate(op, column, literals):
            return Predicate(_OPPOSITE[op], column, literals)
        case Bound(op, column, literals):
            return Bound(_OPPOSITE[op], column, literals)
        case And(left, right):
            return either(_opposite(left), _opposite(right))
        case Or(left, right):
            return both(_opposite(left), _opposite(right))
        case Not(child):
            return child


def rebuild(
    expr: Expression,
    leaf: Callable[[Predicate | Bound], Expression],
    negation: Callable[[Expression], Expression] = negate,
) -> Expression:
    """The filter with every predicate replaced by `leaf(predicate)`, simplified on the way up."""
    match expr:
        case Always():
            return expr
        case Predicate() | Bound():
            return leaf(expr)
        case And(left, right):
            return both(rebuild(left, leaf, negation), rebuild(right, leaf, negation))
        case Or(left, right):
            return either(rebuild(left, leaf, negation), rebuild(right, leaf, negation))
        case Not(child):
            return negation(rebuild(child, leaf, negation))


def evaluate(expr: Expression, test: Callable[[Bound], bool]) -> bool:
    """The truth of a bound filter, given that of its predicates; the right side is asked only where it matters."""
    match expr:
        case Always(value):
            return value
        case Bound():
            return test(expr)
        case And(left, right):
            return evaluate(left, test) and evaluate(right, test)
        case Or(left, right):
            return evaluate(left, test) or evaluate(right, test)
        case Not(child):
            return not evaluate(child, test)
        case Predicate():
            raise TypeError(f"not a bound predicate: {text(expr)}")


def text(expr: Expression) -> str:
    """The filter as Iceberg prints an unbound one: ``(ref(name="id") == 5 and not_null(ref(name="x")))``."""
    match expr:
        case Always(value):
            return "true" if value else "false"
        case And(left, right):
            return f"({text(left)} and {text(right)})"
        case Or(left, right):
            return f"({text(left)} or {text(right)})"
        case Not(child):
            return f"not({text(child)})"
        case Predicate(op, column, literals):
            return _predicate_text(op, f'ref(name="{column}")', literals)
        case Bound(op, column, literals):
            return _predicate_text(op, f'ref(name="{column.name}")', literals)


def _predicate_text(op: str, reference: str, literals: tuple[Value, ...]) -> str:
    if op in UNARY:
        return f"{op.replace('-', '_')}({reference})"
    words = [literal_text(literal) for literal in literals]
    if op in SETS:
        return f"{reference} {op.replace('-', ' ')} ({', '.join(words)})"
    if op in ("starts-with", "not-starts-with"):  # quoted twice: once here, once as a literal
        return f'{reference} {"startsWith" if op == "starts-with" else "notStartsWith"} "{words[0]}"'
    signs = {"lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "eq": "==", "not-eq": "!="}
    return f"{reference} {signs[op]} {words[0]}"


def from_json(obj: Any, _path: str = "", _depth: int = 0) -> Expression:
    """A filter from Iceberg's JSON form (`ExpressionParser`), parsed into Python values.

    Raises:
        ValidationFailed: what is wrong with it and where; a term that is no plain reference; nested too deeply.
    """
    if isinstance(obj, bool):
        return Always(obj)
    if not isinstance(obj, dict):
        raise _bad(_path, f"is {obj!r}; a filter is true, false or an object with a 'type'")
    if _depth > NESTING_MAX:
        raise _bad(_path, f"nests deeper than {NESTING_MAX} levels; use 'in' instead of long chains of 'or'")
    node = cast("dict[str, Any]", obj)
    kind = node.get("type")
    if not isinstance(kind, str):
        raise _bad(_path, f"has the type {kind!r}; it takes a text such as 'eq' or 'and'")
    op = kind.lower().replace("_", "-")
    under = f"{_path}." if _path else ""
    match op:
        case "literal":
            if not isinstance(node.get("value"), bool):
                raise _bad(_path, f"is the literal {node.get('value')!r}; only true and false are filters")
            return Always(node["value"])
        case "not":
            return negate(from_json(node.get("child"), f"{under}child", _depth + 1))
        case "and" | "or":
            left = from_json(node.get("left"), f"{under}left", _depth + 1)
            right = from_json(node.get("right"), f"{under}right", _depth + 1)
            return both(left, right) if op == "and" else either(left, right)
        case _:
            return _predicate_from_json(op, node, _path)


def _predicate_from_json(op: str, node: Mapping[str, Any], path: str) -> Predicate:
    if op not in (*UNARY, *COMPARING, *SETS):
        raise _bad(path, f"has the unknown type {node['type']!r}; known are {', '.join((*UNARY, *COMPARING, *SETS))}")
    column = _term(node.get("term"), path)
    wanted = "values" if op in SETS else "value" if op in COMPARING else None
    for name in ("value", "values"):
        if name in node and name != wanted:
            raise _bad(path, f"is {op} and has '{name}'; it takes {f'{wanted!r}' if wanted else 'no value'}")
    if wanted is None:
        return Predicate(op, column)
    if wanted not in node:
        raise _bad(path, f"is {op} and has no '{wanted}'")
    if wanted == "value":
        return Predicate(op, column, (_literal(node["value"], path),))
    if not isinstance(node["values"], list):
        raise _bad(path, f"has the values {node['values']!r}; it takes a list")
    return Predicate(op, column, tuple(_literal(value, path) for value in node["values"]))


def _term(term: Any, path: str) -> str:
    if isinstance(term, dict) and term.get("type") == "reference":
        term = cast("dict[str, Any]", term).get("term")
    if not isinstance(term, str):
        raise _bad(path, f"has the term {term!r}; only a column's name is understood, no transform of it")
    return term


def _literal(value: Any, path: str) -> Value:
    if isinstance(value, dict) and str(value.get("type")).lower() == "literal":
        value = cast("dict[str, Any]", value).get("value")
    match value:
        case str() | bool():
            return value
        case int() if LONG_MIN <= value <= LONG_MAX:
            return value
        case float() if not is_nan(value):
            return value
        case _:
            raise _bad(path, f"has the value {value!r}; it takes a text, a truth value or a number of at most 64 bits")


def _bad(path: str, what: str) -> ValidationFailed:
    return ValidationFailed(f"the filter{f' at {path}' if path else ''} {what}", rule="filter.json")


def to_json(expr: Expression) -> Any:
    """The filter in Iceberg's JSON form; `from_json` gives it back, simplified."""
    match expr:
        case Always(value):
            return value
        case And(left, right):
            return {"type": "and", "left": to_json(left), "right": to_json(right)}
        case Or(left, right):
            return {"type": "or", "left": to_json(left), "right": to_json(right)}
        case Not(child):
            return {"type": "not", "child": to_json(child)}
        case Predicate(op, column, literals):
            return _predicate_json(op, column, literals)
        case Bound(op, column, literals):
            return _predicate_json(op, column.name, literals)


def _predicate_json(op: str, column: str, literals: tuple[Value, ...]) -> dict[str, Any]:
    values = [value if isinstance(value, bool | int | float | str) else _plain(value) for value in literals]
    payload = {} if op in UNARY else {"values": values} if op in SETS else {"value": values[0]}
    return {"type": op, "term": column, **payload}


def _plain(value: Value) -> str:
    return value.hex().upper() if isinstance(value, bytes) else str(value)


def typed(expr: Expression, columns: Mapping[str, Column]) -> Expression:
    """The filter with every literal as its column's type holds it, where that can be: dates as days since 1970.

    This is what Iceberg makes of a filter in JSON that it reads with a schema, and what its messages print then.

    Raises:
        ValidationFailed: a text that is no value of its column's type.
    """

    def leaf(predicate: Predicate | Bound) -> Expression:
        column = columns.get(predicate.column) if isinstance(predicate, Predicate) else None
        if column is None:
            return predicate
        values = (convert(value, column.type) for value in predicate.literals)
        held = [
            kept if isinstance(old, Range) or old is None else old
            for old, kept in zip(values, predicate.literals, strict=True)
        ]
        return replace(predicate, literals=tuple(held))

    return rebuild(expr, leaf, Not)


def columns_of(schema: Mapping[str, Any]) -> dict[str, Column]:
    """The columns of a schema (JSON) by name, those in structs with dotted names; without what is in lists and maps."""
    return {column.name: column for column in _columns(schema["fields"], "", required=True)}


def _columns(fields: Iterable[Mapping[str, Any]], prefix: str, *, required: bool) -> Iterator[Column]:
    for each in fields:
        within = required and bool(each["required"])
        kind = each["type"]
        yield Column(each["id"], prefix + each["name"], _type_text(kind), within, bool(prefix), _label(each))
        if not isinstance(kind, str) and kind["type"] == "struct":
            yield from _columns(kind["fields"], f"{prefix}{each['name']}.", required=within)


def _label(field: Mapping[str, Any]) -> str:
    need = "required" if field["required"] else "optional"
    doc = f" ({field['doc']})" if field.get("doc") is not None else ""
    return f"{field['id']}: {field['name']}: {need} {_type_text(field['type'])}{doc}"


def _type_text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            return f"struct<{', '.join(_label(field) for field in kind['fields'])}>"
        case "list":
            return f"list<{_type_text(kind['element'])}>"
        case _:
            return f"map<{_type_text(kind['key'])}, {_type_text(kind['value'])}>"


def bind(expr: Expression, columns: Mapping[str, Column]) -> Expression:
    """The filter on columns that were looked up, its literals turned into their types' internal values.

    What the types already decide becomes a constant: no `int` is above 2**40, no required column is null.

    Raises:
        ValidationFailed: an unknown column, or a literal that doesn't fit the column; in Iceberg's words.
    """
    return rebuild(expr, lambda leaf: leaf if isinstance(leaf, Bound) else bind_predicate(leaf, columns))


def bind_predicate(predicate: Predicate, columns: Mapping[str, Column]) -> Always | Bound:
    """One predicate, bound. See `bind`."""
    column = columns.get(predicate.column)
    if column is None:
        known = ", ".join(each.label for each in columns.values() if not each.nested)
        raise ValidationFailed(
            f"Cannot find field '{predicate.column}' in struct: struct<{known}>", rule="filter.column"
        )
    op = predicate.op
    if op in UNARY:
        return settle(op, column, ())
    if op in ("starts-with", "not-starts-with") and column.type != "string":
        raise ValidationFailed(
            "Term for STARTS_WITH or NOT_STARTS_WITH must produce a string: "
            f"ref(id={column.id}, accessor-type={column.type}): {column.type}",
            rule="filter.literal",
        )
    values: list[Value] = []
    for literal in predicate.literals:
        value = convert(literal, column.type)
        if value is None:
            shown = (
                f"{literal_text(literal)} ({literal_class(literal)})"
                if op in SETS
                else f"{value_text(literal)} ({java_class(literal)})"
            )
            raise ValidationFailed(
                f"Invalid value for conversion to type {column.type}: {shown}", rule="filter.literal"
            )
        if not isinstance(value, Range):
            values.append(value)
        elif op not in SETS:
            return Always(op == "not-eq" or op.startswith("lt" if value is Range.ABOVE else "gt"))
    return settle(op, column, tuple(values))


def settle(op: str, column: Column, values: tuple[Value, ...]) -> Always | Bound:
    """A predicate on a column with internal values, simplified as Iceberg does when it binds.

    A set of one value is an equality. An empty set, and nulls where there can be none, are constants.

    Raises:
        ValidationFailed: a test for NaN of a column that holds no floating-point numbers.
    """
    if op in ("is-null", "not-null"):
        if column.required:
            return Always(op == "not-null")
        return Always(op == "is-null") if column.type == "unknown" else Bound(op, column)
    if op in UNARY:
        if column.type not in FLOATING:
            name = "IsNaN" if op == "is-nan" else "NotNaN"
            raise ValidationFailed(f"{name} cannot be used with a non-floating-point column", rule="filter.literal")
        return Bound(op, column)
    if op in SETS:
        found: dict[Any, Value] = {}
        for value in values:
            found.setdefault(identity_key(value, column.type), value)
        if not found:
            return Always(op == "not-in")
        if len(found) == 1:
            op = "eq" if op == "in" else "not-eq"
        return Bound(op, column, tuple(found.values()))
    return Bound(op, column, values)
