"""OAuth2 for clients that bring a credential: client credentials and token exchange (/v1/oauth/tokens)."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import parse_qs, unquote_plus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icetower.errors import BadRequest, IcetowerError, NotAuthenticated, Unavailable
from icetower.gateway.http import json_response, read_body
from icetower.gateway.tower import Tower

BODY_MAX_BYTES = 16 * 1024
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a type, not a token
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - likewise


def routes(tower: Tower) -> list[Route]:
    async def tokens(request: Request) -> Response:
        try:
            form = _form(await read_body(request, BODY_MAX_BYTES))
            token, lifetime_s = await _grant(tower, request, form)
        except IcetowerError as error:
            return _refusal(error)
        body = {
            "access_token": token,
            "token_type": "bearer",
            "issued_token_type": ACCESS_TOKEN,
            "expires_in": lifetime_s,
        }
        return json_response(body, headers={"Cache-Control": "no-store"})

    return [Route("/v1/oauth/tokens", tokens, methods=["POST"])]


async def _grant(tower: Tower, request: Request, form: dict[str, str]) -> tuple[str, int]:
    grant = form.get("grant_type")
    if grant == "client_credentials":
        name, secret = _client(request, form)
        if not name:  # `credential=SECRET` without a name: the secret speaks for itself
            return await tower.registry.exchange(secret)
        return await tower.registry.issue_token(name, secret)
    if grant == TOKEN_EXCHANGE:
        subject = form.get("subject_token")
        if not subject:
            raise BadRequest("subject_token is missing", rule="oauth.invalid_request")
        return await tower.registry.exchange(subject)
    raise BadRequest(
        f"grant_type {grant!r} is not offered; use client_credentials or {TOKEN_EXCHANGE}",
        rule="oauth.unsupported_grant_type",
    )


def _client(request: Request, form: dict[str, str]) -> tuple[str, str]:
    """Client id and secret, from the form or from HTTP Basic (RFC 6749, 2.3.1)."""
    header = request.headers.get("authorization", "")
    if "client_secret" not in form and header.lower().startswith("basic "):
        try:
            name, _, secret = base64.b64decode(header[6:], validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise NotAuthenticated("the Basic credential cannot be read") from error
        return unquote_plus(name), unquote_plus(secret)
    if not form.get("client_secret"):
        raise BadRequest("client_secret is missing", rule="oauth.invalid_request")
    return form.get("client_id", ""), form["client_secret"]


def _form(body: bytes) -> dict[str, str]:
    try:
        parsed = parse_qs(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=32)
    except ValueError as error:
        raise BadRequest("the body is not a form", rule="oauth.invalid_request") from error
    return {name: values[0] for name, values in parsed.items()}


def _refusal(error: IcetowerError) -> Response:
    """An OAuth2 error (RFC 6749, 5.2)."""
    if isinstance(error, NotAuthenticated):
        code = "invalid_client"
    elif isinstance(error, Unavailable):
        code = "temporarily_unavailable"
    else:
        code = error.rule.removeprefix("oauth.") if error.rule.startswith("oauth.") else "invalid_request"
    return json_response({"error": code, "error_description": error.message}, error.status)
