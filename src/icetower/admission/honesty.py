"""What holds for everybody, administrators too: a commit is what it says, and says what is known.

R5: what manifests claim is compared with what they do. S8: nobody has the clients of others load code.

Raises `ValidationFailed`: ``contract.manifest``, ``summary.unknown``, ``property.*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.admission.facts import Facts
from icetower.admission.properties import check_properties, check_removed_properties
from icetower.admission.targets import known_places
from icetower.errors import ValidationFailed
from icetower.iceberg.avro_schemas import holds_values_of
from icetower.iceberg.bounds import bound_problems
from icetower.iceberg.partitions import partition_key, spec_of
from icetower.iceberg.records import is_vector
from icetower.protocol.marks import OF_CLIENTS, OF_THE_TOWER, OURS, PROGRESS
from icetower.table.client_properties import check_code

JSON = Mapping[str, Any]

SETS_PROPERTIES = ("updates", "updated")
"""Early clients' name of the list counts as well: the table takes it."""

REMOVES_PROPERTIES = ("removals", "removed")
"""Likewise."""


def check_manifests(facts: Facts) -> None:
    """The manifests do what they claim (trap R5)."""
    problems = [problem for change in facts.changes for problem in change.problems]
    if problems:
        shown = "; ".join(problems[:3])
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ValidationFailed(
            f"the commit's manifests don't say what it does: {shown}{more}; write the commit again",
            rule="contract.manifest",
        )


def check_headers(facts: Facts) -> None:
    """A manifest's own idea of its spec must be the table's: else engines find its files in other partitions (R5)."""
    headers = [header for change in facts.changes for header in change.headers]
    if not headers:
        return
    for header in headers:
        spec = spec_of(facts.after, header.row.spec_id)
        known = tuple(field.field_id for field in spec.fields)
        if header.field_ids != known:
            raise ValidationFailed(
                f"manifest {header.row.path} has partition fields {list(header.field_ids)} in its header, but spec "
                f"{spec.spec_id} of the table has {list(known)}; write it with the table's spec",
                rule="contract.manifest",
            )
        for field, written in zip(spec.fields, header.types, strict=True):
            if field.transform != "void" and not holds_values_of(written, field.result_type):
                raise ValidationFailed(
                    f"manifest {header.row.path} has values of the partition field {field.name} as Avro's {written}, "
                    f"and spec {spec.spec_id} of the table has {field.result_type} there: readers would find its files "
                    "in other partitions; write it with the table's types",
                    rule="contract.manifest",
                )
        for problem in bound_problems(header, spec):
            raise ValidationFailed(
                f"manifest {header.row.path} is listed with bounds of its partitions that hide files from readers: "
                f"{problem}; write its row anew",
                rule="contract.manifest",
            )


def check_summary_names(facts: Facts) -> None:
    """An unknown property of ours is a misspelt one: it would be passed over, and its writer would rely on it."""
    for name in (name for summary in facts.summaries for name in summary):
        if name.startswith(OURS) and name not in OF_CLIENTS | OF_THE_TOWER and not name.startswith(PROGRESS):
            raise ValidationFailed(
                f"the snapshot property {name} is not known here; those that a client may set are "
                f"{', '.join(sorted(OF_CLIENTS))}",
                rule="summary.unknown",
            )


def check_properties_of_ours(facts: Facts) -> None:
    """Table properties of ours that the commit sets are known and say something; the tower's own are not removed."""
    before: JSON = (facts.base or {}).get("properties") or {}
    for update in facts.updates:
        check_properties(given_properties(update), before)
        if update["action"] == "remove-properties":
            for part in REMOVES_PROPERTIES:
                check_removed_properties(update.get(part) or (), before)


def given_properties(update: JSON) -> JSON:
    """The properties that an update sets."""
    return {} if update["action"] != "set-properties" else update.get("updates") or update.get("updated") or {}


def check_client_code(facts: Facts) -> None:
    """Nobody sets a property by which the clients of others load code (trap S8)."""
    before: JSON = (facts.base or {}).get("properties") or {}
    for update in facts.updates:
        if update["action"] == "set-properties":
            for part in SETS_PROPERTIES:
                check_code(update.get(part) or {}, facts.client_code, before)


def check_vectors(facts: Facts) -> None:
    """A deletion vector belongs where its data file does: readers refuse another, and a second one could hide there."""
    own = known_places(facts.changes)
    for change in facts.changes:
        for touched in change.added:
            target = touched.file.referenced_data_file
            if target is None or not is_vector(touched.file):
                continue
            reached = {
                (spec, partition_key(partition)) for at in (own, facts.places) for spec, partition in at.get(target, ())
            }
            if reached and (touched.spec_id, partition_key(touched.file.partition)) not in reached:
                raise ValidationFailed(
                    f"the commit's manifests don't say what it does: the deletion vector for {target} is listed in "
                    f"partition {touched.file.partition} of spec {touched.spec_id}, where that file is not; list it "
                    "where its data file is",
                    rule="contract.manifest",
                )
