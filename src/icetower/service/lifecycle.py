"""A table's life outside its commits: created, staged, registered, renamed, dropped, purged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from icetower.admission.admitted import Admitted
from icetower.admission.locations import PATHS, steers_clients
from icetower.ambient import Ambient
from icetower.commit.head import Heads
from icetower.commit.plan import landed, plan_creation
from icetower.commit.queue import Committed
from icetower.errors import (
    AlreadyExists,
    BadRequest,
    CommitConflict,
    CommitStateUnknown,
    IcetowerError,
    NoSuchNamespace,
    NoSuchTable,
    NotFound,
)
from icetower.files.changes import Manifests
from icetower.iceberg import metadata as table_metadata
from icetower.iceberg.builder import is_uuid
from icetower.iceberg.manifests import DELETED
from icetower.iceberg.metadata import Metadata
from icetower.ledger.histories import TableName
from icetower.ledger.ledger import Ledger
from icetower.paths import is_under, plain_path
from icetower.protocol.names import Identifier, Namespace, folder_of
from icetower.service.purges import Purges, Watch
from icetower.storage.port import Storage
from icetower.table.client_properties import NO_CODE, Allowed, check_code
from icetower.table.head import HeadState
from icetower.table.references import named_by
from icetower.upstream.port import Swap, SwapLost, SwapUnknown, Upstream

_UUID_LENGTH = 36
PURGED_AT_ONCE = 1_000
"""Files of a purge that are looked at, and deleted, before others' requests go on."""

REGISTERED_MANIFESTS_MAX = 10_000
"""Manifests that are read where an agent registers a table."""

COMPARED_AT_ONCE = 1_000
"""Paths of a registered file that are compared before others' requests go on."""

log = logging.getLogger("icetower")


