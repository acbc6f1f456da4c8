"""A contract to begin with: what is known is filled in, and the rest stands beside it as comments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from icetower.contracts.document import load
from icetower.contracts.schema import FILE_NAME
from icetower.errors import BadRequest, UsageError


@dataclass(frozen=True, slots=True)
class Wishes:
    """What its author knows already; empty where nothing was said."""

    agent: str
    tables: Sequence[str] = ()
    operations: Sequence[str] = ()
    owner: str = ""
    escalation: str = ""


def template(wishes: Wishes) -> str:
    """The text of the contract. Raises `UsageError` where a wish is none that a contract can hold."""
    tables = "".join(_entry(table, wishes.operations or ("append",)) for table in wishes.tables or ("namespace.table",))
    text = f"""\
# yaml-language-server: $schema={FILE_NAME}
# The isolation contract of {wishes.agent}. It lies beside the agent's code, and is reviewed in the same pull request.
# `icetower contracts check` looks it through, and `icetower contracts apply` puts it in force. What is not granted here
# is refused.
version: 1
agent: {wishes.agent}
# description: what the agent does
{f"owner: {_scalar(wishes.owner)}" if wishes.owner else "# owner: team@example.com"} # who answers for it
# role: maintenance # or pipeline: it works on partitions that agents own, on purpose
# mode: shadow # evaluated and logged, and admits everything: to see what it would refuse before it does

# Which tables the agent may write to, and which of their partitions it owns.
tables:
{tables}# reads: [namespace.*] # tables that it may read

# How it tries again, and when a person is called.
retries: {{attempts: 5, min_wait: 100ms, max_wait: 5s}}
{_escalation(wishes.escalation)}

# A key makes a write that is sent twice land once. Unchanged PyIceberg sends none, nor do Iceberg's Java clients before
# 1.11: where a key is required their commits are refused. Require it once every client sends one (docs/clients.md).
# idempotency: {{required: true, window: 24h}}

# Files that it wrote and never committed.
orphans: {{detect_every: 24h, older_than: 72h, action: report}} # or delete

# Principals that may revoke this contract, besides administrators.
# revocation: {{by: [oncall]}}
"""
    try:
        load(text, source=wishes.agent)
    except BadRequest as error:
        raise UsageError(f"that makes no contract: {error.message}") from error
    return text


def _entry(table: str, operations: Sequence[str]) -> str:
    return f"""\
  - table: {_scalar(table)}
    operations: [{", ".join(_scalar(operation) for operation in operations)}] # overwrite grants append, delete, replace
    # partitions: all
    # partitions: # regions, which add up; within one, all lines hold at once
    #   - day(ts): {{from: 2026-01-01, to: 2027-01-01}} # half open; or relative to the clock: {{from: now, to: now+2d}}
    #     bucket(16, id): [0, 1, 2, 3]
    # blind_appends: true # its appends depend on nothing that it has read; not if it upserts (docs/clients.md)
    # write_location: table # for clients that do not follow write.data.path, such as DuckDB
    # read_scope: owned # its other writes depend on rows of its own partitions only
    # quotas: {{commits_per_minute: 60, files_per_commit: 500, bytes_per_commit: 1GiB}}
"""


def _escalation(person: str) -> str:
    said = f"escalation: {{after_failures: 5, within: 10m, to: {_scalar(person or 'Dana Ito <dana@example.com>')}}}"
    return said if person else f"# {said}"


def _scalar(text: str) -> str:
    """A text as YAML, quoted where it must be."""
    return yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10_000).strip()[1:-1]
