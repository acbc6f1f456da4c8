"""Contracts as they are written: YAML, kept in review beside the agent's code. docs/contracts.md explains every field.

version: 1
agent: pricing_agent                     # the contract's name; a principal is bound to exactly one contract
description: hourly prices
owner: pricing-team@example.com
mode: enforce                            # or shadow: evaluated and logged, admits everything
tables:
  - table: pricing.product_prices        # or `inventory.*` (its tables), `inventory.**` (all under it), `**`
    operations: [read, append, overwrite]
    partitions:                          # regions, as a union; absent: no partition; `all`: every one
      - day(price_date): {from: 2017-01-01, to: 2017-02-01}       # half open
        bucket(16, product_id): [0, 1, 2, 3]
      - ts_hour: {from: now, to: now+2h}
    except: [{day(price_date): 2017-01-15}]
    blind_appends: false
    strict: false
    require_key: false
    prove_partitions: false              # statistics must prove where each file lies
    read_scope: owned                    # its writes depend on no rows but those of partitions that it owns
    isolation: serializable
    pattern: direct
    write_location: own
    quotas: {commits_per_minute: 60, files_per_commit: 500, bytes_per_commit: 1GiB}
reads: [inventory.*]                     # short for tables with `operations: [read]`
retries: {attempts: 5, min_wait: 100ms, max_wait: 5s}
escalation: {after_failures: 5, within: 10m, to: Dana Ito <dana.ito@example.com>, webhook: pricing-oncall}
idempotency: {required: true, how: [header, summary, sequence], window: 24h}
orphans: {detect_every: 24h, older_than: 72h, action: report}
revocation: {by: [oncall]}
quotas: {requests_at_once: 32}           # of one principal, over all tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from icetower.contracts.model import (
    ADMINISTRATOR_NAME,
    EVERY_PARTITION,
    NAME,
    OWNED,
    VERSION,
    Contract,
    Escalation,
    Extent,
    Idempotency,
    Isolation,
    KeyWay,
    Operation,
    Orchestration,
    Orphans,
    Pattern,
    Quota,
    Range,
    Region,
    Retries,
    Revocation,
    Role,
    Rule,
    Values,
)
from icetower.contracts.reading import Reader, duration_text, read_document, size_text
from icetower.contracts.terms import parse_term

CLAUSES = ("retries", "escalation", "idempotency", "orphans", "revocation", "quotas")
FLAGS = ("blind_appends", "strict", "require_key", "prove_partitions")
ENFORCE, SHADOW = "enforce", "shadow"
OWN, TABLE = "own", "table"
REPORT, DELETE = "report", "delete"


def parse_pattern(text: str) -> Pattern | None:
    """A pattern of its text, or None where it is none: `ns.table`, `ns.*`, `ns.**` or `**`."""
    *namespace, last = text.split(".")
    if any(not level or "*" in level for level in namespace):
        return None
    if last == "**" or (namespace and last and ("*" not in last or last == "*")):
        return Pattern(tuple(namespace), last)
    return None


# ---------------------------------------------------------------------------------------------------------- reading


def load(text: str, *, source: str) -> Contract:
    """The contract written in `text`; `source` names it in messages. Raises `BadRequest` with line and field."""
    top = read_document(text, source=source)
    fields = top.fields(
        required=("version", "agent"), optional=("description", "owner", "role", "mode", "tables", "reads", *CLAUSES)
    )
    if fields["version"].text() != str(VERSION):
        raise fields["version"].wrong(f"is {fields['version'].text()!r}; this release reads version {VERSION}")
    name = fields["agent"].text()
    if not NAME.fullmatch(name) or name == ADMINISTRATOR_NAME:
        raise fields["agent"].wrong(
            f"is {name!r}; write 1 to 128 letters, digits, '_', '-' or '.', other than {ADMINISTRATOR_NAME!r}"
        )
    return Contract(
        name=name,
        tables=tuple(_rule(item) for item in fields["tables"].items()) if "tables" in fields else (),
        reads=tuple(_pattern(item) for item in fields["reads"].items()) if "reads" in fields else (),
        description=fields["description"].text() if "description" in fields else "",
        owner=fields["owner"].text() if "owner" in fields else None,
        role=Role(fields["role"].choice(tuple(Role))) if "role" in fields else Role.AGENT,
        shadow="mode" in fields and fields["mode"].choice((ENFORCE, SHADOW)) == SHADOW,
        retries=_retries(fields["retries"]) if "retries" in fields else None,
        escalation=_escalation(fields["escalation"]) if "escalation" in fields else None,
        idempotency=_idempotency(fields["idempotency"]) if "idempotency" in fields else None,
        orphans=_orphans(fields["orphans"]) if "orphans" in fields else None,
        revocation=_revocation(fields["revocation"]) if "revocation" in fields else None,
        requests_at_once=_requests_at_once(fields["quotas"]) if "quotas" in fields else None,
    )


def _pattern(reader: Reader) -> Pattern:
    pattern = parse_pattern(reader.text())
    if pattern is None:
        raise reader.wrong(
            f"is {reader.text()!r}; write a table with its namespace, such as 'pricing.product_prices', "
            "or 'pricing.*', 'pricing.**' or '**'"
        )
    return pattern


def _rule(reader: Reader) -> Rule:
    choices = ("partitions", "except", "read_scope", "isolation", "pattern", "write_location", "quotas")
    fields = reader.fields(required=("table", "operations"), optional=(*choices, *FLAGS))
    operations = [item.choice(tuple(Operation)) for item in fields["operations"].items()]
    if not operations:
        raise fields["operations"].wrong("is empty; leave the whole entry out to grant nothing")
    partitions: tuple[Region, ...] | None = ()
    if "partitions" in fields:
        given = fields["partitions"]
        partitions = None if given.is_text(EVERY_PARTITION) else tuple(_region(item) for item in given.items())
    excluded = tuple(_region(item) for item in fields["except"].items()) if "except" in fields else ()
    if excluded and partitions == ():
        raise fields["except"].wrong("takes partitions away where none are given; add 'partitions'")
    rule = Rule(
        pattern=_pattern(fields["table"]),
        operations=frozenset(Operation(operation) for operation in operations),
        partitions=partitions,
        excluded=excluded,
        reads_owned="read_scope" in fields and fields["read_scope"].choice((OWNED,)) == OWNED,
        isolation=Isolation(fields["isolation"].choice(tuple(Isolation))) if "isolation" in fields else None,
        orchestration=Orchestration(
            fields["pattern"].choice(tuple(Orchestration)) if "pattern" in fields else "direct"
        ),
        own_location="write_location" not in fields or fields["write_location"].choice((OWN, TABLE)) == OWN,
        quota=_quota(fields["quotas"]) if "quotas" in fields else Quota(),
        **{flag: fields[flag].boolean() for flag in FLAGS if flag in fields},
    )
    if rule.orchestration is Orchestration.SCHEDULER and not _moves(rule):
        raise fields["pattern"].wrong(
            "is scheduler, whose partitions are slots: each of them needs a range that ends at a time relative to now, "
            "such as {from: now, to: now+2h}"
        )
    return rule


def _moves(rule: Rule) -> bool:
    """Whether every region of a rule is bounded, on both sides, by the clock."""
    return bool(rule.partitions) and all(
        any(
            isinstance(e, Range) and all((side or "").startswith("now") for side in (e.start, e.end))
            for _, e in r.fields
        )
        for r in rule.partitions or ()
    )


def _region(reader: Reader) -> Region:
    fields = reader.open_fields()
    if not fields:
        raise reader.wrong(f"names no partition field; to own every partition write 'partitions: {EVERY_PARTITION}'")
    for name, value in fields.items():
        try:
            parse_term(name)
        except ValueError as error:
            raise value.wrong(str(error)) from None
    return Region(tuple((name, _extent(value)) for name, value in sorted(fields.items())))


def _extent(reader: Reader) -> Extent:
    if reader.is_mapping():
        bounds = reader.fields(required=(), optional=("from", "to"))
        if not bounds:
            raise reader.wrong("is an empty range; give 'from', 'to' or both")
        start, end = (bounds[side].text() if side in bounds else None for side in ("from", "to"))
        if start is not None and end is not None and _plainly_empty(start, end):
            raise reader.wrong(f"is the range from {start} to {end}, which holds nothing; 'to' is not included")
        return Range(start, end)
    if reader.is_list():
        values = tuple(item.text_or_null() for item in reader.items())
        if not values:
            raise reader.wrong("is an empty list; leave the region out to own nothing")
        return Values(values)
    return Values((reader.text_or_null(),))


_ISO = re.compile(r"\d{4}(-\d\d){0,2}(T\d\d)?")


def _plainly_empty(start: str, end: str) -> bool:
    """True where the bounds can be compared without knowing the field: two dates of one form, or two whole numbers."""
    if re.fullmatch(r"-?\d+", start) and re.fullmatch(r"-?\d+", end):
        return int(start) >= int(end)
    return bool(_ISO.fullmatch(start) and _ISO.fullmatch(end)) and len(start) == len(end) and start >= end


def _quota(reader: Reader) -> Quota:
    fields = reader.fields(required=(), optional=("commits_per_minute", "files_per_commit", "bytes_per_commit"))
    counts = ("commits_per_minute", "files_per_commit")
    return Quota(
        **{name: fields[name].whole_number(least=1) for name in counts if name in fields},
        **({"bytes_per_commit": fields["bytes_per_commit"].size_bytes()} if "bytes_per_commit" in fields else {}),
    )


def _retries(reader: Reader) -> Retries:
    fields = reader.fields(required=(), optional=("attempts", "min_wait", "max_wait"))
    base = Retries()
    retries = Retries(
        attempts=fields["attempts"].whole_number() if "attempts" in fields else base.attempts,
        min_wait_ms=round(fields["min_wait"].duration_s() * 1000) if "min_wait" in fields else base.min_wait_ms,
        max_wait_ms=round(fields["max_wait"].duration_s() * 1000) if "max_wait" in fields else base.max_wait_ms,
    )
    if retries.max_wait_ms < retries.min_wait_ms:
        raise reader.wrong(
            f"waits at least {retries.min_wait_ms} ms and at most {retries.max_wait_ms} ms; raise 'max_wait'"
        )
    return retries


def _escalation(reader: Reader) -> Escalation:
    fields = reader.fields(required=("after_failures", "within", "to"), optional=("webhook",))
    to = fields["to"].text()
    if len(to) > 320 or not re.fullmatch(r"[^<>@\r\n]*<[^<>@\s]+@[^<>@\s]+>|[^<>@\s]+@[^<>@\s]+", to):
        raise fields["to"].wrong(f"is {to!r}; name a person: 'Dana Ito <dana.ito@example.com>', or the address alone")
    webhook = fields["webhook"].text() if "webhook" in fields else None
    if webhook is not None and not NAME.fullmatch(webhook):
        raise fields["webhook"].wrong(
            "is no name; addresses are secrets and stand in the tower's settings ([escalations.webhooks]), by name"
        )
    return Escalation(fields["after_failures"].whole_number(least=1), fields["within"].duration_s(), to, webhook)


def _idempotency(reader: Reader) -> Idempotency:
    fields = reader.fields(required=("required",), optional=("how", "window"))
    how = [KeyWay(item.choice(tuple(KeyWay))) for item in fields["how"].items()] if "how" in fields else list(KeyWay)
    if not how:
        raise fields["how"].wrong("is empty; leave it out to take a key in every way")
    window_s = fields["window"].duration_s() if "window" in fields else None
    return Idempotency(fields["required"].boolean(), frozenset(how), window_s)


def _orphans(reader: Reader) -> Orphans:
    fields = reader.fields(required=(), optional=("detect_every", "older_than", "action"))
    base = Orphans()
    return Orphans(
        detect_every_s=fields["detect_every"].duration_s() if "detect_every" in fields else base.detect_every_s,
        older_than_s=fields["older_than"].duration_s() if "older_than" in fields else base.older_than_s,
        delete="action" in fields and fields["action"].choice((REPORT, DELETE)) == DELETE,
    )


def _revocation(reader: Reader) -> Revocation:
    fields = reader.fields(required=("by",), optional=())
    names = tuple(item.text() for item in fields["by"].items())
    for item, name in zip(fields["by"].items(), names, strict=True):
        if not NAME.fullmatch(name):
            raise item.wrong(f"is {name!r}, which is no principal's name")
    return Revocation(names)


def _requests_at_once(reader: Reader) -> int:
    return reader.fields(required=("requests_at_once",), optional=())["requests_at_once"].whole_number(least=1)


# ---------------------------------------------------------------------------------------------------------- writing


def to_json(contract: Contract) -> dict[str, Any]:
    """The contract as the JSON that `from_json` reads, in the fields of the YAML."""
    document: dict[str, Any] = {"version": VERSION, "agent": contract.name}
    if contract.description:
        document["description"] = contract.description
    if contract.owner is not None:
        document["owner"] = contract.owner
    if contract.role is not Role.AGENT:
        document["role"] = contract.role.value
    if contract.shadow:
        document["mode"] = SHADOW
    if contract.tables:
        document["tables"] = [_rule_json(rule) for rule in contract.tables]
    if contract.reads:
        document["reads"] = [str(pattern) for pattern in contract.reads]
    return document | _clauses_json(contract)


def _clauses_json(contract: Contract) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if (retries := contract.retries) is not None:
        waits = {"min_wait": retries.min_wait_ms, "max_wait": retries.max_wait_ms}
        document["retries"] = {"attempts": retries.attempts} | {n: duration_text(ms / 1000) for n, ms in waits.items()}
    if (escalation := contract.escalation) is not None:
        document["escalation"] = {
            "after_failures": escalation.after_failures,
            "within": duration_text(escalation.within_s),
            "to": escalation.to,
        } | ({"webhook": escalation.webhook} if escalation.webhook is not None else {})
    if (idempotency := contract.idempotency) is not None:
        keys: dict[str, Any] = {"required": idempotency.required}
        if idempotency.how != frozenset(KeyWay):
            keys["how"] = [way.value for way in KeyWay if way in idempotency.how]
        if idempotency.window_s is not None:
            keys["window"] = duration_text(idempotency.window_s)
        document["idempotency"] = keys
    if (orphans := contract.orphans) is not None:
        document["orphans"] = {
            "detect_every": duration_text(orphans.detect_every_s),
            "older_than": duration_text(orphans.older_than_s),
            "action": DELETE if orphans.delete else REPORT,
        }
    if contract.revocation is not None:
        document["revocation"] = {"by": list(contract.revocation.by)}
    if contract.requests_at_once is not None:
        document["quotas"] = {"requests_at_once": contract.requests_at_once}
    return document


def _rule_json(rule: Rule) -> dict[str, Any]:
    document: dict[str, Any] = {
        "table": str(rule.pattern),
        "operations": [operation.value for operation in Operation if operation in rule.operations],
    }
    if rule.partitions is None:
        document["partitions"] = EVERY_PARTITION
    elif rule.partitions:
        document["partitions"] = [_region_json(region) for region in rule.partitions]
    if rule.excluded:
        document["except"] = [_region_json(region) for region in rule.excluded]
    document |= {flag: True for flag in FLAGS if getattr(rule, flag)}
    if rule.reads_owned:
        document["read_scope"] = OWNED
    if rule.isolation is not None:
        document["isolation"] = rule.isolation.value
    if rule.orchestration is not Orchestration.DIRECT:
        document["pattern"] = rule.orchestration.value
    if not rule.own_location:
        document["write_location"] = TABLE
    quota: dict[str, Any] = {
        name: getattr(rule.quota, name)
        for name in ("commits_per_minute", "files_per_commit")
        if getattr(rule.quota, name) is not None
    }
    if rule.quota.bytes_per_commit is not None:
        quota["bytes_per_commit"] = size_text(rule.quota.bytes_per_commit)
    return document | ({"quotas": quota} if quota else {})


def _region_json(region: Region) -> dict[str, Any]:
    return {name: _extent_json(extent) for name, extent in region.fields}


def _extent_json(extent: Extent) -> Any:
    if isinstance(extent, Values):
        return list(extent.values)
    return {side: text for side, text in (("from", extent.start), ("to", extent.end)) if text is not None}


def from_json(document: Mapping[str, Any], *, source: str) -> Contract:
    """As `load`, from a JSON object."""
    # JSON is YAML as long as characters beyond the basic plane are not written as surrogate pairs.
    return load(json.dumps(document, ensure_ascii=False, indent=1), source=source)


def dump(contract: Contract) -> str:
    """The contract as YAML; `load` reads the same contract back."""
    return yaml.safe_dump(to_json(contract), sort_keys=False, allow_unicode=True)
