"""Paths whose names hold slashes: `/v1/namespaces/a%2Fb` is the namespace `a/b`, and not `b` below `a`.

The server decodes a path before routes see it, and a decoded slash looks like one that separates. So an encoded slash
is passed on as a character that no name can have, and becomes a slash again when a route has been found.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.routing import Match, Route
from starlette.types import Scope

from icetower.errors import BadRequest

_SLASH_IN_A_NAME = "\x00"


def settle_path(scope: Scope) -> BadRequest | None:
    """Mark encoded slashes in a request's path. What is returned is the refusal of a path or query with a NUL."""
    raw: bytes = scope.get("raw_path") or b""
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        return BadRequest("the path or the query holds a NUL character (%00); no name has one", rule="request.path")
    if b"%2f" in raw.lower():
        text = raw.partition(b"?")[0].decode("latin-1")
        scope["path"] = "/".join(unquote(segment).replace("/", _SLASH_IN_A_NAME) for segment in text.split("/"))
    return None


def path_of(scope: Scope) -> str:
    """A request's path as it is logged, kept and shown: what was asked for, and not the host that the caller names."""
    return str(scope["path"]).replace(_SLASH_IN_A_NAME, "%2F")


class NamedRoute(Route):
    """A route whose parameters are names, slashes included."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is not Match.NONE and _SLASH_IN_A_NAME in scope["path"]:
            parameters = found["path_params"]
            found["path_params"] = {name: text.replace(_SLASH_IN_A_NAME, "/") for name, text in parameters.items()}
        return match, found
