"""Has this commit landed? The whole answer as tables: how it is known x the table as it stands x the ledger.

The question is asked at three places. *At the gate*: before anything of the commit is read, of the table and then of
the ledger (`commit.replays`). *In the plan*: when everything before it in the queue is known, of the table alone; so is
a commit that is turned away (`commit.last_look`). *Before the swap*: of the ledger, where young keys have gone
(`commit.gatekeeper`). The answer is one of four: it is new; it is done, as these snapshots; it landed and is not done,
or its name stands for another write (misused); or the table and the ledger do not tell (unknown).

How the tables are written
--------------------------
sent     `4<3` snapshot 4 with parent 3, `k` under key k, `k2` under key k2, `a7` as number 7 of application a,
         `@s1` by the running application s1, `:bob` by bob (else ann), `>dev` to branch dev (else main), `>` to none,
         `~x` with manifest list x, `append` by the fast path
table    snapshots as above, each with its marks in brackets; `main=3` the heads of refs, `t=1` a tag;
         `!5` the group file of snapshot 5 cannot be read
ledger   `k=2` key k stands for snapshot 2, `k=2@s1` by the running application s1, `a7=2` number 7 of application a,
         `old:k=2` in a table of this name that was dropped, `left 2` snapshot 2 was seen to expire,
         `torn 2` the rest of its commit was rolled back and has gone, `registered 5` the table was registered anew at
         a file with the last sequence number 5
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from icetower.admission.facts import Facts
from icetower.admission.gate import judge
from icetower.admission.identity import Identity
from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.last_look import LastLook
from icetower.commit.pieces import at_once
from icetower.commit.plan import Sources, landed, plan
from icetower.commit.replays import Replays
from icetower.database import Database
from icetower.errors import CommitConflict, IcetowerError
from icetower.iceberg.change import Change, ListDiff, Touched
from icetower.iceberg.manifests import DataFile
from icetower.ledger.histories import TableName
from icetower.ledger.ledger import Batch, Commit, CommitKey, Expired, Ledger
from icetower.protocol.commits import CommitRequest
from icetower.protocol.marks import APPLICATION, KEY, PRINCIPAL, REF, SEQUENCE
from icetower.protocol.names import Identifier
from icetower.protocol.snapshots import Snapshot
from icetower.protocol.updates import Updates
from icetower.registry.principals import administrator
from icetower.table.fences import fence
from icetower.table.head import HeadState
from icetower.table.keys import Keys, Unreadable
from tests.commit.engine_world import Request, World
from tests.commit.has_it_landed import fast_append
from tests.commit.test_engine_pipeline import OTHER
from tests.commit.test_engine_twins import service_over
from tests.commit.test_fold import table as new_table
from verify.kit.clock import Clock

TABLE = Identifier(("db",), "t")
UUID, OLD_UUID = "uuid-new", "uuid-old"

TEXTS = """
rolled-back: key.rolled-back new_key
    the commit under {name} landed as snapshot {id}, which is no longer in the history of {ref} (rolled back);
    use a new key to write it again
cut-off: key.gone ask_owner
    the commit under {name} landed as snapshot {id}, and what its branch had next has expired, so that it
    is unknown whether it was rolled back before. Look for its rows, and if they are missing, write them under a
    new key
torn: key.gone ask_owner
    the commit under {name} was partly rolled back: of its snapshots, {id} is in the table, and the others have
    expired. Look for its rows, and write what is missing under a new key
gone: key.gone ask_owner
    the commit under {name} landed as snapshot {id}, which db.t does not have: it was rolled back, or removed
    past this server, or with or after its branch. Whether its rows are in the table is unknown: look for
    them, and if they are missing, write them under {anew}
registered: key.registered-anew ask_owner
    the commit under {name} landed as snapshot {id}, which db.t does not have: the table was registered anew
    since, or at two names. Whether its rows are in the table is unknown: look for them, and if they are
    missing, write them under {anew}
per-write: key.per-write fix_request
    application s1 has already committed snapshot {id} under {name} and now sends other content under it; set
    the key per write, not per session
unreadable: key.unreadable ask_owner
    whether a commit under {name} has landed is unknown: the group file file:///t/{id}.json, which says
    what snapshot {id} stands for, is missing or damaged. Restore it and restart the server, or let the
    snapshot expire; until then look for the rows, and if they are missing, write them under {instead}
