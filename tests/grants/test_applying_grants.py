"""`icetower contracts grants` against a Polaris on loopback: what it sends, what it leaves, and how it goes on."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from icetower.cli.app import app
from icetower.contracts.polaris import CONTRACT_PROPERTY
from icetower.errors import (
    AlreadyExists,
    Conflict,
    IcetowerError,
    NotAuthenticated,
    NotFound,
    Unavailable,
    UpstreamFailed,
    UsageError,
)
from tests.grants.polaris_server import PolarisServer, State
from tests.grants.published import Client, judges

PRICING = "tables: [{table: pricing.*, operations: [append], partitions: all}]\nreads: [inventory.stock]"
INVENTORY = "tables: [{table: inventory.stock, operations: [append, drop], partitions: all}]"
MANAGED = {"managed-by": "icetower"}


@dataclass
class Done:
    status: int
    output: str
    error: IcetowerError | None

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.output)


class Workplace:
    """A folder of contracts, from which the command is typed."""

    def __init__(self, folder: Path, server: PolarisServer) -> None:
        self.folder = folder
        self.server = server
        self.credentials = folder / "credentials"

    def run(self, contracts: dict[str, str], *words: str, polaris: str | None = None) -> Done:
        files: list[str] = []
        for agent, clauses in contracts.items():
            file = self.folder / f"{agent}.yaml"
            file.write_text(f"version: 1\nagent: {agent}\n{clauses}\n")
            files.append(str(file))
        uri = self.server.uri if polaris is None else polaris
        options = ["--catalog", "prod", "--polaris", uri, "--credentials", str(self.credentials), "--no-tables"]
        done = CliRunner().invoke(app, ["contracts", "grants", *files, *options, *words])
        if done.exception is not None and not isinstance(done.exception, IcetowerError | SystemExit):
            raise done.exception
        error = done.exception if isinstance(done.exception, IcetowerError) else None
        return Done(done.exit_code, done.output, error)

    def secret(self, principal: str) -> str:
        kept = json.loads((self.credentials / f"{principal}.json").read_text())
        assert kept["client_id"] == f"id-of-{principal}"
        return kept["client_secret"]


@pytest.fixture
def at(tmp_path: Path, server: PolarisServer, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.setenv("ICETOWER_POLARIS_TOKEN", server.token)
    monkeypatch.setenv("COLUMNS", "300")
    server.state.securables = {("pricing",), ("inventory",), ("inventory", "stock")}
    return Workplace(tmp_path, server)


def granted(state: State, role: str, catalog: str = "prod") -> set[str]:
    """The grants of a catalog role, as words."""
    return {
        " ".join([grant["privilege"], ".".join((*grant.get("namespace", ()), *filter(None, [grant.get("tableName")])))])
        for grant in state.catalog_roles[catalog, role]["grants"]
    }


# ── What is put in force ─────────────────────────────────────────────────────────────────────────────────────────────


def test_contracts_are_put_in_force_once(at: Workplace) -> None:
    both = {"pricing_agent": PRICING, "inventory_agent": INVENTORY}
    done = at.run(both, "--principal", "pricing-1=pricing_agent", "--principal", "pricing-2=pricing_agent")
    assert done.status == 0, done
    state = at.server.state
    assert granted(state, "pricing_writer") == {"TABLE_WRITE_DATA pricing", "TABLE_READ_DATA inventory.stock"}
    assert granted(state, "inventory_writer") == {"TABLE_WRITE_DATA inventory.stock", "TABLE_DROP inventory.stock"}
    assert state.assigned == {(name, ("prod", name)) for name in ("pricing_writer", "inventory_writer")}
    assert state.members == {
        ("pricing-1", "pricing_writer"), ("pricing-2", "pricing_writer"), ("inventory_agent", "inventory_writer")
    }  # fmt: skip
    assert "16 of 16 done" in done.output

    sent = len(at.server.changed)
    again = at.run(both, "--principal", "pricing-1=pricing_agent", "--principal", "pricing-2=pricing_agent")
    assert again.status == 0
    assert "Nothing to do: all is in force." in again.output
    assert len(at.server.changed) == sent


def test_a_dry_run_shows_the_same_plan_and_changes_nothing(at: Workplace) -> None:
    planned = at.run({"pricing_agent": PRICING}, "--dry-run", "--json").json
    assert not at.server.changed
    assert not at.credentials.exists()
    assert (planned["done"], planned["error"]) == (0, None)
    shown = at.run({"pricing_agent": PRICING}, "--dry-run")
    assert shown.status == 0
    assert all(request["why"] in shown.output for request in planned["requests"])
    assert "every partition" not in shown.output
    assert "also allows delete" in " ".join(shown.output.split())

    assert at.run({"pricing_agent": PRICING}).status == 0
    sent = [("/api/management/v1" + path, method) for method, path, _ in at.server.changed]
    assert sent == [(request["path"], request["method"]) for request in planned["requests"]]


def test_without_an_address_the_plan_is_that_for_an_empty_polaris(at: Workplace) -> None:
    done = at.run({"pricing_agent": PRICING, "audit_agent": "reads: ['**']"}, "--dry-run", "--json", polaris="")
    assert [request["why"] for request in done.json["requests"]] == [
        "create the catalog role pricing_writer",
        "create the principal role pricing_writer",
        "assign the catalog role pricing_writer to the principal role pricing_writer",
        "grant TABLE_WRITE_DATA on namespace pricing to pricing_writer",
        "grant TABLE_READ_DATA on table inventory.stock to pricing_writer",
        "create the catalog role audit_reader",
        "create the principal role audit_reader",
        "assign the catalog role audit_reader to the principal role audit_reader",
        "grant TABLE_READ_DATA on the catalog to audit_reader",
        "create the principal pricing_agent",
        "assign the principal role pricing_writer to the principal pricing_agent",
        "create the principal audit_agent",
        "assign the principal role audit_reader to the principal audit_agent",
    ]
    for judge in judges():
        for request in done.json["requests"]:
            judge.request(request["method"], request["path"].removeprefix("/api/management/v1"), request["body"])
    assert at.run({"pricing_agent": PRICING}, polaris="").status == 1


def test_names_that_need_it_are_encoded(at: Workplace) -> None:
    at.server.state.catalogs.add("a b/ü%")
    done = at.run({"x": "tables: [{table: '**', operations: [append], partitions: all}]"}, "--catalog", "a b/ü%")
    assert done.status == 0, done
    assert granted(at.server.state, "x_writer", "a b/ü%") == {"TABLE_WRITE_DATA "}


# ── What is taken away ───────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_contract_no_longer_gives_is_taken_back(at: Workplace) -> None:
    at.run({"pricing_agent": PRICING, "inventory_agent": INVENTORY})
    done = at.run({"pricing_agent": "tables: [{table: pricing.*, operations: [append], partitions: all}]"}, "--json")
    assert [request["why"] for request in done.json["requests"]] == [
        "take TABLE_READ_DATA on table inventory.stock from pricing_writer"
    ]
    assert done.json["left_alone"] == {"inventory_writer": "inventory_agent"}
    assert granted(at.server.state, "pricing_writer") == {"TABLE_WRITE_DATA pricing"}
    assert granted(at.server.state, "inventory_writer") == {
        "TABLE_WRITE_DATA inventory.stock",
        "TABLE_DROP inventory.stock",
    }


def test_a_contract_that_is_gone_ends_with_prune(at: Workplace) -> None:
    at.run({"pricing_agent": PRICING, "inventory_agent": INVENTORY})
    at.server.state.catalog_roles["prod", "catalog_admin"] = {"properties": {}, "grants": []}
    left = at.run({"pricing_agent": PRICING})
    assert "inventory_writer is not changed: its contract inventory_agent was not given" in left.output
    assert at.run({"pricing_agent": PRICING}, "--prune").status == 0
    assert {name for _, name in at.server.state.catalog_roles} == {"pricing_writer", "catalog_admin"}
    assert all(key[1] == "pricing_writer" for _, key in at.server.state.assigned)


def test_with_prune_a_role_passes_to_another_agent_whole(at: Workplace) -> None:
    at.run({"pricing_agent": PRICING})
    refused = at.run({"pricing": INVENTORY})
    assert isinstance(refused.error, Conflict)
    assert "--prune" in refused.error.message
    assert at.run({"pricing": INVENTORY}, "--prune").status == 0
    assert granted(at.server.state, "pricing_writer") == {
        "TABLE_WRITE_DATA inventory.stock",
        "TABLE_DROP inventory.stock",
    }
    assert at.server.state.assigned == {("pricing_writer", ("prod", "pricing_writer"))}
    assert at.server.state.members == {("pricing", "pricing_writer")}


def test_a_writer_that_becomes_a_reader_loses_its_old_role(at: Workplace) -> None:
    at.run({"pricing_agent": PRICING})
    assert at.run({"pricing_agent": "reads: [pricing.*]"}).status == 0
    assert [name for _, name in at.server.state.catalog_roles] == ["pricing_reader"]
    assert at.server.state.members == {("pricing_agent", "pricing_reader")}


def test_a_principal_has_exactly_one_role(at: Workplace) -> None:
    both = {"pricing_agent": PRICING, "inventory_agent": INVENTORY}
    at.run(both, "--principal", "p=pricing_agent", "--principal", "q=inventory_agent")
    done = at.run(both, "--principal", "q=pricing_agent", "--principal", "p=inventory_agent")
    assert done.status == 0
    assert at.server.state.members == {("q", "pricing_writer"), ("p", "inventory_writer")}


def test_who_is_not_bound_any_more_loses_the_role(at: Workplace) -> None:
    at.run({"pricing_agent": PRICING}, "--principal", "p=pricing_agent", "--principal", "q=pricing_agent")
    at.run({"pricing_agent": PRICING}, "--principal", "p=pricing_agent")
    assert at.server.state.members == {("p", "pricing_writer")}
    assert set(at.server.state.principals) == {"p", "q"}


def test_what_somebody_added_to_managed_roles_by_hand_is_taken(at: Workplace) -> None:
    at.run({"pricing_agent": PRICING})
    state = at.server.state
    before = granted(state, "pricing_writer")
    state.principal_roles["friends"] = {"properties": {}}
    state.catalog_roles["prod", "extra"] = {"properties": {}, "grants": []}
    state.assigned |= {("friends", ("prod", "pricing_writer")), ("pricing_writer", ("prod", "extra"))}
    state.members.add(("pricing_agent", "pricing_writer"))
    state.catalog_roles["prod", "pricing_writer"]["grants"] += [
        {"type": "view", "namespace": ["pricing"], "viewName": "v", "privilege": "VIEW_DROP"},
        {"type": "policy", "namespace": ["pricing"], "policyName": "p", "privilege": "POLICY_READ"},
        {"type": "catalog", "privilege": "CATALOG_MANAGE_CONTENT"},
    ]
    assert at.run({"pricing_agent": PRICING}).status == 0
    assert granted(state, "pricing_writer") == before
    assert state.assigned == {("pricing_writer", ("prod", "pricing_writer"))}
    assert ("prod", "extra") in state.catalog_roles


def _loses(state: State) -> None:
    state.members.remove(("q", "pricing_writer"))
    state.catalog_roles["prod", "pricing_writer"]["grants"].clear()


def _ends(state: State) -> None:
    _loses(state)
    del state.principals["q"]
    state.securables.clear()


@pytest.mark.parametrize("meanwhile", [_loses, _ends])
def test_what_is_gone_already_counts_as_taken(at: Workplace, meanwhile: Callable[[State], None]) -> None:
    """Somebody else takes the same away between the plan and its requests."""
    at.run({"pricing_agent": PRICING}, "--principal", "p=pricing_agent", "--principal", "q=pricing_agent")
    at.server.meanwhile = meanwhile
    less = "tables: [{table: pricing.*, operations: [append], partitions: all}]"
    done = at.run({"pricing_agent": less}, "--principal", "p=pricing_agent")
    assert done.status == 0, done
    assert [path for _, path, _ in at.server.changed[-2:]] == [
        "/principals/q/principal-roles/pricing_writer",
        "/catalogs/prod/catalog-roles/pricing_writer/grants",
    ]
    assert "2 of 2 done" in done.output


FOREIGN: list[tuple[str, Callable[[State], object], str]] = [
    ("a catalog role",
     lambda s: s.catalog_roles.update({("prod", "pricing_writer"): {"properties": {}, "grants": []}}),
     "there is a catalog role of prod named pricing_writer that Icetower did not make"),
    ("a principal role",
     lambda s: s.principal_roles.update({"pricing_writer": {"properties": {"managed-by": "somebody"}}}),
     "there is a principal role named pricing_writer that Icetower did not make"),
    ("another contract's role",
     lambda s: s.catalog_roles.update(
         {("prod", "pricing_writer"): {"properties": MANAGED | {CONTRACT_PROPERTY: "pricing"}, "grants": []}}),
     "stands for the contract pricing, not for pricing_agent"),
    ("a principal with a role",
     lambda s: (s.principals.update(pricing_agent={"properties": {}}),
                s.principal_roles.update(service_admin={"properties": {}}),
                s.members.add(("pricing_agent", "service_admin"))),
     "principal pricing_agent already has service_admin, which Icetower does not manage"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "said"), [(p, s) for _, p, s in FOREIGN], ids=[name for name, _, _ in FOREIGN])
def test_what_is_not_icetowers_is_not_touched(at: Workplace, prepare: Callable[[State], object], said: str) -> None:
    prepare(at.server.state)
    done = at.run({"pricing_agent": PRICING})
    assert isinstance(done.error, Conflict)
    assert said in done.error.message
    assert not at.server.changed


def test_a_role_is_adopted_by_its_property(at: Workplace) -> None:
    stray = {"type": "catalog", "privilege": "TABLE_DROP"}
    at.server.state.catalog_roles["prod", "pricing_writer"] = {"properties": MANAGED, "grants": [stray]}
    assert at.run({"pricing_agent": PRICING}).status == 0
    assert granted(at.server.state, "pricing_writer") == {"TABLE_WRITE_DATA pricing", "TABLE_READ_DATA inventory.stock"}


def test_a_principal_that_is_there_keeps_its_credentials(at: Workplace) -> None:
    at.server.state.principals["pricing_agent"] = {"properties": {"team": "shop"}, "secret": "its own"}
    assert at.run({"pricing_agent": PRICING}).status == 0
    assert at.server.state.principals["pricing_agent"]["secret"] == "its own"
    assert at.server.state.members == {("pricing_agent", "pricing_writer")}


# ── Half-way ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REQUESTS = 7
"""That put one contract in force."""
FAULTS = [(500, False), (500, True), (409, False), (0, False), (0, True)]


@pytest.mark.parametrize(("status", "carried_out"), FAULTS)
@pytest.mark.parametrize("request_number", range(REQUESTS))
def test_what_was_cut_short_goes_on(at: Workplace, request_number: int, status: int, carried_out: bool) -> None:
    at.server.fail(request_number, status, carried_out=carried_out)
    first = at.run({"pricing_agent": PRICING})
    assert first.error is not None
    assert f"({request_number} of {REQUESTS} done" in first.error.message
    assert first.status == 1
    awaited = list(at.credentials.glob("*.awaited"))
    assert bool(awaited) == (first.error.status != 409 and "POST /api/management/v1/principals" in first.error.message)

    second = at.run({"pricing_agent": PRICING})
    assert second.status == 0, second
    state = at.server.state
    assert granted(state, "pricing_writer") == {"TABLE_WRITE_DATA pricing", "TABLE_READ_DATA inventory.stock"}
    assert state.members == {("pricing_agent", "pricing_writer")}
    # Whoever was created has credentials that somebody knows.
    assert at.secret("pricing_agent") == state.principals["pricing_agent"]["secret"]
    assert [file.name for file in at.credentials.iterdir()] == ["pricing_agent.json"]
    assert "Nothing to do" in at.run({"pricing_agent": PRICING}).output


def test_credentials_are_reset_only_for_a_principal_whose_answer_was_lost(at: Workplace) -> None:
    at.server.fail(5, 0, carried_out=False)
    assert at.run({"pricing_agent": PRICING}).error is not None
    assert (at.credentials / "pricing_agent.awaited").exists()
    # Meanwhile somebody else makes a principal of that name, and uses it.
    at.server.state.principals["pricing_agent"] = {"properties": MANAGED, "secret": "theirs"}
    assert at.run({"pricing_agent": PRICING}).status == 0
    assert at.server.state.principals["pricing_agent"]["secret"] == "theirs"


def test_what_is_not_there_yet_waits_and_the_rest_is_done(at: Workplace) -> None:
    at.server.state.securables = {("pricing",)}
    done = at.run({"pricing_agent": PRICING})
    assert (done.status, done.error) == (1, None)
    assert "waits: grant TABLE_READ_DATA on table inventory.stock to pricing_writer" in done.output
    assert at.server.state.members == {("pricing_agent", "pricing_writer")}
    at.server.state.securables |= {("inventory", "stock")}
    assert at.run({"pricing_agent": PRICING}, "--json").json["done"] == 1
    assert granted(at.server.state, "pricing_writer") == {"TABLE_WRITE_DATA pricing", "TABLE_READ_DATA inventory.stock"}


PATTERNS = ["a.*", "a.t", "a.b.**", "b.u", "'**'"]
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(PATTERNS), st.sampled_from(["read", "append", "create", "drop", "alter", "refs, append"])
    ),
    max_size=3,
)
FLEETS = st.dictionaries(st.sampled_from(["one_agent", "one", "two_agent", "three"]), ENTRIES, max_size=3).filter(
    lambda fleet: not {"one_agent", "one"} <= set(fleet)
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fleets=st.lists(FLEETS, min_size=1, max_size=3), cut=st.integers(0, 20), faults=st.sampled_from(FAULTS))
@example(fleets=[{"one_agent": [("a.*", "read")]}, {"one": [("a.t", "read")]}], cut=0, faults=(500, False))
@example(fleets=[{"one": [("a.*", "append")]}, {"two_agent": [("a.t", "read")]}], cut=3, faults=(500, True))
def test_whatever_was_there_the_contracts_are_in_force(
    at: Workplace, fleets: list[dict[str, list[tuple[str, str]]]], cut: int, faults: tuple[int, bool]
) -> None:
    """Random contracts after one another, each run cut short once: then Polaris has exactly what a fresh one would."""
    spaces = {("a",), ("a", "t"), ("a", "b"), ("b",), ("b", "u")}
    at.server.state = State(securables=spaces)
    for file in at.credentials.glob("*"):
        file.unlink()
    for fleet in filter(None, fleets):
        contracts = {
            agent: "tables: ["
            + ", ".join(f"{{table: {p}, operations: [{o}], partitions: all}}" for p, o in entries)
            + "]"
            for agent, entries in fleet.items()
        }
        at.server.faults.clear()
        at.server.fail(cut, faults[0], carried_out=faults[1])
        at.run(contracts, "--prune")
        at.server.faults.clear()
        assert at.run(contracts, "--prune").status == 0
        reached, at.server.state = at.server.state, State(securables=spaces)
        fresh = Workplace(at.folder, at.server)
        fresh.credentials = at.folder / "fresh"
        assert fresh.run(contracts).status == 0
        for file in fresh.credentials.glob("*"):
            file.unlink()
        expected, at.server.state = at.server.state, reached
        assert _access(reached) == _access(expected)
        assert at.run(contracts, "--prune", "--json").json["requests"] == []
    assert not at.server.objections


def _access(state: State) -> set[tuple[str, str]]:
    """Who may do what."""
    return {
        (principal, json.dumps(grant, sort_keys=True))
        for principal, role in state.members
        for holder, key in state.assigned
        if holder == role
        for grant in state.catalog_roles[key]["grants"]
    }


# ── Secrets and wrong answers ────────────────────────────────────────────────────────────────────────────────────────


def test_secrets_are_in_a_file_of_their_owners_and_nowhere_else(at: Workplace) -> None:
    for words in ((), ("--json", "--principal", "other=pricing_agent")):
        done = at.run({"pricing_agent": PRICING}, *words)
        assert "secret-" not in done.output
        assert at.server.token not in done.output
    for name in ("pricing_agent", "other"):
        file = at.credentials / f"{name}.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert at.secret(name) == at.server.state.principals[name]["secret"]
    assert stat.S_IMODE(at.credentials.stat().st_mode) == 0o700
    assert done.json["credentials"] == {"other": str(at.credentials / "other.json")}


def test_credentials_that_are_there_are_not_written_over(at: Workplace) -> None:
    at.credentials.mkdir()
    (at.credentials / "pricing_agent.json").write_text("another Polaris's")
    done = at.run({"pricing_agent": PRICING})
    assert isinstance(done.error, AlreadyExists)
    assert not at.server.changed
    assert (at.credentials / "pricing_agent.json").read_text() == "another Polaris's"


def test_no_principal_is_made_whose_credentials_cannot_be_kept(at: Workplace) -> None:
    at.credentials.write_text("a file in the way")
    done = at.run({"pricing_agent": PRICING})
    assert done.error is not None
    assert "credentials cannot be kept" in done.error.message
    assert not at.server.state.principals


def test_a_caller_is_whom_the_environment_names(at: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICETOWER_POLARIS_TOKEN")
    nobody = at.run({"pricing_agent": PRICING}, "--dry-run")
    assert isinstance(nobody.error, UsageError)
    assert "ICETOWER_POLARIS_CREDENTIAL" in nobody.error.message
    monkeypatch.setenv("ICETOWER_POLARIS_CREDENTIAL", "root:s3cr3t:with:colons")
    assert at.run({"pricing_agent": PRICING}, "--dry-run").status == 0
    monkeypatch.setenv("ICETOWER_POLARIS_CREDENTIAL", "root:wrong-s3cr3t")
    wrong = at.run({"pricing_agent": PRICING}, "--dry-run")
    assert isinstance(wrong.error, NotAuthenticated)
    assert "s3cr3t" not in wrong.error.message


def test_what_polaris_refuses_is_said(at: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = at.run({"pricing_agent": PRICING}, "--catalog", "test")
    assert isinstance(missing.error, NotFound)
    assert "Catalog test does not exist" in missing.error.message
    monkeypatch.setenv("ICETOWER_POLARIS_TOKEN", "of-nobody")
    unknown = at.run({"pricing_agent": PRICING})
    assert isinstance(unknown.error, NotAuthenticated)
    assert "ICETOWER_POLARIS_TOKEN" in unknown.error.message
    assert "of-nobody" not in unknown.error.message


def test_an_address_is_one_of_a_polaris(at: Workplace) -> None:
    assert isinstance(at.run({"x": "reads: [a.t]"}, polaris="http://127.0.0.1:1").error, Unavailable)
    for wrong in ("nowhere", "ftp://x", "http://me:secret@127.0.0.1"):
        done = at.run({"x": "reads: [a.t]"}, polaris=wrong)
        assert isinstance(done.error, UsageError)
        assert "secret" not in done.error.message


@pytest.mark.parametrize("answer", ["<html>", "[]", "{}", '{"roles": [7]}', '{"roles": [{"name": 7}]}'])
def test_an_answer_that_is_none_is_said(at: Workplace, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(at.server, "_answered", lambda *_: (200, answer.encode()))
    done = at.run({"x": "reads: [a.t]"})
    assert isinstance(done.error, UpstreamFailed)
    assert "is that Apache Polaris?" in done.error.message


GRANTS = "/catalogs/c/catalog-roles/r/grants"
WRONG_REQUESTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/roles", {"catalogRole": {"name": "x"}}),
    ("PATCH", "/principals", {"principal": {"name": "x"}}),
    ("POST", "/principals", {"principal": {"name": "SYSTEM$x"}}),
    ("POST", "/principals", {"principal": {}}),
    ("POST", "/principals", None),
    ("PUT", GRANTS, {"grant": {"type": "table", "namespace": ["a"], "privilege": "TABLE_DROP"}}),
    ("PUT", GRANTS, {"grant": {"type": "namespace", "namespace": ["a"], "privilege": "TABLE_APPEND"}}),
    ("PUT", GRANTS, {"grant": {"type": "table", "namespace": ["a"], "tableName": "t", "privilege": "TABLE_CREATE"}}),
    ("PUT", GRANTS, {"grant": {"type": "table", "namespace": "a", "tableName": "t", "privilege": "TABLE_DROP"}}),
]


@pytest.mark.parametrize(("method", "path", "body"), WRONG_REQUESTS)
def test_the_judges_object_to_what_is_no_request(method: str, path: str, body: dict[str, Any] | None) -> None:
    for judge in judges():
        with pytest.raises((Exception, AssertionError)):
            judge.request(method, path, body)


def test_polaris_client_objects_to_fields_that_it_does_not_know() -> None:
    with pytest.raises(AssertionError, match="a field that Polaris's client does not know"):
        Client().request("POST", "/principal-roles", {"principalRole": {"name": "x", "managedBy": "icetower"}})
