"""Requests that a page in somebody's browser sends for another site: refused on every route, before the body is read.

A page may have a browser send a form, or a POST of plain text, to any address that the browser reaches, loopback and
private networks included. The page does not see the answer, but the request has been done: with `--open`, by an
administrator. Browsers say so in two headers that a page cannot change, and clients that are no browsers send neither.

Sources: Fetch Metadata Request Headers (W3C), "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"; the Fetch standard
(WHATWG), "Origin header", "CORS-safelisted request-header"; RFC 6454, 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from icetower.errors import BadRequest, Forbidden, IcetowerError

_ORIGIN, _SITE, _MODE, _DESTINATION, _HOST = b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"host"
_WATCHED = frozenset({_ORIGIN, _SITE})
_OWN = frozenset({b"same-origin", b"none"})
"""`none`: a person typed the address. Pages of other ports of this machine are `same-site`: they are foreign."""
_PORTS = {"http": 80, "https": 443}

Headers = Iterable[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""


def refusal(method: str, headers: Headers, origins: Collection[str]) -> IcetowerError | None:
    """Why a request is not taken from the page that it comes from; None: it comes from no foreign page.

    Following a link to the tower is let in: the browser shows the answer, and the page that had the link does not.

    Args:
        origins: of other sites whose pages may call, such as ``https://console.example.com``.
    """
    headers = list(headers)
    if not any(name in _WATCHED for name, _ in headers):
        return None
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value.strip())
    given = [value.decode("latin-1") for value in found.get(_ORIGIN, ())]
    if given and all(origin in origins for origin in given):
        return None
    foreign = next((origin for origin in given if not _is_own(origin, found.get(_HOST, []))), None)
    if foreign is not None:
        return _refused(f"the page of {foreign[:200]!r}")
    if all(site.lower() in _OWN for site in found.get(_SITE, ())) or _follows_a_link(method, found):
        return None
    return _refused("a page of another site")


def _is_own(origin: str, hosts: list[bytes]) -> bool:
    """Whether an origin is this very tower's, as the request addresses it. A proxy may have taken the TLS off."""
    if len(hosts) != 1:
        return False
    try:
        page, here = urlsplit(origin), urlsplit(f"//{hosts[0].decode('latin-1')}")
        default = _PORTS.get(page.scheme)
        if default is None or not page.hostname or page.path or page.username is not None:
            return False
        return (page.hostname, page.port or default) == (here.hostname, here.port or default)
    except ValueError:
        return False


def _follows_a_link(method: str, found: dict[bytes, list[bytes]]) -> bool:
    # A frame, an image or a script on a page is no link that a person has followed.
    return (
        method in ("GET", "HEAD")
        and found.get(_MODE) == [b"navigate"]
        and found.get(_DESTINATION) == [b"document"]
        and _ORIGIN not in found
    )


def _refused(whom: str) -> Forbidden:
    return Forbidden(
        f"a browser sent this request for {whom}, and the tower takes none from other sites; send it from a program, "
        "or name the site in the tower's configuration (server.origins)",
        rule="request.origin",
        next_step="fix_request",
    )


def require_json(method: str, content_type: str | None, *, has_body: bool) -> None:
    """Of a caller without a credential: a POST that any page could send is not taken, whatever its headers say.

    Older browsers send neither header with some requests. A page can have none of them send JSON as such.

    Raises `BadRequest`.
    """
    if method != "POST" or (content_type is None and not has_body):
        return
    if content_type is None or content_type.split(";")[0].strip().lower() != "application/json":
        raise BadRequest(
            f"without a credential the tower takes JSON only, and the request says {content_type or 'nothing'}; send "
            "'Content-Type: application/json'",
            rule="request.content-type",
        )
