"""Who wrote a snapshot, as far as its summary says; and whether it came through a tower. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.protocol.marks import GROUP_FILE, PRINCIPAL

_APPLICATIONS = ("spark.app.id", "flink.job-id", "trino_query_id", "app-id")
_USERS = ("user", "user.name", "spark.user", "trino_user", "owner")


def through_a_tower(snapshot: Mapping[str, Any]) -> bool:
    """Whether a snapshot carries a tower's mark. Whoever goes around towers can forge it."""
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    return PRINCIPAL in summary or GROUP_FILE in summary


def application_of(summary: Mapping[str, Any]) -> str | None:
    """The application that wrote a snapshot, as its engine names it."""
    found = next((summary[name] for name in _APPLICATIONS if summary.get(name)), None)
    return None if found is None else str(found)


def origin_of(snapshot: Mapping[str, Any]) -> dict[str, str]:
    """`engine`, `application` and `user` of a snapshot; what its summary doesn't say is left out."""
    summary: Mapping[str, Any] = snapshot.get("summary") or {}
    engine = " ".join(str(summary[name]) for name in ("engine-name", "engine-version") if summary.get(name))
    said = {
        "engine": engine or str(summary.get("iceberg-version") or ""),
        "application": application_of(summary) or str(summary.get("spark.app.name") or ""),
        "user": next((str(summary[name]) for name in _USERS if summary.get(name)), ""),
    }
    return {name: word for name, word in said.items() if word}
