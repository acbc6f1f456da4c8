"""Has this commit landed? The one decision that every place asks for. Pure.

A client that hears nothing sends again, or deletes what it wrote; a scheduler runs a job anew with other files. So the
answer must not depend on files. A commit is known by its key, by the number that its application gave it, or by the ids
of its snapshots (`admission.identity`).

The question is asked *at the gate* (`commit.replays`), before anything of the commit is read: of the table, then of
the ledger. It is asked again *in the plan* (`commit.plan`), when everything before the commit in the queue is known,
and before a commit is refused without a plan (`commit.last_look`): of the table alone (trap K4). The first name that
is known decides:

    at the gate   its ids, where the snapshots are there as this principal sent them and on their branch;
                  its key; its number
    in the plan   its key; its number; its ids

    known by its key or number                                                  answer
    --------------------------------------------------------------------------  ----------------------------------
    on its branch                                                               done
    on its branch; of its snapshots others were rolled back and have gone (L)   unknown  key.gone
    in the table, not on its branch                                             misused  key.rolled-back
    in the table, and the branch's history ends before it would be reached:
        seen to leave its branch by expiry (L)                                  done
        otherwise                                                               unknown  key.gone
    in the ledger alone (L), the table was registered at a version from before  new
    its key stands for another write of the same running application            misused  key.per-write
    in the ledger alone (L):
        its snapshots were seen to expire                                       done
            and the branch's history shows that it is not in it any more        misused  key.rolled-back
        the table was registered anew since                                     unknown  key.registered-anew
        otherwise                                                               unknown  key.gone
    a creation, in the ledger alone; its table is not at its name (L)           unknown  key.gone

    known by the mark of its sink (`table.sinks`), to be last on its branch     answer
    --------------------------------------------------------------------------  ----------------------------------
    no higher, and it is in the table as it was sent                            done
    higher; of Kafka Connect, on a version that has it                          new
    the same number, with the same content                                      done
    the same, in parts, and it was written on a version that has it             new
    the same, otherwise                                                         misused  sink.differs
    lower; of Kafka Connect, also written without having read it                misused  sink.behind
    on no snapshot of its branch:
        on one that was rolled back, or its branch was set back (L)             new
        in the ledger alone, expired (L)                                        as above
        in the ledger alone, no lower, otherwise (L)                            unknown  key.gone, …

    known by its ids in the plan                                                answer
    --------------------------------------------------------------------------  ----------------------------------
    as sent, on the branches that it moves                                      done
    with other content                                                          misused  snapshot.id
    not on a branch that it moves                                               misused  snapshot.rolled-back
    the branch's history ends before it would be reached                        unknown  snapshot.cut-off

    not known                                                                   answer
    --------------------------------------------------------------------------  ----------------------------------
    in the plan, a group file is unreadable that may hold its key or number     unknown  key.unreadable
    its key, or its very number, is fenced                                      misused  key.fenced
    otherwise                                                                   new

(L) is asked of the ledger, at the gate alone. A key in the ledger says that its commit has landed in a table with this
uuid, once; whether its rows are in this one, `ledger.histories` tells. Of a commit's snapshots the last one stands for
all: they came together, and are ancestors of each other. A number is known where it is no higher than the last one; at
the gate, where the last one is not on its branch, the very number that was sent is looked for. A number that is fenced,
and is not in the table itself, is refused also where a higher one has landed.

A sink's number is stricter. It sends a lower one only where two of its runs are at work, or where it was set back and
its numbers mean other rows by now. So that is refused, and never taken for done. And a sink goes by the history of its
branch: what was rolled back there it commits again, under the same number.

`tests/commit/test_has_it_landed.py` has a case for each line, with the exact message (that of creations is in
`test_creation.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icetower.admission.identity import Identity, application_of
from icetower.commit.sink_standing import behind, differs, standing
from icetower.errors import IcetowerError, KeyMisused, ValidationFailed
from icetower.iceberg.lineage import Lineage, reaches
from icetower.ledger.histories import Fate
from icetower.ledger.ledger import Commit, CommitKey
from icetower.protocol.marks import CLIENT_LIST, PRINCIPAL
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.table.branches import cut_off, staged_or_rolled_back
from icetower.table.fences import fenced, fenced_number, refusal_of_fenced
from icetower.table.head import HeadState
from icetower.table.keys import Keys
from icetower.table.sinks import Mark, Place, stated_by

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A version of a table, as far as the question goes. `ref`: the snapshot at which a ref stands."""

    identifier: Identifier
    find: Callable[[int], Snapshot | None]
    ref: Callable[[str], int | None]
    keys: Keys
    properties: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, identifier: Identifier, head: HeadState) -> Table:
        return cls(identifier, head.snapshot, head.ref, head.keys, head.metadata.get("properties") or {})

    def reaches(self, ref: str, snapshot_id: int) -> bool | None:
        """Whether a ref's history has a snapshot; None where it ends before that could be seen."""
        return reaches(self.find, self.ref(ref), snapshot_id)


