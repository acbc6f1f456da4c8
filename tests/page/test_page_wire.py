"""The page over the wire: signing in, who sees what, acting, and what other sites may not do."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from icetower.gateway.page_sessions import code_of
from icetower.page.assets import read_assets
from tests.page.page_world import TABLE, PageWorld
from verify.kit.tower_process import TowerProcess

CODE = re.compile(r'name="code" value="([0-9a-f]{64})"')
PAGES = (
    "/", "/ui/agents", "/ui/agents/promotions", "/ui/tables", "/ui/tables/shop.t", "/ui/commits", "/ui/commits/1",
    "/ui/contracts", "/ui/contracts/stock", "/ui/leases", "/ui/leases?table=shop.t", "/ui/choosing", "/ui/slots",
    "/ui/metrics", "/ui/metrics/data", "/ui/operations",
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageWorld]:
    world = PageWorld(tmp_path_factory.mktemp("page") / "data")
    try:
        world.work()
        yield world
    finally:
        status = world.stop()
    assert status == 0, world.tower.log.read_text()


class Browser:
    """What a browser does, without one: it keeps cookies, and says where its forms come from."""

    def __init__(self, tower: TowerProcess) -> None:
        self.origin = tower.uri
        self.http = httpx2.Client(base_url=tower.uri, timeout=60)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.http.get(path, headers=headers)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx2.Response:
        return self.http.post(path, data=fields, headers={"Origin": self.origin, **headers})

    def code(self, path: str) -> str:
        """The code of the last form on a page."""
        return CODE.findall(self.get(path).text)[-1]

    def sign_in(self, name: str, secret: str, **more: str) -> httpx2.Response:
        return self.post("/ui/sign-in", {"code": self.code("/ui/sign-in"), "name": name, "secret": secret, **more})

    @property
    def token(self) -> str:
        return self.http.cookies["icetower-session"]


@pytest.fixture
def browser(world: PageWorld) -> Iterator[Browser]:
    browser = Browser(world.tower)
    yield browser
    browser.http.close()


@pytest.fixture
def admin(browser: Browser, world: PageWorld) -> Browser:
    assert browser.sign_in("admin", world.tower.secret).status_code == 303
    return browser


def ticket(world: PageWorld, kind: str) -> str:
    found: list[dict[str, Any]] = getattr(world.tower.admin, kind)()
    return found[0]["id"]


# ── Signing in ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_signing_in_nothing_is_shown(browser: Browser) -> None:
    for path in PAGES:
        answer = browser.get(path)
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/ui/sign-in"), path
    assert browser.get("/ui/live/now").status_code == 401
    assert browser.post("/ui/sign-out", {}).status_code == 303
    assert browser.get("/", Authorization="Bearer x").status_code == 303


@pytest.mark.parametrize("path", ["/ui", "/ui/"])
def test_the_beginning_of_the_pages_addresses_leads_to_the_first_one(world: PageWorld, path: str) -> None:
    answer = httpx2.get(f"{world.tower.uri}{path}", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_secret_is_no_session(world: PageWorld) -> None:
    """It would be good for longer than any session may be."""
    cookies = {"icetower-session": world.tower.secret}
    answer = httpx2.get(f"{world.tower.uri}/ui/tables", cookies=cookies, headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/ui/sign-in")


def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(browser: Browser, world: PageWorld) -> None:
    answer = browser.sign_in("", world.tower.secret, next="/ui/tables")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/tables")
    cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("icetower-session="))
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=3600"} <= set(cookie.split("; ")[1:])
    assert "Secure" not in cookie
    assert browser.get("/ui/tables").status_code == 200


def test_behind_tls_the_cookie_is_held_to_it(browser: Browser, world: PageWorld) -> None:
    host = urlsplit(world.tower.uri).netloc
    page = httpx2.get(f"{world.tower.uri}/ui/sign-in")
    form = next(each for each in page.headers.get_list("set-cookie") if each.startswith("__Host-")).split(";")[0]
    fields = {"code": CODE.findall(page.text)[0], "name": "admin", "secret": world.tower.secret}
    headers = {"Origin": f"https://{host}", "Cookie": form}
    answer = httpx2.post(f"{world.tower.uri}/ui/sign-in", data=fields, headers=headers)
    assert answer.status_code == 303, answer.text
    cookie = answer.headers.get_list("set-cookie")[0]
    assert cookie.startswith("__Host-icetower-session=")
    assert "Secure" in cookie.split("; ")


def test_the_cookie_is_no_credential_of_the_api(admin: Browser) -> None:
    assert admin.get("/icetower/v1/me").status_code == 401
    assert admin.get("/v1/config").status_code == 401
    assert admin.get("/icetower/v1/me", Authorization=f"Bearer {admin.token}").status_code == 200


def test_signing_out_ends_the_token(admin: Browser) -> None:
    token = admin.token
    assert admin.post("/ui/sign-out", {"code": admin.code("/")}).status_code == 303
    assert admin.get("/", Cookie=f"icetower-session={token}").status_code == 303
    assert admin.get("/icetower/v1/me", Authorization=f"Bearer {token}").status_code == 401


def test_wrong_secrets_are_refused_and_soon_not_looked_at(tmp_path: Path) -> None:
    tower = TowerProcess(tmp_path / "data")
    try:
        browser = Browser(tower)
        found = [browser.sign_in("admin", f"wrong-{n}") for n in range(12)]
        assert [each.status_code for each in found[:10]] == [401] * 10
        assert found[-1].status_code == 429
        assert int(found[-1].headers["retry-after"]) >= 1
        assert 'role="alert"' in found[0].text
        assert "wrong-0" not in found[0].text
        assert browser.get("/").status_code == 303
        program = httpx2.post(
            f"{tower.uri}/v1/oauth/tokens",
            data={"grant_type": "client_credentials", "client_id": "admin", "client_secret": "wrong"},
        )
        assert program.status_code == 429  # one bucket for both doors
    finally:
        assert tower.stop() == 0


def test_a_revocation_ends_the_session_and_its_streams(world: PageWorld) -> None:
    secret = world.tower.principal("passing", "tables: [{table: shop.t, operations: [read]}]\n")
    browser = Browser(world.tower)
    assert browser.sign_in("passing", secret).status_code == 303
    assert browser.get("/").status_code == 200
    with browser.http.stream("GET", "/ui/live/now") as stream:
        parts = stream.iter_text()
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert next(parts).startswith("data: ")
        world.tower.admin.revoke_principal("passing")
        assert browser.get("/").status_code == 303
        for _ in parts:  # it ends; without that the client's timeout does
            pass


# ── Who sees what ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_administrator_sees_all(admin: Browser) -> None:
    for path in PAGES:
        answer = admin.get(path)
        assert answer.status_code == 200, (path, answer.text)
    first = admin.get("/").text
    for text in (
        "promotions",
        "contract.partitions",
        "rebase.not-blind",
        "Dana Ito",
        "request_partition",
        "is stopped",
    ):
        assert text in first, text
    table = admin.get("/ui/tables/shop.t").text
    assert "region=1/product=2" in table
    assert "contended" in table
    assert 'class="mark rebased"' in table
    branch = table.partition("Open branches")[2].partition("</section>")[0]
    for text in ("audit", "audited", "row-counts: passed", "unique-ids: waits"):
        assert text in branch, text


def test_an_agents_team_sees_its_own(browser: Browser, world: PageWorld) -> None:
    assert browser.sign_in("stock", world.secrets["stock"]).status_code == 303
    first = browser.get("/").text
    assert "contract.partitions" not in first
    assert "promotions" not in first
    for path in ("/ui/agents", "/ui/tables/shop.t", "/ui/commits", "/ui/metrics", "/ui/slots", "/ui/leases"):
        text = browser.get(path).text
        for other in ("promotions", "pricing", "rewriter", "audited"):
            assert other not in text, (path, other)
    foreign = [row for row in world.tower.admin.commits(limit=100) if row["principal"] == "promotions"]
    snapshot = next(row for row in foreign if row["snapshots"])["snapshots"][0]
    assert "promotions" not in browser.get(f"/ui/commits?snapshot={snapshot}").text
    assert browser.get("/ui/commits?principal=promotions&outcome=refused").text.count("contract.partitions") == 0
    for path, status in (
        ("/ui/agents/promotions", 404),
        ("/ui/agents/admin", 404),
        ("/ui/contracts/promotions", 403),
        ("/ui/tables/hidden.t", 404),
        ("/ui/operations", 403),
        (f"/ui/escalations/{ticket(world, 'escalations')}", 404),
        (f"/ui/requests/{ticket(world, 'requests')}", 404),
        (f"/ui/leases/{world.leases[0]}", 404),
        ("/ui/commits/999999", 404),
    ):
        assert browser.get(path).status_code == status, path
    numbers = range(1, 1 + len(world.tower.admin.commits(limit=100)))
    shown = [n for n in numbers if browser.get(f"/ui/commits/{n}").status_code == 200]
    assert 0 < len(shown) < len(numbers)
    assert browser.get("/ui/live/tables/hidden.t").status_code == 404


def test_a_commit_is_found_by_what_its_client_was_told(admin: Browser, world: PageWorld) -> None:
    refused = next(row for row in world.tower.admin.commits(limit=100) if row["rule"] == "contract.partitions")
    answer = admin.get(f"/ui/find?q={refused['request_id']}")
    page = admin.http.get(answer.headers["location"], follow_redirects=True)
    for text in (
        "contract.partitions",
        "doesn&#39;t own region=1/product=2",
        "request_partition",
        refused["request_id"],
    ):
        assert text in page.text, text
    rebased = next(row for row in world.tower.admin.commits(limit=100) if row["outcome"] == "rebased")
    answer = admin.get(f"/ui/find?q={rebased['snapshots'][0]}")
    page = admin.http.get(answer.headers["location"], follow_redirects=True)
    assert "this commit" in page.text
    assert "by others" in page.text
    assert admin.get("/ui/find?q=<script>").status_code == 400


# ── Acting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def closing(browser: Browser, path: str, **fields: str) -> dict[str, str]:
    return {
        "code": browser.code(f"{path}?close=closed"),
        "sure": "yes",
        "decision": "closed",
        "note": "mended",
        **fields,
    }


def test_a_form_of_another_site_or_session_does_nothing(admin: Browser, world: PageWorld) -> None:
    path = f"/ui/escalations/{ticket(world, 'escalations')}"
    fields = closing(admin, path)
    target = f"{path}/close"
    other = Browser(world.tower)
    other.sign_in("admin", world.tower.secret)
    post = admin.http.post
    own = {"Origin": world.tower.uri}
    attempts = {
        "another site": post(target, data=fields, headers={"Origin": "https://evil.example"}),
        "a sandbox": post(target, data=fields, headers={"Origin": "null"}),
        "another port": post(target, data=fields, headers={"Origin": "http://127.0.0.1:1"}),
        "cross-site": post(target, data=fields, headers={"Sec-Fetch-Site": "cross-site"}),
        "no origin at all": post(target, data=fields),
        "no code": post(target, data={**fields, "code": ""}, headers=own),
        "another session": other.post(target, fields),
        "another form": post(target, data={**fields, "code": admin.code("/")}, headers=own),
        "a plain text": post(target, content="x=y", headers={**own, "Content-Type": "text/plain"}),
        "not sure": post(target, data={**fields, "sure": "no"}, headers=own),
        "no decision": post(target, data={**fields, "decision": "granted"}, headers=own),
        "no note": post(target, data={**fields, "note": " "}, headers=own),
        "too long": post(target, data={**fields, "note": "n" * 40_000}, headers=own),
    }
    statuses = {why: answer.status_code for why, answer in attempts.items()}
    assert statuses == {
        "another site": 403, "a sandbox": 403, "another port": 403, "cross-site": 403, "no origin at all": 403,
        "no code": 403, "another session": 403, "another form": 403, "a plain text": 400, "not sure": 400,
        "no decision": 400, "no note": 400, "too long": 413,
    }  # fmt: skip
    assert admin.get(target).status_code == 405
    assert world.tower.admin.escalations(state="open") != []


def test_an_agent_cannot_close_its_own_escalation(browser: Browser, world: PageWorld) -> None:
    browser.sign_in("promotions", world.secrets["promotions"])
    path = f"/ui/escalations/{ticket(world, 'escalations')}"
    page = browser.get(f"{path}?close=closed")
    assert page.status_code == 200
    assert "Yes, close it" not in page.text
    fields = {"code": code_of(browser.token, f"{path}/close"), "sure": "yes", "decision": "closed", "note": "me"}
    assert browser.post(f"{path}/close", fields).status_code == 403
    assert world.tower.admin.escalations(state="open") != []


def test_an_escalation_is_closed_after_a_question_and_that_is_kept(world: PageWorld, tmp_path: Path) -> None:
    own = PageWorld(tmp_path / "data")
    try:
        own.work()
        admin = Browser(own.tower)
        admin.sign_in("admin", own.tower.secret)
        for kind, decision in (("escalations", "closed"), ("requests", "denied")):
            path = f"/ui/{kind}/{ticket(own, kind)}"
            assert "Are you sure" not in admin.get(path).text
            asked = admin.get(f"{path}?close={decision}")
            assert "sure?" in asked.text
            fields = {
                "code": CODE.findall(asked.text)[-1],
                "sure": "yes",
                "decision": decision,
                "note": "<b>mended</b>",
            }
            answer = admin.post(f"{path}/close", fields)
            assert (answer.status_code, answer.headers["location"]) == (303, path)
            assert "&lt;b&gt;mended&lt;/b&gt;" in admin.get(path).text
            assert admin.post(f"{path}/close", fields).status_code == 409
        assert own.tower.admin.escalations(state="open") == []
        closed = own.tower.admin.escalations()[0]
        assert (closed["closed_by"], closed["note"]) == ("admin", "<b>mended</b>")
        logged = [
            (row["operation"], row["outcome"], row["table"]) for row in own.tower.admin.commits(principal="admin")
        ]
        assert ("escalation-closed", "done", TABLE) in logged
        assert ("request-denied", "done", TABLE) in logged
        again = own.forger("promotions")
        assert again.send(again.append("z.parquet", partition=(3, 4))).status_code == 200
    finally:
        assert own.stop() == 0


def test_leases_are_shown_with_who_waits_for_whom(admin: Browser, browser: Browser, world: PageWorld) -> None:
    held, waits = world.leases
    page = admin.get("/ui/leases").text
    for text in ("1</b> held", "1</b> waiting", "region 5 or 6", "shop.t", "rewriter-2", 'class="lease queued"'):
        assert text in page, text
    assert page.index(f"/ui/leases/{held}") < page.index(f"/ui/leases/{waits}")
    assert "rewriter" not in admin.get("/ui/leases?table=shop.turns").text
    assert "rewriter-2" not in admin.get("/ui/leases?principal=rewriter").text
    lease = admin.get(f"/ui/leases/{waits}").text
    assert "Waits for" in lease
    assert "holds them" in lease
    assert admin.get("/ui/leases/none-such-there-is").status_code == 404
    assert browser.post("/ui/sign-out", {"code": browser.code("/")}).status_code == 303
    browser.sign_in("rewriter-2", world.secrets["rewriter-2"])
    own = browser.get("/ui/leases").text
    assert f"/ui/leases/{waits}" in own  # with whom it waits for, as the control API says, and no way there
    assert f"/ui/leases/{held}" not in own
    assert browser.get(f"/ui/leases/{held}").status_code == 404
    assert "Break" not in browser.get(f"/ui/leases/{waits}?break=yes").text
    fields = {"code": code_of(browser.token, f"/ui/leases/{waits}/break"), "sure": "yes"}
    assert browser.post(f"/ui/leases/{waits}/break", fields).status_code == 403
    assert [each["intent"] for each in world.tower.admin.intents()["intents"]] == world.leases


def test_a_lease_is_broken_after_a_question_and_that_is_kept(tmp_path: Path) -> None:
    own = PageWorld(tmp_path / "data")
    try:
        own.work()
        held, waits = own.leases
        admin, other = Browser(own.tower), Browser(own.tower)
        for each in (admin, other):
            each.sign_in("admin", own.tower.secret)
        path = f"/ui/leases/{held}"
        target = f"{path}/break"
        assert "Are you sure" not in admin.get(path).text
        fields = {"code": CODE.findall(admin.get(f"{path}?break=yes").text)[-1], "sure": "yes"}
        header = {"Origin": own.tower.uri}
        refused = {
            "another site": admin.http.post(target, data=fields, headers={"Origin": "https://evil.example"}),
            "no origin": admin.http.post(target, data=fields),
            "no code": admin.http.post(target, data={"sure": "yes"}, headers=header),
            "another form": admin.http.post(target, data={**fields, "code": admin.code("/")}, headers=header),
            "another session": other.post(target, fields),
            "not sure": admin.post(target, {**fields, "sure": "no"}),
        }
        assert {why: answer.status_code for why, answer in refused.items()} == {
            "another site": 403, "no origin": 403, "no code": 403, "another form": 403, "another session": 403,
            "not sure": 400,
        }  # fmt: skip
        assert own.tower.admin.intent(held)["state"] == "held"
        answer = admin.post(target, fields)
        assert (answer.status_code, answer.headers["location"]) == (303, path)
        assert "broken by admin" in admin.get(path).text
        assert own.tower.admin.intent(waits)["state"] == "held"  # who waited is next
        logged = [
            (row["operation"], row["outcome"], row["table"]) for row in own.tower.admin.commits(principal="admin")
        ]
        assert logged.count(("intent-broken", "done", TABLE)) == 1
        assert admin.post(target, fields).status_code == 303  # again: it has ended, and that is all
    finally:
        assert own.stop() == 0


def test_leases_are_live(admin: Browser, world: PageWorld) -> None:
    with admin.http.stream("GET", "/ui/live/leases?table=shop.t") as stream:
        parts = stream.iter_text()
        assert "rewriter" in next(parts)


def test_the_head_of_a_live_part_ends_and_takes_no_place(admin: Browser) -> None:
    for _ in range(25):
        assert admin.http.head("/ui/live/now").status_code == 200


def test_operators_see_orphans_by_who_left_them_and_how_far_tables_are_behind(admin: Browser) -> None:
    page = admin.get("/ui/operations").text
    lag, orphans = (page.partition(title)[2].partition("</section>")[0] for title in ("behind their logs", "Orphaned"))
    assert "12.5 s" in lag
    assert "mediator" in lag
    assert "promotions" in orphans
    assert "4,096" in orphans
    audit = page.partition("Audit of the histories")[2].partition("</section>")[0]
    assert "files.twice" in audit
    assert "&lt;b&gt;a.parquet" in audit


# ── What is sent ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_answer_carries_the_policy(admin: Browser, world: PageWorld) -> None:
    paths = [
        *PAGES,
        "/ui/sign-in",
        "/ui/assets/page.css",
        "/ui/assets/none",
        "/ui/agents/nobody",
        "/ui/commits?before=x",
    ]
    for path in paths:
        headers = admin.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff"), path
        kept = headers["cache-control"]
        assert kept.startswith("public") if "assets/page" in path else kept == "no-store", path


def test_files_are_sent_once(world: PageWorld) -> None:
    asset = read_assets()["pico.css"]
    url = f"{world.tower.uri}/ui/assets/pico.css"
    first = httpx2.get(f"{url}?v={asset.version}", headers={"Accept-Encoding": "gzip"})
    assert (first.status_code, first.content, first.headers["content-encoding"]) == (200, asset.content, "gzip")
    assert "immutable" in first.headers["cache-control"]
    assert "immutable" not in httpx2.get(url).headers["cache-control"]
    again = httpx2.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert httpx2.get(f"{world.tower.uri}/ui/assets/..%2f..%2frules.toml").status_code == 404
    assert httpx2.get(f"{world.tower.uri}/ui/assets/manifest.json").status_code == 404


def test_names_that_attack_are_shown_as_text(world: PageWorld, admin: Browser) -> None:
    payload = "<img src=x onerror=alert(1)>"
    with world.tower.client() as http:
        http.post("/v1/namespaces", json={"namespace": [payload]}).raise_for_status()
        body = {"name": payload, "schema": {"type": "struct", "fields": []}}
        http.post(
            f"/v1/namespaces/{payload.replace('<', '%3C').replace('>', '%3E')}/tables", json=body
        ).raise_for_status()
    while "onerror" not in admin.get("/ui/tables?q=img").text:  # names are kept for a moment
        pass
    for path in ("/ui/tables", "/ui/commits", "/"):
        text = admin.get(path).text
        assert "<img" not in text, path
    assert "&lt;img src=x onerror=alert(1)&gt;" in admin.get("/ui/tables?q=img").text
    shown = admin.get("/ui/tables/%3Cimg%20src=x%20onerror=alert(1)%3E.%3Cimg%20src=x%20onerror=alert(1)%3E")
    assert shown.status_code == 200
    assert "<img" not in shown.text
    searched = admin.get('/ui/commits?table="><script>alert(1)</script>')
    assert "<script>alert" not in searched.text


def test_an_open_tower_asks_nobody_and_stays_on_loopback(tmp_path: Path) -> None:
    tower = TowerProcess(tmp_path / "data", "--open")
    try:
        browser = Browser(tower)
        assert browser.get("/").status_code == 200
        assert "Sign out" not in browser.get("/").text
        port = urlsplit(tower.uri).port
        named = browser.get("/", Host=f"evil.example:{port}")
        assert named.status_code == 303  # a name that was made to lead here
    finally:
        assert tower.stop() == 0


def test_a_tower_stops_at_once_while_somebody_looks(tmp_path: Path) -> None:
    tower = TowerProcess(tmp_path / "data", "--open")
    address = urlsplit(tower.uri)
    with socket.create_connection((address.hostname or "", address.port or 0), 30) as connection:
        connection.sendall(f"GET /ui/live/now HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        received = b""
        while b"data: " not in received:
            received += connection.recv(65536)
        assert tower.stop() == 0
        while data := connection.recv(65536):
            received += data
    assert received.endswith(b"\r\n0\r\n\r\n")  # it was ended, and not cut off after the half minute of a drain


def test_the_curves_are_the_figures_of_the_control_api(admin: Browser, world: PageWorld) -> None:
    with world.tower.client() as http:
        rows = http.get("/icetower/v1/metrics", params={"limit": "1000"}).json()["windows"]
    for asked in ({}, {"table": TABLE}, {"principal": "promotions"}, {"principal": "promotions", "table": TABLE}):
        curves = admin.http.get("/ui/metrics/data", params=asked).json()
        mine = [row for row in rows if all(row[name] == value for name, value in asked.items())]
        assert mine, asked
        for name in ("attempts", "landed", "refused", "conflicts", "unknown"):
            assert sum(curves[name]) == sum(row[name] for row in mine), (asked, name)
        slowest = max(row["latency_max_ms"] or 0.0 for row in mine)
        assert max(each or 0.0 for each in curves["latency_max_ms"]) == slowest


def test_a_viewer_sees_everything_but_tables_and_closes_nothing(browser: Browser, world: PageWorld) -> None:
    secret = world.tower.admin.create_principal("dana", "(viewer)")
    assert browser.sign_in("dana", secret).status_code == 303
    for path in PAGES:  # a viewer reads no table, here and elsewhere
        assert browser.get(path).status_code == (404 if path == "/ui/tables/shop.t" else 200), path
    assert "promotions" in browser.get("/").text
    path = f"/ui/escalations/{ticket(world, 'escalations')}"
    fields = {"code": code_of(browser.token, f"{path}/close"), "sure": "yes", "decision": "closed", "note": "me"}
    answer = browser.post(f"{path}/close", fields)
    assert (answer.status_code, "not an administrator" in answer.text) == (403, True)
    assert world.tower.admin.escalations()[0]["state"] == "open"
