"""Has this commit of a streaming sink landed? The whole answer as a table, as in `test_has_it_landed`.

Beyond the marks there: `spark5/3` is epoch 5 of a query with 3 rows, `flink5/3` checkpoint 5 of a job, `txn5/3` version
5 of a transaction's application; `kafka7,2/c` is commit c of Kafka Connect, which reads on at offset 7 of partition 0
of its control topic and at 2 of partition 1, and of `kafka7` only partition 0 is known. `rewrite` is a rewrite that
carries the mark on, `parts` an Iceberg that commits a checkpoint in parts, `outside` a snapshot that came past
the tower. In the ledger, `spark5/3=1` says that this landed as snapshot 1.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icetower.commit.gatekeeper import Gatekeeper
from icetower.commit.plan import landed
from icetower.commit.replays import Replays
from icetower.errors import IcetowerError
from icetower.ledger.histories import TableName
from icetower.ledger.ledger import Commit, CommitKey, Ledger
from icetower.protocol.marks import APPLICATION, PRINCIPAL, REF, SEQUENCE
from icetower.table.head import HeadState
from icetower.table.keys import Keys
from icetower.table.sinks import mark_of
from tests.commit.test_fold import table as new_table
from tests.commit.test_has_it_landed import TABLE, UUID, Heads, NoGroups, Write, ids, ledger_of, nothing, rows, words_of

QUERY, EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
JOB, OPERATOR, CHECKPOINT = "flink.job-id", "flink.operator-id", "flink.max-committed-checkpoint-id"
OFFSETS, COMMIT_ID = "kafka.connect.offsets.control.group", "kafka.connect.commit-id"

CASES = """
what                                    | sent               | table                            | ledger            | at the gate    | in the plan

# -- Spark's streaming: the epoch of a query
the first epoch                         | 2<1 spark0/3       | 1 main=1                         |                   | new            | new
the next one                            | 4<2 spark6/3       | 1 2<1[spark5/3] main=2           |                   | new            | new
gaps are allowed                        | 4<2 spark9/3       | 1 2<1[spark5/3] main=2           |                   | new            | new
the same epoch, by another run          | 4<1 spark5/3       | 1 2<1[spark5/3] main=2           |                   | done 2         | done 2
the same, tried again on the new head   | 4<3 spark5/3       | 1 2<1[spark5/3] 3<2 main=3       |                   | done 2         | done 2
an empty epoch                          | 4<1 spark5/0       | 1 2<1[spark5/0] main=2           |                   | done 2         | done 2
the same epoch with other rows          | 4<2 spark5/4       | 1 2<1[spark5/3] main=2           |                   | differs 2      | differs 2
an epoch below it                       | 4<2 spark4/3       | 1 2<1[spark5/3] main=2           |                   | behind 2       | behind 2
one that has landed, made anew          | 4<3 spark4/3       | 1 2<1[spark4/3] 3<2[spark5/3] main=3 |               | behind 3       | behind 3
A3: the same, sent once more            | 2<1 spark4/3       | 1 2<1[spark4/3] 3<2[spark5/3] main=3 |               | done 2         | done 2
another query                           | 4<2 spark5/3 @q2   | 1 2<1[spark5/3] main=2           |                   | new            | new
another branch                          | 4<2 spark5/3 >dev  | 1 2<1[spark5/3] main=2 dev=1     |                   | new            | new
a branch that has it in its past        | 4<3 spark5/3 >dev  | 1 2<1[spark5/3] 3<2 main=3 dev=3 |                   | done 2         | done 2
by another principal                    | 4<2 spark4/3 :bob  | 1 2<1[spark5/3] main=2           |                   | behind 2       | behind 2
K2: rolled back, and made again         | 4<1 spark5/3       | 1 2<1[spark5/3] 3<1 main=3       |                   | new            | new
K2: set back to an older epoch          | 6<2 spark5/9       | 1 2<1[spark4/3] 3<2[spark5/3] main=2 |               | new            | new
K2: and below that                      | 6<2 spark3/9       | 1 2<1[spark4/3] 3<2[spark5/3] main=2 |               | behind 2       | behind 2
it ran outside of the tower before      | 4<2 spark5/3       | 1 2<1[spark5/3 outside] main=2   |                   | done 2         | done 2
outside, and goes on                    | 4<2 spark6/3       | 1 2<1[spark5/3 outside] main=2   |                   | new            | new
outside, and was set back               | 4<2 spark4/3       | 1 2<1[spark5/3 outside] main=2   |                   | behind 2       | behind 2
a rewrite with its mark is not its      | 4<2 spark5/3 rewrite | 1 2<1[spark5/3] main=2         |                   | new            | new
a rewrite has carried its mark on       | 4<3 spark5/3       | 1 2<1[spark5/3] 3<2[spark5/9 rewrite] main=3 |       | done 2         | done 2
H1: which is all that is left           | 4<3 spark5/3       | 3<2[spark5/9 rewrite] main=3     | spark5/3=2 left 2 | done 2         | differs 3
with a key, as Java's client sends one | 4<2 spark5/3 k     | 1 2<1[spark5/3] main=2           |                   | done 2         | done 2

