"""PyIceberg that counts its commits as they go over the wire, and loses some of the answers on the way back."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyiceberg.catalog import Catalog
from requests import ConnectionError as LostAnswer
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

KEY = "icetower.idempotency-key"


class Wire(HTTPAdapter):
    """Passes requests on.

    Attributes:
        counts: what its commits came to, by the names of the tower's figures.
        lose: so many of the next answers to commits that landed are lost: the client hears nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.lose = 0
        self._tried: set[str] = set()
        self._landed: set[str] = set()

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        answer = super().send(request, *arguments, **options)
        if request.method != "POST" or "/tables/" not in str(request.url):
            return answer
        if self.count(request.body, answer.status_code):
            raise LostAnswer("the answer was lost")
        return answer

    def count(self, body: bytes | str | None, status: int) -> bool:
        """One commit and its answer. Whether that is to be lost."""
        key = _key_of(body)
        if key is None:
            return False
        self._count(key, status)
        if self.lose > 0 and status == 200:
            self.lose -= 1
            return True
        return False

    def _count(self, key: str, status: int) -> None:
        replayed = status == 200 and key in self._landed
        ended = "replayed" if replayed else {200: "landed", 409: "conflicts", 403: "refused", 504: "unknown"}[status]
        self.counts["attempts"] += 1
        self.counts[ended] += 1
        self.counts["retries"] += ended in ("replayed", "conflicts", "unknown")
        if key not in self._tried and not replayed:
            self.counts["first_tries"] += 1
            self.counts["first_try_landed"] += ended == "landed"
        self._tried.add(key)
        if ended == "landed":
            self._landed.add(key)


def _key_of(body: bytes | str | None) -> str | None:
    """The key of a commit; None: it is something else."""
    for update in json.loads(body or "{}").get("updates", ()):
        key = update.get("snapshot", {}).get("summary", {}).get(KEY)
        if key is not None:
            return str(key)
    return None


def wrapped(catalog: Catalog, uri: str, wire: Wire) -> Catalog:
    """The client, all of whose requests go by this wire."""
    catalog._session.mount(uri, wire)
    return catalog
