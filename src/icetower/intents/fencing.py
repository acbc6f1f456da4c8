"""May a commit go on, as far as intents are concerned? Asked at the gate, and again just before the swap (trap K4).

A commit names its intent in its summary, and the fence that the intent was given. One that names none is made under the
only intent of its principal that covers all that it touches, if there is just one. What is not held any more is refused
(``intent.fenced``): somebody else may hold the rows by now. So is a commit into rows that another's intent holds
(``intent.held``), where the table or the contract says that intents are required.

Each commit under an intent brings the highest fence given for its table into the table's properties, under the same
swap. A control database that has given less was lost, or restored from a backup: what it says of the table's intents
counts no more.

Intents are about a table's branch ``main``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from icetower.admission.admitted import Admitted, AdmittedAppend, AdmittedFence, UnderIntent
from icetower.admission.properties import positive
from icetower.admission.read_scope import ReadScope
from icetower.contracts.boxes import Box
from icetower.contracts.model import FILE_OPERATIONS, IMPLIED, REQUIRED, Operation
from icetower.errors import CommitConflict, Forbidden, IcetowerError
from icetower.iceberg.change import Touched
from icetower.iceberg.partitions import PartitionSpec, known_specs, partition_key
from icetower.iceberg.records import DATA
from icetower.iceberg.validation import Level
from icetower.intents.book import Book, fenced, held_text
from icetower.intents.model import APPENDS, Claim, Intent
from icetower.intents.regions import EVERYTHING, Boxes, box_of_partition, inside, meet, narrowed
from icetower.intents.store import Store
from icetower.protocol.leases import leases_of
from icetower.protocol.marks import BLIND_APPENDS, INTENT, INTENT_FENCE, INTENTS, INTENTS_FENCE, LEASES
from icetower.protocol.names import Identifier
from icetower.rebase.grants import Kind, kind_of

JSON = Mapping[str, Any]
Member = Admitted | AdmittedAppend | AdmittedFence
M = TypeVar("M", Admitted, AdmittedAppend)

BRANCH = "main"
FILES_MAX = 2_000
"""Of a commit with more files, statistics are not looked at."""


class Fencing:
    """One a tower."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def admit(self, member: M, metadata: JSON) -> M:
        """The commit with the intent that it is made under.

        Args:
            metadata: of a version of the table that was read before this is asked.

        Raises:
            CommitConflict: ``intent.held``.
            Forbidden: ``intent.fenced``, ``intent.region``.
            Unavailable: the control database cannot be asked.
        """

        def ask(book: Book, now_ms: int) -> UnderIntent | None:
            return judged(book, now_ms, member, metadata)

        store = self._store
        under = store.now(ask) if store.is_current and knows(store.book, metadata) else await store.ask(ask)
        if under is None:
            return member
        intent = self._store.book.find(under.id)
        scope = None if intent is None else scope_of_intent(intent, metadata)
        if isinstance(member, Admitted):
            return replace(member, under=under, read_scope=member.read_scope or scope)
        return replace(member, under=under)

    def late(self, members: Sequence[tuple[Member, JSON]]) -> Mapping[int, IcetowerError] | None:
        """The members of a group that may no longer go on: position → why; None: the database must be asked.

        Args:
            members: each with the metadata of the version that it goes on.
        """
        store = self._store
        if not store.is_current or not all(knows(store.book, metadata) for _, metadata in members):
            return None
        return store.now(lambda book, now_ms: _late(book, now_ms, members))

    async def late_anew(self, members: Sequence[tuple[Member, JSON]]) -> Mapping[int, IcetowerError]:
        """The same, by the database as it stands. Raises `Unavailable`."""
        return await self._store.ask(lambda book, now_ms: _late(book, now_ms, members))


def _late(book: Book, now_ms: int, members: Sequence[tuple[Member, JSON]]) -> dict[int, IcetowerError]:
    found: dict[int, IcetowerError] = {}
    for position, (member, metadata) in enumerate(members):
        if isinstance(member, AdmittedFence):
            continue
        try:
            judged(book, now_ms, member, metadata)
        except IcetowerError as error:
            found[position] = error
    return found


def knows(book: Book, metadata: JSON) -> bool:
    """Whether the control database has given all fences that a table knows of."""
    return fence_of(metadata) <= book.granted.get(str(metadata.get("table-uuid")), 0)


def fence_of(metadata: JSON) -> int:
    """The highest fence that a table knows of."""
    return positive(str((metadata.get("properties") or {}).get(INTENTS_FENCE, ""))) or 0


