"""The declarations about reads in the contracts of a table's writers, from its tower."""

from __future__ import annotations

from collections.abc import Sequence

from icetower.agent import Tower
from icetower.cli.registry import token_for
from icetower.contracts.document import load
from icetower.errors import BadRequest, IcetowerError
from icetower.protocol.marks import PRINCIPAL
from icetower.protocol.names import Identifier
from icetower.revert.unread import Promises, Version
from icetower.table.head import HeadState


def promises_of(catalog: str, table: str, head: HeadState) -> Promises | None:
    """Every version of the contracts of the table's writers; None if the catalog does not show them.

    Only a tower has contracts, and it shows other principals' contracts to administrators.
    """
    writers = {str((snapshot.get("summary") or {}).get(PRINCIPAL)) for snapshot in head.metadata["snapshots"]}
    try:
        with Tower(catalog, token_for(catalog)) as tower:
            bound = {each["name"]: each["contract"] for each in tower.principals() if each["name"] in writers}
            versions = {name: _versions(tower, name) for name in sorted(set(bound.values()))}
    except IcetowerError:
        return None
    return Promises(Identifier.parse(table), {principal: versions[name] for principal, name in bound.items()})


def _versions(tower: Tower, name: str) -> Sequence[Version]:
    try:
        history = tower.contract_history(name)
    except IcetowerError:  # such as the administrators', which is not a contract
        return ()
    history.sort(key=lambda each: each["version"])
    return [_version(each["applied_ms"], each["text"], name) for each in history]


def _version(since_ms: int, text: str | None, name: str) -> Version:
    try:
        return Version(since_ms, None if text is None else load(text, source=f"contract {name}"))
    except BadRequest:  # in an older version of the language: it declares nothing
        return Version(since_ms, None)
