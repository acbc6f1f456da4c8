"""The order of the checks is a security property: what is refused first, and what is read before it.

Each test sends a commit that is wrong in every way that is listed, notes the refusal and what the tower has read of the
warehouse by then, mends that one fault, and sends the commit again. The tables are the order.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.errors import ContractViolation, IcetowerError
from icetower.gateway.settings import Settings
from icetower.gateway.tower import Tower, open_tower
from icetower.iceberg import manifests as avro
from icetower.iceberg.manifest_writing import row_of, write_manifest, write_manifest_list
from icetower.ledger.shadow import Shadowed
from icetower.protocol.appends import AppendRequest, FileDescriptor
from icetower.protocol.commits import CommitRequest
from icetower.protocol.names import Identifier
from icetower.protocol.updates import Updates
from icetower.registry.principals import Principal, administrator
from icetower.storage.file_io import FileIOStorage
from icetower.table.head import HeadState

JSON = dict[str, Any]
TABLE = Identifier(("ns",), "t")
SCHEMA: JSON = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "n", "type": "long", "required": False},
        {"id": 2, "name": "day", "type": "int", "required": False},
    ],
}
SPEC: JSON = {"spec-id": 0, "fields": [{"name": "day", "transform": "identity", "source-id": 2, "field-id": 1000}]}
MAIN = {"ref-name": "main", "type": "branch"}
LIST, MANIFEST, DATA, DELETES = "manifest list", "manifest", "data file", "delete file"


def contract(*, mode: str = "enforce", operations: str = "append, overwrite", **more: str) -> str:
    lines = {"partitions": "[{day: [0]}]", "prove_partitions": "true"} | more
    clauses = "".join(f"\n  {name}: {value}" for name, value in lines.items())
    return f"version: 1\nagent: bob\nmode: {mode}\ntables:\n- table: ns.t\n  operations: [{operations}]{clauses}\n"


def bound(text: str, name: str = "bob") -> Principal:
    return Principal(name, load(text, source="test"), 1)


@dataclass
class Scene:
    """A tower with a table in it, and what is read of its warehouse."""

    tower: Tower
    head: HeadState
    reads: list[str] = field(default_factory=list)
    files: int = 0
    rows: Sequence[avro.ManifestFile] = ()
    noted: list[Shadowed] = field(default_factory=list)

    @property
    def location(self) -> str:
        return str(self.head.metadata["location"])

    def put(self, name: str, data: bytes) -> str:
        path = Path(self.location.removeprefix("file://")) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return f"{self.location}/{name}"

    def data_file(self, name: str, day: int, *, content: int = 0, parquet: bytes | None = None) -> avro.DataFile:
        size_bytes = 100 if parquet is None else len(parquet)
        path = f"{self.location}/{name}" if parquet is None else self.put(name, parquet)
        record: JSON = {
            "content": content,
            "file_path": path,
            "file_format": "PARQUET",
            "record_count": 3,
            "file_size_in_bytes": size_bytes,
        }
        return avro.DataFile(content, path, "PARQUET", (day,), 3, size_bytes, None, None, record)

    def snapshot(
        self, groups: Sequence[Sequence[avro.DataFile]], summary: JSON, *, lie: bool = False, bounds: bool = True
    ) -> JSON:
        """A snapshot on the head that adds files, each group in a manifest of its own."""
        self.files += 1
        metadata, base = self.head.metadata, self.head.metadata.get("current-snapshot-id")
        snapshot_id, number = 1_000 + self.files, metadata["last-sequence-number"] + 1
        rows = [*self.rows]
        for at, files in enumerate(groups):
            entries = [avro.Entry(1, snapshot_id, None, None, each) for each in files]
            about: JSON = {"spec_id": 0, "content": min(files[0].content, 1), "snapshot_id": snapshot_id}
            data = write_manifest(entries, spec_fields=SPEC["fields"], schema=SCHEMA, format_version=2, **about)
            path = self.put(f"metadata/m{self.files}-{at}.avro", data)
            row = row_of(path, len(data), entries, kinds=["int"], sequence_number=number, **about)
            row = replace(row, added_rows=row.added_rows + 1) if lie else row
            if not bounds and row.partitions:
                row = replace(row, partitions=(replace(row.partitions[0], lower=b"\x07\0\0\0", upper=b"\x07\0\0\0"),))
            rows.append(row)
        listed = write_manifest_list(
            rows, format_version=2, snapshot_id=snapshot_id, parent_id=base, sequence_number=number, first_row_id=None
        )
        made: JSON = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": metadata["last-updated-ms"] + 1,
            "manifest-list": self.put(f"metadata/snap-{self.files}.avro", listed),
            "summary": {"operation": "append"} | summary,
            "schema-id": 0,
        }
        return made if base is None else made | {"parent-snapshot-id": base}

    def read(self) -> tuple[str, ...]:
        """The kinds of files that were read since the last call, in order."""
        found = tuple(dict.fromkeys(map(kind_of, self.reads)))
        self.reads.clear()
        return found


def kind_of(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    if name.startswith("snap-"):
        return LIST
    if name.endswith(".avro"):
        return MANIFEST
    return DELETES if "deletes" in name else DATA


@asynccontextmanager
async def scene(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Scene]:
    settings = Settings.model_validate({"server": {"data": str(folder)}})
    tower = open_tower(settings, SystemAmbient())
    try:
        await tower.lake.upstream.create_namespace(("ns",), {})
        metadata = await tower.lifecycle.new_metadata(
            TABLE, schema=SCHEMA, spec=SPEC, sort_order=None, location=None, properties={"format-version": "2"}
        )
        made = Scene(tower, await tower.lifecycle.create(TABLE, metadata))
        for name in ("read", "read_range"):
            _noted(monkeypatch, name, made.reads)
        yield made
    finally:
        await tower.close()


def _noted(monkeypatch: pytest.MonkeyPatch, name: str, reads: list[str]) -> None:
    plain = getattr(FileIOStorage, name)

    async def noted(self: FileIOStorage, path: str, *more: Any, **named: Any) -> bytes:
        if not path.endswith(".json"):
            reads.append(path)
        return await plain(self, path, *more, **named)

    monkeypatch.setattr(FileIOStorage, name, noted)


def parquet(day: int, *, statistics: bool = True) -> bytes:
    schema = pa.schema(
        [
            pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"}),
            pa.field("day", pa.int32(), metadata={"PARQUET:field_id": "2"}),
        ]
    )
    table = pa.table([pa.array([1, 2, 3], pa.int64()), pa.array([day] * 3, pa.int32())], schema=schema)
    out = io.BytesIO()
    pq.write_table(table, out, write_statistics=statistics)
    return out.getvalue()


def positions(path: str) -> bytes:
    """A delete file of the three rows of a data file."""
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    out = io.BytesIO()
    pq.write_table(pa.table([pa.array([path] * 3), pa.array([0, 1, 2], pa.int64())], schema=schema), out)
    return out.getvalue()


def refuse_stopped(scene: Scene) -> None:
    """As where an escalation is open."""

    async def stopped(principal: Principal, table: Identifier) -> None:
        raise ContractViolation(f"{principal.name} is stopped at {table}", rule="contract.escalated")

    scene.tower.records.escalations.require_free = stopped  # type: ignore[method-assign]


SINK = "kafka.connect.offsets.control.group"
"""Tells the progress of a sink. Without a commit's id beside it, it is no number by which the commit is known."""


