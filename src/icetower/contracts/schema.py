"""The JSON Schema of contracts, for editors: it completes names, shows what they mean and marks what is wrong. Pure.

docs/contract.schema.json is what `document_schema` returns, and a test holds them together. A schema goes less far than
`load`, which is what decides: it cannot compare two numbers, nor see that a name stands twice. It is of draft 7, which
every editor knows.
"""

from __future__ import annotations

import json

from icetower.contracts.fields import JSON, schema_of
from icetower.contracts.model import VERSION, Contract
from icetower.contracts.patterns import THROUGH, Orchestration
from icetower.contracts.regions import NOW
from icetower.contracts.slots import EVERY

DRAFT = "http://json-schema.org/draft-07/schema#"
FILE_NAME = "contract.schema.json"


def schema_text() -> str:
    """The published file."""
    return json.dumps(document_schema(), indent=2, ensure_ascii=False) + "\n"


def document_schema() -> JSON:
    """The schema of a contract as it is written in YAML."""
    schema = schema_of(Contract)
    version: JSON = {"description": "The version of this format.", "enum": [VERSION, str(VERSION)]}
    schema["required"] = ["version", *schema["required"]]
    schema["properties"] = {"version": version, **schema["properties"]}
    # What `Rule.problem` says of fields together.
    schema["properties"]["tables"]["items"]["allOf"] = [
        _when({"except": {"type": "array", "minItems": 1}}, {"partitions": {"not": {"maxItems": 0}}}),
        _when({"pattern": {"const": Orchestration.SCHEDULER.value}}, {"partitions": _slots()}),
        _when({"through": {}}, {"pattern": {"enum": [pattern.value for pattern in THROUGH]}}),
    ]
    return {
        "$schema": DRAFT,
        "title": "Isolation contract",
        "description": "What an agent may do to Iceberg tables, agreed on in review. What is not granted is refused.",
        **schema,
    }


def _when(said: JSON, then: JSON) -> JSON:
    """Where a field says something, another one must be there and say something."""
    return {
        "if": {"required": list(said), "properties": said},
        "then": {"required": list(then), "properties": then},
    }


def _slots() -> JSON:
    """Regions each of which has a range that moves with the clock on both sides."""
    moving = {"type": "string", "pattern": f"^{NOW}"}
    moved = {"required": ["from", "to"], "properties": {"from": moving, "to": moving}}
    slot = {"type": "object", "anyOf": [moved, {"required": [EVERY]}]}
    # That one of the values is a slot: not all of them are none.
    region = {"not": {"additionalProperties": {"not": slot}}}
    return {"type": "array", "minItems": 1, "items": region}