# ---------------------------------------------------------------------------------------------------------- the answers


@dataclass(frozen=True, slots=True)
class New:
    """It has not landed, as far as was asked; it may go on."""


@dataclass(frozen=True, slots=True)
class Done:
    """It is in the table, or its rows were when its snapshots expired."""

    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Misused:
    """It landed and is not done, or its name stands for another write."""

    error: IcetowerError


@dataclass(frozen=True, slots=True)
class Unknown:
    """Neither the table nor the ledger tells."""

    error: IcetowerError


@dataclass(frozen=True, slots=True)
class Asks:
    """The ledger must be asked first."""

    question: Question


Verdict = New | Done | Misused | Unknown


def snapshots_of(verdict: Verdict) -> tuple[int, ...] | None:
    """As which snapshots a commit is done; None where it is new. Raises what a verdict carries."""
    if isinstance(verdict, Misused | Unknown):
        raise verdict.error
    return verdict.snapshots if isinstance(verdict, Done) else None


# ------------------------------------------------------------------------------------------------- questions (ledger)


@dataclass(frozen=True, slots=True)
class UnderName:
    """What was committed under a key, or last by an application? `Commit | None`."""

    name: CommitKey


@dataclass(frozen=True, slots=True)
class IsTorn:
    """Is a snapshot what a rollback has left of its commit, after the rest has gone? `bool`."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SawLeave:
    """Was a snapshot seen to leave its branch by expiry? `bool`."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class FateOf:
    """What became of a commit none of whose snapshots is in the newest version of the table? `Fate`."""

    commit: Commit


Question = UnderName | IsTorn | SawLeave | FateOf


class _Asked(Exception):
    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.question = question


class _Ledger:
    """What the ledger has answered so far. Raises `_Asked` for all else."""

    def __init__(self, uuid: str, answers: Mapping[Question, Any]) -> None:
        self.uuid = uuid
        self._answers = answers

    def under(self, name: str | None, identity: Identity, *, numbered: bool = False) -> Commit | None:
        owner = CommitKey(self.uuid, identity.ref, identity.principal, name or "", numbered)
        return self._answer(UnderName(owner))

    def of_sink(self, mark: Mark, identity: Identity) -> Commit | None:
        """The last commit of a sink: by the same principal, or past the tower, by nobody who is known."""
        found = self.under(mark.application, identity, numbered=True)
        return found or self.under(mark.application, replace(identity, principal=""), numbered=True)

    def is_torn(self, snapshot_id: int) -> bool:
        return self._answer(IsTorn(snapshot_id))

    def saw_leave(self, snapshot_id: int) -> bool:
        return self._answer(SawLeave(snapshot_id))

    def fate(self, commit: Commit) -> Fate:
        return self._answer(FateOf(commit))

    def _answer(self, question: Question) -> Any:
        if question not in self._answers:
            raise _Asked(question)
        return self._answers[question]


