"""What is written into the page: texts of others cannot act, nothing is inline, and the files are the vendored ones."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from icetower import rules
from icetower.admission.guards import Excess
from icetower.cli.escalations import answered
from icetower.escalations.approvals import Meant
from icetower.escalations.tickets import Decision, Kind, Ticket
from icetower.gateway.event_streams import message
from icetower.gateway.page_branches import OpenBranch, OpenBranches
from icetower.gateway.page_http import SECURITY
from icetower.intents.model import Claim, Intent, State
from icetower.ledger.activity import Activity, Group
from icetower.ledger.attempts import Attempt, Outcome
from icetower.ledger.verdicts import CheckVerdict
from icetower.page.assets import read_assets
from icetower.page.choosing import QUESTIONS
from icetower.page.commits import commit_of
from icetower.page.heat import heat_of
from icetower.page.lanes import lanes_of
from icetower.page.leases import LeaseSeen, leases_of
from icetower.page.refusals import Health, Tally, by_rule
from icetower.page.rendering import Renderer, prose, url
from icetower.protocol.names import Identifier
from icetower.publish.stale import BranchState
from icetower.registry.principals import administrator
from icetower.registry.registry import PrincipalRecord
from tools import vendor

PAGE = Path(__file__).resolve().parents[2] / "src" / "icetower" / "page"
ASSETS = read_assets()
PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "//evil.example/x",
    "</title><svg onload=alert(1)>",
    "x;background:url(https://evil.example)",
    "{{ 7 * 7 }}{% include 'x' %}",
    "\x1b[31mred\x07\x00",
    "gpj.\u202egnp",
    "a\r\nSet-Cookie: x=y",
    "-->]]><!--",
    "../../v1/config?a=b#c",
)
WEIGHT_MAX = 300 * 1024
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Read(HTMLParser):
    """Tags with their attributes, and the texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(text: str) -> dict[str, str]:
    """The pages that show texts of others, with one text wherever one may stand."""
    renderer = Renderer(ASSETS, lambda: 10_000)
    one = Attempt(
        text, text, text, Outcome.REFUSED, text, at_ms=5_000, message=text, partitions=(text,), contract=text,
        request_id=text, key_hash=text, base=1, group_size=2,
    )  # fmt: skip
    groups = (Group(text, text, Outcome.REFUSED, text, 2, 1_000, 2_000, 1),)
    activity = Activity(groups, {Outcome.REFUSED: 2}, 1_000, complete=True)
    found = by_rule(groups, {}, {})
    shared = {
        "title": text, "me": administrator(text), "by_session": True, "navigation": [("/", "Now", True)],
        "code": lambda address: "c" * 64, "query": {}, "now_ms": 10_000,
    }  # fmt: skip
    nothing = {"escalations": [], "requests": [], "more_escalations": 0, "more_requests": 0, "bypasses": []}
    alert = {
        "id": text, "rule": text, "state": "firing", "since_ms": 1, "message": text, "advice": text,
        "about": {"principal": text, "table": text}, "partitions": [text],
    }  # fmt: skip
    table = rules.table()
    return {
        "now": renderer.render(
            "now.html", **shared, **nothing, activity=activity, tally=Tally(), agents=1, more_rules=0,
            alerts=[alert], rules=[replace(each, sample=one) for each in found],
            undeclared=[{"table": text, "principal": text, "declaration": text, "refused": 1, "command": text}],
        ),
        "commit": renderer.render(
            "commit.html", **shared, number=1, attempt=one, shown=commit_of(1, one, table), group=[(2, one)],
            timeline=None, named=[],
        ),
        "table": renderer.render(
            "table.html", **shared, table=text, facts=None, lanes=lanes_of([(1, one)], 9_000),
            heat=heat_of([one]).owned(lambda _: (text,)), attempts=[(1, one)], tally=Tally(), shown=1,
            branches=branches_with(text),
        ),
        "leases": renderer.render(
            "leases.html", **shared, leases=leases_of([LeaseSeen(lease_of(text), (lease_of(text),))], [], 10_000),
            more=1, asked={"table": text, "principal": text}, live=url("live", "leases", table=text),
        ),
        "lease": renderer.render(
            "lease.html", **shared, intent=lease_of(text), rows=[(lease_of(text).claims[0], text, text)], how=text,
            waits_for=[lease_of(text)], asked=True,
            warnings=[{
                "at-ms": 1, "principal": text, "table": text, "snapshot-id": 1, "operations": [text],
                "partitions": [text],
            }],
        ),
        "ticket": renderer.render(
            "ticket.html", **shared, ticket=request_about_rows(text), decision=Decision.GRANTED, attempts=[(1, one)],
            failed=None,
        ),
        "choosing": renderer.render("choosing.html", **shared, questions=QUESTIONS),
        "agents": renderer.render(
            "agents.html", **shared, rows=[(PrincipalRecord(text, text, 1, None), Health(text, Tally(), 1), True)],
            total=1, page=1, more=True, activity=activity, sought=text,
        ),
        "commits": renderer.render(
            "commits.html", **shared, attempts=[(1, one)], outcomes=list(Outcome), older=url("commits", table=text),
            asked={"table": text, "principal": text, "outcome": text},
        ),
    }  # fmt: skip


