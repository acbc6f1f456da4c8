"""A request to a tower and its answer as JSON, by httpx2, for calls that block."""

from __future__ import annotations

from typing import Any

import httpx2

from icetower import errors
from icetower.agent.causes import unreachable, without_password
from icetower.agent.failures import error_of


class Exchanges:
    """With one tower. Threads may share one.

    Args:
        uri: of the tower, without a slash at the end.
        timeout_s: of every request, in seconds, where it says nothing else.

    Raises:
        BadRequest: nothing can be reached at such an address.
    """

    def __init__(self, uri: str, token: str | None, *, timeout_s: float) -> None:
        self._uri = uri
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            self._http = httpx2.Client(base_url=uri, headers=headers, timeout=timeout_s)
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise errors.BadRequest(unreachable("tower", uri, error)) from error

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """The answer's JSON; None of an empty one. Raises the `IcetowerError` that was answered, and `Unavailable`."""
        response = self.sent(method, path, **options)
        if not response.is_success:
            raise error_of(response.status_code, response.content)
        return self.parsed(response) if response.content else None

    def sent(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """The answer, whatever its status. Raises `Unavailable` where there is none."""
        try:
            return self._http.request(method, path, **options)
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            raise errors.Unavailable(unreachable("tower", self._uri, error), rule="client.connection") from error

    def parsed(self, response: httpx2.Response) -> Any:
        """The JSON of an answer. Raises `UpstreamFailed` where it is none."""
        try:
            return response.json()
        except ValueError as error:
            raise errors.UpstreamFailed(
                f"{without_password(self._uri)} answers, but not with JSON, so it is not a tower; check the address",
                rule="client.connection",
                next_step="none",
            ) from error
