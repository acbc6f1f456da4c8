"""Guessing at the token route, and what everybody else notices of it; over the wire."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator

import httpx2
import pytest

from icetower.gateway.token_rates import GUESSES, GUESSES_OF_ADDRESS
from verify.kit.tower_process import TowerProcess

TOKENS = "/v1/oauth/tokens"
GRANT = {"grant_type": "client_credentials"}
EXCHANGE = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange"}


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    """A tower of its own: all tests come from one address."""
    tower = TowerProcess(tmp_path_factory.mktemp("guarded") / "data")
    yield tower
    assert tower.stop() == 0


def ask(http: httpx2.Client, name: str, secret: str) -> httpx2.Response:
    return http.post(TOKENS, data={**GRANT, "client_id": name, "client_secret": secret})


def test_a_guesser_is_slowed_down_and_nobody_else(guarded: TowerProcess) -> None:
    known, newcomer = (guarded.principal(name, "reads: ['**']\n") for name in ("known", "newcomer"))
    with httpx2.Client(base_url=guarded.uri) as http:
        assert ask(http, "known", known).status_code == 200
        answers = [ask(http, "known", f"guess-{at}") for at in range(5 * GUESSES[0])]
        counts = Counter(answer.status_code for answer in answers)
        assert counts.keys() == {401, 429}
        assert counts[401] < 2 * GUESSES[0]
        late = answers[-1]
        assert 1 <= int(late.headers["Retry-After"]) <= 5
        assert late.json()["error"] == "temporarily_unavailable"
        # The principal that is guessed at, and one that was never here, from the same address.
        assert ask(http, "known", known).status_code == 200
        assert ask(http, "newcomer", newcomer).status_code == 200
        for at in range(2 * GUESSES_OF_ADDRESS[0]):
            ask(http, f"agent-{at}", "guess")
        assert ask(http, "agent", "guess").status_code == 429
        tokens = [ask(http, name, secret) for name, secret in (("known", known), ("newcomer", newcomer))]
        assert [answer.status_code for answer in tokens] == [200, 200]
        # No other route says 429 (trap A4), and tokens are good.
        headers = {"Authorization": f"Bearer {tokens[0].json()['access_token']}"}
        assert http.get("/icetower/v1/me", headers=headers).json()["principal"] == "known"
        assert {http.get("/v1/config", headers={"Authorization": "Bearer no"}).status_code for _ in range(20)} == {401}


def test_a_client_that_proves_itself_renews_a_token_that_has_ended(guarded: TowerProcess) -> None:
    """As Java does it: an exchange of the old token under HTTP Basic."""
    secret = guarded.principal("agent", "reads: ['**']\n")
    with httpx2.Client(base_url=guarded.uri) as http:
        for credential in (f"agent:{secret}", secret):
            basic = {"Authorization": f"Basic {base64.b64encode(credential.encode()).decode()}"}
            answer = http.post(TOKENS, data={**EXCHANGE, "subject_token": "icat_ended"}, headers=basic)
            assert answer.status_code == 200, answer.text
            assert 3590 <= answer.json()["expires_in"] <= 3600
        assert http.post(TOKENS, data={**EXCHANGE, "subject_token": "icat_ended"}).status_code == 401
        wrong = {"Authorization": f"Basic {base64.b64encode(b'agent:wrong').decode()}"}
        assert http.post(TOKENS, data={**EXCHANGE, "subject_token": secret}, headers=wrong).status_code == 401
        defaults = http.get("/v1/config", headers={"Authorization": f"Bearer {secret}"}).json()["defaults"]
        assert defaults["token-exchange-enabled"] == "false"