def branches_with(text: str) -> OpenBranches:
    verdict = CheckVerdict(text, passed=False, details=text, principal=text, at_ms=1)
    state = BranchState(text, 1, 1_000, text, text, 1.0, 2, stale=True)
    return OpenBranches((OpenBranch(state, {text: verdict, "other": None}),), 1)


def request_about_rows(text: str) -> Ticket:
    """A request about an overwrite that a guard has refused."""
    details = Meant(Identifier((text,), text), Excess(5_000, 10, 3, text)).details
    return Ticket(text, Kind.REQUEST, text, text, text, text, text, details, 1_000)


def lease_of(text: str) -> Intent:
    """A lease whose rows were declared with a text in every place of a region."""
    claim = Claim(text, text, ({},), frozenset({text}), json.dumps([{text: [text]}, {text: {"from": text}}]))
    return Intent(text, 1, text, text, (claim,), 60_000, State.HELD, 1_000, 1_000, 7, 1_000, ended=None, ended_by=text)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_texts_of_others_are_shown_and_do_nothing(payload: str) -> None:
    harmless = rendered("harmless")
    for name, html in rendered(payload).items():
        found, as_usual = Read(html), Read(harmless[name])
        assert [tag for tag, _ in found.tags] == [tag for tag, _ in as_usual.tags], name
        for (tag, attributes), (_, usual) in zip(found.tags, as_usual.tags, strict=True):
            assert attributes.keys() == usual.keys(), (name, tag)
            for attribute in ("href", "src", "action", "hx-sse:connect"):
                target = attributes.get(attribute)
                assert target is None or target.startswith(("/ui/", "?")) or target in ("/", "#main"), (name, target)
        assert not ACTING.search(html), name


def test_who_grants_an_overwrite_reads_how_much_is_granted() -> None:
    text = Read(rendered("t")["ticket"]).text
    assert "t may send an overwrite of t (branch t) that adds 5,000 rows, or up to a tenth more, once" in text
    request = {**request_about_rows("t").to_json(), "state": "granted"}
    assert answered(request) == (
        "request t is granted: t, an overwrite of t, branch t, that adds 5,000 rows and removes 10"
    )


def test_a_text_is_shown_as_it_is() -> None:
    text = Read(rendered(PAYLOADS[0])["commit"]).text
    assert PAYLOADS[0] in text
    assert r"gpj.\u202egnp" in Read(rendered(PAYLOADS[9])["commit"]).text


def test_a_live_event_is_one_event_whatever_it_holds() -> None:
    sent = message("a\n\nevent: close\r\ndata: x\rid: 7").decode()
    assert sent == "data: a\ndata: \ndata: event: close\ndata: data: x\ndata: id: 7\n\n"


def test_addresses_stay_on_the_page() -> None:
    assert url("agents", "../x?y#z") == "/ui/agents/..%2Fx%3Fy%23z"
    assert url("commits", table="a&b=c", outcome=None) == "/ui/commits?table=a%26b%3Dc"
    assert str(prose("see [here](x.md) and `<b>`")) == "See here and <code>&lt;b&gt;</code>"


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    policy = SECURITY["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for template in sorted((PAGE / "templates").glob("*.html")):
        text = template.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|https?:|\|\s*safe\b|autoescape", text), (
            template.name
        )
    own = (PAGE / "assets" / "page.js").read_text() + (PAGE / "assets" / "page.css").read_text()
    assert not re.search(r"https?:|innerHTML|eval\(|@import", own)


def test_the_vendored_files_are_those_of_their_manifests(tmp_path: Path) -> None:
    assert list(vendor.wrong()) == []
    for folder in vendor.FOLDERS:
        shutil.copytree(vendor.ROOT / folder, tmp_path / folder)
    changed = tmp_path / "src/icetower/page/assets/vendor/htmx.js"
    changed.write_text(changed.read_text() + ";")
    (changed.parent / "new.js").write_text("")
    assert sorted(line.split(": ")[0].rpartition("/")[2] for line in vendor.wrong(tmp_path)) == ["htmx.js", "new.js"]


def test_all_files_of_a_page_together_are_light() -> None:
    plain = sum(len(asset.content) for asset in ASSETS.values())
    packed = sum(len(asset.packed) for asset in ASSETS.values())
    assert (plain < WEIGHT_MAX, packed < 100 * 1024) == (True, True), (plain, packed)
    assert all(gzip.decompress(asset.packed) == asset.content for asset in ASSETS.values())
    assert len({asset.etag for asset in ASSETS.values()}) == len(ASSETS)
