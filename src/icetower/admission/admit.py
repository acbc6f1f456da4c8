"""May this commit go on? Asked once, answered with an `Admitted` or an error that names the rule and the way out.

contract.manifest    R5: what the manifests claim isn't so (400, for administrators too)
contract.table       the contract doesn't name the table
contract.operation   it doesn't grant what the commit does
contract.partitions  it doesn't own a partition that the commit adds to or removes from
contract.undecided   it can't tell whether it does
contract.pattern     its rows come through the write-ahead log alone
contract.quota       more files or bytes than a commit may bring
contract.ref         the commit would move a branch without asserting where it stands, so that others' data may go
contract.history     it removes snapshots, or says for how long they are kept, without a word on all partitions
contract.shared      it alters what everybody goes by, such as the partition spec, without a word on all partitions
contract.location    files outside the table's locations, or a change of these
contract.summary     a summary key that only the tower writes
contract.key         the contract requires an idempotency key
summary.unknown      a summary key that begins like ours, and is none (400)
property.code        S8: a table property by which clients load code (400, for administrators too)
property.*           a table property that begins like ours, and is none or says nothing (400)
summary.reads        the summary's word on what was read says nothing that can be used (400); filter.*: its filter
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from icetower.admission.admitted import Admitted
from icetower.admission.alterations import shared
from icetower.admission.keys import check_key, key_of, number_of, ways_of
from icetower.admission.locations import check_files, roots_of, steers_clients
from icetower.admission.operations import RETENTION, operations_of, targets_of
from icetower.admission.properties import check_properties
from icetower.admission.quotas import check_quota
from icetower.admission.reads import believed, scope_of
from icetower.admission.refusals import Held, OrdersTower, refusal
from icetower.admission.targets import Places, known_places
from icetower.catalog.changes import is_under
from icetower.contracts.check import Clear, Touch, Verdict, appends_blindly, check, isolation_of
from icetower.contracts.model import FILE_OPERATIONS, Isolation, Operation
from icetower.contracts.terms import NO_LAYOUT, Layout
from icetower.errors import ContractViolation, ValidationFailed
from icetower.protocol.marks import MEDIATOR, OF_CLIENTS, OF_THE_TOWER, OURS, REVERTS
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.table import metadata as table_metadata
from icetower.table.avro_schemas import holds_values_of
from icetower.table.bounds import bound_problems
from icetower.table.change import Change
from icetower.table.client_properties import NO_CODE, Allowed, check_code
from icetower.table.partitions import PartitionSpec, partition_key, spec_of
from icetower.table.records import is_vector

JSON = Mapping[str, Any]

PATHS = (*table_metadata.DATA_PATHS, "write.metadata.path")
HISTORY = ("icetower.retention.", "history.expire.", "gc.enabled")
"""Properties that begin like this say how much of everybody's history goes."""

_SETS_PROPERTIES = ("updates", "updated")
_LISTS_OF_PROPERTIES = (*_SETS_PROPERTIES, "removals", "removed")
"""Early clients' names of the two lists count as well: the table takes them."""

_SHAPING = frozenset(
    {
        "assign-uuid",
        "upgrade-format-version",
        "add-schema",
        "set-current-schema",
        "add-spec",
        "set-default-spec",
        "add-sort-order",
        "set-default-sort-order",
        "set-location",
        "set-properties",
        "remove-properties",
    }
)
"""Updates that a table's schemas, specs and locations come from; they stand for themselves, without the snapshots."""


