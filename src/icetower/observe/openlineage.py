"""A commit as OpenLineage's events (specification 2-0-2): a run of the job that writes for one principal to one table.

Pure. A commit that has landed is a run that began (START) and is complete (COMPLETE); one that was refused for good has
failed (FAIL), and one of which nobody can tell was aborted (ABORT). The table is the run's output, by the place where
it lies, as OpenLineage's integrations for engines name it, so that their graphs meet; its name in the catalog is a
symlink. Facets of ours are described in docs/lineage.schema.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from icetower.observe.events import one_line
from icetower.texts import clipped

PRODUCER = "urn:icetower"
OWN_FACETS = "urn:icetower:openlineage:1-0-0#/$defs/"
"""The `$id` of docs/lineage.schema.json: it names no host, so it holds wherever a tower runs."""

SPECIFICATION = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = "https://openlineage.io/spec/facets/"
COLUMNS_MAX = 1_000
MESSAGE_CHARACTERS_MAX = 1_000
NAME_CHARACTERS_MAX = 500

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Output:
    """The table, as the commit has left it.

    Attributes:
        location: where it lies; None: not known.
        schema: Iceberg's JSON.
        summary: of the snapshot: what it added.
    """

    location: str | None
    snapshot: int | None
    schema: Mapping[str, Any]
    summary: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One commit. `began_ms`, `ended_ms`: milliseconds since 1970.

    Attributes:
        facts: of the commit, by the names of its facet; what is None is left out.
        failure: what its client was answered; None: it has landed.
        unknown: nobody can tell whether it has landed.
        output: None where nothing is known of the table, such as of a refusal.
    """

    run_id: str
    began_ms: int
    ended_ms: int
    principal: str
    table: str
    facts: Mapping[str, Any]
    partitions: Sequence[str]
    failure: str | None = None
    unknown: bool = False
    output: Output | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What a tower calls itself. `namespace`: of its jobs; `catalog`: of its tables, and its name."""

    namespace: str
    catalog: str


def events_of(run: Run, names: Names) -> list[JSON]:
    """The events of a run, in order."""
    end = "COMPLETE" if run.failure is None else "ABORT" if run.unknown else "FAIL"
    return [_event(run, names, "START", run.began_ms), _event(run, names, end, run.ended_ms)]


def _event(run: Run, names: Names, kind: str, at_ms: int) -> JSON:
    facets = {"icetower_commit": _own("CommitRunFacet", {"principal": _text(run.principal), **run.facts})}
    if kind != "START" and run.failure is not None:
        said = clipped(one_line(run.failure), MESSAGE_CHARACTERS_MAX)
        facets["errorMessage"] = _facet("1-0-1/ErrorMessageRunFacet", {"message": said, "programmingLanguage": "text"})
    return {
        "eventType": kind,
        "eventTime": _time(at_ms),
        "producer": PRODUCER,
        "schemaURL": SPECIFICATION,
        "run": {"runId": run.run_id, "facets": facets},
        "job": {
            "namespace": names.namespace,
            "name": f"{_text(run.principal)}.{_text(run.table)}",
            "facets": {
                "jobType": _facet(
                    "2-0-4/JobTypeJobFacet",
                    {"processingType": "BATCH", "integration": "ICETOWER", "jobType": "COMMIT"},
                )
            },
        },
        "inputs": [],
        "outputs": [_dataset(run, names, ended=kind == "COMPLETE")],
    }


def _dataset(run: Run, names: Names, *, ended: bool) -> JSON:
    output = run.output
    place = None if output is None or output.location is None else _place(output.location)
    facets: JSON = {
        "catalog": _facet("1-1-0/CatalogDatasetFacet", {"framework": "iceberg", "type": "rest", "name": names.catalog})
    }
    if run.partitions:
        facets["icetower_partitions"] = _own("PartitionsDatasetFacet", {"partitions": list(run.partitions)})
    own = {"namespace": names.catalog, "name": _text(run.table)}
    if place is not None:
        facets["symlinks"] = _facet("1-0-1/SymlinksDatasetFacet", {"identifiers": [{**own, "type": "TABLE"}]})
    found = {**(own if place is None else place), "facets": facets}
    if output is None or not ended:
        return found
    facets["schema"] = _facet("1-2-0/SchemaDatasetFacet", {"fields": _columns(output.schema)})
    if output.snapshot is not None:
        facets["version"] = _facet("1-0-1/DatasetVersionDatasetFacet", {"datasetVersion": str(output.snapshot)})
        counted = {"rowCount": "added-records", "size": "added-files-size", "fileCount": "added-data-files"}
        counts = {name: _number(output.summary.get(key)) for name, key in counted.items()}
        known = {name: count for name, count in counts.items() if count is not None}
        statistics = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", known)
        found["outputFacets"] = {"outputStatistics": statistics}
    return found


def _place(location: str) -> JSON:
    """A dataset by where it lies, as OpenLineage's conventions name one: a bucket, and the path in it."""
    parts = urlsplit(location)
    if not parts.scheme:
        return {"namespace": "file", "name": _text(location)}
    namespace = "file" if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    path = parts.path if parts.scheme == "file" else parts.path.lstrip("/")
    return {"namespace": _text(namespace), "name": _text(path)}


def _columns(schema: Mapping[str, Any]) -> list[JSON]:
    return [
        {"name": _text(str(column["name"])), "type": _kind(column["type"])}
        for column in (schema.get("fields") or ())[:COLUMNS_MAX]
    ]


def _kind(kind: object) -> str:
    """A column's type; of a nested one, what it is: its fields would make an event of any length."""
    return _text(str(kind)) if isinstance(kind, str) else str(kind.get("type")) if isinstance(kind, dict) else "unknown"  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


def _number(said: object) -> int | None:
    text = str(said)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _text(text: str) -> str:
    return clipped(one_line(text), NAME_CHARACTERS_MAX)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _facet(which: str, content: Mapping[str, Any]) -> JSON:
    name = which.rpartition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}{which}.json#/$defs/{name}", **content}


def _own(name: str, content: Mapping[str, Any]) -> JSON:
    known = {key: value for key, value in content.items() if value is not None}
    return {"_producer": PRODUCER, "_schemaURL": OWN_FACETS + name, **known}
