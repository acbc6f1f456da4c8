"""Why a server could not be reached, as a message with the next step."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator

import httpx2

CAUSES_MAX = 10


def without_password(uri: str) -> str:
    """An address without its password, to be shown."""
    return re.sub(r"//[^/@\s]*@", "//", uri)


def unreachable(what: str, uri: str, error: BaseException) -> str:
    """The message about a server that did not answer: its address, the cause, and what to do."""
    return f"no {what} answers at {without_password(uri)}: {cause_of(error)}"


def cause_of(error: BaseException) -> str:
    """Why a request over the network failed."""
    for each in _chain(error):
        found = _known(each)
        if found is not None:
            return found
    return f"{type(error).__name__}; check the address, and that the server runs"


def is_refused(error: BaseException) -> bool:
    """Whether nothing listens at the address."""
    return any(isinstance(each, ConnectionRefusedError) for each in _chain(error))


def _known(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}); name the certificates to trust in "
            "SSL_CERT_FILE, and check the host name in the address"
        )
    if isinstance(error, ssl.SSLError):
        return "it does not use TLS there, or another version of it; check https:// and the port in the address"
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved; check its spelling, and the name server"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused; check host and port, and that the server runs"
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return "there was no answer within the time limit; check the network, and the server's load"
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return "this is not an address; write it like http://127.0.0.1:8181"
    if isinstance(error, httpx2.LocalProtocolError | UnicodeError):
        return "the request cannot be sent; look for invalid characters in the token (ICETOWER_TOKEN) and the address"
    if isinstance(error, httpx2.RemoteProtocolError) and "disconnected" in str(error):
        return "it closed the connection without an answer; look whether it still runs, and try again"
    if isinstance(error, httpx2.RemoteProtocolError):
        return "its answer is not HTTP; check http:// or https:// and the port in the address"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror.lower()}; check the address and the network"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the root first."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in found and len(found) < CAUSES_MAX:
        found.append(at)
        at = at.__cause__ or at.__context__
    return reversed(found)