def admit(
    principal: Principal,
    identifier: Identifier,
    metadata: JSON | None,
    changes: Sequence[Change],
    *,
    requirements: Sequence[JSON],
    updates: Sequence[JSON],
    key: str | None = None,
    application: tuple[str, int] | None = None,
    places: Places | None = None,
    location: str | None = None,
    client_code: Allowed = NO_CODE,
    now_ms: int,
) -> Admitted:
    """The commit with all that the engine needs to know of its permission.

    Args:
        metadata: the table as it stands, or None where the commit creates it.
        changes: what its snapshots add and remove, in order.
        key: the request's idempotency key (header), if any; one in the snapshots' summaries goes before it.
        application: (application, sequence) of the request's headers, if any; one in the summaries goes before it.
        places: where data files lie that added delete files reach into, as `targets.locate` found them.
        location: for a table being created, where the catalog wants it; None: wherever the commit says.
        client_code: values of properties by which clients may load code.
        now_ms: milliseconds since 1970, for what contracts own relative to ``now``.

    Raises:
        ValidationFailed: the manifests lie (``contract.manifest``), or name a partition spec that isn't there.
        ContractViolation: outside the principal's contract.
        KeyMisused: snapshots of one commit carry different keys, or numbers.
        BadRequest: a key, a number or a declaration of what was read that makes no sense.
    """
    _check_honest(metadata, changes, updates, places or {}, client_code)
    operations = operations_of(metadata, requirements, updates, changes)
    summaries = [_summary(change) for change in changes]
    shadow = Held(principal)
    enforced = not principal.contract.shadow
    key = key_of(summaries, key)
    application = number_of(summaries, application)
    rules = principal.contract.rules_for(identifier)
    if not principal.administrator:
        asked = Asked(principal, identifier, metadata, changes, requirements, updates, now_ms)
        # Without a snapshot there is no summary that it could be in.
        ways = ways_of(key, application, in_summary=not summaries or key_of(summaries, None) is not None)
        for ask in (
            asked.check_summaries,
            partial(asked.check_partitions, operations, places or {}),
            asked.check_quota,
            asked.check_refs,
            asked.check_history,
            partial(asked.check_locations, location),
            asked.check_shared,
            partial(check_key, principal, identifier, ways),
        ):
            with shadow.held():
                ask()
    scope, contract = None, believed(principal.contract, shadow.refusals)
    if metadata is not None and changes:
        scope = scope_of(contract, identifier, shaped(metadata, updates), changes, operations, now_ms)
    return Admitted(
        principal=principal.name,
        identifier=identifier,
        requirements=tuple(requirements),
        updates=tuple(updates),
        changes=tuple(changes),
        key=key,
        contract=principal.contract.name,
        contract_version=principal.contract_version,
        blind_appends=appends_blindly(contract, identifier),
        strict=enforced and any(rule.strict for rule in rules),
        operations=operations,
        fingerprint=fingerprint(updates, changes),
        application_id=_application(changes),
        table_uuid=None if metadata is None else metadata.get("table-uuid"),
        read_scope=scope,
        shadowed=tuple(shadow.refusals),
        serializable=enforced and isolation_of(principal.contract, identifier, operations) is Isolation.SERIALIZABLE,
        application_sequence=application,
    )