# -- when its snapshots have expired
H1: the same epoch                      | 4<3 spark5/3       | 3<2 main=3                       | spark5/3=2 left 2 | done 2         | new
H1: the next one                        | 4<3 spark6/3       | 3<2 main=3                       | spark5/3=2 left 2 | new            | new
H1: the same with other rows            | 4<3 spark5/4       | 3<2 main=3                       | spark5/3=2 left 2 | differs 2      | new
H1: an epoch below                      | 4<3 spark4/3       | 3<2 main=3                       | spark5/3=2 left 2 | behind 2       | new
K2: expired, and set back since         | 4<1 spark5/3       | 1 3<2 main=1 t=3                 | spark5/3=2 left 2 | new            | new
K2: gone, and nobody saw how            | 4<3 spark5/3       | 3 main=3                         | spark5/3=1        | gone           | new
K2: registered anew, and uncertain      | 4<3 spark5/3       | 3 main=3                         | spark5/3=4 registered 5 | registered | new
cut off from its branch by expiry       | 4<3 spark5/3       | 1[spark5/3] 3<2 main=3 t=1       | spark5/3=1 left 1 | done 1         | new
the table goes before the ledger        | 4<2 spark4/3       | 1 2<1[spark3/3] main=2           | spark5/3=9        | new            | new

# -- Flink: the checkpoint of a job and its operator
the next checkpoint                     | 4<2 flink6/3       | 1 2<1[flink5/3] main=2           |                   | new            | new
the same, its answer was lost           | 4<1 flink5/3       | 1 2<1[flink5/3] main=2           |                   | done 2         | done 2
the same with other files               | 4<1 flink5/4       | 1 2<1[flink5/3] main=2           |                   | differs 2      | differs 2
the same, on a head that it refreshed   | 4<2 flink5/3       | 1 2<1[flink5/3] main=2           |                   | done 2         | done 2
and with other files                    | 4<2 flink5/4       | 1 2<1[flink5/3] main=2           |                   | differs 2      | differs 2
another part of it                      | 4<2 flink5/4 parts | 1 2<1[flink5/3] main=2           |                   | new            | new
a part from a stale base                | 4<1 flink5/3 parts | 1 2<1[flink5/3] main=2           |                   | done 2         | done 2
of three parts, the first again         | 4<1 flink5/3       | 1 2<1[flink5/3] 3<2[flink5/4] main=3 |               | done 2         | done 2
all parts again as one                  | 4 5<4 flink5/3     | 1 2<1[flink5/3] 3<2[flink5/3] main=3 |               | done 2,3       | done 2,3
below                                   | 4<2 flink4/3       | 1 2<1[flink5/3] main=2           |                   | behind 2       | behind 2
another operator                        | 4<2 flink5/3 @o2   | 1 2<1[flink5/3] main=2           |                   | new            | new
to Flink, of any operator               | 4<2 flink4/3       | 1 2<1[flink5/3 @] main=2         |                   | behind 2       | behind 2
the end of a bounded job                | 4<2 flink9223372036854775807/3 | 1 2<1[flink9223372036854775807/3] main=2 |   | new            | new

