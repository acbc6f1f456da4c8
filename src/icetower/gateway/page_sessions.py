"""Who looks at the page: signing in and out, and the tokens that forms carry.

Somebody signs in with the credential of a principal, by the code that gives out tokens to programs: wrong guesses are
bounded in the same buckets, and what the browser gets is such a token. So a session ends when its token does: when no
page is asked for during `server.token_ttl_s`, `server.token_renewal_max_s` after signing in however busy it is, when
the principal or its contract is revoked, when its secret is replaced, and when it signs out. Nothing of it is stored
but the token's hash, in the registry.

Pages and forms renew a session; live parts of a page do not, for they go on when nobody is there. The token stays the
same: another one would make worthless all forms that are open.

A form carries a code that is made from the session's token and the form's address: no other site knows it, and one that
was read in one session is wrong in another. A POST must say besides, in a header that pages cannot set, that it comes
from this very page.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request

from icetower.errors import BadRequest, Forbidden, IcetowerError, NotAuthenticated, without_frames
from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.http import Front, read_body
from icetower.gateway.page_cookies import (
    FORM,
    SECURE_FORM,
    SECURE_SESSION,
    SESSION,
    cookie_of,
    session_of,
    set_cookie,
)
from icetower.gateway.settings import LOOPBACK
from icetower.gateway.token_rates import TokenRates
from icetower.registry.principals import Principal, administrator
from icetower.registry.registry import RESERVED_NAME, TOKEN_PREFIX
from icetower.registry.tokens import contract_revoked, not_authenticated

FORM_MAX_BYTES = 32 * 1024
FIELDS_MAX = 16
CODE = "code"
"""The field of a form that holds its code."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who has signed in.

    Attributes:
        key: what the codes of its forms are made from.
        by_session: it has a session, which it may end.
    """

    principal: Principal
    key: str
    by_session: bool

    @property
    def own(self) -> str | None:
        """Whose attempts, tickets and metrics it sees; None: everybody's."""
        return None if self.principal.sees_all else self.principal.name

    def code(self, address: str) -> str:
        """The code of the form that is sent to an address."""
        return code_of(self.key, address)


def code_of(key: str, address: str) -> str:
    return hmac.new(key.encode(), f"form\n{address}".encode(), hashlib.sha256).hexdigest()