# -------------------------------------------------------------------------------------------------------- the decision


def half_known() -> KeyMisused:
    """A transaction over several tables is done where all of them have it, and new where none has."""
    return KeyMisused(
        "the idempotency key is known in some tables of the transaction and not in others: it stands for another "
        "transaction. Look, table by table, what has landed, and write what is missing under new keys",
        rule="key.transaction",
        next_step="ask_owner",  # under a new key, what landed would land twice
    )


def dropped(identifier: Identifier, identity: Identity, commit: Commit) -> KeyMisused | None:
    """The refusal of a creation whose table was dropped, or renamed, since it landed; None where it is new.

    Args:
        commit: what the ledger has under its key, or last of its application, for the UUID that it assigns.
    """
    if not commit.owner.numbered:
        name = f"idempotency key {identity.key}"
    elif identity.application is None or (commit.sequence or 0) < identity.application[1]:
        return None
    else:
        name = f"number {commit.sequence} of application {commit.owner.key}"
    return KeyMisused(
        f"the commit under {name} landed as snapshot {commit.snapshots[-1]} in a table {identifier} that is not there "
        "any more: it was dropped, or has another name. To create it again, stage the creation anew and use a new key",
        rule="key.gone",
        snapshot=commit.snapshots[-1],
        next_step="ask_owner",  # under a new key, a table that was dropped on purpose would come back
    )


def at_the_gate(identity: Identity, table: Table, uuid: str, answers: Mapping[Question, Any]) -> Verdict | Asks:
    """The decision with the ledger.

    Args:
        table: must have been loaded before the ledger was asked: what it does not have because the ledger had it, the
            ledger has then.
        answers: of the ledger, so far. Where it lacks one, that is asked for.
    """
    if not identity.is_traceable:
        return New()
    own = _as_sent(identity, table)
    if own is not None:
        return Done(own)
    try:
        return _by_name(identity, table, _Ledger(uuid, answers)) or _fenced(identity, table) or New()
    except _Asked as asked:
        return Asks(asked.question)


def in_the_plan(identity: Identity, table: Table) -> Verdict:
    """The decision by the table alone."""
    if not identity.is_traceable:
        return New()
    known = _by_name(identity, table, None) or _by_ids(identity, table)
    return known or _in_unreadable(identity, table) or _fenced(identity, table) or New()


def by_snapshot(snapshot_id: int, ref: str, table: Table, answers: Mapping[Question, Any]) -> Verdict | Asks:
    """Whether a snapshot has landed on a branch, for who knows its id alone.

    Args:
        answers: as of `at_the_gate`.
    """
    has = None if table.find(snapshot_id) is None else table.reaches(ref, snapshot_id)
    if has:
        return Done((snapshot_id,))
    if has is False:
        return Misused(staged_or_rolled_back(snapshot_id, ref))
    left = SawLeave(snapshot_id)
    if left not in answers:
        return Asks(left)
    if answers[left]:
        return Done((snapshot_id,))
    return New() if table.find(snapshot_id) is None else Unknown(cut_off(snapshot_id, ref))