fenced: key.fenced none
    {name} was fenced: it had not landed then, and nothing lands under it any more. To write it after all, use a new
    key, or another number
other content: snapshot.id fix_request
    snapshot {id} is in the table already, with other content; a snapshot id stands for one snapshot
snapshot cut-off: snapshot.cut-off ask_owner
    snapshot {id} is in the table, and what came after it on {ref} has expired: it is unknown whether it was
    rolled back before. Look for its rows, and if they are missing, write a new snapshot
snapshot rolled-back: snapshot.rolled-back refresh
    snapshot {id} is in the table, but not in the history of {ref} (staged, or rolled back); point the ref at
    it without adding it again, or write a new snapshot
"""
"""What is said of a commit that is neither new nor done: rule, next step, and the message."""

CASES = """
what                                   | sent          | table                        | ledger        | at the gate           | in the plan

# -- nothing of it is known
the first commit of a table            | 1 k           |                              |               | new                   | new
an append under a new key              | append k      | 1[k2] main=1                 |               | new                   | new
another principal's key                | 2<1 k         | 1[k:bob] main=1              |               | new                   | new
another branch's key                   | 2<1 k         | 1[k>dev] main=1 dev=1        |               | new                   | new
a key of an append on another branch   | append k >dev | 1[k] main=1 dev=1            |               | new                   | new
K2: a table of this name before        | 2<1 k a7      | 1 main=1                     | old:k=9       | new                   | new
K2: a number there                     | append a7     | 1 main=1                     | old:a8=9      | new                   | new
a commit without a snapshot            | > k           | 1[k] main=1                  |               | new                   | new

# -- by its key
K1: under its key                      | 4<1 k         | 1[k] 2<1 main=2              |               | done 1                | done 1
K3: a rerun has other files            | 4<1 k @s2     | 1[k@s1] main=1               |               | done 1                | done 1
K3: one key for two writes             | 4<1 k @s1     | 1[k@s1] main=1               |               | per-write k 1         | per-write k 1
K3: the very same of one application   | 1 k @s1       | 1[k@s1] main=1               |               | done 1                | done 1
an append under its key                | append k      | 1[k] 2<1 main=2              |               | done 1                | done 1
an append under the key of a commit    | append k      | 1[k@s1] main=1               |               | done 1                | done 1
of two snapshots                       | 8<1 k         | 1[k] 2<1[k] main=2           |               | done 1,2              | done 1,2
K2: rolled back                        | 4<1 k         | 1 2<1[k] 3<1 main=3          |               | rolled-back k 2       | rolled-back k 2
K2: an append rolled back              | append k      | 1 2<1[k] 3<1 main=3          |               | rolled-back k 2       | rolled-back k 2
K2: half of it rolled back             | 8<1 k         | 1[k] 2<1[k] main=1           |               | rolled-back k 2       | rolled-back k 2
K2: its branch was dropped             | 4<1 k >dev    | 1 2<1[k>dev] main=1          |               | rolled-back k>dev 2   | rolled-back k>dev 2
cut off from its branch, and unseen    | 4<1 k         | 1[k] 3<2 main=3 t=1          |               | cut-off k 1           | cut-off k 1
H1: cut off by expiry                  | 4<1 k         | 1[k] 3<2 main=3 t=1          | left 1        | done 1                | cut-off k 1
K2: what a rollback left of it         | 4<1 k         | 1[k] main=1                  | torn 1        | torn k 1              | done 1
staged, whatever became of it          | 4<1 k >       | 1 2<1[k>] main=1             |               | done 2                | done 2

