"""What a tower answers is frozen: PyIceberg's exchanges are recorded anew and compared with those that are kept."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verify.exchanges import compare, normal, run
from verify.exchanges.recorder import Exchange

JSON = dict[str, Any]
KEPT = run.KEPT / "pyiceberg.jsonl"


def test_pyiceberg_and_the_sdk_are_answered_as_ever() -> None:
    """`make exchanges` has the other clients, and `--write verify/exchanges/kept` is for what changes on purpose."""
    count, differences = run.checked(["pyiceberg"])
    assert differences == []
    assert count > 400


@pytest.mark.parametrize("session", run.SESSIONS, ids=lambda session: session.client)
def test_every_client_has_a_recording_of_each_part(session: run.Session) -> None:
    kept = compare.read(run.KEPT / f"{session.client}.jsonl")
    assert list(kept) == [part.__name__ for part in session.parts]
    assert all(kept.values())


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = compare.read(KEPT)
    compare.write(tmp_path / "again.jsonl", kept)
    assert compare.read(tmp_path / "again.jsonl") == kept
    assert (tmp_path / "again.jsonl").read_bytes() == KEPT.read_bytes()


# -- what counts ------------------------------------------------------------------------------------------------------


def refusal(kept: compare.Recording) -> JSON:
    """The first refusal by a contract's partitions."""
    return next(each for each in kept["contracts"] if "contract.partitions" in json.dumps(each["answer"]))


def _status(kept: compare.Recording) -> None:
    refusal(kept)["status"] = 409


def _rule(kept: compare.Recording) -> None:
    refusal(kept)["answer"]["error"]["rule"] = "contract.other"


def _next_step(kept: compare.Recording) -> None:
    refusal(kept)["answer"]["error"]["next_step"] = "retry"


def _owner(kept: compare.Recording) -> None:
    del refusal(kept)["answer"]["error"]["owner"]


def _message(kept: compare.Recording) -> None:
    del refusal(kept)["answer"]["error"]["message"]


def _order(kept: compare.Recording) -> None:
    error = refusal(kept)["answer"]["error"]
    error["message"] = error.pop("message")


def _header(kept: compare.Recording) -> None:
    refusal(kept)["answer_headers"]["content-type"] = "text/plain"


def _new_header(kept: compare.Recording) -> None:
    refusal(kept)["answer_headers"]["x-new"] = "1"


def _type(kept: compare.Recording) -> None:
    refusal(kept)["answer"]["error"]["code"] = "403"


def _more(kept: compare.Recording) -> None:
    kept["contracts"].append(refusal(kept))


def _less(kept: compare.Recording) -> None:
    kept["contracts"].remove(refusal(kept))


@pytest.mark.parametrize(
    "change", [_status, _rule, _next_step, _owner, _message, _order, _header, _new_header, _type, _more, _less]
)
def test_a_change_is_one_difference(change: Callable[[compare.Recording], None]) -> None:
    before = compare.read(KEPT)
    after = copy.deepcopy(before)
    change(after)
    assert len(compare.differences(before, after)) == 1
    assert compare.differences(after, after) == []


def answered(**error: Any) -> JSON:
    """An exchange of a run, normalised."""
    body = {
        "error": {"message": "why", "rule": "r", "request_id": "0123456789abcdef", "at_ms": 1_790_000_000_000} | error
    }
    headers = {"authorization": "Bearer s3cret"}
    raw = Exchange("s", "GET", "/v1/x?a=1", headers, b"", 409, [("content-type", "application/json")])
    raw.answer = json.dumps(body, separators=(",", ":")).encode()
    (found,) = normal.kept([raw], {"127.0.0.1:1234": "<host>"})
    return found


@pytest.mark.parametrize(
    ("error", "same"),
    [
        ({"message": "why not"}, True),
        ({"request_id": "fedcba9876543210"}, True),
        ({"request_id": "1234567890123456"}, True),
        ({"at_ms": 1_790_000_000_001}, True),
        ({"message": None}, False),
        ({"rule": "R"}, False),
        ({"at_ms": None}, False),
        ({"request_id": "none"}, False),
        ({"new": 1}, False),
    ],
)
def test_wording_ids_and_times_do_not_count(error: JSON, same: bool) -> None:
    assert (answered() == answered(**error)) is same


def test_an_id_keeps_its_name_where_it_comes_again() -> None:
    one, other = 7_630_460_168_128_061_304, 122_284_004_530_717_512
    found = answered(head=one, parent=other, ref=one, path=f"snap-{one}-0.avro")["answer"]["error"]
    assert (found["head"], found["parent"], found["ref"]) == ("#<id-1>", "#<id-2>", "#<id-1>")
    assert found["path"] == "snap-<id-1>-0.avro"


def test_no_secret_is_kept() -> None:
    assert "s3cret" not in json.dumps(answered())
    assert answered()["headers"]["authorization"] == "Bearer <secret-1>"
