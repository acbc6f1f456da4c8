"""What a principal may see and do, apart from commits."""

from __future__ import annotations

from collections.abc import Callable

from icetower.contracts.model import Operation
from icetower.errors import ContractViolation
from icetower.protocol.names import Identifier, Namespace
from icetower.registry.principals import Principal

_ACTS = {
    Operation.APPEND: "append to",
    Operation.DELETE: "delete from",
    Operation.OVERWRITE: "overwrite rows of",
    Operation.REPLACE: "rewrite files of",
    Operation.REFS: "move branches or tags of",
}
"""How the operations are said that are no verbs for a table."""


def may(principal: Principal, operation: Operation, table: Identifier) -> bool:
    """Whether a principal may do something to a table, some partition of it included."""
    return principal.contract.shadow or principal.contract.grants(operation, table)


def require(principal: Principal, operation: Operation, table: Identifier) -> None:
    """Raises `ContractViolation` unless the contract grants it; who asks in shadow mode lets it by, and notes it."""
    if principal.contract.grants(operation, table):
        return
    rules = principal.contract.rules_for(table)
    named = bool(rules)
    why = f"doesn't grant {operation} on it" if named else "doesn't name the table"
    if any(operation in rule.operations for rule in rules):
        why = f"grants {operation} where it owns some partitions only, and that concerns the whole table"
    raise ContractViolation(
        f"{principal.name} may not {_ACTS.get(operation, operation)} {table}: contract {principal.contract.name} {why}",
        rule="contract.operation" if named else "contract.table",
    )


def visible(principal: Principal, what: Identifier | Namespace) -> bool:
    """Whether a listing shows a table, or a namespace (if any table in it or under it may be)."""
    return principal.contract.shadow or _named(principal, what)


def visible_tables(principal: Principal, namespace: Namespace) -> Callable[[Identifier], bool]:
    """`visible` for the tables of one namespace, asked of each: a namespace may have tens of thousands."""
    patterns = [rule.pattern for rule in principal.contract.rules]
    everything = principal.contract.administrator or principal.contract.shadow
    if everything or any(pattern.covers_namespace(namespace) for pattern in patterns):
        return lambda _: True
    names = {pattern.last for pattern in patterns if pattern.namespace == namespace}
    return lambda table: table.name in names


def _named(principal: Principal, what: Identifier | Namespace) -> bool:
    contract = principal.contract
    if contract.administrator:
        return True
    if isinstance(what, Identifier):
        return bool(contract.rules_for(what))
    return any(rule.pattern.reaches(what) for rule in contract.rules)


def require_visible(principal: Principal, namespace: Namespace) -> None:
    """Raises `ContractViolation` for a namespace in which a principal may see nothing; in shadow mode, too."""
    if not _named(principal, namespace):
        raise ContractViolation(
            f"{principal.name} may see nothing in the namespace {'.'.join(namespace)}: "
            f"contract {principal.contract.name} names no table in it",
            rule="contract.namespace",
        )


def require_namespace_change(principal: Principal, namespace: Namespace) -> None:
    """Creating, dropping and describing a namespace: administrators, or who may create every table in it.

    Raises `ContractViolation`.
    """
    contract = principal.contract
    if contract.administrator or any(
        rule.pattern.covers_namespace(namespace) and rule.grants(Operation.CREATE) for rule in contract.rules
    ):
        return
    name = ".".join(namespace)
    raise ContractViolation(
        f"{principal.name} may not create, drop or change the namespace {name}: contract {contract.name} "
        f"doesn't grant create on {name}.* or {name}.**",
        rule="contract.namespace",
    )
