"""From the grants that are to be and those that are to the requests of Polaris's management API between them. Pure.

Requests take away before they give, and a principal gets its role last: wherever the row of them ends, nobody holds
more than before or more than the contracts say. Each is harmless when sent again, so a plan that was cut short is made
anew from what is there then.

Only what carries the property `managed-by: icetower` is taken from; roles of others that are in the way are an error.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from icetower.contracts.grants import Grants, Role
from icetower.errors import Conflict

JSON = Mapping[str, Any]

MANAGED_BY = ("managed-by", "icetower")
CONTRACT_PROPERTY = "icetower.contract"
ATTEMPT_PROPERTY = "icetower.attempt"


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        path: under ``/api/management/v1``, percent-encoded.
        why: what it does, in words.
        takes: it takes something away; where that is gone already, it is done.
        waits: what it grants on may have to be created first.
        creates_principal, resets_principal: the one whose credentials are in the answer.
    """

    method: str
    path: str
    why: str
    body: JSON | None = None
    takes: bool = False
    waits: bool = False
    creates_principal: str | None = None
    resets_principal: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """What the properties of a role or principal say of where it comes from."""

    managed: bool = False
    contract: str | None = None
    attempt: str | None = None

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Mark:
        key, value = MANAGED_BY
        return cls(properties.get(key) == value, properties.get(CONTRACT_PROPERTY), properties.get(ATTEMPT_PROPERTY))


@dataclass(frozen=True, slots=True)
class Found:
    """What is in Polaris, as far as it concerns the roles that are to be; by default nothing.

    Attributes:
        catalog_roles: those of the catalog.
        grants: of a catalog role, as Polaris lists them.
        held_by: the principal roles that a catalog role is assigned to.
        holds: the catalog roles of this catalog that a principal role has.
        members: the principals of a principal role.
        roles_of: the principal roles of a principal.
    """

    catalog_roles: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    principal_roles: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    principals: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    grants: Mapping[str, tuple[JSON, ...]] = field(default_factory=dict[str, tuple[JSON, ...]])
    held_by: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    holds: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    members: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    roles_of: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])


def path(*segments: str) -> str:
    """A path of the management API."""
    return "".join("/" + quote(segment, safe="") for segment in segments)


def requests_for(
    grants: Grants,
    found: Found,
    *,
    attempt: str = "",
    unanswered: Mapping[str, str] | None = None,
    prune: bool = False,
) -> tuple[Request, ...]:
    """What is to be sent, in this order, so that `grants` are in force.

    Args:
        attempt: marks the principals that these requests create.
        unanswered: principal → the attempt that asked for it and never saw the answer, and with it the credentials.
        prune: `grants` are all that there are to be: catalog roles of other contracts end.

    Raises:
        Conflict: a role or principal of somebody else is in the way.
    """
    given = {role.contract for role in grants.roles}
    wanted = {role.name for role in grants.roles}
    ended = {
        name: mark
        for name, mark in sorted(found.catalog_roles.items())
        if mark.managed and (name not in wanted if mark.contract in given else prune)
    }
    found = _without(found, ended)
    for role in grants.roles:
        _refuse_foreign(grants, found, role)
    pending = {
        name for name, attempt in (unanswered or {}).items() if found.principals.get(name, Mark()).attempt == attempt
    }
    return (
        *(_deletion(grants.catalog, name, mark) for name, mark in ended.items()),
        *_unassigned(grants, found),
        *(request for role in grants.roles for request in _taken(grants.catalog, found, role)),
        *(request for role in grants.roles for request in _given(grants.catalog, found, role)),
        *(request for role in grants.roles for request in _bound(found, role, attempt, pending)),
    )


def left_alone(grants: Grants, found: Found) -> Mapping[str, str]:
    """Catalog role → contract of the managed roles in the catalog that belong to contracts not given."""
    given = {role.contract for role in grants.roles}
    return {
        name: mark.contract or "unknown"
        for name, mark in sorted(found.catalog_roles.items())
        if mark.managed and mark.contract not in given
    }


def _refuse_foreign(grants: Grants, found: Found, role: Role) -> None:
    kinds = (
        (f"catalog role of {grants.catalog}", found.catalog_roles.get(role.name)),
        ("principal role", found.principal_roles.get(role.name)),
    )
    for kind, mark in kinds:
        if mark is not None and not mark.managed:
            raise Conflict(
                f"there is a {kind} named {role.name} that Icetower did not make; rename it, rename the agent "
                f"{role.contract}, or give it the property {'='.join(MANAGED_BY)}: then Icetower takes from it all "
                "that the contract does not grant",
                rule="grants.role",
                next_step="ask_owner",
            )
    mark = found.catalog_roles.get(role.name)
    if mark is not None and mark.contract not in (None, role.contract):
        raise Conflict(
            f"the catalog role {role.name} stands for the contract {mark.contract}, not for {role.contract}; rename "
            "one of the two agents, or, if that contract is no more, let --prune end its role first",
            rule="grants.role",
            next_step="ask_owner",
        )
    for principal in role.principals:
        others = found.roles_of.get(principal, frozenset()) - {role.name}
        foreign = sorted(name for name in others if not found.principal_roles.get(name, Mark()).managed)
        if foreign:
            raise Conflict(
                f"principal {principal} already has {', '.join(foreign)}, which Icetower does not manage; each "
                "principal has exactly one role, so take that away, or bind another principal",
                rule="grants.principal",
                next_step="ask_owner",
            )