# -- by its key, which the ledger has
K1: in a group file not read           | append k      | 1 main=1                     | k=1           | done 1                | new
K2: in it, and rolled back             | append k      | 1 2<1 3<1 main=3             | k=2           | rolled-back k 2       | new
K3: one key for two writes, long ago   | 4<1 k @s1     | 1 main=1                     | k=1@s1        | per-write k 1         | new
H1: expired                            | append k      | 3<2 main=3                   | k=1 left 1    | done 1                | new
H1: expired, sent by a commit          | 4<3 k         | 3<2 main=3                   | k=1 left 1    | done 1                | new
H1: expired, and the branch began later | append k     | 3<2 4<3 main=4               | k=1 left 1    | done 1                | new
K2: expired, then set back to before it | append k     | 1 3<2 main=1 t=3             | k=2 left 2    | rolled-back k 2       | new
K2: set back, and written on since     | 6<5 k         | 1 3<2 5<1 main=5 t=3         | k=2 left 2    | rolled-back k 2       | new
K2: set back to what has no past       | append k      | 2<1 5<2 main=5               | k=3 left 3    | rolled-back k 3       | new
K2: expired, and its branch is gone    | append k      | 1 3<2 t=3                    | k=2 left 2    | rolled-back k 2       | new
K2: gone, and nobody saw how           | append k      | 3 main=3                     | k=1           | gone k 1              | new
K2: left behind by a registration      | append k      | 3 main=3                     | k=9 registered 5 | new                | new
K3: left behind, and its application goes on | 4<3 k @s1 | 3 main=3                   | k=9@s1 registered 5 | new             | new
K2: registered anew, and uncertain     | append k      | 3 main=3                     | k=4 registered 5 | registered k 4     | new

# -- by its number
K1: the last number                    | append a7     | 1[a7] main=1                 |               | done 1                | done 1
a number below the last one            | append a6     | 1[a7] main=1                 |               | done 1                | done 1
a number above it                      | append a8     | 1[a7] main=1                 |               | new                   | new
a commit under its number              | 4<1 a7        | 1[a7] main=1                 |               | done 1                | done 1
numbers have no per-write rule         | 4<1 a7 @s1    | 1[a7@s1] main=1              |               | done 1                | done 1
another application's                  | append b7     | 1[a7] main=1                 |               | new                   | new
K2: rolled back                        | append a7     | 1 2<1[a7] 3<1 main=3         |               | rolled-back a7 2      | rolled-back a7 2
K2: below one that was rolled back     | append a6     | 1 2<1[a7] 3<1 main=3         |               | rolled-back a7 2      | rolled-back a7 2
K2: a lower one is in, the last is not | append a6     | 1[a6] 2<1[a7] 3<1 main=3     |               | done 1                | rolled-back a7 2
K2: both rolled back                   | append a6     | 1 2<1[a6] 4<2[a7] 3<1 main=3 |               | rolled-back a6 2      | rolled-back a7 4
what a rollback left of a number       | append a7     | 1[a7] main=1                 | torn 1        | torn a7 1             | done 1
the ledger has a higher one            | append a7     | 1[a6] 2<1 main=2             | a8=2          | done 2                | new
the ledger has a lower one             | append a9     | 1[a6] 2<1 main=2             | a8=2          | new                   | new
H1: expired                            | append a7     | 3<2 main=3                   | a8=1 left 1   | done 1                | new
K2: expired, then set back to before it | append a7    | 1 3<2 main=1 t=3             | a8=2 left 2   | rolled-back a8 2      | new
K2: gone, and nobody saw how           | append a7     | 3 main=3                     | a8=1          | gone a8 1             | new
K2: of lower ones a registration tells nothing | append a7 | 3 main=3                | a8=9 registered 5 | registered a8 9   | new

# -- by its key and its number: the key goes first
both are in                            | append k a7   | 1[k] 2<1[a7] main=2          |               | done 1                | done 1
the number is                          | append k a7   | 1[a7] main=1                 |               | done 1                | done 1
the key is, in the ledger              | append k a7   | 1 2<1[a7] main=2             | k=1           | done 1                | done 2

# -- by the ids of its snapshots
A3: sent once more                     | 2<1           | 1 2<1 main=2                 |               | done 2                | done 2
A3: another has come since             | 2<1           | 1 2<1 3<2 main=3             |               | done 2                | done 2
of two, the first has expired          | 1 2<1         | 2<1 3<2 main=3               |               | done 2                | other content 2
other content under its id             | 2<1 ~other    | 1 2<1 main=2                 |               | new                   | other content 2
another principal's snapshot           | 2<1           | 1 2<1[:bob] main=2           |               | new                   | done 2
K2: rolled back                        | 2<1           | 1 2<1 3<1 main=3             |               | new                   | snapshot rolled-back 2
K2: staged, and now for the branch     | 2<1           | 1 2<1[>] main=1              |               | new                   | snapshot rolled-back 2
cut off from its branch                | 1             | 1 3<2 main=3 t=1             |               | new                   | snapshot cut-off 1
staged, and sent once more             | 2<1 >         | 1 2<1 main=1                 |               | new                   | done 2
its key before its id                  | 2<1 k         | 1[k] 2<1 main=2              |               | done 2                | done 1
expired: its id says nothing           | 1             | 3 main=3                     |               | new                   | new