async def begun(scene: Scene) -> None:
    """A first snapshot, by `ann`, whose sink has told its progress in it."""
    await scene.tower.records.registry.create_principal("ann", "administrator")
    file = scene.data_file("data/first.parquet", 0, parquet=parquet(0))
    snapshot = scene.snapshot([[file]], {SINK: "{}"})
    request = CommitRequest(TABLE, (), Updates([{"action": "add-snapshot", "snapshot": snapshot}, _to(snapshot)]))
    scene.head = await scene.tower.commits.commit(administrator("ann"), request, None)
    head = scene.head.snapshots[scene.head.metadata["current-snapshot-id"]]
    scene.rows = await scene.tower.lake.manifests.list_at(head["manifest-list"])


def _to(snapshot: JSON) -> JSON:
    return {"action": "set-snapshot-ref", "snapshot-id": snapshot["snapshot-id"], **MAIN}


def _sets(name: str, value: str) -> JSON:
    return {"action": "set-properties", "updates": {name: value}}


BY_A_CONTRACT = (
    ("stopped", "contract.escalated", ()),
    ("too soon", "contract.quota", ()),
    ("a summary key of ours that is none", "summary.unknown", ()),
    ("a summary key of the tower's", "contract.summary", ()),
    ("the base is not asserted", "contract.ref", ()),
    ("history is dropped", "contract.history", ()),
    ("files are sent elsewhere", "contract.location", ()),
    ("a shared property", "contract.shared", ()),
    ("rows are counted wrongly", "contract.manifest", (LIST, MANIFEST)),
    ("bounds hide files", "contract.manifest", (LIST, MANIFEST)),
    ("a partition of others", "contract.partitions", (LIST, MANIFEST)),
    ("too many files", "contract.quota", (LIST, MANIFEST)),
    ("a file in the place of others", "contract.location", (LIST, MANIFEST)),
    ("no key", "contract.key", (LIST, MANIFEST)),
    ("the progress of another's sink", "contract.summary", (LIST, MANIFEST)),
    ("no proof of its partition", "append.unproven", (LIST, MANIFEST, DATA)),
    ("a delete file that cannot be looked into", "contract.contents", (LIST, MANIFEST, DATA, DELETES)),
    ("more rows than anybody can have meant", "guard.rows", (LIST, MANIFEST, DATA, DELETES)),
)
"""What is wrong with the commit, the rule by which it is refused, and what was read by then."""


