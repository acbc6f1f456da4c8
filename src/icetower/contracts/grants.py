"""What contracts come to as grants of Apache Polaris, and in words what Polaris cannot hold anybody to. Pure.

Each contract becomes one catalog role and one principal role of the same name (the guide: `pricing_agent` gets
`pricing_writer`), and each principal gets exactly one of them. A pattern `ns.table` is a grant on the table, `ns.*` and
`ns.**` one on the namespace, `**` one on the catalog; what Polaris grants there reaches everything below.

Polaris's privileges are coarser than a contract's operations, so each operation gets the least privilege that does, and
what that allows beyond the contract is said in a `Remark`. Of privileges where one includes the other, as Polaris's
authoriser has it, only the greater is granted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icetower.contracts.limits import Guard, Quota
from icetower.contracts.model import FILE_OPERATIONS, NAME, Contract, Operation, Rule
from icetower.contracts.patterns import THROUGH
from icetower.contracts.regions import Pattern
from icetower.errors import BadRequest
from icetower.protocol.names import Namespace

JSON = Mapping[str, Any]

_WRITE = "TABLE_WRITE_DATA"
_REFS = frozenset({"TABLE_SET_SNAPSHOT_REF", "TABLE_REMOVE_SNAPSHOT_REF", "TABLE_REMOVE_SNAPSHOTS"})
_ON_TABLES: Mapping[Operation, frozenset[str]] = {
    Operation.READ: frozenset({"TABLE_READ_DATA"}),
    **dict.fromkeys(FILE_OPERATIONS, frozenset({_WRITE})),
    Operation.DROP: frozenset({"TABLE_DROP"}),
    Operation.RENAME: frozenset({"TABLE_DROP"}),
    # A new default partition spec has no privilege of its own: Polaris asks for this one.
    Operation.ALTER: frozenset({"TABLE_WRITE_PROPERTIES"}),
    Operation.REFS: _REFS,
}
_ON_NAMESPACES: Mapping[Operation, frozenset[str]] = {
    Operation.CREATE: frozenset({"TABLE_CREATE"}),
    Operation.REGISTER: frozenset({"TABLE_CREATE"}),
}
_INCLUDED: Mapping[str, frozenset[str]] = {
    _WRITE: _REFS | {"TABLE_READ_DATA", "TABLE_WRITE_PROPERTIES"},
    "TABLE_WRITE_PROPERTIES": _REFS,
}
_RESERVED = re.compile(r"\s*system\$", re.IGNORECASE)
_NAME_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Securable:
    """What privileges are granted on: a table, a namespace, or without either the catalog."""

    namespace: Namespace = ()
    table: str | None = None

    def __str__(self) -> str:
        if self.table is not None:
            return "table " + ".".join((*self.namespace, self.table))
        return "namespace " + ".".join(self.namespace) if self.namespace else "the catalog"

    def reaches(self, other: Securable) -> bool:
        """Whether a grant on this is one on `other`, too."""
        if self.table is not None:
            return self == other
        return other.namespace[: len(self.namespace)] == self.namespace


@dataclass(frozen=True, slots=True)
class Grant:
    securable: Securable
    privilege: str

    def body(self) -> JSON:
        """As Polaris's `GrantResource`."""
        namespace, table = list(self.securable.namespace), self.securable.table
        if table is not None:
            return {"type": "table", "namespace": namespace, "tableName": table, "privilege": self.privilege}
        if namespace:
            return {"type": "namespace", "namespace": namespace, "privilege": self.privilege}
        return {"type": "catalog", "privilege": self.privilege}

    def covers(self, other: Grant) -> bool:
        """Whether `other` adds nothing to this one."""
        includes = self.privilege == other.privilege or other.privilege in _INCLUDED.get(self.privilege, ())
        return includes and self.securable.reaches(other.securable)