# -- fenced (^)
K4: its key is                         | append k      | 1 main=1 ^k                  |               | fenced k 0            | fenced k 0
K4: a commit's                         | 2<1 k         | 1 main=1 ^k                  |               | fenced k 0            | fenced k 0
K4: where there is no branch yet       | append k >dev | 1 main=1 ^k>dev              |               | fenced k 0            | fenced k 0
another principal's                    | append k      | 1 main=1 ^k:bob              |               | new                   | new
another branch's                       | append k      | 1 main=1 ^k>dev              |               | new                   | new
another key                            | append k      | 1 main=1 ^k2                 |               | new                   | new
an application of the key's name       | append k      | 1 main=1 ^a7                 |               | new                   | new
it is in the table                     | append k      | 1[k] main=1 ^k               |               | done 1                | done 1
its ids are                            | 1 k           | 1 main=1 ^k                  |               | done 1                | done 1
K2: it was rolled back                 | append k      | 1 2<1[k] 3<1 main=3 ^k       |               | rolled-back k 2       | rolled-back k 2
H1: it has expired                     | append k      | 3<2 main=3 ^k                | k=1 left 1    | done 1                | fenced k 0
K2: left behind by a registration      | append k      | 3 main=3 ^k                  | k=9 registered 5 | fenced k 0         | fenced k 0
it may be in a lost group file         | append k      | 1 5<1 main=5 !5 ^k           |               | fenced k 0            | unreadable k 5
K4: its number is                      | append a7     | 1 main=1 ^a7                 |               | fenced a7 0           | fenced a7 0
K4: below one that has landed          | append a7     | 1[a8] main=1 ^a7             |               | fenced a7 0           | fenced a7 0
K4: below one that the ledger has      | append a7     | 1 main=1 ^a7                 | a8=1          | fenced a7 0           | fenced a7 0
a lower number                         | append a6     | 1 main=1 ^a7                 |               | new                   | new
a higher number                        | append a8     | 1 main=1 ^a7                 |               | new                   | new
the number is in the table             | append a7     | 1[a7] 2<1[a8] main=2 ^a7     |               | done 2                | done 2
K4: its key is new, its number fenced  | append k a7   | 1 main=1 ^a7                 |               | fenced a7 0           | fenced a7 0
K4: its key is fenced, its number new  | append k a7   | 1 main=1 ^k                  |               | fenced k 0            | fenced k 0