class Sessions:
    """One for a tower."""

    def __init__(self, front: Front, rates: TokenRates) -> None:
        self._front = front
        self._rates = rates
        self._open_key = front.ambient.secret()
        """For forms of a tower that is open: there are no sessions then."""

    async def visitor(self, request: Request) -> Visitor:
        """Who has sent a request.

        Raises:
            NotAuthenticated: nobody who has signed in, or the session has ended.
            Forbidden: its contract is revoked.
        """
        front, token = self._front, session_of(request.scope)
        if token is None:
            # The name in the request must be loopback's, too: a page in a browser can make another name resolve to it.
            if front.open_to_all and request.url.hostname in LOOPBACK:
                return Visitor(administrator(RESERVED_NAME), self._open_key, by_session=False)
            raise NotAuthenticated("nobody has signed in")
        try:
            if not token.startswith(TOKEN_PREFIX):  # a secret lives for longer than any session may
                raise not_authenticated()
            principal = await front.registry.authenticate(token)
        except NotAuthenticated:
            front.intake.unknown_callers.wrong(token)
            raise
        front.intake.unknown_callers.right(token)
        connection_state_of(request.scope).prove(principal.name)
        if principal.revoked:
            raise contract_revoked(f"contract {principal.contract.name} of {principal.name}")
        return Visitor(principal, token, by_session=True)

    async def form(self, request: Request, key: str) -> Mapping[str, str]:
        """The fields of a form that this page has sent to where it was made for.

        Raises:
            Forbidden: it comes from elsewhere, or is of another session (``request.origin``, ``page.form``).
            BadRequest, BodyTooLarge: it is no form, or too long.
        """
        require_own_page(request)
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
            raise BadRequest("the page sends forms only", rule="request.content-type")
        body = await read_body(request, FORM_MAX_BYTES)
        try:
            given = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError as error:
            raise BadRequest("the body is not a form", rule="request") from error
        fields = {name: values[0] for name, values in given.items()}
        if not hmac.compare_digest(
            fields.get(CODE, "").encode("utf-8", "surrogatepass"), code_of(key, request.url.path).encode()
        ):
            raise Forbidden(
                "the form is of another session, or too old; nothing was done. Open the page again",
                rule="page.form",
                next_step="retry",
            )
        return fields

    # ── Signing in and out ───────────────────────────────────────────────────────────────────────────────────────

    def form_key(self, request: Request) -> str | None:
        """What the form for signing in is bound to, of a browser that has it."""
        return cookie_of(request.scope, SECURE_FORM, FORM)

    def new_form_key(self) -> str:
        return self._front.ambient.secret()

    async def sign_in(self, request: Request, name: str, secret: str) -> list[str]:
        """The cookies of a new session. Raises `NotAuthenticated`, `Forbidden`, `TooManyRequests`."""
        if not secret:
            raise not_authenticated()
        address = "" if request.client is None else request.client.host
        registry, rates = self._front.registry, self._rates
        with rates.attempt(address, name, secret):
            if name:
                token, good_s = await registry.issue_token(name, secret, allow=rates.allow)
            else:  # the secret speaks for itself, as with OAuth
                token, good_s = await registry.exchange(secret, allow=rates.allow)
        self._front.intake.unknown_callers.right(token)
        secure = by_tls(request)
        own, form = (SECURE_SESSION, SECURE_FORM) if secure else (SESSION, FORM)
        return [
            set_cookie(own, token, secure=secure, max_age_s=good_s),
            set_cookie(form, "", secure=secure, max_age_s=0),
        ]

    async def renewed(self, request: Request, visitor: Visitor) -> list[str]:
        """The cookie of a session that now ends later; none where it ends when it did.

        A registry that cannot be written to ends no session before its time, and fails no page.
        """
        good_s = None
        if visitor.by_session:
            try:
                good_s = await self._front.registry.renew(visitor.key)
            except IcetowerError as error:
                without_frames(error)
        if good_s is None:
            return []
        secure = cookie_of(request.scope, SECURE_SESSION) == visitor.key
        name = SECURE_SESSION if secure else SESSION
        return [set_cookie(name, visitor.key, secure=secure, max_age_s=good_s)]

    async def sign_out(self, visitor: Visitor) -> list[str]:
        """End a session: its token is good for nothing more. The cookies that make the browser forget it."""
        if visitor.by_session:
            await self._front.registry.end_token(visitor.key)
            self._front.intake.unknown_callers.wrong(visitor.key)
        return forgetting()


def forgetting() -> list[str]:
    """The cookies that end what a browser holds of a session."""
    return [
        set_cookie(SESSION, "", secure=False, max_age_s=0),
        set_cookie(SECURE_SESSION, "", secure=True, max_age_s=0),
    ]


def by_tls(request: Request) -> bool:
    """Whether the browser reached the page by TLS, which a proxy may have taken off: the origin of its page says so."""
    return urlsplit(request.headers.get("origin", "")).scheme == "https" or request.url.scheme == "https"


def require_own_page(request: Request) -> None:
    """Raises `Forbidden` unless a browser says that a page of this tower has sent the request.

    Pages of others were refused before (`browsers`). Here a request that says nothing is refused, too.
    """
    if request.headers.get("origin") is None and request.headers.get("sec-fetch-site") != "same-origin":
        raise Forbidden(
            "the page takes forms only of a browser that says where they come from; programs use the control API",
            rule="request.origin",
            next_step="fix_request",
        )
