"""How long a session of the page lasts, over the wire, by a clock that the tests move."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.page.test_page_wire import Browser
from verify.kit.clocked_tower import ClockedTower, MovedClock

TTL_S = 3600
LINE_S = 24 * 3600
READER = "tables: [{table: shop.t, operations: [read]}]\n"


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[ClockedTower]:
    tower = ClockedTower(tmp_path / "data", MovedClock(time.time_ns() // 1_000_000))
    yield tower
    assert tower.stop() == 0


@pytest.fixture
def browser(tower: ClockedTower) -> Iterator[Browser]:
    browser = Browser(tower)
    assert browser.sign_in("reader", tower.principal("reader", READER)).status_code == 303
    yield browser
    browser.http.close()


def cookies(answer: httpx2.Response) -> list[str]:
    return answer.headers.get_list("set-cookie")


def test_a_session_in_use_goes_on_and_is_the_same(tower: ClockedTower, browser: Browser) -> None:
    token, form = browser.token, browser.code("/")
    tower.clock.move(TTL_S / 2 - 1)
    assert cookies(browser.get("/")) == []  # more than half of it is left
    tower.clock.move(2)
    renewed = f"icetower-session={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={TTL_S}"
    assert cookies(browser.get("/ui/tables")) == [renewed]
    assert cookies(browser.get("/ui/tables")) == []
    tower.clock.move(TTL_S - 1)  # later than it would have ended
    answer = browser.post("/ui/sign-out", {"code": form})  # a form that was open all the time
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
    assert not any(token in each for each in cookies(answer))
    assert browser.get("/", Cookie=f"icetower-session={token}").status_code == 303


def test_behind_tls_the_cookie_is_renewed_under_its_own_name(tower: ClockedTower, browser: Browser) -> None:
    tower.clock.move(TTL_S - 1)
    held = {"Cookie": f"__Host-icetower-session={browser.token}"}
    answer = httpx2.get(f"{tower.uri}/", headers=held)
    assert cookies(answer) == [
        f"__Host-icetower-session={browser.token}; Path=/; HttpOnly; SameSite=Strict; Secure; Max-Age={TTL_S}"
    ]


def test_one_that_nobody_uses_ends(tower: ClockedTower, browser: Browser) -> None:
    tower.clock.move(TTL_S - 1)
    with browser.http.stream("GET", "/ui/live/now") as live:  # a page that was left open
        assert live.status_code == 200
        assert cookies(live) == []
    tower.clock.move(2)
    assert browser.get("/").status_code == 303
    assert browser.get("/ui/live/now").status_code == 401


def test_one_that_is_always_in_use_ends_after_a_day(tower: ClockedTower, browser: Browser) -> None:
    ages: list[str] = []
    for _ in range(LINE_S // 2000):
        tower.clock.move(2000)
        answer = browser.get("/")
        assert answer.status_code == 200
        ages += cookies(answer)
    assert ages[0].endswith(f"; Max-Age={TTL_S}")
    assert len(ages) == LINE_S // 2000 - 1  # the last one could not be renewed
    assert ages[-1].endswith(f"; Max-Age={LINE_S - 42 * 2000}")
    tower.clock.move(LINE_S % 2000 + 1)
    assert browser.get("/").status_code == 303


@pytest.mark.parametrize("how", ["revoked", "rotated", "ended"])
def test_what_ends_a_credential_ends_the_session_at_once(tower: ClockedTower, browser: Browser, how: str) -> None:
    tower.clock.move(TTL_S - 1)
    assert len(cookies(browser.get("/"))) == 1
    if how == "revoked":
        tower.admin.revoke_principal("reader")
    elif how == "rotated":
        tower.admin.rotate_principal("reader")
    else:
        other = Browser(tower)
        other.http.cookies.set("icetower-session", browser.token)
        assert other.post("/ui/sign-out", {"code": other.code("/")}).status_code == 303
        other.http.close()
    answer = browser.get("/")
    assert answer.status_code == 303
    assert not any(browser.token in each for each in cookies(answer))


def test_a_secret_that_is_being_replaced_bounds_it(tower: ClockedTower, browser: Browser) -> None:
    tower.admin.rotate_principal("reader", grace_s=5000)
    tower.clock.move(TTL_S - 1)
    (cookie,) = cookies(browser.get("/"))
    assert cookie.endswith(f"; Max-Age={5000 - TTL_S + 1}")
    tower.clock.move(5000 - TTL_S + 2)
    assert browser.get("/").status_code == 303