def fingerprint(updates: Sequence[JSON], changes: Sequence[Change]) -> str:
    """Stands for a commit's content: the files it adds and removes, and its other updates.

    A client that tries again on a newer base sends another snapshot id, parent and manifests with the same files.
    """
    files = [sorted({t.file.path for t in side}) for change in changes for side in (change.added, change.removed)]
    rest = [update for update in updates if update["action"] not in ("add-snapshot", "set-snapshot-ref")]
    if not changes:
        rest = list(updates)
    content = json.dumps([files, rest], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _summary(change: Change) -> Mapping[str, str]:
    return change.snapshot.get("summary") or {}


def _properties_of(update: JSON) -> set[str]:
    """The names of the properties that an update sets or removes."""
    if update["action"] not in ("set-properties", "remove-properties"):
        return set()
    return {name for part in _LISTS_OF_PROPERTIES for name in update.get(part) or ()}


def _given_properties(update: JSON) -> JSON:
    """The properties that an update sets."""
    return {} if update["action"] != "set-properties" else update.get("updates") or update.get("updated") or {}


def _changed_properties(update: JSON, before: JSON | None) -> list[str]:
    """The properties to which an update gives another value than a table's, or takes it away, sorted."""
    properties: JSON = (before or {}).get("properties") or {}
    # Java sends what the table has already when it replaces it.
    given = _given_properties(update)
    return sorted(n for n in _properties_of(update) if n not in given or given[n] != properties.get(n))


def _check_honest(
    metadata: JSON | None, changes: Sequence[Change], updates: Sequence[JSON], places: Places, client_code: Allowed
) -> None:
    """For administrators, too: a commit is what it says, and says what is known. Raises `ValidationFailed`."""
    _check_manifests(changes)
    _check_headers(metadata, changes, updates)
    check_words(changes)
    for update in updates:
        check_properties(_given_properties(update), (metadata or {}).get("properties") or {})
    _check_code(metadata, updates, client_code)
    _check_vectors(changes, places)


def _check_code(metadata: JSON | None, updates: Sequence[JSON], allowed: Allowed) -> None:
    """For administrators, too: nobody has the clients of others load code. Raises `ValidationFailed`."""
    before: JSON = (metadata or {}).get("properties") or {}
    for update in updates:
        if update["action"] == "set-properties":
            for part in _SETS_PROPERTIES:
                check_code(update.get(part) or {}, allowed, before)


def _check_manifests(changes: Sequence[Change]) -> None:
    problems = [problem for change in changes for problem in change.problems]
    if problems:
        shown = "; ".join(problems[:3])
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ValidationFailed(
            f"the commit's manifests don't say what it does: {shown}{more}; write the commit again",
            rule="contract.manifest",
        )


def check_words(changes: Sequence[Change]) -> None:
    """A word of ours that nobody knows is a misspelt one: it would be passed over, and its writer would rely on it."""
    for name in (name for change in changes for name in _summary(change)):
        if name.startswith(OURS) and name not in OF_CLIENTS | OF_THE_TOWER and not name.startswith(MEDIATOR):
            raise ValidationFailed(
                f"the snapshot property {name} is not known here; those that a client may set are "
                f"{', '.join(sorted(OF_CLIENTS))}",
                rule="summary.unknown",
            )


def _check_headers(metadata: JSON | None, changes: Sequence[Change], updates: Sequence[JSON]) -> None:
    """A manifest's own idea of its spec must be the table's: else engines find its files in other partitions (R5)."""
    headers = [header for change in changes for header in change.headers]
    if not headers:
        return
    table = shaped(metadata, updates)
    for header in headers:
        spec = spec_of(table, header.row.spec_id)
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


def _check_vectors(changes: Sequence[Change], places: Places) -> None:
    """A deletion vector belongs where its data file does: readers refuse another, and a second one could hide there."""
    own = known_places(changes)
    for change in changes:
        for touched in change.added:
            target = touched.file.referenced_data_file
            if target is None or not is_vector(touched.file):
                continue
            reached = {
                (spec, partition_key(partition)) for at in (own, places) for spec, partition in at.get(target, ())
            }
            if reached and (touched.spec_id, partition_key(touched.file.partition)) not in reached:
                raise ValidationFailed(
                    f"the commit's manifests don't say what it does: the deletion vector for {target} is listed in "
                    f"partition {touched.file.partition} of spec {touched.spec_id}, where that file is not; list it "
                    "where its data file is",
                    rule="contract.manifest",
                )


def shaped(metadata: JSON | None, updates: Sequence[JSON]) -> JSON:
    """The table with the commit's schemas, specs and properties, which its own files may use already."""
    own = [update for update in updates if update["action"] in _SHAPING]
    if not own and metadata is not None:
        return metadata
    return table_metadata.apply(metadata, own, now_ms=0)


def _application(changes: Sequence[Change]) -> str | None:
    for change in changes:
        application = application_of(_summary(change))
        if application is not None:
            return application
    return None


def application_of(summary: Mapping[str, Any]) -> str | None:
    """The running application that a snapshot's summary names (trap K3)."""
    application = summary.get("spark.app.id") or summary.get("app-id")
    return str(application) if application else None


def touches_of(metadata: JSON, changes: Sequence[Change], places: Places) -> tuple[list[Touch], list[str]]:
    """The partitions that changes touch, and the paths of data files that deletes reach into and nobody can place.

    Deletes that go reach into theirs as those that come do: rows come back there.
    """
    specs: dict[int, PartitionSpec] = {}
    counted: Counter[tuple[int, tuple[Any, ...], bool, int]] = Counter()
    lost: dict[str, None] = {}
    own = known_places(changes)
    for change in changes:
        for files, adds in ((change.added, True), (change.removed, False)):
            for touched in files:
                counted[touched.spec_id, touched.file.partition, adds, touched.file.content] += 1
                for target in targets_of(touched.file):
                    reached = {*own.get(target, ()), *places.get(target, ())}
                    for place in reached:
                        counted[*place, adds, touched.file.content] += 1
                    # What goes and was about a file that is not there any more brings back nothing.
                    if not reached and (adds or target not in places):
                        lost.setdefault(target)
    touches: list[Touch] = []
    for (spec_id, partition, adds, content), files_count in counted.items():
        if spec_id not in specs:
            specs[spec_id] = spec_of(metadata, spec_id)
        touches.append(Touch(specs[spec_id], partition, adds, content, files_count))
    return touches, list(lost)


class Asked:
    """One commit by one principal that is bound by a contract."""

    def __init__(
        self,
        principal: Principal,
        identifier: Identifier,
        metadata: JSON | None,
        changes: Sequence[Change],
        requirements: Sequence[JSON],
        updates: Sequence[JSON],
        now_ms: int,
    ) -> None:
        self.principal = principal
        self.contract = principal.contract
        self.identifier = identifier
        self.base = metadata
        self.changes = changes
        self.requirements = requirements
        self.updates = updates
        self.now_ms = now_ms

    def refuse(self, rule: str, message: str, *, next_step: str | None = None) -> ContractViolation:
        return ContractViolation(
            f"{self.principal.name} may not commit to {self.identifier}: {message}", rule=rule, next_step=next_step
        )

    def after(self) -> JSON:
        return shaped(self.base, self.updates)

    # -- contract.table, contract.operation, contract.partitions, contract.undecided

    def check_partitions(self, operations: frozenset[Operation], places: Places) -> None:
        # First without files: a commit that isn't granted at all shall not depend on its own metadata making sense.
        self._raise_unless_clear(self._check((), operations, NO_LAYOUT))
        if not self.changes:
            return
        table = self.after()
        touches, lost = touches_of(table, self.changes, places)
        self._raise_unless_clear(self._check(touches, operations, Layout.of(table)))
        if lost and not self.contract.grants_everywhere(operations & FILE_OPERATIONS, self.identifier):
            raise self.refuse(
                "contract.undecided",
                f"its delete files reach into data file {lost[0]}"
                + (f" and {len(lost) - 1} more" if len(lost) > 1 else "")
                + ", which is not in the snapshot that it was written on, so its partition can't be told",
            )

    def _check(self, touches: Sequence[Touch], operations: frozenset[Operation], layout: Layout) -> Verdict:
        return check(self.contract, self.identifier, touches, operations, layout=layout, now_ms=self.now_ms)

    def _raise_unless_clear(self, verdict: Verdict) -> None:
        if not isinstance(verdict, Clear):
            raise refusal(verdict, self.principal, self.identifier)

    # -- contract.quota

    def check_quota(self) -> None:
        added = [touched.file for change in self.changes for touched in change.added]
        size_bytes = sum(int(file.record.get("file_size_in_bytes") or 0) for file in added)
        check_quota(self.principal, self.identifier, files=len(added), size_bytes=size_bytes)

    # -- contract.ref

    def check_refs(self) -> None:
        """Moving a branch in any other way than forward from where it is known to stand may drop others' data."""
        if self.base is None or self.contract.grants_everywhere(frozenset({Operation.REFS}), self.identifier):
            return
        refs = self.base.get("refs") or {}
        parents = {change.snapshot["snapshot-id"]: change.snapshot.get("parent-snapshot-id") for change in self.changes}
        for update in self.updates:
            ref = str(update.get("ref-name"))
            stands = ref in refs and refs[ref].get("type") == "branch"
            if update["action"] == "remove-snapshot-ref" and stands:
                raise self._loses(f"it removes the branch {ref}")
            if update["action"] != "set-snapshot-ref" or not (stands or ref == "main"):
                continue
            if update.get("type") == "tag":
                raise self._loses(f"it makes a tag of the branch {ref}")
            if update["snapshot-id"] not in parents:
                raise self._loses(f"it moves the branch {ref} to snapshot {update['snapshot-id']}, not one of its own")
            base: int | None = update["snapshot-id"]
            for _ in range(len(parents)):
                base = parents.get(base, base) if base is not None else None
            if not self._asserted(ref, None if base == -1 else base):
                raise self._loses(
                    f"it moves the branch {ref} without asserting (assert-ref-snapshot-id) that it stands at the "
                    f"snapshot that the commit is written on, {base}"
                )

    def _asserted(self, ref: str, snapshot_id: int | None) -> bool:
        return any(
            requirement["type"] == "assert-ref-snapshot-id"
            and requirement["ref"] == ref
            and requirement.get("snapshot-id") == snapshot_id
            for requirement in self.requirements
        )

    def _loses(self, what: str) -> ContractViolation:
        return self.refuse(
            "contract.ref",
            f"{what}, which could drop what others have written; "
            "that needs the operation refs and 'partitions: all' in the contract",
        )

    # -- contract.history

    def check_history(self) -> None:
        """Snapshots are everybody's: who owns a part of a table lets none of them go, now or by a property."""
        if self.base is None:
            return
        for update in self.updates:
            if update["action"] == "remove-snapshots":
                self._needs_everything(Operation.REFS, "it removes snapshots")
            kept = [name for name in _changed_properties(update, self.base) if name.startswith(HISTORY)]
            if kept:
                self._needs_everything(Operation.ALTER, f"it changes {', '.join(kept)}, which lets snapshots go")
            settings = [name for name in RETENTION if self._resets(update, name)]
            if settings:
                self._needs_everything(
                    Operation.REFS, f"it changes {', '.join(settings)} of the branch {update['ref-name']}"
                )

    def _resets(self, update: JSON, setting: str) -> bool:
        """Whether an update changes for how long a branch that is there keeps its snapshots."""
        if update["action"] != "set-snapshot-ref":
            return False
        refs: Mapping[str, JSON] = (self.base or {}).get("refs") or {}
        current = refs.get(update["ref-name"], {"type": "branch"} if update["ref-name"] == "main" else None)
        return (
            current is not None
            and current.get("type") == "branch"
            and update.get(setting) is not None
            and update.get(setting) != current.get(setting)
        )

    def _needs_everything(self, operation: Operation, what: str) -> None:
        if not self.contract.grants_everywhere(frozenset({operation}), self.identifier):
            raise self.refuse(
                "contract.history",
                f"{what}, and history belongs to all who write to the table; "
                f"that needs the operation {operation} and 'partitions: all' in the contract",
            )

    # -- contract.shared

    def check_shared(self) -> None:
        if self.base is None or self.contract.grants_everywhere(frozenset({Operation.ALTER}), self.identifier):
            return
        changed = shared(self.base, self.after(), self.updates)
        orders = [name for name in changed if name.startswith(OURS)]
        if orders:
            raise OrdersTower(
                f"{self.principal.name} may not commit to {self.identifier}: it changes {', '.join(changed)}, and all "
                f"who read or write the table go by that, the tower by {', '.join(orders)}; it needs the operation "
                "alter and 'partitions: all' in the contract",
                rule="contract.shared",
            )
        if changed:
            raise self.refuse(
                "contract.shared",
                f"it changes {', '.join(changed)}, and all who read or write the table go by that; "
                "it needs the operation alter and 'partitions: all' in the contract",
            )

    # -- contract.location

    def check_locations(self, wanted: str | None) -> None:
        for update in self.updates:
            if update["action"] == "set-location" and not self._location_is_fine(update["location"], wanted):
                raise self.refuse("contract.location", "it sets the table's location; only an administrator may")
            changed = sorted(_properties_of(update) & set(PATHS))
            if changed:
                raise self.refuse(
                    "contract.location",
                    f"it changes {', '.join(changed)}, where files are written; only an administrator may",
                )
            steering = [name for name in _changed_properties(update, self.base) if steers_clients(name)]
            if steering:
                raise self.refuse(
                    "contract.location",
                    f"it changes {', '.join(steering)}, by which clients find the storage, and with whose credentials; "
                    "only an administrator may",
                )
        statistics = [
            str(update[part].get("statistics-path"))
            for update in self.updates
            for part in ("statistics", "partition-statistics")
            if update["action"] == f"set-{part}"
        ]
        if not self.changes and not statistics:
            return
        table = self.after()
        roots = roots_of(table)
        for path in statistics:  # a purge deletes them
            if not any(is_under(path, root) for root in roots):
                raise self.refuse("contract.location", f"the statistics file {path} doesn't lie under {roots[-1]}")
        added = [touched.file.path for change in self.changes for touched in change.added]
        check_files(self.principal, self.identifier, table, added)

    def _location_is_fine(self, location: str, wanted: str | None) -> bool:
        given = location.rstrip("/")
        if self.base is None:
            return wanted is None or given == wanted.rstrip("/")
        # Java sends it unchanged when it replaces a table.
        return given == str(self.base.get("location", "")).rstrip("/")

    # -- contract.summary

    def check_summaries(self) -> None:
        for change in self.changes:
            for name in _summary(change):
                # A mediator's progress makes rows of its write-ahead log count as done: for who may write everywhere.
                if name in OF_THE_TOWER or (name.startswith(MEDIATOR) and not self._may_everywhere(Operation.APPEND)):
                    raise self.refuse(
                        "contract.summary",
                        f"the snapshot property {name} is written by the tower alone; leave it out",
                        next_step="fix_request",
                    )
                # What is said to be taken back counts as meant to go, or to come back, for every audit.
                if name == REVERTS and not self._may_everywhere(Operation.DELETE):
                    raise self.refuse(
                        "contract.summary",
                        f"{name} is said by those alone who may remove rows anywhere in the table; leave it out or ask "
                        "an administrator to run `icetower revert`",
                        next_step="fix_request",
                    )

    def _may_everywhere(self, operation: Operation) -> bool:
        return self.contract.grants_everywhere(frozenset({operation}), self.identifier)
