"""The checks of an append by the fast path, which names data files.

Those before a file is opened know the contract, the paths and the partitions that the request names, so that nothing is
read for a principal to which nothing is granted. `admitted` gets the files as `files.footers` has found them.

append.branch      the branch is not there, or is a tag
append.partition   a partition does not fit its spec, or the file's statistics contradict it
append.path        a file is spelled otherwise than the table's location, so that one file could have several names
append.repeated    one file twice in a request
append.encrypted   the table is encrypted
append.unproven    the contract asks for proof of partitions, and the statistics give none (403)
limit.files, contract.*, key: as in a commit
append.file, .size, .footer, .records, .nan-counts, .field-ids, .columns, .types, .required, .sort-order: the files
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

from icetower.admission.admitted import AdmittedAppend
from icetower.admission.identity import Identity, check_key
from icetower.admission.locations import check_files, roots_of
from icetower.admission.quotas import check_quota
from icetower.admission.refusals import refusal
from icetower.admission.rows import RowsFacts
from icetower.contracts.check import Clear, Touch, check, requires_intents, slot_needs
from icetower.contracts.model import Operation
from icetower.contracts.terms import Layout
from icetower.errors import ContractViolation, KeyMisused, ValidationFailed
from icetower.files.footers import Claim, Verified
from icetower.iceberg import literals
from icetower.iceberg.avro_schemas import parse_decimal
from icetower.iceberg.change import Change, Touched
from icetower.iceberg.manifests import DATA
from icetower.iceberg.metadata import MAIN
from icetower.iceberg.partitions import PartitionField, PartitionSpec, partition_name, spec_of
from icetower.iceberg.schemas import read_as
from icetower.paths import FAMILY_OF, plain_path
from icetower.protocol.appends import AppendRequest, FileDescriptor
from icetower.protocol.names import Identifier
from icetower.protocol.rows import RowsRequest
from icetower.registry.principals import Principal
from icetower.table.head import HeadState

_APPEND = frozenset({Operation.APPEND})
_WIDE = Context(prec=1000)


@dataclass(frozen=True)
class AppendFacts:
    """One append by one principal.

    Attributes:
        head: the table, as of late; the plan looks at it again.
        now_ms: milliseconds since 1970, for what contracts own relative to ``now``.
    """

    principal: Principal
    table: Identifier
    head: HeadState
    request: AppendRequest
    identity: Identity
    now_ms: int

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The files to be verified. Raises `ValidationFailed` for a spec or partition that the table doesn't have."""
        return tuple(_claim(self.head, file) for file in self.request.files)


def key_of(request: AppendRequest | RowsRequest, key: str | None) -> str | None:
    """The key of an append: that of its header, else its body's. Raises `KeyMisused` where they differ."""
    if key is not None and request.key is not None and key != request.key:
        raise KeyMisused("the header Idempotency-Key and the body's key differ; send one of them", rule="key")
    return request.key if key is None else key


def application_of(request: AppendRequest | RowsRequest, application: tuple[str, int] | None) -> tuple[str, int] | None:
    """(application, sequence) of an append: of its headers, else of its body. Raises `KeyMisused` where they differ."""
    if application is not None and request.application is not None and application != request.application:
        raise KeyMisused(
            "Icetower-Application or Icetower-Sequence differs from the body's application; send one of them",
            rule="key.sequence",
        )
    return request.application if application is None else application


def admitted(facts: AppendFacts, files: Sequence[Verified]) -> AdmittedAppend:
    """The append with its files as they were found."""
    uuid = facts.head.metadata.get("table-uuid")
    slot_required, slot_shadowed = slot_needs(
        facts.principal.contract,
        facts.table,
        _touches(facts),
        _APPEND,
        layout=Layout.of(facts.head.metadata),
        now_ms=facts.now_ms,
    )
    return AdmittedAppend(
        identity=facts.identity,
        identifier=facts.table,
        files=tuple(Touched(verified.file, verified.spec_id, None) for verified in files),
        contract=facts.principal.contract.name,
        contract_version=facts.principal.contract_version,
        fingerprint=fingerprint(claim.path for claim in facts.claims),
        table_uuid=None if uuid is None else str(uuid),
        read_as=read_as(facts.head.metadata),
        intents_required=requires_intents(facts.principal.contract, facts.table),
        slot_required=slot_required,
        slot_shadowed=slot_shadowed,
    )


