"""Holds events to OpenLineage's own schemas, and to that of our facets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).parent / "openlineage"
OWN = Path(__file__).parents[2] / "docs" / "lineage.schema.json"


def _schemas() -> dict[str, Any]:
    files = [FOLDER / "OpenLineage.json", *sorted((FOLDER / "facets").glob("*.json")), OWN]
    return {schema["$id"]: schema for schema in (json.loads(path.read_text()) for path in files)}


SCHEMAS = _schemas()
REGISTRY: Registry[Any] = Registry().with_resources(
    [(name, Resource.from_contents(schema)) for name, schema in SCHEMAS.items()]
)


def _against(reference: str, value: object) -> None:
    validator = Draft202012Validator(
        {"$ref": reference}, registry=REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    validator.validate(value)


def check(event: dict[str, Any]) -> list[str]:
    """Raises `ValidationError` where an event, or any facet of it, is not as its schema has it. The facets' names."""
    _against("https://openlineage.io/spec/2-0-2/OpenLineage.json", event)
    _against(event["schemaURL"], event)
    datasets = [*event["inputs"], *event["outputs"]]
    holders = [event["run"]["facets"], event["job"]["facets"]]
    holders += [each.get(kind, {}) for each in datasets for kind in ("facets", "inputFacets", "outputFacets")]
    for facets in holders:
        for facet in facets.values():
            # The address says which definition of which version; where it is not known here, this raises, too.
            _against(facet["_schemaURL"], facet)
    return sorted(name for facets in holders for name in facets)
