"""`Deed`: a change under a key that is no commit. That it was begun is kept before it is made.

A tower may die, or a database fall silent, between the change and its answer. Iceberg's Java client sends the request
again by itself, under the same key, and would hear that its table exists already, or that there is none to drop. So the
second time the handler looks whether what it finds is its own deed: a created table has the UUID that was kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.errors import IcetowerError, NoSuchTable
from icetower.gateway.kept_answers import BRIEF_S, KeptAnswers
from icetower.ledger.answers import Answer
from icetower.protocol.names import Identifier
from icetower.service.journal import Journal
from icetower.table.head import HeadState


@dataclass(frozen=True, slots=True)
class Deed:
    """A change under a key.

    Attributes:
        mark: a UUID of its own, or what was noted of it; the same when the request comes again.
        is_again: whether it was begun before, and may have been made.
        note: keep another mark in place of this one.
    """

    mark: str
    is_again: bool
    note: Callable[[str], Awaitable[None]]


async def begin(
    journal: Journal, kept: KeptAnswers, ambient: Ambient, name: tuple[str, str], answer: Answer, begun: Answer | None
) -> Deed:
    """Keep that a change is begun, where that can be done; else a resend after a crash is judged as a new one.

    Args:
        name: of its principal, and its key.
        answer: says that it is begun.
        begun: what was kept when it came before.
    """

    async def note(mark: str) -> None:
        with suppress(IcetowerError):
            await journal.ledger.remember(*name, replace(answer, body=mark.encode(), brief_s=BRIEF_S))

    if begun is not None:
        return Deed(begun.body.decode(), True, note)
    mark = ambient.uuid4()
    if kept.begins(name[0]):
        await note(mark)
    return Deed(mark, False, note)


async def table_of(heads: Heads, identifier: Identifier) -> HeadState | None:
    """The table of a name, if there is one: it may be the outcome of a change that was begun before."""
    with suppress(NoSuchTable):
        return await heads.load(identifier)
    return None


def metadata_files(head: HeadState) -> set[str]:
    """Where a table's metadata is, and has been."""
    return {head.location, *(str(entry["metadata-file"]) for entry in head.metadata.get("metadata-log") or ())}
