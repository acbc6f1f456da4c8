"""Which token a request brings by a cookie."""

from __future__ import annotations

import http.cookies
from typing import Any

import pytest

from icetower.gateway.page_cookies import HEADER_BYTES_MAX, SECURE_SESSION, SESSION, cookie_of, session_of


def scope(*cookies: str, path: str = "/ui/tables") -> dict[str, Any]:
    return {"path": path, "headers": [(b"cookie", each.encode("latin-1")) for each in cookies]}


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        ((), None),
        (("icetower-session=abc",), "abc"),
        (("theme=dark; icetower-session=a.b=c; other",), "a.b=c"),
        (("icetower-session=abc", "__Host-icetower-session=def"), "def"),
        (("icetower-session=abc; __Host-icetower-session=",), "abc"),
        (("icetower-session=first; icetower-session=last",), "last"),
        (("xicetower-session=abc",), None),
        (("icetower-session",), None),
        ((";;; = ;\xff=\xfe; icetower-session=abc",), "abc"),
        (('icetower-session="abc"',), '"abc"'),
        (("icetower-session=" + "a" * HEADER_BYTES_MAX,), None),
    ],
)
def test_the_cookie_that_counts(cookies: tuple[str, ...], found: str | None) -> None:
    assert cookie_of(scope(*cookies), SECURE_SESSION, SESSION) == found


def test_a_cookie_counts_on_the_page_alone() -> None:
    assert session_of(scope("icetower-session=abc")) == "abc"
    assert session_of(scope("icetower-session=abc", path="/v1/config")) is None


def test_nothing_is_unquoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2024-7592: it would take the event loop a tenth of a second for each request of anybody."""

    def refuse(*_: object) -> None:
        raise AssertionError("a cookie was unquoted")

    monkeypatch.setattr(http.cookies, "_unquote", refuse)
    quoted = '"' + '\\"' * 4080 + '"'
    assert cookie_of(scope(f"icetower-session={quoted}"), SESSION) == quoted