def judged(book: Book, now_ms: int, member: Admitted | AdmittedAppend, metadata: JSON) -> UnderIntent | None:
    """The intent that a commit is made under; None where it needs none. Raises as `Fencing.admit` does."""
    uuid, properties = str(metadata.get("table-uuid")), metadata.get("properties") or {}
    if not knows(book, metadata):
        book.overtake(uuid, fence_of(metadata), now_ms)
    named = named_in(member)
    if named is None and (member.under is not None):
        named = member.under.id, str(member.under.fence)
    leases = leases_in(member)
    if named is None and not leases and book.is_free(uuid) and not member.slot_required:
        return None
    boxes, operations = touched(member, metadata)
    if not operations:
        return None if named is None else _named_elsewhere(book, now_ms, member, uuid, named, metadata)
    near = [intent for intent in book.near(uuid, boxes) if intent.holds(now_ms)]
    if near:
        boxes = finer(member, metadata, boxes, [claim for each in near for claim in each.claims_on(uuid)])
    own = None if named is not None else _leased(book, now_ms, member, uuid, leases, boxes, operations)
    own = own or _own(book, now_ms, member, uuid, named, near, boxes, operations)
    if member.slot_required and (own is None or own.slot is None):
        raise not_taken(member.identifier, near)
    required = member.intents_required or properties.get(INTENTS) == REQUIRED
    if required:
        _check_free(member.identifier, near, own, uuid, boxes, operations, blind=is_blind(member, properties))
    return None if own is None else UnderIntent(own.id, own.fence or 0, book.granted.get(uuid, 0))


def _leased(
    book: Book,
    now_ms: int,
    member: Admitted | AdmittedAppend,
    uuid: str,
    leases: Sequence[tuple[str, str]],
    boxes: Boxes,
    operations: frozenset[str],
) -> Intent | None:
    """The intent, of those that its writer believes to hold, under which a commit is made.

    Raises:
        Forbidden: it touches rows of one that has ended (``intent.fenced``).
    """
    own: Intent | None = None
    for id_, fence in leases:
        intent = _known(book, id_, member.principal)
        claims = intent.claims_on(uuid)
        if not any(meet(claim.boxes or EVERYTHING, boxes) for claim in claims):
            continue
        if not intent.holds(now_ms) or fence != str(intent.fence):
            raise fenced(intent)
        if own is None and _covers(claims, boxes, operations):
            own = intent
    return own


def _known(book: Book, id_: str, principal: str) -> Intent:
    intent = book.find(id_)
    if intent is None or intent.principal != principal:
        raise Forbidden(
            f"the commit is made under intent {id_[:100]}, and {principal} holds none of that id: it may have "
            "ended long ago. Nothing was committed; declare another intent, read the table again, and write anew",
            rule="intent.fenced",
            next_step="fix_request",
        )
    return intent


def _named_elsewhere(
    book: Book,
    now_ms: int,
    member: Admitted | AdmittedAppend,
    uuid: str,
    named: tuple[str, str | None],
    metadata: JSON,
) -> UnderIntent | None:
    """The intent that a commit to another branch names: what a snapshot says of it is true, wherever it is published.

    Nobody else's intent stands in its way there.
    """
    if not isinstance(member, Admitted) or not member.changes:
        return None
    own = _own(book, now_ms, member, uuid, named, (), *_rows_of(member, metadata))
    return None if own is None else UnderIntent(own.id, own.fence or 0, book.granted.get(uuid, 0))


def _own(
    book: Book,
    now_ms: int,
    member: Admitted | AdmittedAppend,
    uuid: str,
    named: tuple[str, str | None] | None,
    near: Sequence[Intent],
    boxes: Boxes,
    operations: frozenset[str],
) -> Intent | None:
    """The intent that a commit names; else the only one of its principal that covers it."""
    if named is None:
        covering = [
            intent
            for intent in near
            if intent.principal == member.principal and _covers(intent.claims_on(uuid), boxes, operations)
        ]
        return covering[0] if len(covering) == 1 else None
    id_, fence = named
    intent = _known(book, id_, member.principal)
    if not intent.holds(now_ms) or fence not in (None, str(intent.fence)):
        raise fenced(intent)
    if not _covers(intent.claims_on(uuid), boxes, operations):
        raise Forbidden(
            f"the commit goes beyond intent {id_}, under which it is made: it does {', '.join(sorted(operations))} "
            f"outside of the rows of {member.identifier} that were declared, or for which that was not declared. "
            "Declare all that is written, or leave the intent out of the summary",
            rule="intent.region",
            next_step="fix_request",
        )
    return intent


