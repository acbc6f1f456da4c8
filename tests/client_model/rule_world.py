"""One operation held against one table: a small world for tests of single rules.

The table has a red and a blue partition. Snapshot 1 made the files `red` and `blue`; then somebody prepared an
operation, then others committed as snapshots 2, 3, … The steps say what they did.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from icetower.iceberg.entries import Files, NeedsFile
from icetower.iceberg.partitions import PartitionSpec
from icetower.iceberg.validation import Conflict
from icetower_client_model import cases
from icetower_client_model.attempt import Attempt, Clear, Verdict
from icetower_client_model.cases import OperationOf
from icetower_client_model.checks import RULES_OF, ask
from icetower_client_model.history import branch_head
from icetower_client_model.replay import Replay, operation_of_case
from icetower_client_model.sketch import (
    BY_CATEGORY,
    append,
    case,
    data,
    eq,
    equalities,
    op,
    positions,
    use_spec,
    vector,
    write,
)

JSON = dict[str, Any]

SPECS = (*BY_CATEGORY, [{"column": "category", "transform": "truncate[3]"}], [])
FILES: Mapping[str, JSON] = {
    "red": data("red", ids=(1, 5)),
    "blue": data("blue", ids=(1, 5)),
    "red-new": data("red", ids=(6, 9)),
    "blue-new": data("blue", ids=(6, 9)),
    "red-mine": data("red", ids=(1, 5)),
    "red-other-spec": data("red", spec=1),
    "anything": data(spec=2),
    "strike-red": positions("red", of="red"),
    "strike-any-red": positions("red"),
    "strike-blue": positions("blue", of="blue"),
    "strike-ids": equalities("red", ids=(1, 1)),
    "strike-other-ids": equalities("red", ids=(6, 9)),
    "strike-all": equalities(ids=(1, 1), spec=2),
    "my-strike-red": positions("red", of="red"),
    "vector-red": vector("red", "red"),
    "vector-red-2": vector("red", "red"),
    "vector-blue": vector("blue", "blue"),
    "my-vector-red": vector("red", "red"),
}
RED, BLUE = eq("category", "red"), eq("category", "blue")

ADD_RED, ADD_BLUE, ADD_OTHER_SPEC = (op("append", add=[name]) for name in ("red-new", "blue-new", "red-other-spec"))
OVERWRITE_RED = op("overwrite", remove=["red"], add=["red-new"])
COMPACT_RED = op("rewrite", remove=["red"], add=["red-new"])
DELETE_RED, DELETE_BLUE = (op("delete", remove=[name]) for name in ("red", "blue"))


def strike(*names: str, **more: Any) -> JSON:
    """A row delta with these delete files alone: it is recorded as `delete`."""
    return op("row-delta", add_deletes=list(names), start=1, **more)


def upsert(*names: str) -> JSON:
    """A row delta with these delete files and new data: it is recorded as `overwrite`."""
    return op("row-delta", add_deletes=list(names), add=["blue-new"])


def held(ours: JSON, *others: JSON, format_version: int = 2, precise: bool = False) -> Attempt:
    """`ours`, prepared after snapshot 1, against the table after all `others`: operations, or steps."""
    begun = [append(1, "red", "blue"), use_spec(1), use_spec(2), use_spec(0)]
    after = [each if "do" in each else write(number, each) for number, each in enumerate(others, 2)]
    then, now = (
        Replay(cases.parse(case(FILES, *steps, specs=SPECS, format_version=format_version)))
        for steps in (begun, [*begun, *after])
    )
    then.run()
    outcome = now.run()
    assert not now.conflicts, "the others were to commit"
    assert not outcome["failures"]
    operation = operation_of_case(then.case, OperationOf.model_validate(ours), then.head, then.files)
    operation = replace(operation, precise_deletes=precise)
    return Attempt(operation, now.head, now.files, branch_head(now.head, operation.branch))


def specs_of(*specs: list[JSON]) -> Mapping[int, PartitionSpec]:
    """Partition specs by id, as a table has them that went through all of them."""
    run = Replay(cases.parse(case({}, *map(use_spec, range(len(specs))), specs=specs)))
    run.run()
    return run.head.specs


def told(verdict: Verdict) -> str:
    """A verdict in short: Iceberg's text with bare file names, `clear of 2` entries looked at, or `not asked`."""
    if verdict is None:
        return "not asked"
    return f"clear of {verdict.considered}" if isinstance(verdict, Clear) else short(verdict.message)


def short(message: str) -> str:
    """A message with bare file names."""
    return re.sub(r"mem://t/(?:data|metadata)/([\w-]+)\.\w+", r"\1", message)


def verdicts(attempt: Attempt) -> dict[str, str]:
    """What each rule of the operation says, one by one, whatever the others say."""
    found = ((rule, ask(rule, check, attempt)) for rule, check in RULES_OF[attempt.operation.kind])
    return {verdict.rule if isinstance(verdict, Conflict) else rule: told(verdict) for rule, verdict in found}


def asked_for(attempt: Attempt, rule: str) -> tuple[str, list[str]]:
    """What a rule says if it is given nothing but what it asks for, and what it asked for, in order."""
    check = dict(RULES_OF[attempt.operation.kind])[rule]
    lists: dict[str, Any] = {}
    manifests: dict[str, Any] = {}
    wanted: list[str] = []
    while True:
        try:
            return told(check(replace(attempt, files=Files(lists, manifests)))), wanted
        except NeedsFile as needs:
            own, every = (lists, attempt.files.lists) if needs.is_list else (manifests, attempt.files.manifests)
            own[needs.path] = every[needs.path]
            wanted.append(short(needs.path))