def check_proofs(principal: Principal, table: Identifier, claims: Sequence[Claim], files: Sequence[Verified]) -> None:
    """Raises `ContractViolation` (``append.unproven``) for a file whose statistics don't prove its partition, where the
    contract asks for that."""
    if not must_prove(principal, table):
        return
    for verified, claim in zip(files, claims, strict=True):
        if verified.unproven:
            raise ContractViolation(
                f"{principal.name} may not add {claim.path} to {table}: contract {principal.contract.name} asks for "
                f"proof of partitions, and the file's statistics do not show that all its rows have one value of "
                f"{', '.join(verified.unproven)}; write it with statistics of these columns",
                rule="append.unproven",
                partitions=(partition_name(claim.spec, claim.partition),),
                files=(claim.path,),
                next_step="fix_request",
            )


def must_prove(principal: Principal, table: Identifier) -> bool:
    """Whether the contract asks for proof of partitions."""
    return not principal.administrator and principal.contract.proves(table)


def claims_of(metadata: Mapping[str, Any], changes: Sequence[Change]) -> list[Claim]:
    """What a commit says of the data files that it adds, to be proven as those of an append are."""
    specs: dict[int, PartitionSpec] = {}
    claims: list[Claim] = []
    for change in changes:
        for touched in change.added:
            file = touched.file
            if file.content != DATA:
                continue  # what delete files reach is judged by the data files that they point into
            spec = specs.setdefault(touched.spec_id, spec_of(metadata, touched.spec_id))
            size_bytes = int(file.record.get("file_size_in_bytes") or 0)
            claims.append(Claim(file.path, file.record_count, size_bytes, spec, file.partition, None, {}))
    return claims


def fingerprint(paths: Iterable[str]) -> str:
    """Stands for an append's content: its files, in whatever order."""
    return hashlib.sha256("\n".join(sorted(paths)).encode("utf-8", "surrogatepass")).hexdigest()


# -- before a file is opened -------------------------------------------------------------------------------------------


def check_table(facts: AppendFacts | RowsFacts) -> None:
    """append.branch, append.encrypted: there is a branch that files can be appended to."""
    head, ref = facts.head, facts.request.ref
    found = (head.metadata.get("refs") or {}).get(ref)
    if (found is None and ref != MAIN) or (found is not None and found.get("type") != "branch"):
        raise ValidationFailed(
            f"{ref} is no branch of {facts.table}; create it, or append to main", rule="append.branch"
        )
    if head.metadata["properties"].get("encryption.key-id"):
        raise ValidationFailed(
            f"the table {facts.table} is encrypted; append to it by a commit of Iceberg's own", rule="append.encrypted"
        )


def check_partitions_fit(facts: AppendFacts) -> None:
    """append.partition: each file's partition fits a spec of the table."""
    assert facts.claims is not None


def check_each_once(facts: AppendFacts) -> None:
    """append.repeated: each file is named once."""
    paths = {claim.path for claim in facts.claims}
    if len(paths) < len(facts.claims):
        twice = next(path for path, count in Counter(claim.path for claim in facts.claims).items() if count > 1)
        raise ValidationFailed(
            f"the append names the file {twice} twice; its rows would be read twice", rule="append.repeated"
        )


def check_partitions(facts: AppendFacts) -> None:
    """contract.table, contract.operation, contract.partitions, contract.undecided."""
    layout = Layout.of(facts.head.metadata)
    touches = list(_touches(facts))
    verdict = check(facts.principal.contract, facts.table, touches, _APPEND, layout=layout, now_ms=facts.now_ms)
    if not isinstance(verdict, Clear):
        raise refusal(verdict, facts.principal, facts.table)


def _touches(facts: AppendFacts) -> Iterator[Touch]:
    counted = Counter((claim.spec, claim.partition) for claim in facts.claims)
    for (spec, partition), count in counted.items():
        yield Touch(spec, partition, True, DATA, count)


def check_locations(facts: AppendFacts) -> None:
    """contract.location: the files lie in the table's place, and in the principal's own."""
    check_files(facts.principal, facts.table, facts.head.metadata, [claim.path for claim in facts.claims])


def check_quotas(facts: AppendFacts) -> None:
    """contract.quota: how many files, and bytes, an append brings."""
    size_bytes = sum(file.size_bytes for file in facts.request.files)
    check_quota(facts.principal, facts.table, files=len(facts.claims), size_bytes=size_bytes)


def check_idempotency(facts: AppendFacts) -> None:
    """contract.key: a key, where the contract requires one."""
    check_key(facts.principal, facts.table, facts.identity.ways)


# -- one name for one file: paths are compared as texts, here, in groups, and by engines that look for deletes ---------

_ODD = re.compile(r"/\.{0,2}(?=/|\Z)|[?#]")
"""What has more than one spelling. Some libraries drop what comes after ? and #, and others take it for the name."""