def _without(found: Found, catalog_roles: Container[str]) -> Found:
    """What is there when these catalog roles, and so all that hangs on them, are gone."""
    return replace(
        found,
        catalog_roles={name: mark for name, mark in found.catalog_roles.items() if name not in catalog_roles},
        grants={name: grants for name, grants in found.grants.items() if name not in catalog_roles},
        held_by={name: holders for name, holders in found.held_by.items() if name not in catalog_roles},
        holds={
            name: frozenset(role for role in roles if role not in catalog_roles) for name, roles in found.holds.items()
        },
    )


def _deletion(catalog: str, name: str, mark: Mark) -> Request:
    """Of a catalog role whose contract is not given any more, or has another role now."""
    return Request(
        "DELETE",
        path("catalogs", catalog, "catalog-roles", name),
        f"delete the catalog role {name} of the contract {mark.contract}, and with it its grants",
        takes=True,
    )


def _unassigned(grants: Grants, found: Found) -> Iterator[Request]:
    """Principal roles taken from principals: by the role, who is not bound to it; by the principal, its other roles."""
    bound = {principal: role.name for role in grants.roles for principal in role.principals}
    pairs = {
        (principal, role.name)
        for role in grants.roles
        for principal in found.members.get(role.name, ())
        if bound.get(principal) != role.name
    } | {
        (principal, other)
        for principal, role in bound.items()
        for other in found.roles_of.get(principal, ())
        if other != role
    }
    for principal, role in sorted(pairs):
        yield Request(
            "DELETE",
            path("principals", principal, "principal-roles", role),
            f"take the principal role {role} from the principal {principal}",
            takes=True,
        )


def _taken(catalog: str, found: Found, role: Role) -> Iterator[Request]:
    """What the role has and its contract does not give."""
    others = {(other, role.name) for other in found.held_by.get(role.name, ()) if other != role.name}
    others |= {(role.name, other) for other in found.holds.get(role.name, ()) if other != role.name}
    for principal_role, catalog_role in sorted(others):
        yield Request(
            "DELETE",
            path("principal-roles", principal_role, "catalog-roles", catalog, catalog_role),
            f"take the catalog role {catalog_role} from the principal role {principal_role}",
            takes=True,
        )
    wanted = {_key(grant.body()) for grant in role.grants}
    for body in found.grants.get(role.name, ()):
        if _key(body) not in wanted:
            yield Request(
                "POST",
                path("catalogs", catalog, "catalog-roles", role.name, "grants"),
                f"take {_described(body)} from {role.name}",
                {"grant": body},
                takes=True,
            )


def _given(catalog: str, found: Found, role: Role) -> Iterator[Request]:
    properties = dict([MANAGED_BY]) | {CONTRACT_PROPERTY: role.contract}
    if role.name not in found.catalog_roles:
        yield Request(
            "POST",
            path("catalogs", catalog, "catalog-roles"),
            f"create the catalog role {role.name}",
            {"catalogRole": {"name": role.name, "properties": properties}},
        )
    if role.name not in found.principal_roles:
        yield Request(
            "POST",
            path("principal-roles"),
            f"create the principal role {role.name}",
            {"principalRole": {"name": role.name, "properties": properties}},
        )
    if role.name not in found.holds.get(role.name, ()):
        yield Request(
            "PUT",
            path("principal-roles", role.name, "catalog-roles", catalog),
            f"assign the catalog role {role.name} to the principal role {role.name}",
            {"catalogRole": {"name": role.name}},
        )
    there = {_key(body) for body in found.grants.get(role.name, ())}
    for grant in role.grants:
        if _key(grant.body()) not in there:
            yield Request(
                "PUT",
                path("catalogs", catalog, "catalog-roles", role.name, "grants"),
                f"grant {grant.privilege} on {grant.securable} to {role.name}",
                {"grant": grant.body()},
                waits=bool(grant.securable.namespace),
            )


def _bound(found: Found, role: Role, attempt: str, pending: Iterable[str]) -> Iterator[Request]:
    for principal in role.principals:
        if principal not in found.principals:
            properties = dict([MANAGED_BY]) | {ATTEMPT_PROPERTY: attempt}
            yield Request(
                "POST",
                path("principals"),
                f"create the principal {principal}",
                {"principal": {"name": principal, "properties": properties}, "credentialRotationRequired": False},
                creates_principal=principal,
            )
        elif principal in pending:
            yield Request(
                "POST",
                path("principals", principal, "reset"),
                f"reset the credentials of {principal}: it was created, but the answer with them was lost",
                {},
                resets_principal=principal,
            )
        if role.name not in found.roles_of.get(principal, ()):
            yield Request(
                "PUT",
                path("principals", principal, "principal-roles"),
                f"assign the principal role {role.name} to the principal {principal}",
                {"principalRole": {"name": role.name}},
            )


def _key(grant: JSON) -> str:
    """Two grants are the same where these are."""
    return json.dumps({name: value for name, value in grant.items() if value is not None}, sort_keys=True)


def _described(grant: JSON) -> str:
    """A grant as Polaris lists it, of whatever kind, in words."""
    names = [*grant.get("namespace", ()), *(value for key, value in grant.items() if key.endswith("Name"))]
    where = f" {'.'.join(map(str, names))}" if names else ""
    return f"{grant.get('privilege')} on {grant.get('type')}{where}"