def forged(scene: Scene, faults: set[str], *, mode: str = "enforce") -> tuple[Principal, CommitRequest]:
    """A commit with some of the faults."""
    clauses = {
        "too soon": {"quotas": "{commits_per_minute: 1, files_per_commit: 4}"},
        "too many files": {"quotas": "{files_per_commit: 2}"},
        "no key": {"require_key": "true"},
        "more rows than anybody can have meant": {"guard": "{times: 1, above: 1}"},
    }
    more: dict[str, str] = {}
    for fault in ("no key", "too many files", "too soon", "more rows than anybody can have meant"):
        more |= clauses[fault] if fault in faults else {}
    who = bound(contract(mode=mode, **more))
    own = "data/bob"
    summary: JSON = {}
    if "a summary key of ours that is none" in faults:
        summary["icetower.nonsense"] = "1"
    if "a summary key of the tower's" in faults:
        summary["icetower.principal"] = "ann"
    if "the progress of another's sink" in faults:
        summary[SINK] = "{}"
    unproven = "no proof of its partition" in faults
    files = [scene.data_file(f"{own}/a{scene.files}.parquet", 0, parquet=parquet(0, statistics=not unproven))]
    if "a partition of others" in faults:
        files.append(scene.data_file(f"{own}/b{scene.files}.parquet", 1, parquet=parquet(1)))
    if "a file in the place of others" in faults:
        files.append(scene.data_file(f"data/ann/c{scene.files}.parquet", 0, parquet=parquet(0)))
    if "too many files" in faults:
        files += [scene.data_file(f"{own}/{n}{scene.files}.parquet", 0, parquet=parquet(0)) for n in "de"]
    groups = [files]
    if "a delete file that cannot be looked into" in faults:
        broken = scene.data_file(f"{own}/deletes{scene.files}.parquet", 0, content=1, parquet=b"no Parquet at all")
        groups.append([broken])
    if "more rows than anybody can have meant" in faults:
        files += [scene.data_file(f"{own}/{n}{scene.files}.parquet", 0, parquet=parquet(0)) for n in "fg"]
        gone = positions(f"{scene.location}/data/first.parquet")
        groups.append([scene.data_file(f"{own}/deletes-of-first{scene.files}.parquet", 0, content=1, parquet=gone)])
    snapshot = scene.snapshot(
        groups,
        summary | ({"operation": "overwrite"} if len(groups) > 1 else {}),
        lie="rows are counted wrongly" in faults,
        bounds="bounds hide files" not in faults,
    )
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, _to(snapshot)]
    for fault, name, value in (
        ("history is dropped", "history.expire.max-snapshot-age-ms", "1"),
        ("files are sent elsewhere", "write.data.path", "file:///elsewhere"),
        ("a shared property", "write.format.default", "orc"),
    ):
        updates += [_sets(name, value)] if fault in faults else []
    asserted = {
        "type": "assert-ref-snapshot-id",
        "ref": "main",
        "snapshot-id": scene.head.metadata["current-snapshot-id"],
    }
    requirements = () if "the base is not asserted" in faults else (asserted,)
    return who, CommitRequest(TABLE, requirements, Updates(updates))