def _by_name(identity: Identity, table: Table, ledger: _Ledger | None) -> Verdict | None:
    if identity.key is not None:
        there, commit = table.keys.find(identity.principal, identity.ref, identity.key), None
        if there is None and ledger is not None:
            commit = ledger.under(identity.key, identity)
        snapshots = there if commit is None else commit.snapshots
        if snapshots is not None:
            name = f"idempotency key {identity.key}"
            application = _application_in(table, snapshots[-1]) if commit is None else commit.application_id
            found = _Found(name, snapshots, commit)
            refused = _rolled_back(found, identity.ref, table)
            if refused is not None:
                return refused
            done = _done(found, identity.ref, table, ledger)
            # Where it may be done now, the same application may do it, with other content.
            return None if done is None else _another_write(identity, snapshots, application) or done
    if identity.mark is not None:
        return _by_mark(identity, identity.mark, table, ledger)
    if identity.application is not None:
        application, number = identity.application
        # One that was fenced has not landed, whatever came after it.
        at = fenced_number(identity, table.properties)
        if at is not None and table.keys.numbered(identity.principal, identity.ref, application, number) is None:
            return _refuse_fenced(at)
        last, commit = table.keys.sequence(identity.principal, identity.ref, application), None
        if ledger is not None and (last is None or last[0] < number):
            commit = ledger.under(application, identity, numbered=True)
            last = None if commit is None or commit.sequence is None else (commit.sequence, commit.snapshots)
        if last is not None and number <= last[0]:
            found = _Found(f"number {last[0]} of application {application}", last[1], commit)
            refused = _rolled_back(found, identity.ref, table)
            if refused is not None and ledger is not None:
                # A higher one was rolled back: of this very one that says nothing.
                own = table.keys.numbered(identity.principal, identity.ref, application, number)
                if own is not None and own != last[1]:
                    found = _Found(f"number {number} of application {application}", own, None)
                    refused = _rolled_back(found, identity.ref, table)
            return refused or _done(found, identity.ref, table, ledger)
    return None


def _by_mark(identity: Identity, mark: Mark, table: Table, ledger: _Ledger | None) -> Verdict | None:
    """By how far its sink is. None: it is new, as far as the table, or the ledger, tells."""
    told = stated_by(table.find, table.ref(identity.ref), mark)
    if not told:
        return None if ledger is None else _by_kept_mark(identity, mark, table, ledger)
    found = standing(mark, told, identity.ref, lambda snapshot: _has_read(identity, table, snapshot))
    if not isinstance(found, KeyMisused):
        return None if found is None else Done(found)
    own = _as_sent(identity, table)
    if own is not None:
        return Done(own)
    if ledger is not None and mark.beside(told[0][1]) is Place.LEVEL:
        # A rewrite may have carried the mark on, and what it stands for has expired.
        commit = ledger.of_sink(mark, identity)
        if commit is not None and mark.remembered(commit.sequence or 0, commit.mark) == mark:
            return Done(commit.snapshots)
    return Misused(found)


def _by_kept_mark(identity: Identity, mark: Mark, table: Table, ledger: _Ledger) -> Verdict | None:
    """Likewise, where the branch has no snapshot that tells: they may have expired."""
    commit = ledger.of_sink(mark, identity)
    if commit is None or commit.sequence is None:
        return None
    last = mark.remembered(commit.sequence, commit.mark)
    place = mark.beside(last)
    if place is Place.AHEAD:
        return None
    found = _Found(f"number {last.number} of {mark.application}", commit.snapshots, commit)
    if _rolled_back(found, identity.ref, table) is not None:
        return None
    done = _done(found, identity.ref, table, ledger)
    if done is None or isinstance(done, Misused):  # left behind, or set back: its branch knows nothing of it
        return None
    if isinstance(done, Unknown):
        return done
    if place is Place.BEHIND:
        return Misused(behind(mark, last, commit.snapshots[-1], identity.ref))
    return done if last.content == mark.content else Misused(differs(mark, last, commit.snapshots[-1]))


def _has_read(identity: Identity, table: Table, snapshot: Snapshot) -> bool:
    """Whether a commit was written on a version that has a snapshot in its history."""
    return reaches(table.find, identity.snapshots[0].parent_id, snapshot.id) is True


@dataclass(frozen=True, slots=True)
class _Found:
    """A commit that has landed, once.

    Attributes:
        name: by which of its names it is known, in words.
        snapshots: as which it landed.
        remembered: what the ledger has of it; None where the table itself tells.
    """

    name: str
    snapshots: tuple[int, ...]
    remembered: Commit | None

    def last_in(self, table: Table) -> int | None:
        """The last of its snapshots that the table has."""
        return next((i for i in reversed(self.snapshots) if table.find(i) is not None), None)


