"""An exchange without what differs from run to run: ids, times, sizes, addresses, secrets, and the wording of messages.

Each id becomes a name, numbered by its first appearance: where the same id comes again, its name does. So a recording
says which snapshot is whose parent without saying its number. Everything else stays: statuses, headers, fields and
their order, rules, next steps, and every value that the session determines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from verify.exchanges.recorder import Exchange

JSON = dict[str, Any]

WORDING = frozenset({"message", "error_description", "warnings", "description"})
"""Fields with text for people. Their presence is compared, their wording is not."""

SECRETS = frozenset({"secret", "access_token", "client_secret", "subject_token", "proof"})
SIZES = frozenset({
    "added-files-size", "removed-files-size", "total-files-size", "file-size-in-bytes",
    "expires_in", "metadata_bytes",
})  # fmt: skip
HEADERS_LEFT_OUT = frozenset({"date", "server", "content-length", "connection", "transfer-encoding"})
"""They say when, and how long: the length of an answer follows from ids and messages."""

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TIME = r"20[2-9]\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_VARIES = re.compile(rf"(?P<uuid>{_UUID})|(?P<time>{_TIME})|(?P<hex>\b[0-9a-f]{{16,64}}\b)|(?P<number>\d{{13,20}})")
_REQUEST_ID = re.compile("[0-9a-f]{16}")
_ID_MIN = 10**14
_TIME_MIN_MS, _TIME_MAX_MS = 1_600_000_000_000, 2_500_000_000_000


@dataclass
class Normaliser:
    """Names for the ids of one part of a session.

    Args:
        literals: texts of this run (addresses, folders, secrets) and what stands for them.
    """

    literals: Mapping[str, str]
    _names: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    _counts: dict[str, int] = field(default_factory=dict[str, int])

    def exchange(self, exchange: Exchange) -> JSON:
        """An exchange as it is kept."""
        path, _, query = exchange.target.partition("?")
        found: JSON = {"step": exchange.step, "request": f"{exchange.method} {self.text(unquote_kept(path))}"}
        if query:
            found["query"] = [[name, self.text(value)] for name, value in parse_qsl(query, keep_blank_values=True)]
        if exchange.headers:
            found["headers"] = {name: self._header(name, text) for name, text in exchange.headers.items()}
        found |= self._content("body", exchange.body, exchange.headers.get("content-type", ""))
        found["status"] = exchange.status
        answered = [each for each in exchange.answer_headers if each[0] not in HEADERS_LEFT_OUT]
        found["answer_headers"] = {name: self._header(name, text) for name, text in sorted(answered)}
        return found | self._content("answer", exchange.answer, dict(exchange.answer_headers).get("content-type", ""))

    def text(self, text: str) -> str:
        for literal, name in self.literals.items():
            text = text.replace(literal, name)
        return _VARIES.sub(self._named, text)

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value. `key` is the field that it stands in."""
        if value is None or isinstance(value, bool):
            return value
        if key in WORDING and isinstance(value, str | list):
            return [] if value == [] else "<words>"
        if key in SECRETS and isinstance(value, str):
            return self._name("secret", value)
        if key in SIZES:
            return "<size>"
        if isinstance(value, dict):
            return {self.text(name): self.value(item, _inner(key, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if isinstance(value, str):
            # Now and then a request's id has digits only, and would look like a snapshot's.
            of_request = key == "request_id" and _REQUEST_ID.fullmatch(value)
            return self._name("hex", value) if of_request else self.text(value)
        if key.endswith(("_ms", "-ms")) or _TIME_MIN_MS <= value < _TIME_MAX_MS:
            return "<ms>"
        return "#" + self._name("id", str(value)) if isinstance(value, int) and abs(value) >= _ID_MIN else value

    def _content(self, name: str, content: bytes, kind: str) -> JSON:
        if not content:
            return {}
        if "form-urlencoded" in kind:
            pairs = parse_qsl(content.decode(), keep_blank_values=True)
            return {name: [[key, self.value(text, key)] for key, text in pairs]}
        try:
            parsed = json.loads(content)
        except ValueError:
            return {name: self.text(content.decode(errors="backslashreplace"))}
        found: JSON = {name: self.value(parsed)}
        compact = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False).encode()
        return found if compact == content else found | {f"{name}_form": "spaced"}

    def _header(self, name: str, text: str) -> str:
        if name == "authorization":
            scheme, _, secret = text.partition(" ")
            return f"{scheme} {self._name('secret', secret)}"
        if name == "allow":  # Starlette writes a set, in the order of the day
            return ", ".join(sorted(text.split(", ")))
        return self.text(text)

    def _named(self, match: re.Match[str]) -> str:
        kind, text = str(match.lastgroup), match.group()
        if kind == "time":
            return "<time>"
        if kind == "number" or (kind == "hex" and text.isdigit()):
            number = int(text)
            if _TIME_MIN_MS <= number < _TIME_MAX_MS:
                return "<ms>"
            return text if number < _ID_MIN else self._name("id", text)
        return self._name(kind, text)

    def _name(self, kind: str, text: str) -> str:
        if text in self.literals:
            return self.literals[text]
        if (kind, text) not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[kind, text] = f"<{kind}-{self._counts[kind]}>"
        return self._names[kind, text]


def _inner(key: str, name: str) -> str:
    """Everything inside of a field of milliseconds is milliseconds."""
    return key if key.endswith("_ms") else name


def unquote_kept(path: str) -> str:
    """A path that a reader can read; the separator of namespaces stays as it was sent."""
    return "%1F".join(unquote(part) for part in path.split("%1F"))


def kept(exchanges: Iterable[Exchange], literals: Mapping[str, str]) -> list[JSON]:
    """The exchanges of one part, as they are kept."""
    normaliser = Normaliser(literals)
    return [normaliser.exchange(each) for each in exchanges]
