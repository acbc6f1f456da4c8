"""Delete files that hold more than their manifests say (trap R5), under contracts that own a part of a table.

By the specification a delete file reaches the files of its own partition, or the one that it refers to, and that is
judged by the manifests. PyIceberg deletes rows of whatever data file is named in it. So what is named there counts as
touched, too. A data file that is not known yet may not be named: whoever adds it, or has added it since the commit's
base, would lose its rows. Asked of commits that are admitted already: files are opened for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icetower.admission.admitted import Admitted
from icetower.admission.operations import targets_of
from icetower.admission.refusals import refusal
from icetower.admission.targets import Places, known_places
from icetower.contracts.check import Clear, Touch, check
from icetower.contracts.model import FILE_OPERATIONS, Operation
from icetower.contracts.terms import Layout
from icetower.errors import ContractViolation
from icetower.iceberg.change import Change, Place, Touched
from icetower.iceberg.partitions import spec_of
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal

Named = Mapping[str, frozenset[str] | None]
"""By the path of a delete file, the data files that are named in it; None: that cannot be determined."""

_CLOSED = "it is no Parquet or Puffin file of a moderate size, or not as long as its manifest says; write such files"


def must_look_inside(principal: Principal, identifier: Identifier, operations: frozenset[Operation]) -> bool:
    """Whether it matters to anybody what a principal's delete files hold."""
    contract = principal.contract
    return not (principal.administrator or contract.grants_everywhere(operations & FILE_OPERATIONS, identifier))


def unlisted_targets(changes: Sequence[Change], named: Named) -> frozenset[str]:
    """The data files that are named inside of delete files, and not by their manifests."""
    return frozenset(name for touched in _added(changes) for name in _unlisted(touched, named))


def check_contents(
    principal: Principal, admitted: Admitted, table: Mapping[str, Any], named: Named, places: Places, *, now_ms: int
) -> None:
    """Whether all that is named in a commit's delete files is the principal's to touch.

    Args:
        table: its metadata, with the commit's own schemas and specs.
        named: what is named in the delete files, as `Contents.named` found it.
        places: where the data files of `unlisted_targets` are, as `targets.locate` found.
        now_ms: milliseconds since 1970, for what contracts own relative to ``now``.

    Raises:
        ContractViolation: one names a data file in a partition that is not owned, or one that is not in the table, or
            cannot be looked into.
    """
    identifier, own = admitted.identifier, known_places(admitted.changes)
    for touched in _added(admitted.changes):
        if touched.file.path not in named:
            continue  # a data file, or deletes by value: its manifest has said it all
        if named[touched.file.path] is None:
            raise _closed(principal, identifier, touched, _CLOSED)
        reached: dict[Place, None] = {}
        for name in sorted(_unlisted(touched, named)):
            if name not in places:  # where the commit itself says that it is does not count
                raise _closed(principal, identifier, touched, f"there are too many manifests to look for {name}")
            found = (*own.get(name, ()), *places[name])
            if not found:
                raise ContractViolation(
                    f"{principal.name} may not commit to {identifier}: its delete file {touched.file.path} names the "
                    f"data file {name}, which is not in the snapshot that it was written on, so its "
                    "partition cannot be determined",
                    rule="contract.undecided",
                )
            reached |= dict.fromkeys(found)
        touches = [
            Touch(spec_of(table, spec), partition, adds=True, content=touched.file.content)
            for spec, partition in reached
        ]
        verdict = check(
            principal.contract, identifier, touches, admitted.operations, layout=Layout.of(table), now_ms=now_ms
        )
        if not isinstance(verdict, Clear):
            where = f"{verdict.message}; its delete file {touched.file.path} names data files there"
            raise refusal(replace(verdict, message=where), principal, identifier)


def _added(changes: Sequence[Change]) -> Iterator[Touched]:
    return (touched for change in changes for touched in change.added)


def _unlisted(touched: Touched, named: Named) -> frozenset[str]:
    return (named.get(touched.file.path) or frozenset()) - targets_of(touched.file)


def _closed(principal: Principal, identifier: Identifier, touched: Touched, why: str) -> ContractViolation:
    return ContractViolation(
        f"{principal.name} may not commit to {identifier}: which data files {touched.file.path} deletes from "
        f"cannot be determined: {why}",
        rule="contract.contents",
        next_step="fix_request",
    )