# -- with a group file that cannot be read
a key may be in it                     | append k      | 1 5<1 main=5 !5              |               | new                   | unreadable k 5
a number may be in it                  | append a7     | 1 5<1 main=5 !5              |               | new                   | unreadable a 5
a number known from later on           | append a7     | 1 5<1 6<5[a6] main=6 !5      |               | new                   | new
a key that is found                    | append k      | 1[k] 5<1 main=5 !5           |               | done 1                | done 1
its ids are found                      | 1 k           | 1 5<1 main=5 !5              |               | done 1                | done 1
a commit under a key                   | 6<5 k         | 1 5<1 main=5 !5              |               | new                   | unreadable k 5
a commit without one                   | 6<5           | 1 5<1 main=5 !5              |               | new                   | new
"""  # noqa: E501


@dataclass
class Write:
    """A snapshot, or a commit, as a case spells it."""

    principal: str = "ann"
    ref: str = "main"
    key: str | None = None
    application: tuple[str, int] | None = None
    running: str | None = None
    manifest_list: str | None = None
    snapshots: list[tuple[int, int | None]] = field(default_factory=list)
    fast: bool = False

    @staticmethod
    def of(words: Sequence[str]) -> Write:
        write = Write()
        for word in words:
            head, rest = word[0], word[1:]
            if word == "append":
                write.fast = True
            elif head.isdigit():
                own, _, parent = word.partition("<")
                write.snapshots.append((int(own), int(parent) if parent else None))
            elif head == "k":
                write.key = word
            elif head == "@":
                write.running = rest
            elif head == ":":
                write.principal = rest
            elif head == ">":
                write.ref = rest
            elif head == "~":
                write.manifest_list = rest
            else:
                write.application = head, int(rest)
        return write

    def snapshot(self, snapshot_id: int, parent_id: int | None, *, landed: bool) -> dict[str, Any]:
        """`landed`: with what the tower writes into its summary."""
        summary: dict[str, str] = {"operation": "append"}
        if self.running is not None:
            summary["spark.app.id"] = self.running
        if landed:
            summary[PRINCIPAL] = self.principal
            if self.key is not None:
                summary[KEY] = self.key
            if self.application is not None:
                summary |= {APPLICATION: self.application[0], SEQUENCE: str(self.application[1])}
            if self.key is not None or self.application is not None:
                summary[REF] = self.ref
        made: dict[str, Any] = {"snapshot-id": snapshot_id, "sequence-number": snapshot_id, "summary": summary}
        if parent_id is not None:
            made["parent-snapshot-id"] = parent_id
        made["manifest-list"] = self.manifest_list or f"file:///t/{snapshot_id}.avro"
        return made | {"timestamp-ms": snapshot_id}

    @property
    def identity(self) -> Identity:
        if self.fast:
            return Identity.of_append(self.principal, self.ref, self.key, self.application)
        return Identity.of_commit(self.principal, Updates(self.updates), self.key, self.application)

    @property
    def updates(self) -> list[dict[str, Any]]:
        made = [self.snapshot(*each, landed=False) for each in self.snapshots]
        updates: list[dict[str, Any]] = [{"action": "add-snapshot", "snapshot": each} for each in made]
        if made and self.ref:
            moved = {"action": "set-snapshot-ref", "ref-name": self.ref, "snapshot-id": made[-1]["snapshot-id"]}
            updates.append(moved | {"type": "branch"})
        return updates

    def member(self, head: HeadState) -> Any:
        """As the gate admits it."""
        who = administrator(self.principal)
        if self.fast:
            return fast_append(who, TABLE, head, self.identity)
        nothing = ListDiff((), (), (), ())
        snapshots = [update["snapshot"] for update in self.updates if update["action"] == "add-snapshot"]
        changes = [Change(Snapshot(snapshot), nothing, (), (), {}, {}, (), False) for snapshot in snapshots]
        facts = Facts(who, TABLE, head.metadata, (), Updates(self.updates), self.identity, 0)
        return judge(facts.with_files(changes, {}))


def words_of(text: str) -> list[list[str]]:
    """`2<1[k>dev]` is a snapshot with its marks: ["2<1", "k", ">dev"]."""
    split: list[list[str]] = []
    for token in text.split():
        name, _, marks = token.rstrip("]").partition("[")
        found, word = [name], ""
        for character in marks:
            if character in "@:>~" and word:
                found.append(word)
                word = ""
            word += character
        split.append([*found, word] if word else found)
    return split


def head_of(text: str) -> HeadState:
    snapshots: list[dict[str, Any]] = []
    refs: dict[str, Any] = {}
    lost: list[int] = []
    fences: dict[str, str] = {}
    for name, *marks in words_of(text):
        if name.startswith("!"):
            lost.append(int(name[1:]))
        elif name.startswith("^"):
            [setting] = fence(Write.of(["append", *re.split("(?=[:>])", name[1:])]).identity, {}, now_ms=0, until_ms=1)
            fences |= setting["updates"]
        elif "=" in name:
            ref, _, at = name.partition("=")
            refs[ref] = {"snapshot-id": int(at), "type": "tag" if ref == "t" else "branch"}
        else:
            write = Write.of([name, *marks])
            snapshots.append(write.snapshot(*write.snapshots[0], landed=True))
    metadata = new_table() | {"table-uuid": UUID, "snapshots": snapshots, "refs": refs} | {"properties": fences}
    unreadable = [Unreadable(i, "main", i, f"file:///t/{i}.json") for i in lost]
    return HeadState("file:///t/1.json", metadata, indexed=Keys.of(snapshots).with_unreadable(unreadable))


async def remember(ledger: Ledger, text: str) -> None:
    words = text.split()
    table = TableName(UUID, TABLE)
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word in ("left", "torn"):
            left, torn = ((int(after),), ()) if word == "left" else ((), (int(after),))
            await ledger.write(Batch(expired=[Expired(table, left, torn)]))
        elif word == "registered":
            await ledger.confirm_history(table, await ledger.begin_history(table), int(after))
        elif "=" in word:
            await ledger.remember_commits([_kept(word)])


def _kept(word: str) -> Commit:
    name, _, at = word.partition("=")
    uuid, name = (OLD_UUID, name[4:]) if name.startswith("old:") else (UUID, name)
    at, _, running = at.partition("@")
    write = Write.of([name])
    about: dict[str, Any] = {"application_id": running or None, "sequence_number": int(at)}
    if write.application is None:
        return Commit(CommitKey(uuid, "main", "ann", name), (int(at),), **about)
    application, number = write.application
    return Commit(CommitKey(uuid, "main", "ann", application, numbered=True), (int(at),), sequence=number, **about)


class Heads:
    """A table that stands still."""

    def __init__(self, head: HeadState) -> None:
        self.head = head

    async def load(self, _: Identifier) -> HeadState:
        return self.head


def ledger_of(text: str) -> Ledger:
    ledger = Ledger(Database("sqlite://"), Clock())
    asyncio.run(remember(ledger, text))
    return ledger


def said(error: IcetowerError) -> tuple[str, str, str]:
    return error.rule, error.next_step, error.message


def texts_of(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    last = ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            found[last][2] = f"{found[last][2]} {line.strip()}".strip()
        else:
            last, _, rest = line.partition(": ")
            found[last] = [*rest.split(), ""]
    return found


def expected(outcome: str) -> object:
    """The snapshots of what is done, None for what is new, or rule, next step and message."""
    kind, _, rest = outcome.partition(" ")
    if kind == "new":
        return None
    if kind == "done":
        return tuple(map(int, rest.split(",")))
    texts = texts_of(TEXTS)
    kind = next(each for each in texts if outcome.startswith(f"{each} "))
    *names, snapshot_id = outcome.removeprefix(kind).split()
    name, _, ref = "".join(names).partition(">")
    rule, next_step, message = texts[kind]
    called, anew, instead = f"idempotency key {name}", "a new key", "a new key"
    if not name.startswith("k"):
        application, number = name[:1], name[1:]
        called = f"number {number} of application {application}" if number else f"application {application}"
        anew, instead = "a higher number, or another name of the application", "a key instead of a number"
    return rule, next_step, message.format(name=called, id=snapshot_id, ref=ref or "main", anew=anew, instead=instead)


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line and not line.startswith("#")]
    return [[cell.strip() for cell in line.split("|")] for line in lines[1:]]


def ids(cases: list[list[str]]) -> list[str]:
    return [f"{what}: {sent}" for what, sent, *_ in cases]


CASE_ROWS = rows(CASES)
"""what, sent, table, ledger, at the gate, in the plan"""


@pytest.mark.parametrize(("what", "sent", "table", "ledger", "gate", "in_plan"), CASE_ROWS, ids=ids(CASE_ROWS))
def test_k1_k2_k3_whether_a_commit_has_landed(
    what: str, sent: str, table: str, ledger: str, gate: str, in_plan: str
) -> None:
    write, head = Write.of([word for words in words_of(sent) for word in words]), head_of(table)
    replays = Replays(Heads(head), ledger_of(ledger))  # type: ignore[arg-type]
    try:
        found = asyncio.run(replays.find(TABLE, head, write.identity))
        at_the_gate: object = None if found is None else found.snapshots
    except IcetowerError as error:
        at_the_gate = said(error)
    try:
        planned: object = landed(head, write.member(head))
    except IcetowerError as error:
        planned = said(error)
    assert (at_the_gate, planned) == (expected(gate), expected(in_plan)), what


TOGETHER = """
what                                          | appends, in queue order: key or number, and file | outcomes