def check_spelling(facts: AppendFacts) -> None:
    """append.path: files are spelled as the table spells the place that they lie in."""
    roots = roots_of(facts.head.metadata)
    plain = sorted(((plain_path(root).rstrip("/"), root.rstrip("/")) for root in roots), key=lambda pair: -len(pair[0]))
    for claim in facts.claims:
        path = claim.path
        own = plain_path(path)
        for bare, root in plain:  # of places within each other, the innermost counts
            if own.startswith(f"{bare}/"):
                expected, start = root + own[len(bare) :], len(root)
                break
        else:  # elsewhere: only administrators get here
            start_of_it, expected = _elsewhere(own, roots[-1])
            start = len(start_of_it)
        odd = _ODD.search(path, start)
        if path != expected or odd:
            wanted = f"it must be spelled {expected}" if not odd else f"it has {odd[0]!r} where one name must follow"
            raise ValidationFailed(
                f"the data file {path} has a path that is not the table's way to spell it: {wanted}; name files by the "
                f"table's location {roots[-1]} as it is, and what follows without //, /./, /../, ? and #",
                rule="append.path",
                files=(path,),
            )


def _elsewhere(plain: str, location: str) -> tuple[str, str]:
    """How a file outside of the table's places is spelled, in the manner of the table's location.

    Returns: what comes before its name, and the whole.
    """
    if plain.startswith("/"):
        before = "" if location.startswith("/") else "file:" if re.match(r"file:/(?!/)", location) else "file://"
        return before, before + plain
    scheme, separator, rest = plain.partition("://")
    if not separator:  # no path at all, which the storage will say
        return "", plain
    own = location.partition(":")[0]
    before = f"{own if FAMILY_OF.get(own) == scheme else scheme}://"
    return before, before + rest


# -- partitions, from Iceberg's JSON form of single values (specification, Appendix D) --------------------------------


def _claim(head: HeadState, file: FileDescriptor) -> Claim:
    spec_id = head.metadata["default-spec-id"] if file.spec_id is None else file.spec_id
    spec = head.specs.get(spec_id)
    if spec is None:
        raise ValidationFailed(
            f"the file {file.path} names partition spec {spec_id}, and the table has "
            f"{', '.join(str(known) for known in head.specs)}",
            rule="append.partition",
            files=(file.path,),
        )
    partition = partition_of(spec, file.partition, file.path)
    return Claim(
        file.path, file.record_count, file.size_bytes, spec, partition, file.sort_order_id, file.nan_value_counts
    )


def partition_of(spec: PartitionSpec, given: Mapping[str, Any] | Sequence[Any], path: str) -> tuple[Any, ...]:
    """A partition as manifests hold it.

    Args:
        given: values by field name, or in the spec's order.
        path: of the file, for messages.

    Raises:
        ValidationFailed: ``append.partition``; the message names the field.
    """
    names = [field.name for field in spec.fields]
    if isinstance(given, Mapping):
        void = {field.name for field in spec.fields if field.transform == "void"}
        wrong = [name for name in names if name not in given and name not in void]
        wrong += [name for name in given if name not in names]
        values = [given.get(name) for name in names]
    else:
        wrong = [] if len(given) == len(names) else [f"{len(given)} values"]
        values = list(given)
    if wrong:
        raise ValidationFailed(
            f"the partition of {path} does not fit spec {spec.spec_id} ({', '.join(names) or 'no fields'}): "
            f"{', '.join(wrong[:5])}",
            rule="append.partition",
            files=(path,),
        )
    return tuple(_value(field, value, path) for field, value in zip(spec.fields, values, strict=True))


def _value(field: PartitionField, value: Any, path: str) -> Any:
    if value is None:
        return None
    kind = field.result_type
    try:
        found = None if field.transform == "void" else _internal(kind, value)
    except ValidationFailed:
        found = None
    if found is None or (field.transform.startswith("bucket[") and not 0 <= found < int(field.transform[7:-1])):
        raise ValidationFailed(
            f"the partition of {path} has {field.name}={value!r}, which is no value of {field.transform} as {kind}; "
            "write it in Iceberg's JSON form, such as 2017-01-31 for a date or 3 for a bucket",
            rule="append.partition",
            files=(path,),
        )
    return found


def _internal(kind: str, value: Any) -> Any:
    """A value of a type in manifests' form; None where it is none. Raises `ValidationFailed` for bad texts."""
    if isinstance(value, dict | list):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and kind.endswith("_ns"):
        return None  # a bare number would have to be microseconds, and nobody would expect it
    found = literals.convert(value, kind)
    if isinstance(found, literals.Range):
        return None
    if isinstance(found, int) and not literals.LONG_MIN <= found <= literals.LONG_MAX:
        return None
    if isinstance(found, Decimal):
        precision, scale = parse_decimal(kind) or (0, 0)
        exact = found.quantize(Decimal(1).scaleb(-scale), context=_WIDE)
        return (
            exact if isinstance(value, str) and exact == found and len(exact.as_tuple().digits) <= precision else None
        )
    return found
