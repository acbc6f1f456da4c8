"""The JSON Schema of contracts, for editors: it completes names, shows what they mean and marks what is wrong. Pure.

docs/contract.schema.json is what `document_schema` returns, and a test holds them together. A schema goes less far than
`load`, which is what decides: it cannot compare two numbers, nor see that a name stands twice. It is of draft 7, which
every editor knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from icetower.contracts.document import DELETE, ENFORCE, OWN, REPORT, SHADOW, TABLE
from icetower.contracts.model import (
    ADMINISTRATOR_NAME,
    EVERY_PARTITION,
    NAME,
    OWNED,
    VERSION,
    Isolation,
    KeyWay,
    Operation,
    Orchestration,
    Orphans,
    Retries,
    Role,
)
from icetower.contracts.reading import duration_text

JSON = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"
FILE_NAME = "contract.schema.json"
_DURATION = r"^(?=\d{1,15}\D)0*[1-9]\d*(ms|s|m|h|d|w)$"
_SIZE = r"^[1-9]\d{0,14}(B|KiB|MiB|GiB|TiB)?$"
_PATTERN = r"^(\*\*|[^.*]+(\.[^.*]+)*\.([^.*]+|\*\*?))$"
_PERSON = r"^([^<>@\r\n]*<[^<>@\s]+@[^<>@\s]+>|[^<>@\s]+@[^<>@\s]+)$"
_PLAIN = ("identity", "year", "month", "day", "hour", "years", "months", "days", "hours", "date", "date_hour")
_SIZED = ("bucket", "truncate")
_SCALAR: JSON = {"type": ["string", "number", "boolean"]}


def schema_text() -> str:
    """The published file."""
    return json.dumps(document_schema(), indent=2, ensure_ascii=False) + "\n"


def document_schema() -> JSON:
    """The schema of a contract as it is written in YAML."""
    fields: JSON = {
        "version": _one_of((VERSION, str(VERSION)), "The version of this format."),
        "agent": _text(
            "The contract's name. A principal is bound to exactly one contract.",
            pattern=f"^{NAME.pattern}$",
            **{"not": {"const": ADMINISTRATOR_NAME}},
        ),
        "description": _text("What the agent does."),
        "owner": _text("Who answers for the agent; others are told when they need its partitions."),
        "role": _one_of(
            [role.value for role in Role],
            "What its holder is to the tables. A maintenance job or a pipeline works on partitions that agents own, on "
            "purpose: `icetower contracts check` then reports the overlap as a note.",
            Role.AGENT.value,
        ),
        "mode": _one_of(
            (ENFORCE, SHADOW), f"{SHADOW}: the contract is evaluated and logged, and admits everything.", ENFORCE
        ),
        "tables": _list(_rule(), "What the agent may do to which tables, and which of their partitions it owns."),
        "reads": _list(_tables(), "Short for entries of tables with the operation read alone."),
        **_clauses(),
    }
    return {
        "$schema": DRAFT,
        "title": "Isolation contract",
        "description": "What an agent may do to Iceberg tables, agreed on in review. What is not granted is refused.",
        **_object(fields, required=("version", "agent")),
    }


# ----------------------------------------------------------------------------------------------------------- the tables


def _rule() -> JSON:
    regions = _list(_region(), "Regions of rows, which add up.")
    fields: JSON = {
        "table": _tables(),
        "operations": _list(
            _one_of([operation.value for operation in Operation], ""),
            "What the agent may do. overwrite grants append, delete, replace and read; any of these grants read.",
            minItems=1,
        ),
        "partitions": {
            "description": f"The partitions that it owns: none without it, and `{EVERY_PARTITION}` for every one.",
            "anyOf": [{"const": EVERY_PARTITION}, regions],
        },
        "except": _list(_region(), "Regions that are taken away from those of this entry."),
        "blind_appends": _flag("Its appends depend on nothing that it has read: they are rebased unchecked."),
        "strict": _flag("Nothing of it is rebased: what is stale is answered 409."),
        "require_key": _flag("Each commit needs an idempotency key."),
        "prove_partitions": _flag("Statistics must prove in which partition each file lies."),
        "read_scope": _one_of((OWNED,), "Its writes depend on no rows but those of partitions that it owns."),
        "isolation": _one_of(
            [level.value for level in Isolation], "The isolation level that its rebased commits are held to."
        ),
        "pattern": _one_of(
            [pattern.value for pattern in Orchestration],
            "How its rows come into the table: by its own commits; only through the write-ahead log; or by its own "
            "commits into slots that move with the clock.",
            Orchestration.DIRECT.value,
        ),
        "write_location": _one_of((OWN, TABLE), "Where its files may lie: a place of its own, or anywhere under the "
                                  "table's.", OWN),
        "quotas": _object(
            {
                "commits_per_minute": _number("Commits in a minute.", 1),
                "files_per_commit": _number("Files that one commit adds and removes.", 1),
                "bytes_per_commit": {
                    "description": "Bytes that one commit adds, such as 1048576, 512MiB or 1GiB.",
                    "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": _SIZE}],
                },
            },
            "What one principal may send to a table.",
        ),
    }  # fmt: skip
    return {
        **_object(fields, required=("table", "operations")),
        "allOf": [
            _when({"except": {"type": "array", "minItems": 1}}, {"partitions": {"not": {"maxItems": 0}}}),
            _when({"pattern": {"const": Orchestration.SCHEDULER.value}}, {"partitions": _slots()}),
        ],
    }


def _slots() -> JSON:
    """Regions each of which has a range that moves with the clock on both sides."""
    moving = {"type": "string", "pattern": "^now"}
    slot = {"type": "object", "required": ["from", "to"], "properties": {"from": moving, "to": moving}}
    # That one of the values is a slot: not all of them are none.
    region = {"not": {"additionalProperties": {"not": slot}}}
    return {"type": "array", "minItems": 1, "items": region}


def _region() -> JSON:
    bound = {"description": "A value; or now, now+2h, now-30m (m, h, d or w).", **_SCALAR}
    extent_range = _object({"from": bound, "to": bound}, "From a value up to, not including, another.", minProperties=1)
    value = {"type": [*_SCALAR["type"], "null"]}
    return {
        "description": "Rows for which all of this holds: partition fields by name, or transforms of columns such as "
        "day(ts), bucket(16, id) or truncate(10, sku).",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"minLength": 1, "pattern": _terms(), "not": {"const": "<<"}},
        "additionalProperties": {
            "description": "A value, a list of values, or a range {from: …, to: …}.",
            "anyOf": [value, {"type": "array", "minItems": 1, "items": value}, extent_range],
        },
    }


def _terms() -> str:
    """A name without parentheses, or a transform, in letters of either case."""
    column = r"[^(),\s]([^(),]*[^(),\s])?"
    plain, sized = ("|".join(map(_either_case, names)) for names in (_PLAIN, _SIZED))
    number = r"0*[1-9]\d*"
    call = (
        rf"(({plain})\(\s*{column}\s*\)|({sized})\(\s*{number}\s*,\s*{column}\s*\)"
        rf"|({sized})\(\s*{column}\s*,\s*{number}\s*\)|({sized})\[{number}\]\(\s*{column}\s*\))"
    )
    return rf"^([^()]*|\s*{call}\s*)$"


def _either_case(word: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


# ---------------------------------------------------------------------------------------------------------- the clauses


def _clauses() -> JSON:
    retries, orphans = Retries(), Orphans()
    return {
        "retries": _object(
            {
                "attempts": _number(
                    "So often a commit is tried again (commit.retry.num-retries).", 0, retries.attempts
                ),
                "min_wait": _duration("The shortest wait before it.", retries.min_wait_ms / 1000),
                "max_wait": _duration("The longest wait before it.", retries.max_wait_ms / 1000),
            },
            "How the agent tries again after 409.",
        ),
        "escalation": _object(
            {
                "after_failures": _number("Failures in a row on one table.", 1),
                "within": _duration("The time within which they count together."),
                "to": _text("The named human: an address, or `Name <address>`.", pattern=_PERSON, maxLength=320),
                "webhook": _text("An address in the tower's settings, by its name.", pattern=f"^{NAME.pattern}$"),
            },
            "When its failures are a person's business.",
            required=("after_failures", "within", "to"),
        ),
        "idempotency": _object(
            {
                "required": {"type": "boolean", "description": "Whether each commit needs a key."},
                "how": _list(
                    _one_of([way.value for way in KeyWay], ""), "The ways in which a key may come.", minItems=1
                ),
                "window": _duration("How long a key is remembered at least."),
            },
            "What makes a commit that is sent twice land once.",
            required=("required",),
        ),
        "orphans": _object(
            {
                "detect_every": _duration("How often they are looked for.", orphans.detect_every_s),
                "older_than": _duration("Younger files may belong to a commit under way.", orphans.older_than_s),
                "action": _one_of((REPORT, DELETE), "What becomes of them.", REPORT),
            },
            "Files that the agent wrote and never committed.",
        ),
        "revocation": _object(
            {"by": _list(_text("", pattern=f"^{NAME.pattern}$"), "Principals that may, besides administrators.")},
            "Who may revoke the contract.",
            required=("by",),
        ),
        "quotas": _object(
            {
                "requests_at_once": _number(
                    "So many requests of one principal go on at the same time, over all tables; further ones wait.", 1
                )
            },
            "What one principal may send to the server.",
            required=("requests_at_once",),
        ),
    }


# ---------------------------------------------------------------------------------------------------------- small parts


def _object(
    fields: Mapping[str, Any],
    description: str = "",
    *,
    required: Sequence[str] = (),
    minProperties: int = 0,  # noqa: N803
) -> JSON:
    return {
        **({"description": description} if description else {}),
        "type": "object",
        **({"required": list(required)} if required else {}),
        **({"minProperties": minProperties} if minProperties else {}),
        "properties": dict(fields),
        "additionalProperties": False,
    }


def _when(said: JSON, then: JSON) -> JSON:
    """Where a field says something, another one must be there and say something."""
    return {
        "if": {"required": list(said), "properties": said},
        "then": {"required": list(then), "properties": then},
    }


def _text(description: str, **rules: Any) -> JSON:
    return {**({"description": description} if description else {}), "type": "string", **rules}


def _one_of(values: Iterable[Any], description: str, default: Any = None) -> JSON:
    return {
        **({"description": description} if description else {}),
        "enum": list(values),
        **({"default": default} if default is not None else {}),
    }


def _list(items: JSON, description: str, **rules: Any) -> JSON:
    return {"description": description, "type": "array", "items": items, **rules}


def _flag(description: str) -> JSON:
    return {"description": description, "type": "boolean", "default": False}


def _number(description: str, least: int, default: int | None = None) -> JSON:
    return {
        "description": description,
        "type": "integer",
        "minimum": least,
        **({"default": default} if default is not None else {}),
    }


def _duration(description: str, default_s: float | None = None) -> JSON:
    return {
        "description": f"{description} Such as 100ms, 30s, 10m, 24h, 7d or 2w.",
        "type": "string",
        "pattern": _DURATION,
        **({"default": duration_text(default_s)} if default_s is not None else {}),
    }


def _tables() -> JSON:
    return _text("A table with its namespace; ns.* its tables, ns.** all under it, ** all.", pattern=_PATTERN)
