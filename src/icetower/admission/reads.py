"""What did the writer of a commit read? Its snapshots' summaries say so, or its contract (trap R2).

A declaration is made by the writer about itself. One that is too narrow costs its own writer isolation and nobody else
anything: the engine compares what both have written whatever is declared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from icetower.admission.read_scope import ReadScope
from icetower.contracts.check import isolation_of, owned, reads_only_owned
from icetower.contracts.model import FILE_OPERATIONS, Contract, Isolation, Operation
from icetower.contracts.terms import Layout
from icetower.errors import BadRequest, ValidationFailed
from icetower.iceberg.change import Change
from icetower.iceberg.expressions import Expression, bind, columns_of, from_json
from icetower.iceberg.partitions import known_specs
from icetower.iceberg.validation import Level
from icetower.protocol.marks import FILTER, ISOLATION, READ_SNAPSHOT
from icetower.protocol.names import Identifier

JSON = Mapping[str, Any]

FILTER_CHARACTERS_MAX = 65_536
_LEVELS = {level.value: level for level in (Level.SNAPSHOT, Level.SERIALIZABLE)}


def declared(metadata: JSON, changes: Sequence[Change]) -> ReadScope | None:
    """The scope that the summaries of a commit declare; None where a snapshot doesn't name its isolation level.

    A filter without a level is checked and then says nothing: it tells what was read, not what isolation is owed.

    Args:
        metadata: the table with the commit's own schemas, by which the filter is read.

    Raises:
        BadRequest: an unknown level, different words in one commit, a serializable commit without a filter, or a
            version of the table that is none.
        ValidationFailed: a filter that is no filter, or doesn't fit the schema that its snapshot was written with.
    """
    words: dict[tuple[str | None, str | None], JSON] = {}
    own = {str(change.snapshot.id) for change in changes}
    for change in changes:
        summary = change.snapshot.summary
        _check_version(summary.get(READ_SNAPSHOT), own)
        words.setdefault((summary.get(ISOLATION), summary.get(FILTER)), change.snapshot)
    said = [word for word in words if word != (None, None)]
    if len(said) > 1:
        raise BadRequest(
            f"the snapshots of one commit carry different values of {ISOLATION} or {FILTER}; give them the same",
            rule="summary.reads",
        )
    if not said:
        return None
    level, text = said[0]
    expression = None if text is None else _filter(text, _schema(metadata, words[said[0]]))
    if level is None or len(words) > 1:
        return None
    if str(level).lower() not in _LEVELS:
        raise BadRequest(
            f"the snapshot property {ISOLATION} is {str(level)[:100]!r}; it takes {' or '.join(_LEVELS)}",
            rule="summary.reads",
        )
    wanted = _LEVELS[str(level).lower()]
    if wanted is Level.SERIALIZABLE and expression is None:
        raise BadRequest(
            f"the snapshot property {ISOLATION} asks for serializable isolation, and nothing says of which rows; set "
            f"{FILTER} to what was read, in Iceberg's JSON (true: the whole table)",
            rule="summary.reads",
        )
    return ReadScope(wanted, expression, None, "summary")


def _filter(text: Any, schema: JSON) -> Expression:
    try:
        if not isinstance(text, str) or len(text) > FILTER_CHARACTERS_MAX:
            raise ValueError(f"it must be a text of at most {FILTER_CHARACTERS_MAX} characters")
        expression = from_json(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:
        raise ValidationFailed(
            f"the snapshot property {FILTER} cannot be read ({error}); write it as Iceberg's expression JSON, such as "
            '{"type": "eq", "term": "region", "value": 1}',
            rule="filter.json",
        ) from error
    bind(expression, columns_of(schema))  # only to see that it fits: columns are looked up again when it is used
    return expression


def _check_version(said: Any, own: Collection[str]) -> None:
    """The engine holds the commit against all that came after this version (`rebase.declared`); so does an auditor."""
    if said is not None and said != "none" and not re.fullmatch(r"\d{1,19}", str(said)):
        raise BadRequest(
            f"the snapshot property {READ_SNAPSHOT} is {str(said)[:100]!r}; it takes the id of the snapshot that was "
            "read, or `none` where the table had none",
            rule="summary.reads",
        )
    if str(said) in own:  # a client that writes it anew on another parent keeps its id
        raise BadRequest(
            f"the snapshot property {READ_SNAPSHOT} names snapshot {said}, which this very commit adds; it takes the "
            "id of the table's snapshot that was read before the commit was begun",
            rule="summary.reads",
        )


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no value")


def _schema(metadata: JSON, snapshot: JSON) -> JSON:
    """The schema that a snapshot was written with; the current one where it doesn't say, or names none."""
    schemas: Mapping[int, JSON] = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    current = schemas[metadata["current-schema-id"]]
    return schemas.get(snapshot.get("schema-id", current["schema-id"]), current)


def scope_of(
    contract: Contract,
    identifier: Identifier,
    metadata: JSON,
    changes: Sequence[Change],
    operations: frozenset[Operation],
    now_ms: int,
) -> ReadScope | None:
    """What the writer of a commit is known to have read: as it declares itself, else as its contract does.

    A contract that holds it to serializable isolation overrides a declaration of less. A contract that is content
    with snapshot isolation is a declaration by itself. Raises as `declared` does.
    """
    level = isolation_of(contract, identifier, operations)
    said = declared(metadata, changes)
    held = level is Isolation.SERIALIZABLE and not contract.shadow
    if said is not None and said.level is Level.SNAPSHOT and held:
        said = None if said.filter is None else replace(said, level=Level.SERIALIZABLE)
    scope = said or promised(contract, identifier, metadata, operations, now_ms)
    if scope is None and level is Isolation.SNAPSHOT:
        return ReadScope(Level.SNAPSHOT, None, None, "contract")
    return scope


def believed(contract: Contract, refusals: Collection[object]) -> Contract:
    """The contract, as far as its promises count for a commit (trap R2).

    In shadow mode a commit goes on that its contract would have refused. The contract does not describe that commit: a
    writer that writes where it owns nothing may have read there, too. So nothing that it promises is believed.

    Args:
        refusals: what the contract would have refused of the commit.
    """
    if not refusals:
        return contract
    rules = (replace(rule, reads_owned=False, blind_appends=False, isolation=None) for rule in contract.tables)
    return replace(contract, tables=tuple(rules))


def promised(
    contract: Contract, identifier: Identifier, metadata: JSON, operations: frozenset[Operation], now_ms: int
) -> ReadScope | None:
    """The scope that `read_scope: owned` of a contract gives a commit of `operations`: what its owner may own."""
    if contract.administrator or not operations & FILE_OPERATIONS:
        return None
    if not reads_only_owned(contract, identifier, operations):
        return None

    @cache
    def owns() -> Callable[[int, tuple[Any, ...]], bool]:  # few rebases ask for it
        return owned(contract, identifier, known_specs(metadata), layout=Layout.of(metadata), now_ms=now_ms)

    return ReadScope(Level.SERIALIZABLE, None, lambda spec_id, partition: owns()(spec_id, partition), "contract")
