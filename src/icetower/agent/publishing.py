"""Branches that an agent works on, and publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from icetower.errors import UsageError

JSON = dict[str, Any]
Keep = Literal["each", "squash"]

FORWARDED, REBASED, REPLAYED, NOTHING, WAITING = "forwarded", "rebased", "replayed", "nothing", "waiting"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has found. `passed`: None: it has not reported yet."""

    check: str
    passed: bool | None
    details: str
    principal: str | None


@dataclass(frozen=True, slots=True)
class PublishedBranch:
    """What became of a publication.

    Attributes:
        outcome: ``forwarded``: the snapshots have kept their ids; ``rebased``: they came with new ones; ``replayed``:
            it had been done under this key; ``nothing``: nothing was lacking; ``waiting``: for checks, nothing was
            published yet.
        snapshot: where the branch stands that it was published to.
        snapshots: those that it brought, each with the snapshot of the branch that it stands for.
        waits_on: the branch and the snapshot that are to be checked.
        checks: the checks that the contract asks for.
        checked_by: the principals whose reports count, where it waits.
        unchecked: checks that the contracts of the branch's authors name, and that have not passed. Whoever published
            it is not held to them.
    """

    outcome: str
    snapshot: int | None
    snapshots: tuple[tuple[int, int], ...]
    waits_on: tuple[str, int] | None
    checks: tuple[Verdict, ...]
    checked_by: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether the other branch has all of it."""
        return self.outcome != WAITING

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> PublishedBranch:
        """An answer's body (JSON)."""
        check = answer.get("check")
        return cls(
            answer["outcome"],
            answer["snapshot-id"],
            tuple((each["snapshot-id"], each["source"]) for each in answer["snapshots"]),
            None if check is None else (check["branch"], check["snapshot-id"]),
            tuple(
                Verdict(each["check"], each["passed"], each["details"], each["principal"]) for each in answer["checks"]
            ),
            tuple(answer.get("checked-by", ())),
            tuple(answer.get("unchecked", ())),
        )


def body(
    branch: str,
    to: str,
    keep: Keep,
    key: str,
    isolation: str | None,
    read: Mapping[str, Any] | None,
    blind: bool,
    under: tuple[str, int] | None = None,
) -> JSON:
    """The body of a publication. `under`: the id and the fence of an intent. Raises `UsageError` for a filter without a
    level.
    """
    found: JSON = {"branch": branch, "to": to, "keep": keep, "key": key}
    if read is not None and isolation is None:
        raise UsageError("say which isolation is owed to what was read: isolation='snapshot' or 'serializable'")
    if isolation is not None:
        found["reads"] = {"isolation-level": isolation} | ({} if read is None else {"filter": dict(read)})
    found |= {} if under is None else {"intent": under[0], "fence": under[1]}
    return found | ({"blind": True} if blind else {})


def creation(branch: str, metadata: Mapping[str, Any], start: str) -> tuple[Sequence[JSON], Sequence[JSON]] | None:
    """The requirements and updates that create a branch; None where it is there.

    Raises:
        UsageError: there is nothing that it could begin at.
    """
    refs = metadata.get("refs") or {}
    if branch in refs:
        if refs[branch].get("type") != "branch":
            raise UsageError(f"{branch} is a tag; take another name for the branch")
        return None
    if start not in refs:
        raise UsageError(
            f"the table has no branch {start} with a snapshot that {branch} could begin at; write to it first"
        )
    at = refs[start]["snapshot-id"]
    requirements: list[JSON] = [
        {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": None},
    ]
    return requirements, [{"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": at}]