A3: one key twice joins the first             | k:a k:b                    | appended, replayed
two keys                                      | k1:a k2:b                  | appended, appended
numbers that rise                             | a1:a a2:b                  | appended, appended
a number no higher than one that goes in      | a2:a a1:b a2:c             | appended, replayed, replayed
numbers of two applications                   | a2:a b1:b                  | appended, appended
another principal's                           | k:a k:b:bob                | appended, appended
one file under two keys                       | k1:a k2:a                  | appended, replayed
one file by two principals                    | k1:a k2:a:bob              | appended, append.live
K1: a refused one leaves its key free         | k:a? k:b                   | commit.spec, appended
a refused one leaves its number free          | a2:a? a1:b                 | commit.spec, appended
a repeated file leaves its key free           | k1:a k2:a:bob k2:b:bob     | appended, append.live, appended
its key was called done                       | k1:a k2:a k2:b             | appended, replayed, replayed
of a table that was dropped                   | k:a! k:b                   | requirement.assert-table-uuid, appended
"""


@pytest.mark.parametrize(("what", "sent", "outcomes"), rows(TOGETHER), ids=[row[0] for row in rows(TOGETHER)])
def test_k1_of_appends_in_one_group_only_what_goes_in_answers_for_another(what: str, sent: str, outcomes: str) -> None:
    """`?` names a partition spec that the table does not have, `!` was admitted on a table that was dropped."""
    head = HeadState("file:///t/1.json", new_table() | {"table-uuid": UUID})
    group: list[Any] = []
    for word in sent.split():
        name, file, *who = word.split(":")
        write = Write.of(["append", name, *(f":{each}" for each in who)])
        path = f"file:///w/t/data/{file.rstrip('?!')}"
        record = {"file_path": path, "file_format": "PARQUET", "record_count": 1, "file_size_in_bytes": 100}
        data = DataFile(0, path, "PARQUET", (1,), 1, 100, None, None, record)
        append = replace(write.member(head), files=(Touched(data, 9 if "?" in file else 0, None),))
        group.append(replace(append, table_uuid=OLD_UUID) if "!" in file else append)
    planned = at_once(plan(head, group, Sources(), now_ms=1, new_name=lambda: "n", new_id=lambda: 7))
    found = {id(each.member): each.outcome for each in planned.accepted}
    found |= {id(each.member): "replayed" for each in planned.replayed}
    found |= {id(each.member): each.error.rule for each in planned.refused}
    assert [found[id(member)] for member in group] == outcomes.split(", "), what


MEANWHILE = """
what                                       | sent        | table       | ledger           | before the swap

