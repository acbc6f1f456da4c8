"""What a commit's request alone tells, asked before its manifests are read: reading them costs everybody (trap A8).

Whatever is refused here would be refused by `admit` too, by the same rule. What passes is asked again with its files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from icetower.admission.admit import Asked, check_words
from icetower.admission.permissions import require
from icetower.admission.refusals import Held
from icetower.contracts.model import FILE_OPERATIONS, Operation
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.table.change import Change, ListDiff

JSON = Mapping[str, Any]

_NO_FILES = ListDiff((), (), (), ())


def admit_unread(
    principal: Principal,
    identifier: Identifier,
    metadata: JSON | None,
    requirements: Sequence[JSON],
    updates: Sequence[JSON],
    location: str | None,
    now_ms: int,
) -> None:
    """Raises `ContractViolation`, or `ValidationFailed` for a word that is not known. Arguments as of `admit`."""
    snapshots = [update["snapshot"] for update in updates if update["action"] == "add-snapshot"]
    if not snapshots or metadata is None:  # what creates a table is about its own place, which its files tell first
        return
    changes = [Change(snapshot, _NO_FILES, (), (), {}, {}, (), False) for snapshot in snapshots]
    check_words(changes)
    if principal.administrator:
        return
    asked = Asked(principal, identifier, metadata, changes, requirements, updates, now_ms)
    shadow = Held(principal)
    for ask in (
        asked.check_summaries,
        partial(_require_any, principal, identifier),
        asked.check_refs,
        asked.check_history,
        partial(asked.check_locations, location),
        asked.check_shared,
    ):
        with shadow.held():  # in shadow mode, `admit` notes it
            ask()


def _require_any(principal: Principal, identifier: Identifier) -> None:
    """A snapshot is an operation on files, whichever: who has none of them commits none."""
    if not any(principal.contract.grants(operation, identifier) for operation in FILE_OPERATIONS):
        require(principal, Operation.APPEND, identifier)
