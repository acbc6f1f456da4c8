"""OAuth2 for clients that bring a credential: client credentials and token exchange (/v1/oauth/tokens)."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import parse_qs, unquote_plus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icetower.ambient import Ambient
from icetower.errors import BadRequest, Forbidden, IcetowerError, NotAuthenticated, TooManyRequests, Unavailable
from icetower.gateway.connection_state import connection_state_of
from icetower.gateway.http import Front, json_response, read_body, retry_after
from icetower.gateway.paths import path_of
from icetower.gateway.token_rates import TokenRates
from icetower.registry.registry import hash_of

BODY_MAX_BYTES = 16 * 1024
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a type, not a token
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - likewise


class OAuthRoutes:
    """The route that gives out tokens."""

    def __init__(self, front: Front, rates: TokenRates) -> None:
        self._front = front
        self._rates = rates

    def routes(self) -> list[Route]:
        return [Route("/v1/oauth/tokens", self._tokens, methods=["POST"])]

    async def _tokens(self, request: Request) -> Response:
        try:
            form = _form(await read_body(request, BODY_MAX_BYTES))
            name, secret = _credential(request, form)
            token, lifetime_s = await self._grant(request, name, secret)
            connection_state_of(request.scope).prove(name or hash_of(secret))
            self._front.intake.unknown_callers.right(token)
        except IcetowerError as error:
            host = None if request.client is None else request.client.host
            self._front.attempts.failed(request.method, path_of(request.scope), error, address=host)
            return _refusal(error, self._front.ambient)
        body = {
            "access_token": token,
            "token_type": "bearer",
            "issued_token_type": ACCESS_TOKEN,
            "expires_in": lifetime_s,
        }
        return json_response(body, headers={"Cache-Control": "no-store"})

    async def _grant(self, request: Request, name: str, secret: str) -> tuple[str, int]:
        rates = self._rates
        address = "" if request.client is None else request.client.host
        with rates.attempt(address, name, secret):
            if not name:  # `credential=SECRET` without a name: the secret speaks for itself
                return await self._front.registry.exchange(secret, allow=rates.allow)
            return await self._front.registry.issue_token(name, secret, allow=rates.allow)


def _credential(request: Request, form: dict[str, str]) -> tuple[str, str]:
    """Whoever asks for a token, and its secret or its token; without a name, that alone."""
    grant = form.get("grant_type")
    if grant == "client_credentials":
        return _client(request, form)
    if grant != TOKEN_EXCHANGE:
        raise BadRequest(
            f"grant_type {grant!r} is not offered; use client_credentials or {TOKEN_EXCHANGE}",
            rule="oauth.unsupported_grant_type",
        )
    # A client that proves itself needs no token that is still good: Java renews an expired one like this.
    name, secret = _basic(request) or ("", form.get("subject_token", ""))
    if not secret:
        raise BadRequest("subject_token is missing", rule="oauth.invalid_request")
    return name, secret


def _client(request: Request, form: dict[str, str]) -> tuple[str, str]:
    """Client id and secret, from the form or from HTTP Basic (RFC 6749, 2.3.1)."""
    basic = None if "client_secret" in form else _basic(request)
    if basic is not None:
        return basic
    if not form.get("client_secret"):
        raise BadRequest("client_secret is missing", rule="oauth.invalid_request")
    return form.get("client_id", ""), form["client_secret"]


def _basic(request: Request) -> tuple[str, str] | None:
    """Client id and secret of HTTP Basic; a credential without a colon is a secret without a name."""
    header = request.headers.get("authorization", "")
    if not header.lower().startswith("basic "):
        return None
    try:
        text = base64.b64decode(header[6:], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise NotAuthenticated("the Basic credential cannot be read") from error
    name, colon, secret = text.partition(":")
    return (unquote_plus(name), unquote_plus(secret)) if colon else ("", unquote_plus(name))


def _form(body: bytes) -> dict[str, str]:
    try:
        parsed = parse_qs(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=32)
    except ValueError as error:
        raise BadRequest("the body is not a form", rule="oauth.invalid_request") from error
    return {name: values[0] for name, values in parsed.items()}


def _refusal(error: IcetowerError, ambient: Ambient) -> Response:
    """An OAuth2 error (RFC 6749, 5.2)."""
    status = error.status
    if isinstance(error, NotAuthenticated):
        code = "invalid_client"
    elif isinstance(error, Forbidden):
        code, status = "unauthorized_client", 400
    elif isinstance(error, TooManyRequests | Unavailable):
        code = "temporarily_unavailable"
    else:
        code = error.rule.removeprefix("oauth.") if error.rule.startswith("oauth.") else "invalid_request"
    return json_response({"error": code, "error_description": error.message}, status, retry_after(error, ambient))
