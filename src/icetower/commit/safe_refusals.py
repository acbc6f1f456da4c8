"""`SafeRefusals`: what a commit that is refused may be told. Its client deletes its files upon most refusals.

Where the commit has landed before, and only its answer was lost, those files are what the table lives on (trap A3). It
may be refused for what came since: its contract was revoked, its table renamed, its snapshot has expired. Iceberg's
Java client sends a commit again by itself when its connection drops.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from icetower.admission.identity import Identity
from icetower.commit.head import Heads
from icetower.commit.live_files import LiveFiles
from icetower.commit.replays import Replays
from icetower.commit.twice import already_there, is_picked, reused
from icetower.errors import CommitStateUnknown, IcetowerError, KeyMisused, NotFound
from icetower.files.changes import Manifests
from icetower.iceberg.listing import Listing
from icetower.iceberg.manifests import ADDED, DATA, DELETED
from icetower.ledger.ledger import Commit, CommitKey, Ledger
from icetower.ledger.writers import Writer, Writers
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState

CLEANED_UP_AFTER = frozenset((400, 401, 403, 404, 409))
"""Iceberg's Java client deletes the files of a commit upon these (its `CleanableFailure`)."""

_HIDDEN = frozenset((401, 403))
"""Who is refused so may not see the table, or nothing at all."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class TableNames(Protocol):
    """The names of tables, as the catalog has them."""

    async def tables_at(self, part: str) -> list[Identifier]:
        """The tables whose metadata location contains `part`."""
        ...


@dataclass(frozen=True, slots=True)
class _Sent:
    """A commit that is refused. `uuid`: of its table, as it says; empty where it does not."""

    request: CommitRequest
    identity: Identity
    identifier: Identifier
    uuid: str

    @classmethod
    def of(cls, request: CommitRequest, identity: Identity) -> _Sent:
        assert request.identifier is not None
        asserted = (each.get("uuid") for each in request.requirements if each["type"] == "assert-table-uuid")
        uuid = str(next(asserted, None) or request.updates.assigned_uuid).lower()
        return cls(request, identity, request.identifier, uuid)

    @property
    def writer(self) -> Writer:
        return Writer.of(self.identity.principal, self.uuid, self.identifier)

    @property
    def keys(self) -> list[CommitKey]:
        return [key for key in CommitKey.of(self.uuid, self.identity) if key is not None]


class SafeRefusals:
    """Looks, before commits are refused, whether they have landed.

    Only who has committed to a table can have files in it that must not be deleted. Anybody else is refused for the
    price of a lookup in the ledger, whatever the request names: the catalog has no index of uuids.
    """

    def __init__(
        self,
        upstream: TableNames,
        heads: Heads,
        replays: Replays,
        ledger: Ledger,
        manifests: Manifests,
        writers: Writers,
        live: LiveFiles | None = None,
    ) -> None:
        self._upstream = upstream
        self._heads = heads
        self._replays = replays
        self._ledger = ledger
        self._manifests = manifests
        self._writers = writers
        self._live = live

    async def of(self, refusal: IcetowerError, commits: Sequence[tuple[CommitRequest, Identity]]) -> IcetowerError:
        """The refusal, or in place of it an error upon which no client deletes files that its tables have.

        Args:
            commits: all of the request that is refused, each with its identity.
        """
        sent = [_Sent.of(request, identity) for request, identity in commits if identity.snapshots]
        if refusal.status not in CLEANED_UP_AFTER or not sent:
            return refusal
        try:
            landed = await self._landed(refusal, sent)
        except KeyMisused as error:  # it has landed, and is not done
            return error
        except IcetowerError as error:
            if error.status < 500:
                return refusal
            return _unknown(f"{refusal.message}. Whether it had landed before cannot be read now", error)
        return _unknown(f"it has landed, and is refused now: {refusal.message}") if landed else refusal

    async def _landed(self, refusal: IcetowerError, sent: Sequence[_Sent]) -> bool:
        """Whether a table has one. Raises `KeyMisused` where one is not done, or only its manifests are there."""
        wrote = await self._writers.among({each.writer for each in sent})
        known = await self._ledger.find_commits(list({key for each in sent for key in each.keys}))
        tables = await self._tables(refusal, sent, wrote, known)
        for each, table in zip(sent, tables, strict=True):
            if table is None:
                if _was_kept(each, known):  # a table had it that was dropped
                    return True
                continue
            if await self._replays.find(*table, each.identity) is not None:
                return True
            visible = refusal.status in (400, 409)  # whoever hears another one may not learn what the table has
            if visible:
                await self._require_no_live_manifest(each.request, table[1])
            again = await self._live_files(each.request, table[1])
            if again and visible:
                raise already_there(again)
            if again:
                return True
        return False

    async def _tables(
        self,
        refusal: IcetowerError,
        sent: Sequence[_Sent],
        wrote: Collection[Writer],
        known: Mapping[CommitKey, Commit],
    ) -> list[tuple[Identifier, HeadState] | None]:
        """The table that each is for, under the name that it has by now; None where there is none to look at.

        Args:
            wrote: who of their senders has committed there.
            known: what the ledger has under their keys.
        """
        named: list[HeadState | None] = []
        for each in sent:
            own = each.writer in wrote or any(key in known for key in each.keys)
            may_look = own or refusal.status not in _HIDDEN
            named.append(await self._head(each.identifier, each.uuid) if may_look else None)
        moved = (
            each.uuid
            for each, head in zip(sent, named, strict=True)
            if head is None and each.writer in wrote and _UUID.fullmatch(each.uuid)
        )
        uuids = list(dict.fromkeys(moved))
        # At once, so that the catalog's rows are read once for all of them.
        places = await asyncio.gather(*(self._upstream.tables_at(f"-{uuid}/") for uuid in uuids))
        at = dict(zip(uuids, places, strict=True))
        return [
            await self._renamed(each.uuid, at.get(each.uuid, ())) if head is None else (each.identifier, head)
            for each, head in zip(sent, named, strict=True)
        ]

    async def _renamed(self, uuid: str, identifiers: Iterable[Identifier]) -> tuple[Identifier, HeadState] | None:
        """The table with that UUID among those in its place."""
        for identifier in identifiers:
            head = await self._head(identifier, uuid)
            if head is not None:
                return identifier, head
        return None

    async def _head(self, identifier: Identifier, uuid: str) -> HeadState | None:
        """The table of a name, where it has that UUID, or none is asked for."""
        with suppress(NotFound):
            head = await self._heads.load(identifier, settled=True)
            return head if not uuid or str(head.metadata.get("table-uuid")).lower() == uuid else None
        return None

    async def _require_no_live_manifest(self, request: CommitRequest, head: HeadState) -> None:
        """Raises `KeyMisused` where its branch has a manifest of it.

        Ids and keys tell of nearly every commit that has landed. Of one without a key whose snapshot has expired since,
        only its manifests tell, which the lists of later snapshots still name. A list that was not read before the
        refusal is not read for it: the order of the checks says what is read for whom.
        """
        own = self._own(request)
        ref = (head.metadata.get("refs") or {}).get(request.updates.target_ref or "main")
        newest = None if ref is None else head.snapshots.get(ref["snapshot-id"])
        path = None if newest is None else newest.get("manifest-list")
        if path is None or not own:
            return
        live = self._manifests.listings.get(path) or Listing.of(await self._manifests.list_at(path))
        again = [path for path in own if path in live]
        if again:
            raise reused(min(again))

    async def _live_files(self, request: CommitRequest, head: HeadState) -> list[str]:
        """The data files that a commit adds again, as far as its manifests have been read, and those of its branch."""
        if self._live is None or any(map(is_picked, request.updates.snapshots)):
            return []
        manifests = filter(None, map(self._manifests.known, self._own(request)))
        entries = [entry for manifest in manifests if manifest.content == DATA for entry in manifest.entries]
        gone = {entry.file.path for entry in entries if entry.status == DELETED}
        paths = [entry.file.path for entry in entries if entry.status == ADDED and entry.file.path not in gone]
        return sorted(await self._live.named(head, request.updates.target_ref or "main", paths))

    def _own(self, request: CommitRequest) -> set[str]:
        """The manifests that a commit adds, by its lists that were read."""
        return {
            row.path
            for snapshot in request.updates.snapshots
            for row in self._manifests.listings.get(str(snapshot.manifest_list), ())
            if row.added_snapshot_id == snapshot.id
        }


def _was_kept(sent: _Sent, known: Mapping[CommitKey, Commit]) -> bool:
    """Whether the ledger has a commit by its key, or its number."""
    number = None if sent.identity.application is None else sent.identity.application[1]
    return any(
        not key.numbered or (number is not None and commit.sequence is not None and number <= commit.sequence)
        for key, commit in ((key, known[key]) for key in sent.keys if key in known)
    )


def _unknown(why: str, cause: IcetowerError | None = None) -> CommitStateUnknown:
    unknown = CommitStateUnknown(f"{why}. Look for the rows of the commit before writing them again")
    unknown.__cause__ = cause
    return unknown
