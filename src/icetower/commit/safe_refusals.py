"""`SafeRefusals`: what a commit that is refused may be told. Its client deletes its files upon most refusals.

Where the commit has landed before, and only its answer was lost, those files are what the table lives on (trap A3). It
may be refused for what came since: its contract was revoked, its table renamed, its snapshot has expired. Iceberg's
Java client sends a commit again by itself when its connection drops.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Protocol

from icetower.admission.identity import Identity
from icetower.commit.draft import reused
from icetower.commit.head import Heads
from icetower.commit.replays import Replays
from icetower.errors import CommitStateUnknown, IcetowerError, KeyMisused, NotFound
from icetower.files.changes import Manifests
from icetower.iceberg.listing import Listing
from icetower.ledger.ledger import CommitKey, Ledger
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.table.head import HeadState

CLEANED_UP_AFTER = frozenset((400, 401, 403, 404, 409))
"""Iceberg's Java client deletes the files of a commit upon these (its `CleanableFailure`)."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class TableNames(Protocol):
    """The names of tables, as the catalog has them."""

    async def tables_at(self, part: str) -> list[Identifier]:
        """The tables whose metadata location contains `part`."""
        ...


class SafeRefusals:
    """Looks, before a commit is refused, whether it has landed."""

    def __init__(
        self, upstream: TableNames, heads: Heads, replays: Replays, ledger: Ledger, manifests: Manifests
    ) -> None:
        self._upstream = upstream
        self._heads = heads
        self._replays = replays
        self._ledger = ledger
        self._manifests = manifests

    async def of(self, refusal: IcetowerError, request: CommitRequest, identity: Identity) -> IcetowerError:
        """The refusal, or in place of it an error upon which no client deletes files that its table has."""
        if refusal.status not in CLEANED_UP_AFTER or not identity.snapshots:
            return refusal
        try:
            landed = await self._landed(refusal, request, identity)
        except KeyMisused as error:  # it has landed, and is not done
            return error
        except IcetowerError as error:
            if error.status < 500:
                return refusal
            return _unknown(f"{refusal.message}. Whether it had landed before cannot be read now", error)
        return _unknown(f"it has landed, and is refused now: {refusal.message}") if landed else refusal

    async def _landed(self, refusal: IcetowerError, request: CommitRequest, identity: Identity) -> bool:
        """Whether the table has it. Raises `KeyMisused` where it is not done, or only its manifests are there."""
        asserted = (each.get("uuid") for each in request.requirements if each["type"] == "assert-table-uuid")
        uuid = str(next(asserted, None) or request.updates.assigned_uuid).lower()
        found = await self._table(request, uuid)
        if found is None:
            return await self._had_landed(uuid, identity)
        identifier, head = found
        if await self._replays.find(identifier, head, identity) is not None:
            return True
        if refusal.status in (400, 409):  # whoever hears another one may not learn what the table has
            await self._require_no_live_manifest(request, head)
        return False

    async def _table(self, request: CommitRequest, uuid: str) -> tuple[Identifier, HeadState] | None:
        """The table that the commit is for, under the name that it has by now; None where there is none."""
        assert request.identifier is not None
        head = await self._head(request.identifier, uuid)
        if head is not None:
            return request.identifier, head
        if _UUID.fullmatch(uuid):
            for identifier in await self._upstream.tables_at(f"-{uuid}/"):
                head = await self._head(identifier, uuid)
                if head is not None:
                    return identifier, head
        return None

    async def _head(self, identifier: Identifier, uuid: str) -> HeadState | None:
        """The table of a name, where it has that UUID, or none is asked for."""
        with suppress(NotFound):
            head = await self._heads.load(identifier)
            return head if not uuid or str(head.metadata.get("table-uuid")).lower() == uuid else None
        return None

    async def _had_landed(self, uuid: str, identity: Identity) -> bool:
        """Whether a table had it that was dropped, as far as the ledger knows."""
        keys = [key for key in CommitKey.of(uuid, identity) if key is not None]
        commits = await self._ledger.find_commits(keys)
        number = None if identity.application is None else identity.application[1]
        return any(
            not key.numbered or (number is not None and commit.sequence is not None and number <= commit.sequence)
            for key, commit in commits.items()
        )

    async def _require_no_live_manifest(self, request: CommitRequest, head: HeadState) -> None:
        """Raises `KeyMisused` where its branch has a manifest of it.

        Ids and keys tell of nearly every commit that has landed. Of one without a key whose snapshot has expired since,
        only its manifests tell, which the lists of later snapshots still name. A list that was not read before the
        refusal is not read for it: the order of the checks says what is read for whom.
        """
        own = {
            row.path
            for snapshot in request.updates.snapshots
            for row in self._manifests.listings.get(str(snapshot.manifest_list), ())
            if row.added_snapshot_id == snapshot.id
        }
        ref = (head.metadata.get("refs") or {}).get(request.updates.target_ref or "main")
        newest = None if ref is None else head.snapshots.get(ref["snapshot-id"])
        path = None if newest is None else newest.get("manifest-list")
        if path is None or not own:
            return
        live = self._manifests.listings.get(path) or Listing.of(await self._manifests.list_at(path))
        again = [path for path in own if path in live]
        if again:
            raise reused(min(again))


def _unknown(why: str, cause: IcetowerError | None = None) -> CommitStateUnknown:
    unknown = CommitStateUnknown(f"{why}. Look for the rows of the commit before writing them again")
    unknown.__cause__ = cause
    return unknown