def _rolled_back(found: _Found, ref: str, table: Table) -> Misused | None:
    """What was rolled back is not done: an explicit error (trap K2)."""
    last = found.last_in(table)
    if last is None or not ref or table.reaches(ref, last) is not False:
        return None
    return _no_longer_there(found, last, ref)


def _set_back(found: _Found, ref: str, table: Table) -> Misused | None:
    """Its snapshots expired while its branch had them, and the branch was set to before them afterwards (trap K2).

    That shows where the branch's history is known down to below the commit's sequence number, without it.
    """
    assert found.remembered is not None
    number = found.remembered.sequence_number or 0
    expired = Snapshot({"snapshot-id": found.snapshots[-1], "sequence-number": number})
    if not ref or Lineage.of(table.find, table.ref(ref)).has(expired) is not False:
        return None
    return _no_longer_there(found, found.snapshots[-1], ref)


def _no_longer_there(found: _Found, last: int, ref: str) -> Misused:
    return Misused(
        KeyMisused(
            f"the commit under {found.name} landed as snapshot {last}, which is no longer in the history of {ref} "
            "(rolled back); use a new key to write it again",
            rule="key.rolled-back",
            snapshot=last,
        )
    )


def _another_write(identity: Identity, snapshots: tuple[int, ...], application: str | None) -> Misused | None:
    """One key for two writes of one running application would turn the second into a silent no-op (trap K3)."""
    if identity.snapshot_ids[-len(snapshots) :] == snapshots or application is None:
        return None
    if application not in {application_of(snapshot.summary) for snapshot in identity.snapshots}:
        return None
    return Misused(
        KeyMisused(
            f"application {application} has already committed snapshot {snapshots[-1]} under idempotency key "
            f"{identity.key} and now sends other content under it; set the key per write, not per session",
            rule="key.per-write",
            snapshot=snapshots[-1],
            next_step="fix_request",  # under a new key, a write that is tried again would land twice
        )
    )


def _done(found: _Found, ref: str, table: Table, ledger: _Ledger | None) -> Verdict | None:
    """Whether a commit that was not rolled back is done. None: it may be done now."""
    if ledger is not None and found.remembered is None and ledger.is_torn(found.snapshots[-1]):
        return _gone(
            f"the commit under {found.name} was partly rolled back: of its snapshots, {found.snapshots[-1]} is in the "
            "table, and the others have expired. Look for its rows, and write what is missing under a new key",
            found.snapshots[-1],
        )
    last = found.last_in(table)
    if last is not None:
        if not ref or table.reaches(ref, last) or (ledger is not None and ledger.saw_leave(last)):
            return Done(found.snapshots)
        # A tag or another branch keeps the snapshot, and what came after it on its own branch has expired.
        return _gone(
            f"the commit under {found.name} landed as snapshot {last}, and what its branch had next has expired, so "
            "that it is unknown whether it was rolled back before. Look for its rows, and if they are missing, write "
            "them under a new key",
            last,
        )
    assert ledger is not None, "only the ledger names snapshots that are not there"
    assert found.remembered is not None
    fate = ledger.fate(found.remembered)
    if fate is Fate.LEFT_BEHIND:
        return None
    if fate is Fate.EXPIRED:
        return _set_back(found, ref, table) or Done(found.snapshots)
    anew = "a higher number, or another name of the application" if found.remembered.owner.numbered else "a new key"
    if fate is Fate.REGISTERED_ANEW:
        why, rule = "the table was registered anew since, or at two names", "key.registered-anew"
    else:
        why, rule = "it was rolled back, or removed past this server, or with or after its branch", "key.gone"
    return _gone(
        f"the commit under {found.name} landed as snapshot {found.snapshots[-1]}, which {table.identifier} does not "
        f"have: {why}. Whether its rows are in the table is unknown: look for them, and if they are missing, write "
        f"them under {anew}",
        found.snapshots[-1],
        rule,
    )