# -- Kafka Connect: the offsets of a control topic and group
the next commit                         | 4<2 kafka9/d       | 1 2<1[kafka7/c] main=2           |                   | new            | new
the same commit again                   | 4<1 kafka7/c       | 1 2<1[kafka7/c] main=2           |                   | done 2         | done 2
a zombie whose offsets are below        | 4<1 kafka6/d       | 1 2<1[kafka7/c] main=2           |                   | behind 2       | behind 2
the same, tried again on the new head   | 4<2 kafka6/d       | 1 2<1[kafka7/c] main=2           |                   | behind 2       | behind 2
another one with the same offsets       | 4<2 kafka7/d       | 1 2<1[kafka7/c] main=2           |                   | differs 2      | differs 2
ahead, but it has not read the last     | 4<1 kafka9/d       | 1 2<1[kafka7/c] main=2           |                   | behind 2       | behind 2
ahead in one partition, behind in one   | 4<2 kafka9,1/d     | 1 2<1[kafka7,2/c] main=2         |                   | behind 2       | behind 2
it has not heard of a partition         | 4<2 kafka9/d       | 1 2<1[kafka7,2/c] main=2         |                   | new            | new
a new partition                         | 4<2 kafka7,2/d     | 1 2<1[kafka7/c] main=2           |                   | new            | new
H1: expired                             | 4<3 kafka7,2/c     | 3<2 main=3                       | kafka7,2/c=2 left 2 | done 2       | new
H1: a zombie after that                 | 4<3 kafka9,1/d     | 3<2 main=3                       | kafka7,2/c=2 left 2 | behind 2     | new

# -- Delta's numbers
the next version                        | 4<2 txn6/3         | 1 2<1[txn5/3] main=2             |                   | new            | new
the same                                | 4<2 txn5/3         | 1 2<1[txn5/3] main=2             |                   | done 2         | done 2
the same with other rows                | 4<2 txn5/4         | 1 2<1[txn5/3] main=2             |                   | differs 2      | differs 2
below                                   | 4<2 txn4/3         | 1 2<1[txn5/3] main=2             |                   | behind 2       | behind 2
"""  # noqa: E501

RULES = {
    "differs": "sink.differs",
    "behind": "sink.behind",
    "gone": "key.gone",
    "registered": "key.registered-anew",
}


def marks(word: str, which: str | None) -> dict[str, str]:
    """The summary of a sink's commit: see above. `which`: another query, operator, group."""
    kind = word.rstrip("0123456789,/abcdef") if not word.startswith("kafka") else "kafka"
    number, _, content = word.removeprefix(kind).partition("/")
    if kind == "kafka":
        numbers = dict(enumerate(number.split(",")))
        return {OFFSETS: "{" + ", ".join(f'"{p}": {n}' for p, n in numbers.items()) + "}", COMMIT_ID: content}
    counted = {"added-records": content} if content != "0" else {}
    if kind == "spark":
        return counted | {QUERY: which or "q", EPOCH: number}
    if kind == "flink":
        files = {"added-data-files": "1", "added-files-size": content * 3}
        operator = {} if which == "" else {OPERATOR: which or "o"}
        return counted | files | {JOB: "j", CHECKPOINT: number} | operator
    return counted | {"txnAppId": "a", "txnVersion": number}


class Sent(Write):
    """A commit, or a snapshot, of a sink."""

    sink: str | None = None
    is_rewrite = False
    is_outside = False
    in_parts = False

    @classmethod
    def read(cls, words: list[str]) -> Sent:
        sinks = [word for word in words if word.startswith(("spark", "flink", "kafka", "txn"))]
        plain = [word for word in words if word not in (*sinks, "rewrite", "outside", "parts")]
        write = Write.of([word for word in plain if word != "@"])
        sent = cls(**{name: getattr(write, name) for name in write.__dataclass_fields__})
        sent.running = "" if "@" in plain else write.running
        sent.sink, sent.is_rewrite, sent.is_outside = next(iter(sinks), None), "rewrite" in words, "outside" in words
        sent.in_parts = "parts" in words
        return sent

    def snapshot(self, snapshot_id: int, parent_id: int | None, *, landed: bool) -> dict[str, Any]:
        made = super().snapshot(snapshot_id, parent_id, landed=landed)
        made["summary"].pop("spark.app.id", None)
        if self.sink is not None:
            made["summary"] |= marks(self.sink, self.running)
        if self.in_parts:
            made["summary"]["iceberg-version"] = "Apache Iceberg 1.10.0 (commit 2114bf631e)"
        mark = mark_of(made["summary"])
        if self.is_rewrite:
            made["summary"]["operation"] = "replace"
        elif self.is_outside:
            made["summary"].pop(PRINCIPAL)
        elif landed and mark is not None:
            made["summary"] |= {APPLICATION: mark.application, SEQUENCE: str(mark.number), REF: self.ref}
        return made


def words(text: str) -> list[str]:
    return [each for words in words_of(text) for each in words]