def check_intended(
    book: Book,
    now_ms: int,
    principal: str,
    table: Identifier,
    metadata: JSON,
    places: Iterable[tuple[int, tuple[Any, ...]]],
    operations: frozenset[str],
    *,
    required: bool,
    blind: bool,
    slot_required: bool = False,
) -> None:
    """Raises what would refuse somebody who intends to write to some partitions of ``main``.

    Args:
        required: the contract wants it so, whatever the table says.
        blind: an append of theirs is known to be blind.
        slot_required: as of a commit.
    """
    uuid, properties = str(metadata["table-uuid"]), metadata.get("properties") or {}
    boxes = _boxes(places, known_specs(metadata))
    required = required or properties.get(INTENTS) == REQUIRED
    if not (required or slot_required) or not boxes:
        return
    near = [intent for intent in book.near(uuid, boxes) if intent.holds(now_ms)]
    mine = [each for each in near if each.principal == principal and _covers(each.claims_on(uuid), boxes, operations)]
    if slot_required and not (len(mine) == 1 and mine[0].slot):
        raise not_taken(table, near)
    if not required:
        return
    blind = blind or str(properties.get(BLIND_APPENDS, "")).lower() == "true"
    _check_free(table, near, mine[0] if len(mine) == 1 else None, uuid, boxes, operations, blind=blind)


def _check_free(
    table: Identifier,
    near: Iterable[Intent],
    own: Intent | None,
    uuid: str,
    boxes: Boxes,
    operations: frozenset[str],
    *,
    blind: bool,
) -> None:
    """Raises `CommitConflict` where a commit touches rows that another intent than its own holds."""
    in_the_way = [
        intent
        for intent in near
        if intent is not own and any(hinders(claim, boxes, operations, blind=blind) for claim in intent.claims_on(uuid))
    ]
    if in_the_way:
        raise CommitConflict(
            f"rows of {table} that this commit touches are held: {held_text(in_the_way)}. Nothing was "
            "committed; wait, or declare an intent to be next",
            rule="intent.held",
            next_step="wait_until",
            wait_until_ms=max(intent.expires_ms for intent in in_the_way),
            owner=in_the_way[0].contract,
        )


def not_taken(table: Identifier, near: Iterable[Intent]) -> Forbidden:
    """The refusal of a commit into a slot that is handed out, by who does not hold it."""
    holders = [intent for intent in near if intent.slot is not None]
    held = f": {held_text(holders)}" if holders else ""
    return Forbidden(
        f"slots of {table} are handed out, and the commit is not made by who holds its slot{held}. Nothing was "
        "committed; take the next slot (POST /icetower/v1/slots/next, agent.next_slot), and write the rows anew in it",
        rule="slot.taken",
        next_step="fix_request",
    )


def hinders(claim: Claim, boxes: Boxes, operations: frozenset[str], *, blind: bool) -> bool:
    """Whether a commit does something to the rows of a claim that is its holder's alone."""
    appends = operations == APPENDS
    if appends and (claim.shares or (blind and not claim.exclusive)):
        return False
    return meet(claim.boxes, boxes)


def _covers(claims: Sequence[Claim], boxes: Boxes, operations: frozenset[str]) -> bool:
    granting = [claim for claim in claims if operations <= _implied(claim.operations)]
    return bool(granting) and inside(boxes, [box for claim in granting for box in claim.boxes])


@cache
def _implied(operations: frozenset[str]) -> frozenset[str]:
    found = {Operation(each) for each in operations}
    return frozenset(each.value for each in found.union(*(IMPLIED.get(one, frozenset()) for one in found)))


def named_in(member: Admitted | AdmittedAppend) -> tuple[str, str | None] | None:
    """The intent and the fence that a commit's summaries name."""
    for change in member.changes if isinstance(member, Admitted) else ():
        summary = change.snapshot.summary
        if INTENT in summary:
            fence = summary.get(INTENT_FENCE)
            return str(summary[INTENT]), None if fence is None else str(fence)
    return None


def names_ended(book: Book, now_ms: int, principal: str, summaries: Iterable[JSON]) -> bool:
    """Whether a commit names an intent that its principal does not hold any more."""
    named = [book.find(str(summary[INTENT])) for summary in summaries if INTENT in summary]
    return any(each is None or each.principal != principal or not each.holds(now_ms) for each in named)


def leases_in(member: Admitted | AdmittedAppend) -> Sequence[tuple[str, str]]:
    """The intents that a commit's writer believes to hold."""
    if isinstance(member, AdmittedAppend):
        return member.leases
    texts = [str(change.snapshot.summary[LEASES]) for change in member.changes if LEASES in change.snapshot.summary]
    return leases_of(texts[0]) if texts else ()


def touched(member: Admitted | AdmittedAppend, metadata: JSON) -> tuple[Boxes, frozenset[str]]:
    """The rows of ``main`` that a commit touches, and what it does to them; nothing of another branch."""
    if isinstance(member, AdmittedAppend):
        places = member.places if member.ref == BRANCH else ()
        return _boxes(places, known_specs(metadata)), APPENDS if member.ref == BRANCH else frozenset[str]()
    moves = [snapshot for ref, snapshot in member.updates.moves if ref == BRANCH]
    if not moves and BRANCH not in member.updates.removed_refs:
        return (), frozenset()
    if member.publication is not None and member.publication.stage is not None:
        return (), frozenset()
    if not _follows(member, metadata):
        return EVERYTHING, frozenset({Operation.OVERWRITE.value})
    return _rows_of(member, metadata)


