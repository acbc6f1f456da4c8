"""Icetower's own words in snapshot summaries and table properties: what clients set, and what the tower writes."""

from __future__ import annotations

OURS = "icetower."
"""How all of them begin."""

# Set by clients, in a snapshot's summary.
KEY = "icetower.idempotency-key"
"""The idempotency key under which the snapshot was committed (trap K1)."""

BLIND = "icetower.blind"
"""``true``: this append depends on nothing that its writer has read. ``false``: only its client can validate it."""

APPLICATION = "icetower.application"
"""An application that numbers its commits; beside it stands `SEQUENCE`."""

SEQUENCE = "icetower.sequence"
"""The number of this commit among its application's: one that is no higher than the last to land is a replay."""

FILTER = "icetower.filter"
"""What the writer read: Iceberg's expression JSON. Beside it stands `ISOLATION`."""

ISOLATION = "icetower.isolation-level"
"""The level that the writer asks for: ``snapshot`` or ``serializable``."""

READ_SNAPSHOT = "icetower.read-snapshot"
"""The id of the snapshot that the writer has read; ``none`` for a table without one. What came later is unseen."""

DECIDED = "icetower.decided-at"
"""When the agent decided what it writes, in milliseconds since 1970. It is logged, and nothing depends on it."""

INTENT = "icetower.intent"
"""The intent under which its writer has worked: a lease on the rows that the commit touches."""

INTENT_FENCE = "icetower.fence"
"""The number that the intent was given with its grant. Beside it stands `INTENT`."""

LEASES = "icetower.leases"
"""All intents that its writer believes to hold, each as ``intent:fence``, separated by spaces. Unlike `INTENT` it does
not say that the commit is made under one of them; but it is refused where it touches rows of one that has ended."""

REVERTS = "icetower.reverts"
"""The ids of snapshots that this one takes back, with commas between them."""

REVERTS_OF = "icetower.reverts-of"
"""The principals whose writes it takes back, with commas between them: a snapshot may hold rows of several."""

MEDIATOR = "icetower.wal."
"""How the words begin by which a mediator tells how far it has read a write-ahead log."""

EXPORT = "icetower.export."
"""How the words begin by which an exporter tells how far it has read the log of attempts."""

PROGRESS = (MEDIATOR, EXPORT)
"""A commit with such words is never rebased, and made by those alone who may write everywhere."""

SOURCE_SNAPSHOT = "source-snapshot-id"
"""Iceberg's own: of which staged snapshot this one was picked."""

PUBLISHED_WAP = "published-wap-id"
"""Iceberg's own: the write-audit-publish id under which the picked snapshot was staged."""

MERGES = "spark.merge-into."
"""How the properties begin that Spark 4.1 and later write into the summaries of their MERGEs."""

KAFKA = "kafka.connect."
"""How Kafka Connect's properties begin."""

# Written by the tower, in a snapshot's summary.
REF = "icetower.ref"
"""Beside a key or a group file: the branch for which the keys stand (trap K2)."""

PRINCIPAL = "icetower.principal"
"""Who committed it."""

CLIENT_LIST = "icetower.client-manifest-list"
"""The manifest list that the client wrote, where the tower wrote another in its place."""

GROUP_FILE = "icetower.group-file"
"""The file that says which principal appended which data files under which key (trap K1)."""

GROUP_SIZE = "icetower.group-size"
"""How many appends the snapshot stands for."""

BASE = "icetower.base-snapshot"
"""The snapshot on which the client had prepared a commit that the tower rebased; ``none`` for a table without one."""

PUBLISHED_BRANCH = "icetower.published-branch"
"""The branch of which the tower published this snapshot's content; beside it stand `SOURCE_SNAPSHOT` and these two."""

PUBLISHED_OF = "icetower.published-of"
"""The snapshots whose content this one has, as they were first committed: ids, separated by commas."""

AUTHOR = "icetower.author"
"""Who made the snapshot: names, with commas between them. Of a group all whose appends it has, unless they are many; of
what another principal published, who made that."""

OF_CLIENTS = frozenset(
    {
        KEY,
        BLIND,
        APPLICATION,
        SEQUENCE,
        FILTER,
        ISOLATION,
        READ_SNAPSHOT,
        DECIDED,
        REVERTS,
        REVERTS_OF,
        INTENT,
        INTENT_FENCE,
        LEASES,
    }
)
OF_THE_TOWER = frozenset(
    {REF, PRINCIPAL, CLIENT_LIST, GROUP_FILE, GROUP_SIZE, BASE, PUBLISHED_BRANCH, PUBLISHED_OF, AUTHOR}
)
"""Every word of a summary, but for those of mediators."""

# Table properties.
BLIND_APPENDS = "icetower.blind-appends"
"""Its owner's word that every append to the table is blind (trap R1)."""

SNAPSHOTS_PER_SECOND = "icetower.appends.snapshots-per-second"
"""So many snapshots a second come of appends by the fast path and of rows, at most: 1 to 1000 (by default 50)."""

STRICT = "icetower.strict"
"""Nothing is rebased (trap R9)."""

FENCE = "icetower.fence."
"""How the properties begin by which the tower keeps that nothing lands under a key any more (trap K4)."""

PUBLISHED = "icetower.published."
"""How the properties begin by which the tower keeps the keys of publications that added no snapshot (trap K1)."""

INTENTS = "icetower.intents"
"""``required``: commits into rows that another's intent holds are refused. ``advisory``: its holder hears of them."""

INTENTS_FENCE = "icetower.intents.fence"
"""The highest fence that was given for the table, as far as commits have brought it here (trap K4)."""

RETENTION_SNAPSHOTS_MAX = "icetower.retention.snapshots-max"
"""So many snapshots stay on each branch's line (trap H1)."""

RETENTION_AGE_MAX_MS = "icetower.retention.age-max-ms"
"""Nothing older than this stays."""

RETENTION_SINKS_MAX_MS = "icetower.retention.sinks-max-ms"
"""How long a sink that has fallen silent is waited for."""

# Columns of write-ahead logs, delta tables and others, which the tower and the SDK fill in.
KEY_COLUMN, AGENT_COLUMN, WRITTEN_COLUMN = "_idempotency_key", "_agent", "_written_at"
CHANGE_COLUMN, EVENT_TIME_COLUMN = "_operation", "_event_time"