@dataclass(frozen=True, slots=True)
class Role:
    """A catalog role and the principal role of the same name.

    Attributes:
        contract: the name of the contract that it comes from.
        principals: who holds it.
    """

    name: str
    contract: str
    grants: tuple[Grant, ...]
    principals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something in a contract that Polaris does not enforce.

    Attributes:
        about: the pattern of an entry, or ``the contract``.
    """

    contract: str
    about: str
    words: str


@dataclass(frozen=True, slots=True)
class Grants:
    """What is to be in force in a catalog, and what nobody should believe of it."""

    catalog: str
    roles: tuple[Role, ...]
    remarks: tuple[Remark, ...]


def compile_grants(
    contracts: Sequence[Contract], bindings: Iterable[tuple[str, str]], *, catalog: str, by_namespace: bool = False
) -> Grants:
    """The grants of `contracts`.

    Args:
        bindings: pairs of a principal and its contract. A contract that none of them names is held by a principal of
            its agent's name.
        catalog: its name in Polaris.
        by_namespace: grant on the namespaces of tables instead of on the tables, as the guide does: wider, but
            possible before the tables are there.

    Raises:
        BadRequest: a name that Polaris does not take; a contract twice, or two that would share a role; a principal
            bound twice, or to a contract that is not given.
    """
    if not 1 <= len(catalog) <= _NAME_CHARACTERS_MAX or _RESERVED.match(catalog):
        raise BadRequest(
            f"{catalog!r} is no name of a catalog: Polaris takes 1 to {_NAME_CHARACTERS_MAX} characters, not beginning "
            "with system$",
            rule="grants.catalog",
        )
    names = {contract.name for contract in contracts}
    for contract in contracts:
        if contract.administrator:
            raise BadRequest(
                "the administrator's contract is not compiled; Polaris has catalog_admin for that",
                rule="grants.contract",
            )
    _refuse_twice((contract.name for contract in contracts), "the contract {} is given twice; name its file once")
    _refuse_twice(
        map(role_name, contracts), "two contracts would share the role {}; rename one agent, their grants would add up"
    )
    held = _held(names, tuple(bindings))
    roles = tuple(
        Role(role_name(contract), contract.name, _grants_of(contract, by_namespace), held[contract.name])
        for contract in contracts
    )
    remarks = tuple(remark for contract in contracts for remark in _remarks_of(contract, by_namespace))
    return Grants(catalog, roles, remarks)


def role_name(contract: Contract) -> str:
    """The agent's name without `_agent`, and `_writer`, or `_reader` if it may do nothing but read."""
    only_reads = all(operations_of(rule) <= {Operation.READ} for rule in contract.rules)
    return contract.name.removesuffix("_agent") + ("_reader" if only_reads else "_writer")


def operations_of(rule: Rule) -> frozenset[Operation]:
    """What a rule lets its principals do by themselves.

    It is no write where no partition is given, nor where a mediator or a collector writes its rows.
    """
    operations = frozenset(operation for operation in Operation if rule.grants(operation))
    writes = rule.partitions != () and rule.orchestration not in THROUGH
    return operations if writes else operations - FILE_OPERATIONS


