"""What a browser says of a request, and whether the request is taken."""

from __future__ import annotations

import pytest

from icetower.errors import BadRequest
from icetower.gateway.browsers import refusal, require_json

HERE = "127.0.0.1:8181"
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
NOT_TAKEN = False
TAKEN = True

REQUESTS: list[tuple[str, str, dict[str, str], bool]] = [
    ("a program", "POST", {}, TAKEN),
    ("a program that asks for nothing", "GET", {"accept": "*/*"}, TAKEN),
    ("a foreign page", "POST", {"origin": "https://evil.example"}, NOT_TAKEN),
    ("a foreign page that reads", "GET", {"origin": "https://evil.example"}, NOT_TAKEN),
    ("a preflight", "OPTIONS", {"origin": "https://evil.example", "access-control-request-method": "PUT"}, NOT_TAKEN),
    ("a sandboxed frame, a file", "POST", {"origin": "null"}, NOT_TAKEN),
    ("an empty origin", "POST", {"origin": ""}, NOT_TAKEN),
    ("another port of this machine", "POST", {"origin": "http://127.0.0.1:3000"}, NOT_TAKEN),
    ("the same port of another name", "POST", {"origin": "http://localhost:8181"}, NOT_TAKEN),
    ("a name that begins like this one", "POST", {"origin": "http://127.0.0.1:8181.evil.example"}, NOT_TAKEN),
    ("a user named like this one", "POST", {"origin": "http://127.0.0.1:8181@evil.example"}, NOT_TAKEN),
    ("no origin at all", "POST", {"origin": "//127.0.0.1:8181"}, NOT_TAKEN),
    ("a port that is none", "POST", {"origin": "http://127.0.0.1:x"}, NOT_TAKEN),
    ("the tower's own page", "POST", {"origin": "http://127.0.0.1:8181", "sec-fetch-site": "same-origin"}, TAKEN),
    ("a site that is named", "POST", {"origin": "https://console.example", "sec-fetch-site": "cross-site"}, TAKEN),
    ("an image, a form", "GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, NOT_TAKEN),
    ("a form that is sent", "POST", LINK, NOT_TAKEN),
    ("another port, by its site", "POST", {"sec-fetch-site": "same-site"}, NOT_TAKEN),
    ("a frame", "GET", LINK | {"sec-fetch-dest": "iframe"}, NOT_TAKEN),
    ("an object", "GET", LINK | {"sec-fetch-dest": "object"}, NOT_TAKEN),
    ("a link in a mail", "GET", LINK, TAKEN),
    ("a link on a page of this machine", "GET", LINK | {"sec-fetch-site": "same-site"}, TAKEN),
    ("a link with an origin", "GET", LINK | {"origin": "https://evil.example"}, NOT_TAKEN),
    ("an address that was typed", "GET", LINK | {"sec-fetch-site": "none"}, TAKEN),
    ("a site that nobody knows", "GET", {"sec-fetch-site": "of-the-future"}, NOT_TAKEN),
]


@pytest.mark.parametrize(("what", "method", "headers", "taken"), REQUESTS, ids=[row[0] for row in REQUESTS])
def test_which_requests_are_taken(what: str, method: str, headers: dict[str, str], taken: bool) -> None:
    raw = [(b"host", HERE.encode()), *((name.encode(), value.encode()) for name, value in headers.items())]
    refused = refusal(method, raw, ("https://console.example",))
    assert (refused is None) is taken, what
    if refused is not None:
        assert (refused.status, refused.rule) == (403, "request.origin")


def test_an_origin_is_compared_with_the_host_and_its_port() -> None:
    def taken(origin: str, *hosts: str) -> bool:
        headers = [(b"origin", origin.encode()), *((b"host", host.encode()) for host in hosts)]
        return refusal("POST", headers, ()) is None

    assert taken("https://tower.example", "tower.example")
    assert taken("https://tower.example", "TOWER.example:443")
    assert taken("http://tower.example:80", "tower.example")
    assert taken("http://[::1]:8181", "[::1]:8181")
    assert not taken("https://tower.example", "tower.example:80")
    assert not taken("https://tower.example")
    assert not taken("https://tower.example", "tower.example", "evil.example")
    assert not taken("https://tower.example/path", "tower.example")


def test_two_origins_are_both_looked_at() -> None:
    own, foreign = (b"origin", b"http://127.0.0.1:8181"), (b"origin", b"https://evil.example")
    host = (b"host", HERE.encode())
    assert refusal("POST", [host, own, foreign], ()) is not None
    assert refusal("POST", [host, foreign, own], ()) is not None


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", ""])
def test_without_a_credential_a_post_is_json(kind: str) -> None:
    for has_body in (True, False):
        with pytest.raises(BadRequest, match="takes JSON only"):
            require_json("POST", kind, has_body=has_body)


def test_what_says_that_it_is_json_or_has_no_body_is_taken() -> None:
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        require_json("POST", kind, has_body=True)
    require_json("POST", None, has_body=False)
    require_json("GET", "text/plain", has_body=False)
    with pytest.raises(BadRequest):
        require_json("POST", None, has_body=True)