class Lifecycle:
    """Args:
    ledger: registrations are kept in it before they happen; None where there is none.
    client_code: values of properties by which clients may load code.
    data: the tower's own directory; None where it has none.
    """

    def __init__(
        self,
        upstream: Upstream,
        storage: Storage,
        heads: Heads,
        manifests: Manifests,
        ambient: Ambient,
        *,
        warehouse: str,
        ledger: Ledger | None = None,
        client_code: Allowed = NO_CODE,
        data: str | None = None,
    ) -> None:
        self._upstream = upstream
        self._storage = storage
        self._heads = heads
        self._manifests = manifests
        self._ambient = ambient
        self._warehouse = warehouse.rstrip("/")
        self._ledger = ledger
        self._client_code = client_code
        self._data = data
        self.purges = Purges()

    async def new_metadata(
        self,
        identifier: Identifier,
        *,
        schema: Mapping[str, Any],
        spec: Mapping[str, Any] | None,
        sort_order: Mapping[str, Any] | None,
        location: str | None,
        properties: Mapping[str, str],
        uuid: str | None = None,
    ) -> Metadata:
        """The metadata of a table that does not exist yet. Raises `AlreadyExists`, `NoSuchNamespace`."""
        await self._check_free(identifier)
        uuid = uuid or self._ambient.uuid4()
        return table_metadata.new_table(
            uuid=uuid,
            location=(location or await self.default_location(identifier, uuid)).rstrip("/"),
            schema=schema,
            spec=spec,
            sort_order=sort_order,
            properties=properties,
            now_ms=self._ambient.now_ms(),
        )

    async def create(self, identifier: Identifier, metadata: Metadata) -> HeadState:
        """Write a new table's first metadata file and point the catalog at it.

        Raises `AlreadyExists`, `NoSuchNamespace`; `CommitConflict` where its place is being purged;
        `CommitStateUnknown` where the catalog did not say.
        """
        with self.purges.watched() as watch:
            watch.require_apart(identifier, _paths_of(metadata))
        return await self._create(identifier, metadata)

    async def _create(self, identifier: Identifier, metadata: Metadata) -> HeadState:
        location = table_metadata.metadata_path(metadata, 0, self._ambient.uuid4())
        head = HeadState(location, metadata)
        await self._storage.write(location, head.file_bytes)
        try:
            await self._upstream.create_table(identifier, location)
        except CommitStateUnknown:
            if await self._location(identifier) != location:
                raise
        except IcetowerError:
            await self._storage.delete_many([location])
            raise
        self._heads.remember(head)
        return head

    async def create_by_commit(self, admitted: Admitted, watch: Watch, *, reads: bool) -> Committed:
        """The second half of a staged creation: a commit that asserts that there is no table yet.

        Args:
            watch: begun before the commit's files were read.
            reads: whether its principal may read the table, so that it may be shown one that is there already.

        Raises:
            KeyMisused: it landed before, and its snapshots are not on its branch.
        """
        try:
            await self._check_free(admitted.identifier)
        except AlreadyExists as error:
            return await self._created_before(admitted, error, reads=reads)
        metadata, files = plan_creation(admitted, now_ms=self._ambient.now_ms(), new_name=self._ambient.uuid4)
        # Asked after the name was found free: a table that is renamed away in between is found at its place.
        taken = await self._tables_at_place_of(admitted.identifier, metadata)
        if admitted.identifier in taken:
            return await self._created_before(admitted, _created_meanwhile(admitted.identifier), reads=reads)
        for other in taken:
            await self._refuse_place(admitted, other)
        watch.require_apart(admitted.identifier, _paths_of(metadata))
        for path, data in files.items():
            await self._storage.write(path, data)
        try:
            head = await self._create(admitted.identifier, metadata)
        except AlreadyExists as error:
            await self._storage.delete_many(list(files))
            return await self._created_before(admitted, error, reads=reads)
        return Committed("direct", head, admitted.identity.snapshot_ids, 0.0, 1)

    async def _created_before(self, admitted: Admitted, error: AlreadyExists, *, reads: bool) -> Committed:
        """The table, where this very commit has created it: upon 409, its client would delete its files (trap A3).

        Who may not read it can have added no files, and the table may be full of others' by now.
        """
        if not reads:
            raise _created_meanwhile(admitted.identifier) from error
        head = await self._heads.load(admitted.identifier)
        uuids = {str(update["uuid"]).lower() for update in admitted.updates.of("assign-uuid")}
        same = uuids == {str(head.metadata.get("table-uuid")).lower()}
        if same:
            snapshots = landed(head, admitted) if admitted.changes else ()
            if snapshots is not None:
                return Committed("replayed", head, snapshots, 0.0, 1)
        parents = {snapshot.get("parent-snapshot-id") for snapshot in head.snapshots.values()}
        if same and not parents <= {None, *head.snapshots}:
            raise CommitStateUnknown(
                f"{admitted.identifier} has the UUID that was sent for it, and has let its first snapshots go since: "
                "this creation may be what made it. Look for its rows before writing them again"
            )
        raise _created_meanwhile(admitted.identifier) from error

    async def _tables_at_place_of(self, identifier: Identifier, metadata: Metadata) -> list[Identifier]:
        """Who has the UUID of a new table already, where the table goes to the place that its name and UUID make.

        Who chooses another place is an administrator, and may know why. The UUID that a table was created with stays in
        its metadata location, in whichever catalog or under whichever name it is now.
        """
        uuid, location = metadata.get("table-uuid"), metadata["location"].rstrip("/")
        if uuid is None or not location.endswith(f"/{folder_of(identifier.name, uuid)}"):
            return []
        return await self._upstream.tables_at(f"-{uuid}/")

    async def _refuse_place(self, admitted: Admitted, other: Identifier) -> None:
        """Two tables at one place would write, and purge, each other. Raises `AlreadyExists`, `CommitStateUnknown`."""
        if admitted.changes:
            head = await self._heads.load(other)
            if all(change.snapshot.id in head.snapshots for change in admitted.changes):
                # Told that it failed, its client would delete what the table needs (trap A3).
                raise CommitStateUnknown(
                    f"the creation of {admitted.identifier} landed before, and the table has another name since"
                )
        raise AlreadyExists(
            f"the UUID that was sent for {admitted.identifier} is that of another table; stage the creation again and "
            "send the UUID that it gives out",
            rule="create.uuid",
        )

    async def register(
        self, identifier: Identifier, location: str, *, overwrite: bool, confined: bool = False
    ) -> HeadState:
        """Point the catalog at a metadata file that exists already. Raises `BadRequest` where it is none.

        Keys of commits that the file knows nothing of are not done in this table any more (`ledger.histories`).

        `confined`: the file, what it says of where the table lies, and the files that it names, must be where a table
        of this name would be: they are read for whoever may read the table, and deleted when it is purged.
        """
        with self.purges.watched() as watch:
            return await self._register(identifier, location, watch, overwrite=overwrite, confined=confined)

    async def _register(
        self, identifier: Identifier, location: str, watch: Watch, *, overwrite: bool, confined: bool
    ) -> HeadState:
        place = await self._own_place(identifier, location) if confined else None
        try:
            head = await self._heads.at(location, anew=True)
        except IcetowerError as error:
            raise BadRequest(
                f"{location} cannot be read as the metadata file of a table: {error.message}", rule="register.metadata"
            ) from error
        check_code(head.metadata.get("properties") or {}, self._client_code)
        roots = {head.metadata["location"], *places_of(head.metadata)}
        if place is not None and not all(is_under(f"{root}/", place) for root in roots):
            raise _outside(f"the table of {location}", identifier)
        current = await self._location(identifier) if overwrite else None
        if place is not None:
            steering = sorted(name for name in head.metadata.get("properties", {}) if steers_clients(name))
            if steering:
                raise BadRequest(
                    f"the table of {location} has {', '.join(steering)}, by which clients find the storage, and with "
                    "whose credentials; an administrator may register it",
                    rule="register.properties",
                )
            for number, path in enumerate(named_by(head.metadata), 1):
                if not any(is_under(path, root) for root in roots):
                    raise _outside(f"{path}, which {location} names,", identifier)
                if number % COMPARED_AT_ONCE == 0:
                    await self._ambient.sleep(0)
            await self._check_reach(identifier, head, roots)
            await self._check_alone(identifier, head, place)
        if current is None:
            await self._check_free(identifier)  # a mistake costs no keys
        watch.require_apart(identifier, {location, *_paths_of(head.metadata)})
        # Between these two reads and the swap: a commit that meets the new history in the ledger, and the old one in
        # the catalog, loses its swap to this one, or this one to it.
        table = TableName(str(head.metadata.get("table-uuid")), identifier)
        number = 0 if self._ledger is None else await self._ledger.begin_history(table)
        if current is None:
            await self._upstream.create_table(identifier, location)
        else:
            try:
                await self._upstream.swap([Swap(identifier, current, location)])
            except SwapLost as error:
                raise CommitConflict(f"{identifier} was changed meanwhile; look again", rule="swap.lost") from error
            except SwapUnknown as error:
                raise CommitStateUnknown(f"the catalog did not say whether {identifier} was registered anew") from error
        if self._ledger is not None:
            try:
                await self._ledger.confirm_history(table, number, _last_number(head))
            except Exception:  # it is registered; keys that it has left behind are answered 422 then
                log.exception("the ledger could not keep that %s was registered", identifier)
        return head

    async def _check_reach(self, identifier: Identifier, head: HeadState, roots: Collection[str]) -> None:
        """All that its manifests name lies under `roots`: the table is no door to another's files."""

        def check(path: str, where: str) -> None:
            if not any(is_under(path, root) for root in roots):
                raise _outside(f"{path}, which {where} names,", identifier)

        lists = {path for snapshot in head.metadata.get("snapshots", ()) if (path := snapshot.get("manifest-list"))}
        seen: set[str] = set()
        for listed in sorted(lists):
            try:
                rows = await self._manifests.list_at(listed)
            except NotFound:
                continue
            for path in sorted({row.path for row in rows} - seen):
                check(path, listed)
                seen.add(path)
                if len(seen) > REGISTERED_MANIFESTS_MAX:
                    raise BadRequest(
                        f"{identifier} has more than {REGISTERED_MANIFESTS_MAX} manifests, and all are read where no "
                        "administrator registers a table; ask one",
                        rule="register.location",
                    )
                with suppress(NotFound):
                    for number, entry in enumerate((await self._manifests.manifest_at(path)).entries, 1):
                        check(entry.file.path, path)
                        if number % COMPARED_AT_ONCE == 0:
                            await self._ambient.sleep(0)

    async def _check_alone(self, identifier: Identifier, head: HeadState, place: str) -> None:
        """No other table has this one's UUID, or lies at its place, since it was renamed from there."""
        uuid = place[-_UUID_LENGTH:]
        if head.metadata.get("table-uuid") != uuid:
            raise _outside(f"a table with the UUID {head.metadata.get('table-uuid')}", identifier)
        if any(other != identifier for other in await self._upstream.tables_at(f"-{uuid}/")):
            raise _outside(f"{head.location}, which has become another table's,", identifier)

    async def rename(self, source: Identifier, target: Identifier) -> None:
        if self._ledger is not None:
            with suppress(NotFound, BadRequest):  # without metadata that can be read there are no commits
                head = await self._heads.load(source)
                uuid = str(head.metadata.get("table-uuid"))
                # Of several tables with one uuid each is known by its name: the new one may have been another's.
                if await self._ledger.registered(uuid):
                    await self._ledger.begin_history(TableName(uuid, target))
        await self._upstream.rename_table(source, target)

    async def drop(self, identifier: Identifier, *, purge: bool, confined: bool = False) -> None:
        """Forget a table; with `purge`, delete every file that its metadata reaches (unless `gc.enabled` is false).

        `confined`: only files that lie where the table does, and only where no other table lies there too.
        """
        if not purge:
            await self._upstream.drop_table(identifier)
            return
        head = await self._heads.load(identifier)
        if head.metadata.get("properties", {}).get("gc.enabled", "true").lower() == "false":
            raise BadRequest(
                f"{identifier} has gc.enabled=false, since its files may belong to another table too; "
                "drop it without purging",
                rule="purge.gc-enabled",
            )
        if confined:
            # By the place alone: however its scheme is written.
            part = plain_path(head.metadata["location"]).split("://")[-1].rstrip("/") + "/"
            if any(other != identifier for other in await self._upstream.tables_at(part)):
                raise BadRequest(
                    f"another table lies where {identifier} does; drop it without purging, or ask an administrator",
                    rule="purge.shared",
                )
            # Such a place may be that of many tables, each of which may name the files of all.
            apart = [path for path in places_of(head.metadata) if not is_under(f"{path}/", head.metadata["location"])]
            if apart:
                raise BadRequest(
                    f"files of {identifier} lie at {apart[0]}, where another table's may lie, too; drop it without "
                    "purging, or ask an administrator",
                    rule="purge.shared",
                )
        roots = (head.metadata["location"], *places_of(head.metadata))
        with self.purges.running(roots):
            # The pointer goes first: a crash half-way leaves files without a table, never a table without files.
            await self._upstream.drop_table(identifier, head.location)
            await self._purge(head, roots, confined=confined)

    async def _purge(self, head: HeadState, roots: Sequence[str], *, confined: bool) -> None:
        async def delete(paths: set[str]) -> None:
            every = sorted(paths)
            for start in range(0, len(every), PURGED_AT_ONCE):
                left = set(every[start : start + PURGED_AT_ONCE])
                for root in roots:
                    mine = {path for path in left if is_under(path, root)}
                    left -= mine
                    await self._storage.delete_many(sorted(mine), below=root)
                if not confined:
                    await self._storage.delete_many(sorted(left - await self._of_others(left)))

        listed: set[str] = set()
        manifests: set[str] = set()
        for snapshot in head.metadata.get("snapshots", ()):
            path = snapshot.get("manifest-list")
            if path is None:
                continue
            listed.add(path)
            try:
                manifests |= {row.path for row in await self._manifests.list_at(path)}
            except NotFound:
                continue
        deleted: set[str] = set()
        try:
            for path in manifests:
                try:
                    entries = (await self._manifests.manifest_at(path)).entries
                except NotFound:
                    continue
                # That a file was removed once does not make it this table's: elsewhere it may be another's today.
                files = {
                    entry.file.path
                    for entry in entries
                    if entry.status != DELETED or any(is_under(entry.file.path, root) for root in roots)
                }
                await delete(files - deleted)
                deleted |= files
            await delete(manifests | listed | named_by(head.metadata) | {head.location})
        finally:
            self._manifests.forget(manifests | listed)  # a creation that names them must find that they are gone

    async def _of_others(self, paths: Collection[str]) -> set[str]:
        """Those of some files that lie where another table does, or among the tower's own.

        A table's manifests may name any file, and whoever writes them may have write access to nothing else.
        """
        places = {path: plain_path(path).split("://")[-1] for path in paths}
        folders = sorted({str(folder) for place in places.values() for folder in PurePosixPath(place).parents})
        found = await asyncio.gather(*(self._upstream.tables_at(f"{folder}/metadata/") for folder in folders))
        theirs = {folder for folder, tables in zip(folders, found, strict=True) if tables}

        def is_of_another(place: str) -> bool:
            return any(str(folder) in theirs for folder in PurePosixPath(place).parents)

        kept = {path for path, place in places.items() if is_of_another(place) or self._is_own(path)}
        if kept:
            log.warning("a purge leaves %d files which lie where others do, such as %s", len(kept), min(kept))
        return kept

    def _is_own(self, path: str) -> bool:
        return self._data is not None and is_under(path, self._data) and not is_under(path, self._warehouse)

    async def _check_free(self, identifier: Identifier) -> None:
        if not await self._upstream.namespace_exists(identifier.namespace):
            raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(identifier.namespace)}")
        if await self._location(identifier) is not None:
            raise AlreadyExists(f"Table already exists: {identifier}")

    async def _location(self, identifier: Identifier) -> str | None:
        try:
            return await self._upstream.location(identifier)
        except NoSuchTable:
            return None

    async def default_location(self, identifier: Identifier, uuid: str) -> str:
        """Where a table goes whose creator does not say. Raises `BadRequest` for names that lead elsewhere.

        The table's uuid is part of it: no table lies where one of the same name did before it was dropped or renamed,
        and none lies above the tables of a namespace.
        """
        if not is_uuid(uuid):  # "secret-<uuid>" would put a table named t where one named t-secret lies
            raise BadRequest(
                f"a table's UUID is written like 123e4567-e89b-42d3-a456-426614174000, not {uuid!r}; stage the "
                "creation and send the UUID that it gives out",
                rule="uuid",
            )
        return await self._place(identifier, uuid)

    async def _place(self, identifier: Identifier, uuid: str) -> str:
        for level in (*identifier.namespace, identifier.name):
            if "/" in level or level in (".", ".."):
                raise BadRequest(
                    f"{level!r} cannot be a part of a table's name whose location is made from it; choose another",
                    rule="request.name",
                )
        return f"{await self._namespace_location(identifier.namespace)}/{folder_of(identifier.name, uuid)}"

    async def _own_place(self, identifier: Identifier, path: str) -> str:
        """The directory of a table of this name that `path` lies in. Raises `BadRequest` where it lies in none."""
        beginning = plain_path(await self._place(identifier, ""))
        inside = plain_path(path)
        if not inside.startswith(beginning):
            raise _outside(path, identifier)
        uuid = inside.removeprefix(beginning).split("/")[0]
        # `t-secret-<uuid>` is the place of a table named `t-secret`.
        if not is_uuid(uuid) or not is_under(inside, beginning + uuid):
            raise _outside(path, identifier)
        return beginning + uuid

    async def _namespace_location(self, namespace: Namespace) -> str:
        properties = await self._upstream.namespace_properties(namespace)
        if "location" in properties:
            return properties["location"].rstrip("/")
        return "/".join((self._warehouse, *namespace))


def _last_number(head: HeadState) -> int:
    """No snapshot in this version's past has a higher sequence number."""
    numbers = [snapshot.get("sequence-number") or 0 for snapshot in head.snapshots.values()]
    return max(head.metadata.get("last-sequence-number") or 0, *numbers, 0)


def places_of(metadata: Metadata) -> tuple[str, ...]:
    """Directories beside a table's location where its properties have files written."""
    properties = metadata.get("properties", {})
    return tuple(properties[name] for name in PATHS if properties.get(name))


def _paths_of(metadata: Metadata) -> set[str]:
    """Where a table lies, and the files that its metadata names."""
    return {metadata["location"], *places_of(metadata), *named_by(metadata)}


def _outside(what: str, identifier: Identifier) -> BadRequest:
    return BadRequest(
        f"{what} does not lie where a table named {identifier} belongs; an administrator may register it",
        rule="register.location",
    )


def _created_meanwhile(identifier: Identifier) -> AlreadyExists:
    """In the words of the requirement that does not hold: clients tell it by them from a plain creation."""
    return AlreadyExists(f"Requirement failed: table already exists: {identifier}", rule="requirement.assert-create")
