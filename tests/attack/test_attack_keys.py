"""Exactly once, over the wire: resends that race each other, reruns, rollbacks, and towers killed in between."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icetower.ambient import uuid7_of
from icetower.iceberg.manifests import DATA
from icetower.protocol.marks import APPLICATION, KEY, REF, SEQUENCE
from verify.kit.forger import OWNER, Forger, added
from verify.kit.tower_process import TowerProcess, error_of

Forge = Callable[..., Forger]
JSON = dict[str, Any]
RESENDS = 200
BLIND = {"icetower.blind": "true"}
APPENDER = "tables:\n  - table: NS.t\n    operations: [read, append]\n    write_location: table\n    partitions: all\n"


def header_key(number: int = 0) -> str:
    return uuid7_of(1_700_000_000_000 + number, uuid.uuid4().int >> 60)


def race(forger: Forger, bodies: list[JSON], headers: dict[str, str]) -> list[httpx2.Response]:
    """All of them at once, each over a connection of its own."""

    async def together() -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=len(bodies))
        async with httpx2.AsyncClient(
            base_url=forger.http.base_url, headers=forger.http.headers, timeout=120.0, limits=limits
        ) as client:
            return await asyncio.gather(*(client.post(forger.url, json=body, headers=headers) for body in bodies))

    return asyncio.run(together())


def body_of(request: tuple[list[JSON], list[JSON]]) -> JSON:
    return {"requirements": request[0], "updates": request[1]}


def snapshot_of(request: tuple[list[JSON], list[JSON]]) -> int:
    return request[1][0]["snapshot"]["snapshot-id"]


def assert_once(forger: Forger, answers: list[httpx2.Response], *landed: int, files: list[str]) -> None:
    """One snapshot, and answers that all tell of it."""
    assert [answer.status_code for answer in answers] == [200] * len(answers), {a.text[:300] for a in answers}
    metadata = forger.load()
    found = [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]]
    assert len(found) == len(landed or (1,))
    assert not landed or found == list(landed)
    for answer in answers:
        told = answer.json()["metadata"]
        assert told["refs"]["main"]["snapshot-id"] == found[-1]
        assert [snapshot["snapshot-id"] for snapshot in told["snapshots"]] == found
        assert told["table-uuid"] == metadata["table-uuid"]
    assert forger.live() == files


@pytest.mark.parametrize("by", ["header", "summary", "number", "number-in-headers", "snapshot-id"])
def test_200_resends_of_one_commit_that_race_each_other_land_once(forge: Forge, by: str) -> None:
    admin = forge()
    admin.create()
    marks = {"summary": {KEY: "once"}, "number": {APPLICATION: "app", SEQUENCE: "7"}}.get(by, {})
    headers = {
        "header": {"Idempotency-Key": header_key()},
        "number-in-headers": {"Icetower-Application": "app", "Icetower-Sequence": "7"},
    }.get(by, {})
    request = admin.append("a.parquet", summary=marks)
    answers = race(admin, [body_of(request)] * RESENDS, headers)
    assert_once(admin, answers, snapshot_of(request), files=["a.parquet"])
    summary = admin.load()["snapshots"][0]["summary"]
    if by.startswith("number"):
        assert (summary[APPLICATION], summary[SEQUENCE], summary[REF]) == ("app", "7", "main")
    # Once more when all is over and the client has cleaned up after itself.
    manifest_list = Path(request[1][0]["snapshot"]["manifest-list"].removeprefix("file://"))
    kept = manifest_list.read_bytes()
    if admin.load()["snapshots"][0]["manifest-list"] != request[1][0]["snapshot"]["manifest-list"]:
        manifest_list.unlink()
    assert_once(admin, [admin.send(request, **headers)], snapshot_of(request), files=["a.parquet"])
    assert kept


@pytest.mark.parametrize("by", ["header", "summary"])
def test_k3_reruns_with_other_files_under_one_key_land_once_whichever_is_first(forge: Forge, by: str) -> None:
    """As PyIceberg does when a scheduler runs a job anew: other file names, other snapshot ids."""
    admin = forge()
    base = admin.create()
    marks = {KEY: "rerun", **BLIND} if by == "summary" else BLIND
    reruns = [admin.append(f"{number:03}.parquet", base=base, summary=marks) for number in range(RESENDS)]
    headers = {"Idempotency-Key": header_key()} if by == "header" else {}
    answers = race(admin, [body_of(rerun) for rerun in reruns], headers)
    live = admin.live()
    assert len(live) == 1
    assert_once(admin, answers, files=live)


def test_k3_one_key_for_two_writes_of_a_running_application_is_an_error(forge: Forge) -> None:
    admin = forge()
    admin.create()
    session = {KEY: "session", "spark.app.id": "app-1", **BLIND}
    admin.send(admin.append("a.parquet", summary=session)).raise_for_status()
    answer = admin.send(admin.append("b.parquet", summary=session))
    # It may be the same write, tried again: told to take a new key, its client would have it twice.
    error = error_of(answer)
    assert (answer.status_code, error["rule"], error["next_step"]) == (422, "key.per-write", "fix_request")
    again = admin.append("c.parquet", summary={**session, "spark.app.id": "app-2"})  # a rerun: another application
    assert admin.send(again).status_code == 200
    assert admin.live() == ["a.parquet"]


def test_k2_a_key_of_another_principal_or_branch_or_table_never_matches(forge: Forge, tower: TowerProcess) -> None:
    admin, ann, bob = forge(), forge(APPENDER), forge(APPENDER)
    admin.create()
    marks = {KEY: "shared", APPLICATION: "app", SEQUENCE: "1", **BLIND}
    for number, writer in enumerate((admin, ann, bob)):
        writer.send(writer.append(f"{number}.parquet", summary=marks)).raise_for_status()
    assert len(admin.live()) == 3
    head = admin.load()["refs"]["main"]["snapshot-id"]
    branch = {"action": "set-snapshot-ref", "ref-name": "side", "type": "branch", "snapshot-id": head}
    admin.commit([], [branch]).raise_for_status()
    admin.send(admin.append("side.parquet", summary=marks, ref="side")).raise_for_status()
    assert len(admin.live("side")) == 4
    # The table is dropped and made anew: it starts afresh.
    admin.http.delete(admin.url).raise_for_status()
    admin.create()
    admin.send(admin.append("anew.parquet", summary=marks)).raise_for_status()
    assert admin.live() == ["anew.parquet"]


def test_numbers_of_an_application_only_go_up_and_may_leave_gaps(forge: Forge) -> None:
    admin = forge()
    admin.create()

    def send(name: str, number: int) -> httpx2.Response:
        return admin.send(admin.append(name, summary={APPLICATION: "app", SEQUENCE: str(number)}))

    for name, number in (("a", 3), ("again", 3), ("older", 1), ("b", 10), ("between", 7)):
        assert send(name, number).status_code == 200
    assert admin.live() == ["a", "b"]
    first = admin.load()["snapshots"][0]["snapshot-id"]
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first}
    admin.commit([], [back]).raise_for_status()
    refused = send("again", 10)  # K2: rolled back is not done
    assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.rolled-back")
    assert send("c", 11).status_code == 200
    assert admin.live() == ["a", "c"]


@pytest.mark.parametrize(
    "marks",
    [{APPLICATION: "app"}, {SEQUENCE: "1"}, {APPLICATION: "app", SEQUENCE: "-1"}, {APPLICATION: "", SEQUENCE: "1"}],
)
def test_numbers_that_make_no_sense_are_refused(forge: Forge, marks: dict[str, str]) -> None:
    admin = forge()
    admin.create()
    answer = admin.send(admin.append("a.parquet", summary=marks))
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "key.sequence")
    names = {APPLICATION: "Icetower-Application", SEQUENCE: "Icetower-Sequence"}
    headers = {names[mark]: text for mark, text in marks.items()}
    answer = admin.send(admin.append("a.parquet"), **headers)
    assert (answer.status_code, error_of(answer)["rule"]) == (400, "key.sequence")


def test_h1_expired_commits_stay_replayable_by_key_and_by_number(forge: Forge) -> None:
    admin = forge()
    admin.create()
    marks = {KEY: "k", APPLICATION: "app", SEQUENCE: "4"}
    first = admin.append("a.parquet", summary=marks)
    admin.send(first).raise_for_status()
    admin.send(admin.append("b.parquet")).raise_for_status()
    admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": [snapshot_of(first)]}]).raise_for_status()
    for again in ({KEY: "k"}, {APPLICATION: "app", SEQUENCE: "4"}, {APPLICATION: "app", SEQUENCE: "2"}):
        assert admin.send(admin.append("again.parquet", summary=again)).status_code == 200
    assert admin.live() == ["a.parquet", "b.parquet"]
    admin.send(admin.append("c.parquet", summary={APPLICATION: "app", SEQUENCE: "5"})).raise_for_status()
    assert admin.live() == ["a.parquet", "b.parquet", "c.parquet"]


def test_k2_a_number_that_was_rolled_back_and_expired_uncovers_the_one_before_it(forge: Forge) -> None:
    admin = forge()
    admin.create()

    def send(name: str, number: int) -> int:
        request = admin.append(name, summary={APPLICATION: "app", SEQUENCE: str(number)})
        admin.send(request).raise_for_status()
        return snapshot_of(request)

    one, two = send("a", 1), send("b", 2)
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": one}
    admin.commit([], [back]).raise_for_status()
    send("again", 1)  # done: that a higher one was rolled back says nothing of it
    refused = admin.send(admin.append("again", summary={APPLICATION: "app", SEQUENCE: "2"}))
    assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.rolled-back")
    admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": [two]}]).raise_for_status()
    send("again", 1)
    send("b2", 2)
    assert admin.live() == ["a", "b2"]


def test_k2_a_number_that_was_rolled_back_does_not_uncover_those_that_expired_between_it_and_what_is_left(
    forge: Forge,
) -> None:
    """One of them was done, and landed again: nothing but the higher number had told of it."""
    admin = forge()
    admin.create()

    def send(name: str, number: int) -> tuple[int, httpx2.Response]:
        request = admin.append(name, summary={APPLICATION: "app", SEQUENCE: str(number)})
        return snapshot_of(request), admin.send(request)

    one, two = (send(name, number)[0] for name, number in (("a", 1), ("b", 2)))
    tag(admin, "release", one)
    other = admin.append("other")
    admin.send(other).raise_for_status()
    three = send("c", 3)[0]
    point(admin, "main", snapshot_of(other))
    admin.send(admin.append("last")).raise_for_status()
    for gone in (two, three):
        admin.commit([], [remove(gone)]).raise_for_status()
    assert send("again", 1)[1].status_code == 200  # noted when its branch was cut off
    for number in (2, 3):
        answer = send("again", number)[1]
        assert (answer.status_code, error_of(answer)["rule"]) == (422, "key.gone")
    send("d", 4)[1].raise_for_status()
    assert admin.live() == ["a", "b", "d", "last", "other"]


def test_k2_a_number_that_was_rolled_back_does_not_take_along_those_that_expired_before_it(forge: Forge) -> None:
    """Nobody remembers them any more: an application that starts from an older checkpoint must not double its rows."""
    admin = forge()
    admin.create()

    def send(name: str, number: int) -> tuple[int, httpx2.Response]:
        request = admin.append(name, summary={APPLICATION: "app", SEQUENCE: str(number)})
        return snapshot_of(request), admin.send(request)

    one, two, three = (send(name, number)[0] for number, name in enumerate("abc", 1))
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": two}
    admin.commit([], [back]).raise_for_status()
    other = admin.append("other")
    admin.send(other).raise_for_status()
    for gone in ([one, two], [three]):
        admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": gone}]).raise_for_status()
    for number in (1, 2, 3):
        answer = send("again", number)[1]
        assert (answer.status_code, error_of(answer)["rule"]) == (422, "key.gone")
    send("d", 4)[1].raise_for_status()
    assert admin.live() == ["a", "b", "d", "other"]


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[Callable[..., Forger]]:
    """Starts a tower on the same data after killing the one before, or stopping it; a writer to its table `t`."""
    running: list[TowerProcess] = []

    def start(*, clean: bool = False) -> Forger:
        if running and clean:
            assert running[-1].stop() == 0
        elif running:
            running[-1].process.kill()
            running[-1].process.wait()
            running[-1].process.stdout.close()  # type: ignore[union-attr]
            running[-1].admin.close()
        running.append(TowerProcess(tmp_path / "data"))
        forger = Forger(running[-1].client(), "ns")
        forger.http.post("/v1/namespaces", json={"namespace": ["ns"]})
        return forger

    yield start
    assert running[-1].stop() == 0


def test_resends_after_a_tower_was_killed_land_once(killable: Callable[..., Forger]) -> None:
    admin = killable()
    admin.create()
    header = {"Idempotency-Key": header_key()}
    by_header, by_key = admin.append("a.parquet"), None
    admin.send(by_header, **header).raise_for_status()
    by_key = admin.append("b.parquet", summary={KEY: "k", APPLICATION: "app", SEQUENCE: "1"})
    admin.send(by_key).raise_for_status()
    plain = admin.append("c.parquet")
    admin.send(plain).raise_for_status()
    landed = [snapshot_of(request) for request in (by_header, by_key, plain)]
    files = ["a.parquet", "b.parquet", "c.parquet"]
    for _ in range(2):
        admin = killable()
        rerun = admin.append("other.parquet", summary={KEY: "k"})
        numbered = admin.append("other.parquet", summary={APPLICATION: "app", SEQUENCE: "1"})
        answers = [admin.send(by_header, **header), *(admin.send(r) for r in (by_key, rerun, numbered, plain))]
        assert_once(admin, answers, *landed, files=files)


def fast(forger: Forger, name: str, **names: Any) -> JSON:
    """The body of an append by the fast path, of a file that is there."""
    path = forger.path(forger.load(), name)
    file = Path(path.removeprefix("file://"))
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        fields = [pa.field(n, pa.int32(), metadata={b"PARQUET:field_id": str(i)}) for i, n in NUMBERED_COLUMNS]
        pq.write_table(pa.table([pa.array([1], pa.int32()), pa.array([2], pa.int32())], schema=pa.schema(fields)), file)
    about = {"file-path": path, "file-format": "PARQUET", "record-count": 1, "file-size-in-bytes": file.stat().st_size}
    return {"files": [{**about, "partition": {"region": 1, "product": 2}}], **names}


NUMBERED_COLUMNS = ((1, "region"), (2, "product"))


def fast_race(forger: Forger, bodies: list[JSON], headers: dict[str, str]) -> set[int]:
    """The snapshots that the answers tell of."""
    url = forger.url + "/append"

    async def together() -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=len(bodies))
        async with httpx2.AsyncClient(
            base_url=forger.http.base_url, headers=forger.http.headers, timeout=120.0, limits=limits
        ) as client:
            return await asyncio.gather(*(client.post(url, json=body, headers=headers) for body in bodies))

    answers = asyncio.run(together())
    assert [answer.status_code for answer in answers] == [200] * len(bodies), {a.text[:300] for a in answers}
    return {answer.json()["snapshot-id"] for answer in answers}


NAMES: dict[str, tuple[JSON, dict[str, str]]] = {
    "header": ({}, {}),
    "body": ({"key": "once"}, {}),
    "number": ({"application": {"id": "app", "sequence": 3}}, {}),
}


@pytest.mark.parametrize("by", NAMES)
@pytest.mark.parametrize("reruns", [False, True], ids=["resent", "other-files"])
def test_200_appends_under_one_name_by_the_fast_path_land_once(forge: Forge, by: str, reruns: bool) -> None:
    admin = forge()
    admin.create()
    names, headers = NAMES[by]
    if by == "header":  # of its own: a key belongs to one endpoint
        headers = {"Idempotency-Key": header_key()}
    bodies = [fast(admin, f"{number if reruns else 0}.parquet", **names) for number in range(RESENDS)]
    landed = fast_race(admin, bodies, headers)
    assert len(landed) == 1
    assert len(admin.live()) == 1
    assert [s["snapshot-id"] for s in admin.load()["snapshots"]] == list(landed)
    # The same name through the other door is the same write.
    marks = {"body": {KEY: "once"}, "number": {APPLICATION: "app", SEQUENCE: "2"}}.get(by, {})
    admin.send(admin.append("again.parquet", summary=marks), **headers).raise_for_status()
    assert len(admin.live()) == 1


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "stopped"])
def test_k1_appends_by_the_fast_path_are_known_by_the_next_tower(killable: Callable[..., Forger], clean: bool) -> None:
    """By their group files after a crash; after a clean stop, by the ledger alone."""
    admin = killable()
    admin.create()
    bodies = [fast(admin, f"{n}.parquet", key=f"k{n}", application={"id": "app", "sequence": n}) for n in range(5)]
    landed = [fast_race(admin, [body], {}) for body in bodies]
    files = [f"{n}.parquet" for n in range(5)]
    admin = killable(clean=clean)
    if clean:  # nothing of them needs to be read: let the files be gone
        for snapshot in admin.load()["snapshots"]:
            Path(snapshot["summary"]["icetower.group-file"].removeprefix("file://")).unlink()
        admin = killable(clean=True)
    for body, before in zip(bodies, landed, strict=True):
        without_number = {name: value for name, value in body.items() if name != "application"}
        assert fast_race(admin, [body, without_number], {}) == before
    rerun = fast(admin, "rerun.parquet", application={"id": "app", "sequence": 4})
    assert fast_race(admin, [rerun], {}) == landed[-1]
    admin.send(admin.append("other.parquet", summary={KEY: "k2"})).raise_for_status()
    assert admin.live() == files
    # K2: rolled back is not done, whoever knows of it.
    (second,) = landed[1]
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": second}
    admin.commit([], [back]).raise_for_status()
    for again in (bodies[3], fast(admin, "rerun.parquet", application={"id": "app", "sequence": 4})):
        refused = admin.http.post(admin.url + "/append", json=again)
        assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.rolled-back")
    assert fast_race(admin, [bodies[1]], {}) == landed[1]
    # And once they have expired, they are forgotten: the same write may be done again.
    gone = [snapshot_id for ids in landed[2:] for snapshot_id in ids]
    admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": gone}]).raise_for_status()
    if not clean:  # without its group file nobody can tell whose keys they were
        assert fast_race(admin, [fast(admin, "3b.parquet", key="k3")], {}).isdisjoint(gone)
        assert admin.live() == ["0.parquet", "1.parquet", "3b.parquet"]


def point(forger: Forger, ref: str, snapshot_id: int) -> None:
    update = {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": snapshot_id}
    forger.commit([], [update]).raise_for_status()


def test_k2_a_fast_append_rolled_back_on_its_branch_is_not_done_though_another_branch_has_it(forge: Forge) -> None:
    """Nor is it new: its branch may be set to the other one, and then it would be there twice."""
    admin = forge()
    admin.create()
    (before,) = fast_race(admin, [fast(admin, "0.parquet", key="k0", application={"id": "app", "sequence": 1})], {})
    bodies = [fast(admin, "1.parquet", key="k1"), fast(admin, "2.parquet", application={"id": "app", "sequence": 2})]
    landed = [next(iter(fast_race(admin, [body], {}))) for body in bodies]
    point(admin, "b", landed[-1])
    fast_race(admin, [fast(admin, "b.parquet", key="kb", ref="b")], {})
    point(admin, "main", before)
    for body in bodies:
        refused = admin.http.post(admin.url + "/append", json=body)
        assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.rolled-back")
    gone = [before, *landed]
    point(admin, "main", next(iter(fast_race(admin, [fast(admin, "3.parquet", key="k3")], {}))))
    admin.commit([], [{"action": "remove-snapshots", "snapshot-ids": gone}]).raise_for_status()
    for body in bodies:
        refused = admin.http.post(admin.url + "/append", json=body)
        assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.gone")
    assert admin.live() == ["0.parquet", "3.parquet"]
    # What its own branch had when it expired is done for good (K1).
    assert fast_race(admin, [fast(admin, "again.parquet", key="k0")], {}) == {before}
    assert admin.live() == ["0.parquet", "3.parquet"]


def tag(forger: Forger, name: str, snapshot_id: int) -> None:
    update = {"action": "set-snapshot-ref", "ref-name": name, "type": "tag", "snapshot-id": snapshot_id}
    forger.commit([], [update]).raise_for_status()


def remove(*snapshot_ids: int) -> JSON:
    return {"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids)}


@pytest.mark.parametrize("marks", [{KEY: "k"}, {APPLICATION: "app", SEQUENCE: "1"}], ids=["key", "number"])
def test_k2_what_a_tag_keeps_is_done_though_expiry_has_cut_its_branch(forge: Forge, marks: dict[str, str]) -> None:
    """Release tags and ordinary expiry: "not found from the head" is not "rolled back", and never forgotten."""
    admin = forge()
    admin.create()
    first = admin.append("a.parquet", summary=marks)
    admin.send(first).raise_for_status()
    tag(admin, "release", snapshot_of(first))
    second = admin.append("b.parquet")
    admin.send(second).raise_for_status()
    admin.send(admin.append("c.parquet")).raise_for_status()
    admin.commit([], [remove(snapshot_of(second))]).raise_for_status()
    files = ["a.parquet", "b.parquet", "c.parquet"]
    for updates in ([], [{"action": "remove-snapshot-ref", "ref-name": "release"}], [remove(snapshot_of(first))]):
        if updates:
            admin.commit([], updates).raise_for_status()
        for again in (first, admin.append("rerun.parquet", summary=marks)):
            admin.send(again).raise_for_status()
        assert admin.live() == files


def test_k2_what_a_tag_keeps_is_told_apart_from_what_was_rolled_back_where_nothing_was_noted(forge: Forge) -> None:
    """A commit without a key: whether its cut branch has it, nobody can tell. It is not told to write it again."""
    admin = forge()
    admin.create()
    first, second = admin.append("a.parquet"), None
    admin.send(first).raise_for_status()
    tag(admin, "release", snapshot_of(first))
    second = admin.append("b.parquet")
    admin.send(second).raise_for_status()
    admin.send(admin.append("c.parquet")).raise_for_status()
    admin.send(first).raise_for_status()
    admin.commit([], [remove(snapshot_of(second))]).raise_for_status()
    refused = admin.send(first)
    assert (refused.status_code, error_of(refused)["rule"]) == (422, "snapshot.cut-off")
    assert admin.live() == ["a.parquet", "b.parquet", "c.parquet"]


@pytest.mark.parametrize("marks", [{KEY: "k"}, {APPLICATION: "app", SEQUENCE: "1"}], ids=["key", "number"])
@pytest.mark.parametrize("forward", [False, True], ids=["back", "forward"])
def test_k2_what_expires_with_the_commit_that_moves_its_branch_is_neither_done_nor_new(
    forge: Forge, marks: dict[str, str], forward: bool
) -> None:
    """Judged by the table before the swap it was called done, and was gone; or forgotten, and was there."""
    admin = forge()
    admin.create()
    requests = []
    for name, summary in (("a", {}), ("b", marks), ("c", {})):
        requests.append(admin.append(f"{name}.parquet", summary=summary))
        admin.send(requests[-1]).raise_for_status()
    base, keyed, last = map(snapshot_of, requests)
    to = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
    tag(admin, "later", last)
    if forward:
        point(admin, "main", base)
        admin.commit([], [{**to, "snapshot-id": last}, remove(keyed)]).raise_for_status()
    else:
        admin.commit([], [{**to, "snapshot-id": base}, remove(keyed)]).raise_for_status()
    there = ["a.parquet", "b.parquet", "c.parquet"] if forward else ["a.parquet"]
    assert admin.live() == there
    refused = admin.send(admin.append("rerun.parquet", summary=marks))
    assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.gone")
    assert admin.live() == there


def test_a_contract_that_requires_keys_takes_a_number_as_well(forge: Forge) -> None:
    admin, owner = forge(), forge(OWNER.replace("operations:", "require_key: true\n    operations:"))
    admin.create()
    answer = owner.send(owner.append("a.parquet"))
    assert (answer.status_code, error_of(answer)["rule"]) == (403, "contract.key")
    owner.send(owner.append("a.parquet", summary={APPLICATION: "app", SEQUENCE: "0"})).raise_for_status()
    base = owner.load()
    entries = [added(owner.path(base, "b.parquet"), (1, 2))]
    request = owner.snapshot([(DATA, entries)], base=base)
    owner.send(request, **{"Icetower-Application": "app", "Icetower-Sequence": "1"}).raise_for_status()
    assert owner.live() == ["a.parquet", "b.parquet"]


@pytest.fixture
def pair(forge: Forge) -> tuple[Forger, Forger]:
    """Writers to two tables, `t` and `u`, each with one file."""
    one = forge()
    two = Forger(one.http, one.namespace, "u")
    for forger in (one, two):
        forger.create()
        forger.send(forger.append("0.parquet")).raise_for_status()
    return one, two


def together(*members: tuple[Forger, tuple[list[JSON], list[JSON]]], **headers: str) -> httpx2.Response:
    changes = [
        {"identifier": {"namespace": [forger.namespace], "name": forger.table}, **body_of(request)}
        for forger, request in members
    ]
    return members[0][0].http.post("/v1/transactions/commit", json={"table-changes": changes}, headers=headers)


@pytest.mark.parametrize("tables", [1, 2])
def test_k2_a_transaction_under_a_key_that_was_rolled_back_is_not_called_done(
    pair: tuple[Forger, Forger], tables: int
) -> None:
    forgers = pair[:tables]
    before = forgers[-1].load()["current-snapshot-id"]
    header = {"Idempotency-Key": header_key()}
    members = [(forger, forger.append("1.parquet")) for forger in forgers]
    for _ in range(2):  # sent again, it is done (K1)
        assert together(*members, **header).status_code == 204
    assert [forger.live() for forger in forgers] == [["0.parquet", "1.parquet"]] * tables
    point(forgers[-1], "main", before)
    refused = together(*members, **header)
    assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.rolled-back")
    # Under a new key the table that still has it would have it twice.
    assert error_of(refused)["next_step"] == ("new_key" if tables == 1 else "ask_owner")
    assert forgers[-1].live() == ["0.parquet"]


def test_a_key_of_a_transaction_over_other_tables_is_an_error(pair: tuple[Forger, Forger]) -> None:
    one, two = pair
    header = {"Idempotency-Key": header_key()}
    assert together((one, one.append("1.parquet")), **header).status_code == 204
    refused = together((two, two.append("1.parquet")), **header)
    assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.endpoint")
    assert two.live() == ["0.parquet"]


@pytest.mark.parametrize("first", [True, False])
def test_k1_a_transaction_with_a_member_without_snapshots_is_known_by_the_others(
    pair: tuple[Forger, Forger], first: bool
) -> None:
    """Told to take a new key, its client would have it twice."""
    one, two = pair
    properties = {"action": "set-properties", "updates": {"watermark": "7"}}
    head = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": two.load()["current-snapshot-id"]}
    members = [(one, one.append("1.parquet", summary={KEY: "k"})), (two, ([head], [properties]))]
    for _ in range(2):
        assert together(*(members if first else reversed(members))).status_code == 204
    # What it required then need not hold any more.
    two.send(two.append("1.parquet")).raise_for_status()
    assert together(*members).status_code == 204
    assert one.live() == ["0.parquet", "1.parquet"]
    # Known for one of two that add snapshots, it stands for another transaction.
    refused = together(members[0], (two, two.append("2.parquet", summary={KEY: "k"})))
    assert (refused.status_code, error_of(refused)["rule"]) == (422, "key.transaction")
    assert error_of(refused)["next_step"] == "ask_owner"
    assert two.live() == ["0.parquet", "1.parquet"]
