"""Tables to be partitioned: columns, some of them renamed or dropped, and specs that have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random

from icetower.iceberg import transforms
from verify.oracle import values
from verify.oracle.cases import Column, Field, Partition, Row, Spec

FIRST_FIELD_ID = 1000


def partition_of(columns: Sequence[Column], spec: Spec, row: Row) -> Partition:
    """The partition of a row: what Iceberg's transforms make of it."""
    return tuple(applied(f.transform, columns[f.column].kind, row[f.column]) for f in spec)


applied = lru_cache(maxsize=65_536)(transforms.apply)
"""What a transform makes of a value."""


def columns_of(rng: Random) -> tuple[Column, ...]:
    kinds = rng.choices(tuple(values.KINDS), tuple(values.KINDS.values()), k=rng.choice((1, 2, 2, 3)))
    if rng.random() < 0.2:
        kinds = kinds[:1] * len(kinds)
    columns = [Column(at, f"c{at}", kind, f"c{at}") for at, kind in enumerate(kinds, start=1)]
    change = rng.random()
    if change < 0.08:
        columns[0] = replace(columns[0], name="renamed")
    elif change < 0.16:  # dropped, and another has its name now
        kind = rng.choice((columns[0].kind, "int", "timestamptz"))
        columns.append(Column(len(columns) + 1, columns[0].name, kind, None))
        columns[0] = replace(columns[0], name=None)
    return tuple(columns)


def specs_of(rng: Random, columns: Sequence[Column]) -> tuple[Spec, ...]:
    ids: dict[tuple[int, str], int] = {}

    def fresh(spec: Spec, column: int | None = None) -> Field:
        at = rng.randrange(len(columns)) if column is None else column
        transforms = values.transforms_of(columns[at].kind)
        transform = rng.choice(
            [f.transform for f in spec if f.transform in transforms and f.column != at] or transforms
        )
        known = ids.setdefault((at, transform), FIRST_FIELD_ID + len(ids))
        taken = {field.id for field in spec}
        field_id = known if known not in taken else FIRST_FIELD_ID + len(ids) + len(taken)
        ids[at, f"{transform} {field_id}"] = field_id
        plain = f"{columns[at].before or columns[at].name}_{transform.split('[')[0]}"
        name = rng.choice((plain, plain, plain, "p", f"p{len(spec)}", columns[at].before or "p"))
        names = {field.name for field in spec}
        return Field(field_id, name if name not in names else f"{name}_{field_id}", transform, at)

    spec: Spec = ()
    for _ in range(rng.choices((0, 1, 2, 3), (1, 8, 8, 3))[0]):
        spec = (*spec, fresh(spec))
    specs: list[Spec] = [spec]
    for _ in range(rng.choices((0, 1, 2), (5, 4, 2))[0]):
        specs.append(_evolved(rng, specs[-1], fresh))
    return tuple(specs)


def _evolved(rng: Random, spec: Spec, fresh: Callable[..., Field]) -> Spec:
    """A spec as it may become: a field more or less, a coarser or void one, another name or order, or none."""
    if not spec:
        return (fresh(()),)
    at = rng.randrange(len(spec))
    before, after = spec[:at], spec[at + 1 :]
    match rng.choice(("add", "drop", "replace", "replace", "void", "rename", "order", "none")):
        case "add":
            return (*spec, fresh(spec))
        case "drop":
            return before + after
        case "replace":
            return (*before, fresh(before + after, spec[at].column), *after)
        case "void":
            name = spec[at].name if rng.random() < 0.5 else f"{spec[at].name}_{spec[at].id}"
            return (*before, replace(spec[at], transform="void", name=name), *after)
        case "rename":
            return (*before, replace(spec[at], name=f"n{at}"), *after)
        case "order":
            return tuple(rng.sample(spec, len(spec)))
        case _:
            return ()