def _rows_of(member: Admitted, metadata: JSON) -> tuple[Boxes, frozenset[str]]:
    """The same of the files of its snapshots, whatever branch they go on."""
    files = (each for change in member.changes for each in (*change.added, *change.removed))
    operations = frozenset(each.value for each in member.operations & FILE_OPERATIONS)
    return _boxes(((each.spec_id, each.file.partition) for each in files), known_specs(metadata)), operations


def _follows(member: Admitted, metadata: JSON) -> bool:
    """Whether what a commit puts on ``main`` are its own snapshots, after all that ``main`` has.

    Else ``main`` is rolled back, put where another branch stands, or replaced as by CREATE OR REPLACE TABLE: then its
    files do not tell what becomes of the rest.
    """
    moves = [snapshot for ref, snapshot in member.updates.moves if ref == BRANCH]
    if member.publication is not None:  # the snapshots that `main` lacks, after those that both branches have
        return bool(moves)
    parents = {change.snapshot.id: change.snapshot.parent_id for change in member.changes}
    if not moves or any(snapshot not in parents for snapshot in moves):
        return False
    base: int | None = moves[-1]
    for _ in parents:
        base = parents.get(base, base) if base is not None else None
    if base == ((metadata.get("refs") or {}).get(BRANCH) or {}).get("snapshot-id"):
        return True
    return any(
        each["type"] == "assert-ref-snapshot-id" and each["ref"] == BRANCH and each.get("snapshot-id") == base
        for each in member.requirements
    )


def finer(member: Admitted | AdmittedAppend, metadata: JSON, boxes: Boxes, claims: Sequence[Claim]) -> Boxes:
    """The rows that a commit touches, by the statistics of its data files where claims go by columns that no partition
    tells of.

    Args:
        boxes: the same by their partitions.
    """
    files = _data_files(member, metadata)
    if files is None or not 0 < len(files) <= FILES_MAX or boxes == ():
        return boxes
    axes = {axis for claim in claims for box in claim.boxes for axis in box}
    if all(axes <= box.keys() for box in boxes):
        return boxes
    specs = known_specs(metadata)
    found: list[Box] = []
    for touched_ in files:
        spec = specs.get(touched_.spec_id)
        box = {} if spec is None else box_of_partition(spec, touched_.file.partition)
        found.append(narrowed(box, touched_.file, axes))
    return tuple(found)


def _data_files(member: Admitted | AdmittedAppend, metadata: JSON) -> Sequence[Touched] | None:
    """The data files that a commit adds and removes; None where it does more, or they are not made yet."""
    if isinstance(member, AdmittedAppend):
        return member.files if member.rows is None else None
    if not _follows(member, metadata):
        return None
    files = [each for change in member.changes for each in (*change.added, *change.removed)]
    return None if any(each.file.content != DATA for each in files) else files


def _boxes(places: Iterable[tuple[int, tuple[Any, ...]]], specs: Mapping[int, PartitionSpec]) -> Boxes:
    found: dict[object, Box] = {}
    for spec_id, partition in places:
        key = (spec_id, partition_key(partition))
        if key not in found:
            spec = specs.get(spec_id)
            found[key] = {} if spec is None else box_of_partition(spec, partition)
            if not found[key]:
                return EVERYTHING
    return tuple(found.values())


def is_blind(member: Admitted | AdmittedAppend, properties: Mapping[str, Any]) -> bool:
    """Whether a commit is known to have read nothing: an append by the fast path, or one that is known to be blind."""
    if isinstance(member, AdmittedAppend):
        return True
    declared = member.blind_appends or str(properties.get(BLIND_APPENDS, "")).lower() == "true"
    declared = declared and not member.serializable
    return bool(member.changes) and all(
        kind_of(change, declared_blind=declared) is Kind.BLIND for change in member.changes
    )


def scope_of_intent(intent: Intent, metadata: JSON) -> ReadScope | None:
    """What a commit under an exclusive intent is taken to depend on: the rows that nobody else comes into.

    So a rewriter is not sent back for what others have done elsewhere: whatever came into these rows since its base
    refuses it all the same.
    """
    claims = intent.claims_on(str(metadata["table-uuid"]))
    if not claims or not all(claim.exclusive and claim.slot is None for claim in claims):
        return None
    boxes, specs = [box for claim in claims for box in claim.boxes], known_specs(metadata)

    def owned(spec_id: int, partition: tuple[Any, ...]) -> bool:
        spec = specs.get(spec_id)
        return spec is None or meet([box_of_partition(spec, partition)], boxes)

    return ReadScope(Level.SERIALIZABLE, None, owned, "intent")
