"""The tower of this machine, for commands without an address or a credential: where it serves, and its token.

The configuration says both: the file that ICETOWER_CONFIG names, or ./icetower.toml. Without one the tower is the one
that `icetower serve` starts in this folder without any option.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from icetower.registry.proof import NONCE_CHARACTERS, PROOF_PATH, is_proof

CONFIG_FILE = "icetower.toml"
CONFIG_VARIABLE = "ICETOWER_CONFIG"
TOKEN_VARIABLE = "ICETOWER_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_URI = "http://127.0.0.1:8181"
DEFAULT_DATA = Path(".icetower")
SECRET_NAME = "admin.token"  # noqa: S105 - the name of a file
PROOF_TIMEOUT_S = 10.0
PROOF_MAX_BYTES = 4096
_LOOPBACK = re.compile(r"https?://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/|$)")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


@dataclass(frozen=True, slots=True)
class OwnTower:
    """Where the tower of this machine serves, and where its administrator's secret is."""

    uri: str
    secret_file: Path


def config_file() -> Path | None:
    """The configuration of this machine's tower; None: there is none, and the defaults hold."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    here = Path(CONFIG_FILE)
    return here if here.exists() else None


def own_tower() -> OwnTower:
    """Raises `ConfigurationError` where the configuration cannot be read."""
    path = config_file()
    if path is None:
        return OwnTower(DEFAULT_URI, DEFAULT_DATA.absolute() / SECRET_NAME)
    from icetower.gateway.settings import load_settings

    server = load_settings(path).server
    return OwnTower(address(server.host, server.port), Path(server.data).absolute() / SECRET_NAME)


def address(host: str, port: int) -> str:
    """The URI by which this machine reaches a server that listens there."""
    host = _EVERYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def token_for(uri: str) -> str | None:
    """ICETOWER_TOKEN; without it, and only for a tower on this machine, the secret in its data directory.

    Any address can be typed, and none but the tower itself may see its administrator's secret: it must prove first that
    it has it (`registry.proof`).
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token:  # one that is empty is not set, as in a pipeline without its secret
        return token
    own = own_tower()
    if not _LOOPBACK.match(uri) and uri.rstrip("/") != own.uri:
        return None
    try:
        secret = own.secret_file.read_text().strip()
    except OSError:
        return None
    return secret if _proves_itself(uri, secret) else None


def _proves_itself(uri: str, secret: str) -> bool:
    """Whether what answers there has the secret already."""
    there = urlsplit(uri)
    if there.scheme != "http" or there.hostname is None:
        return False
    nonce = secrets.token_hex(NONCE_CHARACTERS // 2)
    connection = HTTPConnection(there.hostname, there.port or 80, timeout=PROOF_TIMEOUT_S)
    try:
        connection.connect()
        host, port = connection.sock.getpeername()[:2]
        connection.request("GET", f"{PROOF_PATH}?nonce={nonce}")
        answer = json.loads(connection.getresponse().read(PROOF_MAX_BYTES))
        return is_proof(str(answer["proof"]), secret, nonce, host, port)
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return False
    finally:
        connection.close()


def where_tokens_come_from() -> str:
    """For somebody who was refused for want of a credential: which were looked for, and what was found."""
    if os.environ.get(TOKEN_VARIABLE):
        return f"the token was taken from {TOKEN_VARIABLE}"
    file = own_tower().secret_file
    try:
        with file.open("rb"):
            found = "was read, and is sent only to the tower of this machine, which proves that it has it"
    except FileNotFoundError:
        found = "does not exist"
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
    return (
        f"set {TOKEN_VARIABLE} to a principal's token, or run this on the tower's machine in the folder of its "
        f"{CONFIG_FILE} (or with {CONFIG_VARIABLE}): {file} {found}"
    )