def _refuse_twice(names: Iterable[str], words: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise BadRequest(words.format(name), rule="grants.contract")


def _held(contracts: set[str], bindings: Sequence[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    """Contract → its principals, each in one place only."""
    for principal, contract in bindings:
        if contract not in contracts:
            raise BadRequest(
                f"principal {principal} is bound to {contract}, which is none of the contracts given: "
                f"{', '.join(sorted(contracts))}",
                rule="grants.principal",
            )
    named = {contract for _, contract in bindings}
    pairs = (*bindings, *((name, name) for name in sorted(contracts - named)))
    bound: dict[str, str] = {}
    for principal, contract in pairs:
        if not NAME.fullmatch(principal):
            raise BadRequest(
                f"{principal!r} is no name of a principal; write 1 to 128 letters, digits, '_', '-' or '.'",
                rule="grants.principal",
            )
        if principal in bound:
            raise BadRequest(
                f"principal {principal} is bound twice, to {bound[principal]} and to {contract}; each principal has "
                "exactly one role, so make a principal for each contract",
                rule="grants.principal",
            )
        bound[principal] = contract
    return {name: tuple(principal for principal, contract in pairs if contract == name) for name in contracts}


def _grants_of(contract: Contract, by_namespace: bool) -> tuple[Grant, ...]:
    """The grants of a contract, without those that others of it cover; what is on the catalog comes first."""
    wanted = {
        Grant(securable, privilege)
        for rule in contract.rules
        for operation in operations_of(rule)
        for securable, privileges in (
            (_tables(rule.pattern, by_namespace), _ON_TABLES.get(operation, ())),
            (Securable(rule.pattern.namespace), _ON_NAMESPACES.get(operation, ())),
        )
        for privilege in privileges
    }
    needed = (grant for grant in wanted if not any(other != grant and other.covers(grant) for other in wanted))
    return tuple(sorted(needed, key=lambda grant: (_depth(grant), str(grant.securable), grant.privilege)))


def _depth(grant: Grant) -> int:
    return len(grant.securable.namespace) + (grant.securable.table is not None)


def _tables(pattern: Pattern, by_namespace: bool) -> Securable:
    named = pattern.last not in ("*", "**") and not by_namespace
    return Securable(pattern.namespace, pattern.last if named else None)


# ── What Polaris does not enforce ────────────────────────────────────────────────────────────────────────────────────


def _remarks_of(contract: Contract, by_namespace: bool) -> Iterable[Remark]:
    for words in (remark(contract) for remark in _OF_CONTRACTS):
        if words:
            yield Remark(contract.name, "the contract", words)
    for rule in contract.rules:
        operations = operations_of(rule)
        if by_namespace and _tables(rule.pattern, False).table is not None:
            yield Remark(contract.name, str(rule.pattern), "the one table: it is granted on the whole namespace")
        for words in (remark(rule, operations) for remark in _OF_RULES):
            if words:
                yield Remark(contract.name, str(rule.pattern), words)


def _partitions(rule: Rule, operations: frozenset[Operation]) -> str | None:
    return None if rule.whole or not operations & FILE_OPERATIONS else "partitions: every partition may be written"


def _kinds_of_write(rule: Rule, operations: frozenset[Operation]) -> str | None:
    missing = FILE_OPERATIONS - operations
    if not missing or missing == FILE_OPERATIONS:
        return None
    return f"the kind of write: {_WRITE} also allows {', '.join(sorted(missing))}"


def _metadata(rule: Rule, operations: frozenset[Operation]) -> str | None:
    missing = {Operation.ALTER, Operation.REFS} - operations
    if not missing or not operations & FILE_OPERATIONS:
        return None
    return f"the limit to data: {_WRITE} also allows {' and '.join(sorted(missing))}"


def _snapshots(rule: Rule, operations: frozenset[Operation]) -> str | None:
    if Operation.ALTER not in operations or operations & FILE_OPERATIONS:
        return None
    return "the limit to alter: TABLE_WRITE_PROPERTIES also allows commits and refs, though it hands out no storage"


def _creation(rule: Rule, operations: frozenset[Operation]) -> str | None:
    made = operations & {Operation.CREATE, Operation.REGISTER}
    if not made:
        return None
    if rule.pattern.last not in ("*", "**"):
        return "the name of a new table: TABLE_CREATE is granted on the namespace, for every name in it"
    return None if len(made) == 2 else "create or register: TABLE_CREATE allows both"


def _dropping(rule: Rule, operations: frozenset[Operation]) -> str | None:
    if Operation.RENAME not in operations or Operation.DROP in operations:
        return None
    return "the limit to rename: TABLE_DROP, which it takes, allows drops"


def _nested(rule: Rule, operations: frozenset[Operation]) -> str | None:
    if rule.pattern.last != "*" or not operations:
        return None
    return "the end of `*`: a grant on a namespace reaches the namespaces under it"


def _indirect(rule: Rule, operations: frozenset[Operation]) -> str | None:
    kind = THROUGH.get(rule.orchestration)
    if kind is None:
        return None
    return f"pattern: {rule.orchestration}: nothing is granted for its writes, which come through the {kind}"


def _checks(rule: Rule, operations: frozenset[Operation]) -> str | None:
    if not operations & FILE_OPERATIONS:
        return None
    asked = {
        "blind_appends": rule.blind_appends,
        "strict": rule.strict,
        "require_key": rule.require_key,
        "prove_partitions": rule.prove_partitions,
        "read_scope": rule.reads_owned,
        "isolation": rule.isolation is not None,
        "write_location": rule.own_location,
        "quotas": rule.quota != Quota(),
        "guard": rule.guard != Guard(),
    }
    names = ", ".join(name for name, said in asked.items() if said)
    return f"{names}: Polaris has no such check" if names else None


_OF_RULES: tuple[Callable[[Rule, frozenset[Operation]], str | None], ...] = (
    _partitions,
    _kinds_of_write,
    _metadata,
    _snapshots,
    _creation,
    _dropping,
    _nested,
    _indirect,
    _checks,
)


def _shadow(contract: Contract) -> str | None:
    return "mode: shadow: Polaris enforces its grants at once" if contract.shadow else None


def _clauses(contract: Contract) -> str | None:
    clauses = {
        "escalation": contract.escalation,
        "idempotency": contract.idempotency,
        "orphans": contract.orphans,
        "branches": contract.branches,
    }
    names = ", ".join(name for name, clause in clauses.items() if clause is not None)
    return f"{names}: Polaris has no such clause" if names else None


def _revocation(contract: Contract) -> str | None:
    return (
        "revocation at the next request: it takes effect when the grants are applied again without it, and credentials "
        "for storage that were handed out before end by themselves"
    )


_OF_CONTRACTS: tuple[Callable[[Contract], str | None], ...] = (_shadow, _clauses, _revocation)
