"""What a principal may see and do, apart from commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icetower.admission.permissions import may, require, require_namespace_change, require_visible, visible
from icetower.contracts.document import load
from icetower.contracts.model import Operation
from icetower.errors import ContractViolation
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal, administrator

AGENT = Principal(
    "agent-1",
    load(
        """
version: 1
agent: a
tables:
- {table: pricing.prices, operations: [append]}
- {table: lab.**, operations: [create, drop]}
- {table: lab.old, operations: [rename]}
- {table: flat.*, operations: [create]}
- {table: one.table, operations: [create]}
reads: [a.b.*]
""",
        source="test",
    ),
    1,
)
CHIEF = administrator("chief")

TABLES = """\
read      pricing.prices  yes
append    pricing.prices  yes
drop      pricing.prices  contract.operation
read      pricing.other   contract.table
read      a.b.c           yes
append    a.b.c           contract.operation
read      a.c             contract.table
create    lab.x           yes
drop      lab.x.y.z       yes
read      lab.x           contract.operation
register  lab.x           contract.operation
"""


@pytest.mark.parametrize("line", TABLES.splitlines())
def test_tables(line: str) -> None:
    operation, name, expected = line.split()
    table = Identifier.parse(name)
    assert may(AGENT, Operation(operation), table) is (expected == "yes")
    assert may(CHIEF, Operation(operation), table)
    require(CHIEF, Operation(operation), table)
    if expected == "yes":
        require(AGENT, Operation(operation), table)
    else:
        with pytest.raises(ContractViolation) as caught:
            require(AGENT, Operation(operation), table)
        assert caught.value.rule == expected
        assert name in caught.value.message


NAMESPACES = """\
namespace  seen  changed
pricing    yes   no
lab        yes   yes
lab.x.y    yes   yes
flat       yes   yes
flat.x     no    no
one        yes   no
a          yes   no
a.b        yes   no
a.b.c      no    no
other      no    no
"""


@pytest.mark.parametrize("line", NAMESPACES.splitlines()[1:])
def test_namespaces(line: str) -> None:
    name, seen, changed = line.split()
    namespace = tuple(name.split("."))
    assert visible(AGENT, namespace) is (seen == "yes")
    assert visible(CHIEF, namespace)
    require_visible(CHIEF, namespace)
    require_namespace_change(CHIEF, namespace)
    for expected, ask in ((seen, require_visible), (changed, require_namespace_change)):
        if expected == "yes":
            ask(AGENT, namespace)
        else:
            with pytest.raises(ContractViolation) as caught:
                ask(AGENT, namespace)
            assert caught.value.rule == "contract.namespace"


def test_listings_show_tables_that_the_contract_names() -> None:
    assert visible(AGENT, Identifier.parse("lab.x"))
    assert not visible(AGENT, Identifier.parse("pricing.secret"))
    assert visible(CHIEF, Identifier.parse("pricing.secret"))


def test_in_shadow_mode_everything_is_seen_and_what_is_asked_for_is_judged() -> None:
    shadow = replace(AGENT, contract=replace(AGENT.contract, shadow=True))
    hidden = Identifier.parse("pricing.secret")
    assert visible(shadow, hidden)
    assert visible(shadow, ("other",))
    assert may(shadow, Operation.DROP, hidden)
    for ask, what in ((require_visible, ("other",)), (require_namespace_change, ("pricing",))):
        with pytest.raises(ContractViolation, match="agent-1 may"):
            ask(shadow, what)
    with pytest.raises(ContractViolation, match="doesn't name the table"):
        require(shadow, Operation.READ, hidden)