K4: landed, and its snapshot was removed   | append k    | 3 main=3    | k=1              | unknown 1
a key that has not                         | append k2   | 3 main=3    | k=1              | new
K4: its number                             | append a7   | 3 main=3    | a7=1             | unknown 1
K4: a lower number                         | append a6   | 3 main=3    | a7=1             | unknown 1
a higher number                            | append a8   | 3 main=3    | a7=1             | new
K4: its key is new, its number is not      | append k a7 | 3 main=3    | a7=1             | unknown 1
the table has it, as the plan has seen     | append k    | 1 main=1    | k=1              | new
K4: a commit                               | 4<3 k       | 3 main=3    | k=1              | unknown 1
K4: a commit's number                      | 4<3 a7      | 3 main=3    | a7=1             | unknown 1
K2: left behind by a registration          | append k    | 3 main=3    | k=9 registered 5 | new
seen to expire                             | append k    | 3 main=3    | k=1 left 1       | unknown 1
another branch's                           | 4<3 k >dev  | 3 main=3    | k=1              | new
"""


@pytest.mark.parametrize(("what", "sent", "table", "ledger", "outcome"), rows(MEANWHILE), ids=ids(rows(MEANWHILE)))
def test_k4_whether_a_commit_has_landed_and_gone_while_it_was_under_way(
    what: str, sent: str, table: str, ledger: str, outcome: str
) -> None:
    write, head, kept = Write.of(sent.split()), head_of(table), ledger_of(ledger)

    async def story() -> str:
        gatekeeper = Gatekeeper(None, kept, NoGroups(), nothing)  # type: ignore[arg-type]
        young = head_of(f"{table} 9[k9]")
        assert await gatekeeper.landed_meanwhile(head, [write.member(head)]) == {}  # no young key has gone
        await gatekeeper.keep_keys(TABLE, young, head, [9])
        found = await gatekeeper.landed_meanwhile(head, [write.member(head)])
        if not found:
            return "new"
        assert (found[0].status, found[0].rule) == (504, "commit.unknown")
        assert found[0].message == (
            f"a commit under the same key landed as snapshot {outcome.removeprefix('unknown ')} while this one was "
            "under way, and the snapshot was removed since; nothing more was committed. Send it again to hear what "
            "became of it"
        )
        return outcome

    assert asyncio.run(story()) == outcome, what


class NoGroups:
    async def read(self, _: str, snapshots: Sequence[Any]) -> dict[int, Any]:
        assert not snapshots
        return {}


async def nothing() -> None:
    """Nothing waits for the ledger."""


HALF_KNOWN = """
what                                | in t | in other | at the gate | in the engine           | turned away

