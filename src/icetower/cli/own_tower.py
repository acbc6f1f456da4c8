"""The address and token of this machine's tower, for commands without an address or a credential.

Both come from the configuration: the file in ICETOWER_CONFIG, or ./icetower.toml. Without a configuration, they are
those of the tower that `icetower serve` starts in this folder without options.
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
URI_VARIABLE = "ICETOWER_URI"
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
    """The address of this machine's tower, and the file with its administrator's secret."""

    uri: str
    secret_file: Path


def config_file() -> Path | None:
    """The configuration of this machine's tower; None: there is none, and the defaults apply."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    here = Path(CONFIG_FILE)
    return here if here.exists() else None


def config_file_above() -> Path | None:
    """A configuration in a folder above, where this one has none: it is not taken, and whoever types may think so."""
    if config_file() is not None:
        return None
    return next((folder / CONFIG_FILE for folder in Path.cwd().parents if (folder / CONFIG_FILE).is_file()), None)


def own_tower() -> OwnTower:
    """This machine's tower. Raises `ConfigurationError` if the configuration cannot be read."""
    path = config_file()
    if path is None:
        return OwnTower(DEFAULT_URI, DEFAULT_DATA.absolute() / SECRET_NAME)
    from icetower.gateway.settings import load_settings

    server = load_settings(path).server
    return OwnTower(address(server.host, server.port), Path(server.data).absolute() / SECRET_NAME)


def address(host: str, port: int) -> str:
    """The URI at which this machine reaches a server that listens there."""
    host = _EVERYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def token_for(uri: str, *, within_s: float = PROOF_TIMEOUT_S) -> str | None:
    """ICETOWER_TOKEN; without it, and only for a tower on this machine, the secret in its data directory.

    A user can type any address, but only the tower itself may see its administrator's secret: so it must first prove
    that it already has the secret (`registry.proof`).

    Args:
        within_s: so long the proof may take, in seconds.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token:  # an empty one counts as not set, as in a pipeline without its secret
        return token
    own = own_tower()
    if not _LOOPBACK.match(uri) and uri.rstrip("/") != own.uri:
        return None
    try:
        secret = own.secret_file.read_text().strip()
    except OSError:
        return None
    return secret if _proves_itself(uri, secret, within_s) else None


def _proves_itself(uri: str, secret: str, within_s: float) -> bool:
    """Whether the server at an address already has the secret."""
    there = urlsplit(uri)
    if there.scheme != "http" or there.hostname is None:
        return False
    nonce = secrets.token_hex(NONCE_CHARACTERS // 2)
    connection = HTTPConnection(there.hostname, there.port or 80, timeout=within_s)
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
    """The explanation for a caller without a valid credential: where tokens are searched, and what was found."""
    if os.environ.get(TOKEN_VARIABLE):
        return f"the token was taken from {TOKEN_VARIABLE}"
    file = own_tower().secret_file
    try:
        with file.open("rb"):
            found = "was read, and is sent only to this machine's tower, which must prove that it has the same secret"
    except FileNotFoundError:
        found = "does not exist"
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
    return (
        f"set {TOKEN_VARIABLE} to a principal's token, or run this on the tower's machine in the folder of its "
        f"{CONFIG_FILE} (or with {CONFIG_VARIABLE}): {file} {found}"
    )
