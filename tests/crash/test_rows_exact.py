"""Rows at the door through kills, a bad network and a failing storage: a small run, and whether its judge is sharp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icetower.protocol.rows import parse_rows
from icetower.rows.decoding import decoded
from icetower.rows.schemas import row_schema
from verify.torture.row_batches import (
    ARROW,
    BATCHES_MAX,
    JSON,
    NDJSON,
    ROWS_MAX,
    Batch,
    Journal,
    batch,
    body,
    id_of_key,
)
from verify.torture.rows import Plan, shown, torture
from verify.torture.rows_judge import Answered, judge_ids
from verify.torture.rows_others import SCHEMA, _rows


def test_every_acknowledged_row_is_there_once_whoever_dies() -> None:
    plan = Plan(rows=3_000, most=300, agents=3, agent_kill_s=2.0, tower_kill_s=4.0, change_s=1.0, minutes=5)
    found = torture(plan, tell=lambda _: None)
    said = "\n".join(shown(found))
    assert not found.faults, said
    for count in ("agents killed", "towers killed", "outside: appends", "network: answer lost", "requests refused"):
        assert found.counts[count], said
    assert found.counts["rows in the table"] >= found.counts["rows acknowledged"] >= plan.rows
    assert found.counts["requests in group files"] >= found.counts["requests acknowledged"]


def answered() -> Answered:
    return Answered(acknowledged={7: 3, 8: 1}, open={9: 2, 10: 2}, refused={11: 1})


def ids(*batches: tuple[int, int]) -> list[int]:
    return [number * ROWS_MAX + at for number, rows in batches for at in range(rows)]


GOOD = ids((7, 3), (8, 1), (10, 2))


def test_the_judge_lets_by_what_is_as_it_was_told() -> None:
    assert judge_ids(np.array(GOOD), answered()) == []
    assert judge_ids(np.array([], np.int64), Answered(open={9: 2})) == []


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (GOOD[3:], "1 acknowledged requests are not there: 7"),
        (GOOD[1:], "1 requests are there in part: 7"),
        (GOOD[:-1], "1 requests are there in part: 10"),
        ([*GOOD, GOOD[0]], "1 rows are there more than once: 70000"),
        ([*GOOD, *ids((11, 1))], "1 refused requests are there: 11"),
        ([*GOOD, *ids((12, 1))], "1 requests that were never sent are there: 12"),
        ([*ids((7, 2)), 7 * ROWS_MAX + 5, *ids((8, 1))], "1 requests are there in part: 7"),
    ],
)
def test_the_judge_of_rows_is_sharp(rows: list[int], fault: str) -> None:
    assert judge_ids(np.array(rows), answered()) == [fault]


@pytest.mark.parametrize("form", [JSON, NDJSON, ARROW])
def test_a_request_holds_the_same_rows_in_every_form(form: str) -> None:
    table = {"current-schema-id": 0, "schemas": [SCHEMA.model_dump(by_alias=True) | {"schema-id": 0}]}
    of = Batch(3, 17, 40, form)
    kind, data = body(of)
    found = decoded(parse_rows(data, kind, None), row_schema(table)).arrow()
    assert found.replace_schema_metadata().equals(_rows(of, found.schema))
    assert body(of) == (kind, data)
    with pytest.raises(Exception, match="row"):
        decoded(parse_rows(body(Batch(3, 17, 40, form, bad=True))[1], kind, None), row_schema(table))


def test_an_agent_knows_after_a_start_what_it_had_begun(tmp_path: Path) -> None:
    lines = ["B 1 10", "N 200", "A 1", "B 2 5", "N lost-Broken", "B 3 7", "N 400", "R 3", "B 4 1", "G 4"]
    journal = Journal.read(lines)
    assert journal.under_way == [2]
    assert journal.acknowledged_rows == 10
    assert dict(journal.answers) == {"200": 1, "lost-Broken": 1, "400": 1}


def test_requests_are_a_function_of_the_seed_and_their_key_tells_which_they_are() -> None:
    made = [batch(5, 2, number) for number in range(1, 400)]
    assert made == [batch(5, 2, number) for number in range(1, 400)]
    assert all(id_of_key(each.key) == each.id == 2 * BATCHES_MAX + each.number for each in made)
    assert {each.form for each in made} == {JSON, NDJSON, ARROW}
    assert max(each.rows for each in made) > 5_000
    assert any(each.bad for each in made)
    assert all(batch(5, 2, each.number, arrow=False).form != ARROW for each in made)
    assert pa.table({"id": list(made[0].ids)}).num_rows == made[0].rows