def test_a_contracts_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            free = place.tower.records.escalations.require_free
            faults = {fault for fault, *_ in BY_A_CONTRACT}
            found: list[tuple[str, str, tuple[str, ...]]] = []
            for fault, *_ in BY_A_CONTRACT:
                if fault == "stopped":
                    refuse_stopped(place)
                place.read()
                for _ in range(2 if fault == "too soon" else 1):  # the first takes the minute's only place
                    who, request = forged(place, faults)
                    with pytest.raises(IcetowerError) as refused:
                        await place.tower.commits.commit(who, request, None)
                found.append((fault, refused.value.rule, place.read()))
                faults.remove(fault)
                if fault == "stopped":
                    place.tower.records.escalations.require_free = free  # type: ignore[method-assign]
            assert found == [*BY_A_CONTRACT]
            who, request = forged(place, faults)
            with pytest.raises(IcetowerError) as refused:
                await place.tower.commits.commit(who, request, None)
            assert refused.value.rule == "contract.revoked"  # by the last look before the swap: bob is not registered

    asyncio.run(story())


ALWAYS_REFUSED = (
    ("a summary key of ours that is none", "summary.unknown", ()),
    ("a summary key of the tower's", "contract.summary", ()),
    ("files are sent elsewhere", "contract.location", ()),
    ("rows are counted wrongly", "contract.manifest", (LIST, MANIFEST)),
    ("bounds hide files", "contract.manifest", (LIST, MANIFEST)),
    ("the progress of another's sink", "contract.summary", (LIST, MANIFEST)),
)
"""Of the same faults, those that shadow mode does not let by."""

LET_BY = (
    ("commit", "contract.quota"),
    *(
        ("alter+overwrite", rule)
        for rule in (
            "contract.operation",
            "contract.quota",
            "contract.ref",
            "contract.history",
            "contract.location",
            "contract.shared",
            "contract.key",
            "append.unproven",
            "contract.contents",
            "guard.rows",
        )
    ),
)
"""What it notes of the others: the operation, and the rule."""


def test_shadow_mode_notes_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            notes = _notes(place)
            faults = {fault for fault, *_ in BY_A_CONTRACT} - {"stopped"}
            found: list[tuple[str, str, tuple[str, ...]]] = []
            for fault, *_ in ALWAYS_REFUSED:
                place.read()
                who, request = forged(place, faults, mode="shadow")
                with pytest.raises(IcetowerError) as refused:
                    await place.tower.commits.commit(who, request, None)
                found.append((fault, refused.value.rule, place.read()))
                faults.remove(fault)
            assert found == [*ALWAYS_REFUSED]
            notes.clear()
            place.read()
            who, request = forged(place, faults, mode="shadow")
            with pytest.raises(IcetowerError) as refused:
                await place.tower.commits.commit(who, request, None)
            assert refused.value.rule == "contract.revoked"
            assert [(note.operation, note.rule) for note in notes] == [*LET_BY]
            assert place.read() == (LIST, MANIFEST, DATA, DELETES)

    asyncio.run(story())


def _notes(scene: Scene) -> list[Shadowed]:
    """What shadow mode notes from now on."""
    notes: list[Shadowed] = []
    scene.tower.front.shadow._note = notes.append
    return notes


BY_AN_ADMINISTRATOR = (
    ("a summary key of ours that is none", "summary.unknown", ()),
    ("rows are counted wrongly", "contract.manifest", (LIST, MANIFEST)),
    ("bounds hide files", "contract.manifest", (LIST, MANIFEST)),
    ("a property of ours that is none", "property.unknown", (LIST, MANIFEST)),
    ("a property that loads code", "property.code", (LIST, MANIFEST)),
)