def head_of(text: str) -> HeadState:
    snapshots: list[dict[str, Any]] = []
    refs: dict[str, Any] = {}
    for token in text.replace(" rewrite]", ":rewrite]").replace(" outside]", ":outside]").replace(" @]", "@]").split():
        name, _, inside = token.rstrip("]").partition("[")
        if "=" in name:
            ref, _, at = name.partition("=")
            refs[ref] = {"snapshot-id": int(at), "type": "tag" if ref == "t" else "branch"}
            continue
        found = inside.replace(":rewrite", " rewrite").replace(":outside", " outside").replace("@", " @").split()
        sent = Sent.read([name, *found])
        snapshots.append(sent.snapshot(*sent.snapshots[0], landed=True))
    metadata = new_table() | {"table-uuid": UUID, "snapshots": snapshots, "refs": refs}
    return HeadState("file:///t/1.json", metadata, indexed=Keys.of(snapshots))


def kept_in(text: str) -> Ledger:
    kept = [word for word in text.split() if "/" in word]
    ledger = ledger_of(" ".join(word for word in text.split() if "/" not in word))
    for word in kept:
        name, _, at = word.partition("=")
        mark = mark_of(marks(name, None))
        assert mark is not None
        owner = CommitKey(UUID, "main", "ann", mark.application, numbered=True)
        about = {"sequence": mark.number, "sequence_number": int(at), "mark": mark.kept}
        asyncio.run(ledger.remember_commits([Commit(owner, (int(at),), **about)]))  # type: ignore[arg-type]
        if "registered" in text:
            asyncio.run(_register(ledger, int(text.rpartition(" ")[2])))
    return ledger


async def _register(ledger: Ledger, at: int) -> None:
    table = TableName(UUID, TABLE)
    await ledger.confirm_history(table, await ledger.begin_history(table), at)


def said(error: IcetowerError) -> str:
    assert (error.status, error.next_step) == (422, "ask_owner")
    short = next(name for name, rule in RULES.items() if rule == error.rule)
    return short if short in ("gone", "registered") else f"{short} {error.snapshot}"


def outcome(snapshots: tuple[int, ...] | None) -> str:
    return "new" if snapshots is None else f"done {','.join(map(str, snapshots))}"


ROWS = rows(CASES)


@pytest.mark.parametrize(("what", "sent", "table", "ledger", "gate", "in_plan"), ROWS, ids=ids(ROWS))
def test_k6_whether_a_sinks_commit_has_landed(
    what: str, sent: str, table: str, ledger: str, gate: str, in_plan: str
) -> None:
    write, head = Sent.read(sent.split()), head_of(table)
    try:
        found = asyncio.run(Replays(Heads(head), kept_in(ledger)).find(TABLE, head, write.identity))  # type: ignore[arg-type]
        at_the_gate = outcome(None if found is None else found.snapshots)
    except IcetowerError as error:
        at_the_gate = said(error)
    try:
        planned = outcome(landed(head, write.member(head)))
    except IcetowerError as error:
        planned = said(error)
    assert (at_the_gate, planned) == (gate, in_plan), what


@pytest.mark.parametrize("past", ["", " outside"], ids=["by the tower", "past it"])
@pytest.mark.parametrize("sink", ["spark5/3", "flink5/3", "kafka7,2/c", "txn5/3"])
def test_k6_what_a_sink_has_said_outlives_its_snapshots(sink: str, past: str) -> None:
    kind, _, content = sink.partition("/")
    lower = kind.replace("5", "4").replace("7,2", "9,1")
    old, new = head_of(f"1 2<1[{sink}{past}] 3<2 main=3"), head_of("3<2 main=3")
    ledger = ledger_of("")

    async def expire() -> None:
        await Gatekeeper(None, ledger, NoGroups(), nothing).keep_keys(TABLE, old, new, [1, 2])  # type: ignore[arg-type]

    asyncio.run(expire())
    heard: list[str] = []
    for sent in (sink, f"{kind}/{'d' if content == 'c' else '4'}", f"{lower}/{content}"):
        identity = Sent.read(["4<3", sent]).identity
        try:
            found = asyncio.run(Replays(Heads(new), ledger).find(TABLE, new, identity))  # type: ignore[arg-type]
            heard.append(outcome(None if found is None else found.snapshots))
        except IcetowerError as error:
            heard.append(said(error))
    assert heard == ["done 2", "differs 2", "behind 2"]
