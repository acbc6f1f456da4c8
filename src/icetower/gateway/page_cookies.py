"""The cookies of the page: which there are, and which token a request brings by one.

A session is an access token of the registry, held by the browser in a cookie that scripts cannot read and that other
sites do not cause to be sent. It counts on the page alone: no route of the protocol or of the control API reads it.
"""

from __future__ import annotations

from starlette.types import Scope

SESSION, SECURE_SESSION = "icetower-session", "__Host-icetower-session"
"""Where the page is reached by TLS, the browser holds the cookie to this host and to TLS (RFC 6265bis, 4.1.3.2)."""
FORM, SECURE_FORM = "icetower-form", "__Host-icetower-form"
"""What the form for signing in is bound to."""
HEADER_BYTES_MAX = 8 * 1024
ROOT, BELOW = "/", "/ui/"


def is_page(path: str) -> bool:
    """Whether a path belongs to the page."""
    return path == ROOT or path.startswith(BELOW)


def cookie_of(scope: Scope, *names: str) -> str | None:
    """The value of the first of these cookies that a request brings.

    Ours are never quoted, and what somebody else quotes is not unquoted: Python's own cookies take a time for it that
    grows with the square of its length (CVE-2024-7592), and anybody can send one.

    Source: RFC 6265, 4.2.1.
    """
    given = b"; ".join(value for name, value in scope["headers"] if name == b"cookie")
    if not given or len(given) > HEADER_BYTES_MAX:
        return None
    pairs = (pair.partition("=") for pair in given.decode("latin-1").split(";"))
    found = {name.strip(): value.strip() for name, _, value in pairs}
    return next((found[name] for name in names if found.get(name)), None)


def session_of(scope: Scope) -> str | None:
    """The token of a session, of a request for the page."""
    return cookie_of(scope, SECURE_SESSION, SESSION) if is_page(scope["path"]) else None


def set_cookie(name: str, value: str, *, secure: bool, max_age_s: int | None = None) -> str:
    """A header `Set-Cookie`. With `max_age_s` 0 the browser forgets it; None: when it is closed."""
    age = "" if max_age_s is None else f"; Max-Age={max_age_s}"
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}{age}"