def test_an_administrators_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            faults = {fault for fault, *_ in BY_AN_ADMINISTRATOR}
            found: list[tuple[str, str, tuple[str, ...]]] = []
            for fault, *_ in BY_AN_ADMINISTRATOR:
                place.read()
                _, request = forged(place, faults)
                properties = [
                    _sets(name, "x")
                    for sets, name in (
                        ("a property of ours that is none", "icetower.nonsense"),
                        ("a property that loads code", "write.py-location-provider.impl"),
                    )
                    if sets in faults
                ]
                with pytest.raises(IcetowerError) as refused:
                    await place.tower.commits.commit(
                        administrator("ann"), replace(request, updates=Updates([*request.updates, *properties])), None
                    )
                found.append((fault, refused.value.rule, place.read()))
                faults.remove(fault)
            assert found == [*BY_AN_ADMINISTRATOR]

    asyncio.run(story())


BY_AN_APPEND = (
    ("a branch that is not there", "append.branch", ()),
    ("a partition that does not fit", "append.partition", ()),
    ("one file twice", "append.repeated", ()),
    ("a partition of others", "contract.partitions", ()),
    ("a file in the place of others", "contract.location", ()),
    ("too many files", "contract.quota", ()),
    ("no key", "contract.key", ()),
    ("an odd path", "append.path", ()),
    ("stopped", "contract.escalated", ()),
    ("too soon", "contract.quota", ()),
    ("a file that is not as long as it says", "append.size", (DATA,)),
    ("no proof of its partition", "append.unproven", (DATA,)),
)


def appended(scene: Scene, faults: set[str]) -> tuple[Principal, AppendRequest]:
    """An append by the fast path with some of the faults."""
    more: dict[str, str] = {}
    for fault, name, value in (
        ("no key", "require_key", "true"),
        ("too many files", "quotas", "{files_per_commit: 2}"),
        ("too soon", "quotas", "{commits_per_minute: 1, files_per_commit: 4}"),
    ):
        more |= {name: value} if fault in faults else {}
    if {"too soon", "too many files"} <= faults:
        more["quotas"] = "{commits_per_minute: 1, files_per_commit: 2}"
    files: list[FileDescriptor] = []

    def file(name: str, day: int, partition: JSON | None = None, *, extra: int = 0, statistics: bool = True) -> None:
        data = parquet(day, statistics=statistics)
        scene.put(name.replace("//", "/"), data)
        path = f"{scene.location}/{name}"
        files.append(FileDescriptor(path, 3, len(data) + extra, None, partition or {"day": day}, None, {}))

    scene.files += 1
    own, at = "data/bob", scene.files
    extra = 1 if "a file that is not as long as it says" in faults else 0
    file(f"{own}/a{at}.parquet", 0, extra=extra, statistics="no proof of its partition" not in faults)
    if "a partition that does not fit" in faults:
        file(f"{own}/b{at}.parquet", 0, {"dei": 0})
    if "one file twice" in faults:
        files.append(files[0])
    if "a partition of others" in faults:
        file(f"{own}/c{at}.parquet", 1)
    if "a file in the place of others" in faults:
        file(f"data/ann/d{at}.parquet", 0)
    if "too many files" in faults:
        file(f"{own}/e{at}.parquet", 0)
        file(f"{own}/f{at}.parquet", 0)
    if "an odd path" in faults:
        file(f"{own}//g{at}.parquet", 0)
    ref = "nowhere" if "a branch that is not there" in faults else "main"
    return bound(contract(**more)), AppendRequest(ref, tuple(files), None, None)


def test_an_append_by_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with scene(tmp_path, monkeypatch) as place:
            await begun(place)
            free = place.tower.records.escalations.require_free
            refuse_stopped(place)
            faults = {fault for fault, *_ in BY_AN_APPEND}
            found: list[tuple[str, str, tuple[str, ...]]] = []
            for fault, *_ in BY_AN_APPEND:
                for _ in range(2 if fault == "too soon" else 1):
                    place.read()
                    who, request = appended(place, faults)
                    with pytest.raises(IcetowerError) as refused:
                        await place.tower.commits.append(who, TABLE, request, None)
                found.append((fault, refused.value.rule, place.read()))
                faults.remove(fault)
                if fault == "stopped":
                    place.tower.records.escalations.require_free = free  # type: ignore[method-assign]
            assert found == [*BY_AN_APPEND]
            who, request = appended(place, faults)
            with pytest.raises(IcetowerError) as refused:
                await place.tower.commits.append(who, TABLE, request, None)
            assert refused.value.rule == "contract.revoked"

    asyncio.run(story())
