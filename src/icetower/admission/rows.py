"""The checks of rows that an agent sends, for which the tower itself makes the files.

The contract is judged by the rows: which partition each lies in is computed from it, and where a contract speaks of
columns that the table is not partitioned by, its own values tell. So nothing is undecided for want of a partition, and
nothing is believed.

rows.*                      the rows do not fit the table, or the stream is none
limit.rows, .partitions     too many at once
contract.partitions, …      as in a commit; the message names the rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity, check_key
from icetower.admission.quotas import check_quota
from icetower.admission.refusals import refusal
from icetower.contracts.check import Clear, Touch, Undecided, Violation, check, requires_intents, slot_needs
from icetower.contracts.model import Contract, Operation
from icetower.contracts.terms import Layout
from icetower.iceberg.manifests import DATA
from icetower.iceberg.partitions import PartitionField, PartitionSpec, spec_of
from icetower.iceberg.schemas import read_as
from icetower.protocol.names import Identifier
from icetower.protocol.row_limits import ROWS_MAX
from icetower.protocol.rows import RowsRequest
from icetower.recent import IdentityKey
from icetower.registry.principals import Principal
from icetower.rows.batches import Batch, Part, batch_of, split
from icetower.rows.decoding import NAMED_MAX, decoded
from icetower.rows.schemas import row_schema
from icetower.table.head import HeadState

_APPEND = frozenset({Operation.APPEND})


@dataclass(frozen=True)
class RowsFacts:
    """One request of rows by one principal.

    Attributes:
        table, head: where they are written to, and that table as of late.
        now_ms: milliseconds since 1970.
        filled: what columns hold that the rows leave out.
        seed: of the keys of its rows; the same when it is sent again.
        whole: the rows take the place of those with the same keys, and must name every column.
    """

    principal: Principal
    table: Identifier
    head: HeadState
    request: RowsRequest
    identity: Identity
    now_ms: int
    filled: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: str = ""
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class SentRows(RowsFacts):
    """With the rows as they are. `batch`: by partition."""

    batch: Batch


def read_rows(facts: RowsFacts) -> SentRows:
    """Read the rows by the table's schema, and part them by its spec. Takes long for many: not for the event loop.

    Raises:
        BadRequest: they do not fit.
    """
    metadata = facts.head.metadata
    block = decoded(
        facts.request,
        row_schema(metadata),
        ignores_unknown=_ignores_unknown(facts),
        filled=facts.filled,
        key=facts.seed,
        whole=facts.whole,
    )
    batch = batch_of(block, spec_of(metadata, metadata["default-spec-id"]))
    return SentRows(**{each.name: getattr(facts, each.name) for each in fields(facts)}, batch=batch)


def _ignores_unknown(facts: RowsFacts) -> bool:
    rules = facts.principal.contract.rules_for(facts.table)
    return any(rule.ignore_unknown_columns for rule in rules)


def admitted_rows(sent: SentRows) -> AdmittedAppend:
    """The append, whose files are made when its group is known."""
    uuid = sent.head.metadata.get("table-uuid")
    slot_required, slot_shadowed = slot_needs(
        sent.principal.contract,
        sent.table,
        (Touch(part.spec, part.partition, True, DATA) for part in sent.batch.parts),
        _APPEND,
        layout=Layout.of(sent.head.metadata),
        now_ms=sent.now_ms,
    )
    return AdmittedAppend(
        identity=sent.identity,
        identifier=sent.table,
        files=(),
        contract=sent.principal.contract.name,
        contract_version=sent.principal.contract_version,
        fingerprint=sent.request.fingerprint,
        table_uuid=None if uuid is None else str(uuid),
        read_as=read_as(sent.head.metadata),
        intents_required=requires_intents(sent.principal.contract, sent.table),
        slot_required=slot_required,
        slot_shadowed=slot_shadowed,
        rows=sent.batch,
        leases=sent.request.leases,
    )


def check_row_quotas(sent: SentRows) -> None:
    """contract.quota: the partitions count as files, and the rows by what they take in memory."""
    batch = sent.batch
    check_quota(sent.principal, sent.table, files=len(batch.parts), size_bytes=batch.size_bytes)


def check_row_key(sent: SentRows) -> None:
    """contract.key: a key, where the contract requires one."""
    check_key(sent.principal, sent.table, sent.identity.ways)


def check_row_partitions(sent: SentRows) -> None:
    """contract.table, contract.operation, contract.partitions, contract.slot, contract.pattern: row by row."""
    contract, layout = sent.principal.contract, Layout.of(sent.head.metadata)

    def judged(parts: Sequence[Part]) -> Clear | Violation | Undecided:
        touches = [Touch(part.spec, part.partition, True, DATA) for part in parts]
        return check(contract, sent.table, touches, _APPEND, layout=layout, now_ms=sent.now_ms)

    verdict = judged(sent.batch.parts)
    if isinstance(verdict, Clear):
        return
    if verdict.rule not in ("contract.partitions", "contract.undecided", "contract.slot"):
        raise refusal(verdict, sent.principal, sent.table)
    # Not by partitions alone: what the contract names of a row is looked at itself.
    bad: list[tuple[Part, int]] = []
    for part in sent.batch.parts:
        if isinstance(judged([part]), Clear):
            continue
        spec = _with_columns(contract, sent.table, layout, part.spec)
        for finer in split(part.rows, spec, ROWS_MAX):
            if not isinstance(judged([finer]), Clear):
                within = finer.numbers or range(1, part.rows.count + 1)
                bad += [(finer, number if part.numbers is None else part.numbers[number - 1]) for number in within]
    if bad:
        verdict = _not_clear(judged([part for part, _ in bad]))
        raise refusal(verdict, sent.principal, sent.table, _numbers([number for _, number in bad]))


def _not_clear(verdict: Clear | Violation | Undecided) -> Violation | Undecided:
    assert not isinstance(verdict, Clear)  # of parts that were not clear one by one
    return verdict


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(numbers)[:NAMED_MAX]))
    more = len(numbers) - NAMED_MAX
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"


def _with_columns(contract: Contract, table: Identifier, layout: Layout, spec: PartitionSpec) -> PartitionSpec:
    """A spec, and as identity fields the columns that the contract's regions name; the same object each time."""
    key = IdentityKey(contract, spec)
    found: PartitionSpec | None = layout.compiled.get(key)
    if found is None:
        known = {field.source_id for field in spec.fields if field.transform == "identity"}
        partitioned = {(field.source_id, field.transform) for field in spec.fields}
        columns: dict[int, PartitionField] = {}
        for rule in contract.rules_for(table):
            for region in (*(rule.partitions or ()), *rule.excluded):
                for name, _ in region.fields:
                    field = layout.field(name, spec)
                    if field is None or (field.source_id, field.transform) in partitioned:
                        continue  # a refusal names the partition then, and not each value in it
                    if field.source_id not in known:
                        columns[field.source_id] = _as_it_is(field)
        found = layout.compiled[key] = PartitionSpec(spec.spec_id, (*spec.fields, *columns.values()))
    return found


def _as_it_is(field: PartitionField) -> PartitionField:
    kind: Any = field.source_type
    return PartitionField(-1, field.source_name, "identity", field.source_name, kind, kind, field.source_id)