def _gone(message: str, snapshot_id: int, rule: str = "key.gone") -> Unknown:
    return Unknown(KeyMisused(message, rule=rule, snapshot=snapshot_id, next_step="ask_owner"))


def _as_sent(identity: Identity, table: Table) -> tuple[int, ...] | None:
    """The snapshots of a commit that is sent once more as it is, where they are in the table and on its branch.

    Of several, the first may have expired since. All else about snapshots whose ids are known (another principal's,
    other content, rolled back) is for the plan to say.
    """
    if not identity.snapshot_ids or table.ref(identity.ref) is None or table.find(identity.snapshot_ids[-1]) is None:
        return None
    there: list[int] = []
    for snapshot in identity.snapshots:
        saved = table.find(snapshot.id)
        if saved is None:
            continue
        if not _has_content_of(saved, snapshot) or saved.summary.get(PRINCIPAL) != identity.principal:
            return None
        there.append(snapshot.id)
    return tuple(there) if table.reaches(identity.ref, there[-1]) else None


def _application_in(table: Table, snapshot_id: int) -> str | None:
    """The running application that wrote a snapshot of the table, as its summary names it."""
    snapshot = table.find(snapshot_id)
    return None if snapshot is None else application_of(snapshot.summary)


def _has_content_of(saved: Snapshot, sent: Snapshot) -> bool:
    """Whether a snapshot in the table is the one that was sent, though the tower may have written its list anew."""
    return sent.manifest_list in (saved.manifest_list, saved.summary.get(CLIENT_LIST))


def _by_ids(identity: Identity, table: Table) -> Verdict | None:
    """By the ids of its snapshots, where the table has any of them."""
    present = [snapshot_id for snapshot_id in identity.snapshot_ids if table.find(snapshot_id) is not None]
    if not present:
        return None
    for snapshot in identity.snapshots:
        saved = table.find(snapshot.id)
        if saved is None or not _has_content_of(saved, snapshot):
            return Misused(
                ValidationFailed(
                    f"snapshot {present[0]} is in the table already, with other content; a snapshot id stands for one "
                    "snapshot",
                    rule="snapshot.id",
                    snapshot=present[0],
                )
            )
    for ref, snapshot_id in identity.moves:
        has = table.reaches(ref, snapshot_id)
        # Not 409: its client would delete the manifests of a snapshot that the table still has (trap A3).
        if has is None:
            return Unknown(cut_off(snapshot_id, ref))
        if not has:  # in the table, but not on the branch that it is sent for: not done (trap K2)
            return Misused(staged_or_rolled_back(snapshot_id, ref))
    return Done(identity.snapshot_ids)


def _fenced(identity: Identity, table: Table) -> Misused | None:
    """Nothing lands any more under a name that is fenced (trap K4)."""
    at = fenced(identity, table.properties)
    return None if at is None else _refuse_fenced(at)


def _refuse_fenced(name: str) -> Misused:
    return Misused(refusal_of_fenced(name))


def _in_unreadable(identity: Identity, table: Table) -> Unknown | None:
    """What is in no group file that can be read may be in one that can't. What a sink says of itself is in none."""
    mark = identity.mark
    try:
        if identity.key is not None and (mark is None or identity.key != mark.key):
            table.keys.check_key(identity.ref, identity.key)
        if identity.application is not None and mark is None:
            application = identity.application[0]
            last = table.keys.sequence(identity.principal, identity.ref, application)
            landed = None if last is None else table.find(last[1][-1])
            table.keys.check_number(identity.ref, application, None if landed is None else landed.timestamp_ms)
    except KeyMisused as error:
        return Unknown(error)
    return None
