"""Takes secrets out of texts: those that are known on this machine, and whatever looks like one; pure.

A support bundle is read by others. So what is known to be a secret is replaced wherever it stands and however it is
written (in a URL, in Base64), and then whatever stands where secrets stand: after `Bearer`, in a URL before `@`, as the
value of a name such as `password`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

HIDDEN = "[hidden]"
KNOWN_CHARACTERS_MIN = 4
"""Shorter secrets would be found in the middle of words; where they stand as values they are hidden even so."""

SECRET_NAME = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|signature|auth|cookie|session|private|access[._-]?key|account[._-]?key|"
    r"api[._-]?key|sas[._-]|connection[._-]?string|webhook|\bkey\b|[._-]key$|^key$",
    re.IGNORECASE,
)
"""Names whose values are secrets, of variables, settings, headers and parameters."""

_NAMED = (
    r"[\w.-]*(?:secret|passw|passphrase|\bpass\b|pwd|token|credential|signature|authorization|cookie|api[._-]?key|access[._-]?key|"
    r"account[._-]?key|connection[._-]?string|private[._-]?key)[\w.-]*"
)
_SHAPES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"(?i)((?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?)[^\r\n'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)((?:set-)?cookie['\"]?\s*[:=]\s*['\"]?)[^\r\n'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic|negotiate)\s+[\w.~+/=%:-]+"), rf"\1 {HIDDEN}"),
    (re.compile(r"(://)[^/\s'\"]*@"), rf"\1{HIDDEN}@"),
    (re.compile(rf"(?i)({_NAMED}\\['\"]\s*[:=]\s*)(\\)(['\"])(?:(?!\2\3).)*", re.DOTALL), rf"\1\2\3{HIDDEN}"),
    (re.compile(rf"(?i)({_NAMED}['\"]?\s*[:=]\s*)(['\"])(?:\\.|\2\2|(?!\2).)*", re.DOTALL), rf"\1\2{HIDDEN}"),
    (re.compile(r"(?i)\b(x-api-key\s+)\S+"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)({_NAMED}\s*[:=]\s*)[^\s'\"&,;}}\])]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)([?&](?:sig|key|code|x-amz-[\w-]+|x-goog-[\w-]+)=)[^&\s'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:ict|icat)_[\w-]{8,}"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.?[\w-]*"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), HIDDEN),
    (re.compile(r"\b(?:xox[abprs]-|gh[pousr]_|sk-|glpat-)[\w-]{8,}"), HIDDEN),
    (re.compile(r"https://hooks\.[^\s'\"]+"), HIDDEN),
)
"""What looks like a secret wherever it stands, and what it becomes."""


class Scrubber:
    """Takes these secrets, and what looks like one, out of texts."""

    def __init__(self, known: Iterable[str]) -> None:
        written = {form for each in known if len(each) >= KNOWN_CHARACTERS_MIN for form in _forms(each)}
        longest_first = sorted(written, key=lambda each: (-len(each), each))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        return text

    def value(self, value: Any, name: str = "") -> Any:
        """A value of JSON without secrets: texts, and whatever stands under the name of a secret."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each, name) for each in value]
        if isinstance(value, str):
            return HIDDEN if value and _LONE_SECRET.fullmatch(name) else self.text(value)
        return value

    def finds_known(self, text: str) -> bool:
        """Whether a known secret stands in the text."""
        return self._known is not None and self._known.search(text) is not None


_LONE_SECRET = re.compile(_NAMED, re.IGNORECASE)


def secrets_of_settings(content: object, name: str = "") -> set[str]:
    """Whatever may be a secret in a configuration: values of telling names, and the user's part of addresses.

    Of sections that are handed to storages and clients all values count: a plugin's secret may have any name.
    """
    found: set[str] = set()
    if isinstance(content, Mapping):
        for key, each in content.items():
            found |= secrets_of_settings(each, f"{name}.{key}" if name else str(key))
    elif isinstance(content, list):
        for each in content:
            found |= secrets_of_settings(each, name)
    elif isinstance(content, str):
        section = name.split(".", 1)[0]
        if section in {"storage", "table-config", "defaults", "overrides"} and not _PLAIN.fullmatch(content):
            found.add(content)
        if (SECRET_NAME.search(name) and not name.endswith("_env")) or name.endswith(".url"):
            found.add(content)
        found |= secrets_of_url(content)
    return found


_PLAIN = re.compile(
    r"true|false|none|null|\d{1,5}(\.\d+)?|[a-z]{2}-[a-z]+-\d|https?://[\w.-]+(:\d+)?/?|[\w-]{1,5}", re.IGNORECASE
)
"""Values of settings that are no secret: switches, numbers, regions, bare addresses."""


def variables_of_settings(content: object) -> set[str]:
    """The names of the environment variables that a configuration says its secrets are in (`…_env`)."""
    found: set[str] = set()
    if isinstance(content, Mapping):
        for key, each in content.items():
            if str(key).endswith("_env") and isinstance(each, str):
                found.add(each)
            found |= variables_of_settings(each)
    return found


def secrets_of_url(text: str) -> set[str]:
    """The password of an address, and the values of its parameters."""
    if "://" not in text:
        return set()
    try:
        parts = urlsplit(text)
        found = {parts.password or ""}
    except ValueError:
        return {text}
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if SECRET_NAME.search(name):
            found |= {value, unquote(value)}
    return {each for each in found if each} | {unquote(each) for each in found if each}


def secrets_of_environment(environment: Mapping[str, str]) -> set[str]:
    """The values of variables with telling names, and the passwords in addresses."""
    found: set[str] = set()
    for name, value in environment.items():
        if SECRET_NAME.search(name) and not value.startswith("/"):
            found.add(value)
        found |= secrets_of_url(value)
    return found


def _forms(secret: str) -> set[str]:
    """A secret as it may be written."""
    plain = {secret, *(part for part in secret.split(":") if ":" in secret and len(part) >= KNOWN_CHARACTERS_MIN * 2)}
    written = set(plain)
    for each in plain:
        written |= {quote(each, safe=""), quote(each), quote_plus(each), json.dumps(each)[1:-1]}
        raw = each.encode("utf-8", "surrogateescape")
        written |= {raw.hex(), raw.hex().upper()}
        written |= {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    return {each for each in written if len(each) >= KNOWN_CHARACTERS_MIN}