neither                             | no   | no       | new         | direct                  | refused
A3: both                            | yes  | yes      | done        | replayed                | replayed
a key of another transaction        | yes  | no       | misused     | misused                 | misused
the same, the other way round       | no   | yes      | misused     | misused                 | misused
K2: rolled back in one              | back | yes      | rolled back | rolled back             | rolled back
"""
"""Transactions over two tables under one key, and what each table has of it."""


@pytest.mark.parametrize(
    ("what", "first", "second", "gate", "engine", "away"), rows(HALF_KNOWN), ids=[row[0] for row in rows(HALF_KNOWN)]
)
def test_a3_k2_whether_a_transaction_has_landed(
    what: str, first: str, second: str, gate: str, engine: str, away: str, tmp_path: Path
) -> None:
    async def story() -> dict[str, str]:
        world = World()
        await world.create()
        await world.create(table=OTHER)
        for table, has in ((TABLE, first), (OTHER, second)):
            if has != "no":
                await begin(world, table, then_back=has == "back")
        requests = [await blind_append(world, table, "again") for table in (TABLE, OTHER)]
        found: dict[str, str] = {}
        members = [await request.admitted() for request in requests]
        look = LastLook(world.heads, world.engine.live, look_s=1)
        found["away"] = heard(await look.answers(members, CommitConflict("late", rule="queue.deadline")))
        tower, commits = service_over(world, tmp_path)
        sent = [CommitRequest(each.table, tuple(each.requirements), Updates(each.updates)) for each in requests]
        if gate != "new":  # else it is the engine that answers
            found["gate"] = await hearing(commits.commit_together(administrator("ann"), sent, "k"))
        found["engine"] = await hearing(world.engine.submit_together(members))
        await tower.close()
        return found

    names = {
        "misused": "422 key.transaction ask_owner",
        "done": "done",
        "refused": "409 queue.deadline refresh",
        "new": "",
    }
    found = asyncio.run(story())
    back = {"gate": "ask_owner", "engine": "new_key", "away": "new_key"}
    for place, outcome in (("gate", gate), ("engine", engine), ("away", away)):
        wanted = f"422 key.rolled-back {back[place]}" if outcome == "rolled back" else names.get(outcome, outcome)
        assert found.get(place, "") == wanted, (what, place)


async def blind_append(world: World, table: Identifier, name: str) -> Request:
    writer = await world.writer("ann").refresh(table)
    return await writer.append(name, summary={"icetower.blind": "true"}, table=table, key="k")


async def begin(world: World, table: Identifier, *, then_back: bool) -> None:
    """A commit under the key, and the branch set back to before it."""
    before = await world.writer("bob").refresh(table)
    bob = await before.append("bob", table=table)
    await bob.send()
    await (await blind_append(world, table, "first")).send()
    if then_back:
        moved = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": bob.snapshot_id}
        await Request(before, table, [], [moved], ()).send()


async def hearing(work: Awaitable[Any]) -> str:
    try:
        return heard(await work)
    except IcetowerError as error:
        return heard(error)


def heard(answer: Any) -> str:
    if isinstance(answer, IcetowerError):
        return f"{answer.status} {answer.rule} {answer.next_step}"
    return "done" if answer is None else "+".join(sorted({each.outcome for each in answer}))
