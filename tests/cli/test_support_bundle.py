"""The support bundle has what helps, and no secret, wherever one was planted."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import stat
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from icetower.cli.scrubbing import HIDDEN, Scrubber, secrets_of_environment, secrets_of_settings
from icetower.errors import IcetowerError
from tests.cli.conftest import Run
from verify.kit.tower_process import TowerProcess

PLANTED = {
    "database": "db/pass+word#1",
    "s3 secret": "S3cretKey/ABCDEFGH+12345",
    "s3 key": "AKIAPLANTEDKEY000001",
    "plugin": "value-of-an-odd-name-4711",
    "table config": "table-config-secret-value",
    "webhook": "https://hooks.example.com/services/T000/B000/planted-webhook",
    "webhook secret": "signing-secret-planted",
    "smtp password": "smtp-password-planted",
    "environment": "environment-password-planted",
    "aws": "aws-session-token-planted==",
    "proxy": "proxy-password-planted",
    "token": "ict_planted-token-of-a-principal",
    "bearer": "icat_planted-bearer-token-of-another",
    "basic": "basic-user:basic-password-planted",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJl",
    "cookie": "session-cookie-planted",
    "query": "presigned-signature-planted",
    "json": 'quoted \\"json\\" secret planted',
    "pyiceberg": "pyiceberg-credential-planted",
    "log only": "password-that-stands-in-the-log-alone",
    "private key": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCplanted",
}

CONFIGURATION = """\
[server]
data = "{data}"
origins = ["https://user:proxy-password-planted@console.example.com"]
[upstream]
uri = "postgresql+psycopg://icetower:db%2Fpass%2Bword%231@127.0.0.1:{port}/lake?sslpassword=db/pass+word%231"
warehouse = "s3://bucket/warehouse"
[storage]
"s3.endpoint" = "http://127.0.0.1:{port}"
"s3.access-key-id" = "AKIAPLANTEDKEY000001"
"s3.secret-access-key" = "S3cretKey/ABCDEFGH+12345"
"plugin.thing" = "value-of-an-odd-name-4711"
[table-config]
"adls.sas" = "table-config-secret-value"
[escalations]
smtp_host = "mail.example.com"
smtp_user = "icetower"
sender = "icetower@example.com"
[escalations.webhooks]
pager = {{url = "https://hooks.example.com/services/T000/B000/planted-webhook", secret_env = "PAGER_SIGNING_SECRET"}}
"""

LOG = """\
level=error event=failed request="GET /v1/x" authorization="Bearer icat_planted-bearer-token-of-another"
{{"headers": {{"Authorization": "Basic {basic}", "Cookie": "sid=session-cookie-planted"}}, "secret": {json}}}
Proxy-Authorization: Basic {basic}
upstream postgresql+psycopg://icetower:{quoted}@127.0.0.1/lake failed: password authentication failed
GET https://bucket.s3.example.com/a?X-Amz-Signature=presigned-signature-planted&X-Amz-Date=1
token ict_planted-token-of-a-principal refused; jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJl
client sent password=password-that-stands-in-the-log-alone and s3.secret-access-key=S3cretKey/ABCDEFGH+12345
-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCplanted
-----END PRIVATE KEY-----
plain line that helps: table shop.sales is 409 conflict.files
"""


def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with secrets everywhere; the log's path."""
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "icetower.toml").write_text(CONFIGURATION.format(data=tmp_path / "data", port=1))
    (tmp_path / ".pyiceberg.yaml").write_text(
        "catalog:\n  prod:\n    type: rest\n    uri: http://127.0.0.1:1\n    credential: pyiceberg-credential-planted\n"
    )
    variables = {
        "PAGER_SIGNING_SECRET": PLANTED["webhook secret"],
        "ICETOWER_SMTP_PASSWORD": PLANTED["smtp password"],
        "ICETOWER_TOKEN": PLANTED["token"],
        "DB_PASSWORD": PLANTED["environment"],
        "AWS_SESSION_TOKEN": PLANTED["aws"],
        "HTTPS_PROXY_OF_OURS": f"http://me:{PLANTED['proxy']}@proxy.example.com",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "tower.log"
    log.write_text(
        LOG.format(
            basic=base64.b64encode(PLANTED["basic"].encode()).decode(),
            quoted=quote(PLANTED["database"], safe=""),
            json=json.dumps(PLANTED["json"]),
        )
        + "".join(f"somebody printed {value}\n" for name, value in PLANTED.items() if name in KNOWN)
    )
    return log


KNOWN = {
    "database", "s3 secret", "s3 key", "plugin", "table config", "webhook", "webhook secret", "smtp password",
    "environment", "aws", "proxy", "token", "pyiceberg",
}  # fmt: skip
"""Secrets of this machine's files and environment: they are found even where nothing near them tells."""


def parts_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        return {name.removeprefix("icetower-support/"): file.read().decode() for name, file in found.items() if file}


def assert_no_secret(path: Path) -> None:
    """Each secret is looked for as it is, and as URLs and Base64 write it, in the bytes of the whole archive."""
    raw = gzip.decompress(path.read_bytes())
    for name, secret in PLANTED.items():
        forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
        forms |= {base64.b64encode(secret.encode()).decode().rstrip("=")}
        for part in (secret.rpartition(":")[2], secret.rpartition("/")[2]):
            if len(part) > 8:
                forms.add(part)
        assert not [form for form in forms if form.encode() in raw], name


def test_no_secret_is_in_the_bundle_where_the_tower_does_not_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = plant(tmp_path, monkeypatch)
    status, out, err = run("support-bundle", "--out", "b.tar.gz", "--log", str(log), "--json")
    assert status == 0, err
    assert json.loads(out)["parts"]
    bundle = tmp_path / "b.tar.gz"
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    assert_no_secret(bundle)
    parts = parts_of(bundle)
    assert "plain line that helps: table shop.sales is 409 conflict.files" in parts["log-1.txt"]
    configuration = json.loads(parts["configuration.json"])
    assert configuration["names_only"]["storage"] == [
        "plugin.thing", "s3.access-key-id", "s3.endpoint", "s3.secret-access-key",
    ]  # fmt: skip
    assert configuration["escalations"]["webhooks"] == ["pager"]
    assert "127.0.0.1" in configuration["upstream"]["uri"]
    assert {each["name"] for each in json.loads(parts["doctor.json"])} >= {"configuration", "storage", "pyiceberg"}
    assert "failed" in json.loads(parts["tower.json"])
    assert json.loads(parts["versions.json"])["packages"]["pyiceberg"]
    assert "DB_PASSWORD" not in parts["environment.json"]
    assert not list(tmp_path.glob(".*unfinished"))


def test_a_broken_configuration_gives_no_secret_away(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = plant(tmp_path, monkeypatch)
    file = tmp_path / "icetower.toml"
    file.write_text(file.read_text() + f'\n[nosuch]\n"{PLANTED["plugin"]}" = 1\nx = "S3cretKey/ABCDEFGH+12345"\n')
    status, _, err = run("support-bundle", "--out", "b.tar.gz", "--log", str(log))
    assert status in (0, 2), err
    if status == 0:
        assert_no_secret(tmp_path / "b.tar.gz")
    assert "S3cretKey" not in err


def test_what_a_running_tower_says_is_in_the_bundle(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: TowerProcess
) -> None:
    secret = untouched.principal("shop", "owner: a@example.com\ntables: [{table: shop.*, operations: [append]}]\n")
    with untouched.client(secret) as agent:
        answer = agent.post("/v1/namespaces", json={"namespace": ["password=" + PLANTED["log only"]]})
        assert answer.status_code == 403
    log = plant(tmp_path, monkeypatch)
    monkeypatch.setenv("ICETOWER_TOKEN", untouched.secret)
    status, _, err = run("support-bundle", "--out", "b.tar.gz", "--log", str(log), "--uri", untouched.uri)
    assert status == 0, err
    assert_no_secret(tmp_path / "b.tar.gz")
    raw = gzip.decompress((tmp_path / "b.tar.gz").read_bytes())
    assert untouched.secret.encode() not in raw
    tower = json.loads(parts_of(tmp_path / "b.tar.gz")["tower.json"])
    assert tower["status"]["ready"]
    assert [row["principal"] for row in tower["refused"]] == ["shop"]


def test_nothing_is_overwritten_and_no_half_is_left(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.tar.gz").write_text("mine")
    status, _, err = run("support-bundle", "--out", "b.tar.gz")
    assert (status, (tmp_path / "b.tar.gz").read_text()) == (2, "mine"), err

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile, "addfile", interrupted)
    before = set(os.listdir(tmp_path))
    status, _, err = run("support-bundle", "--out", "c.tar.gz")
    assert status == 130, err
    assert set(os.listdir(tmp_path)) == before


def test_a_scrubber_that_misses_a_secret_writes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle is searched once more before it is written."""
    log = plant(tmp_path, monkeypatch)
    monkeypatch.setattr(Scrubber, "text", lambda _self, text: text)
    status, _, err = run("support-bundle", "--out", "b.tar.gz", "--log", str(log))
    assert status == 1
    assert "nothing was written" in err
    assert not (tmp_path / "b.tar.gz").exists()
    assert not [each for each in PLANTED.values() if each in err]


def test_a_long_log_is_cut_at_the_beginning_of_a_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icetower.cli.support_bundle.LOG_MAX_BYTES", 1000)
    (tmp_path / "long.log").write_text("".join(f"line {number}\n" for number in range(1000)))
    assert run("support-bundle", "--out", "b.tar.gz", "--log", "long.log")[0] == 0
    lines = parts_of(tmp_path / "b.tar.gz")["log-1.txt"].splitlines()
    assert lines[-1] == "line 999"
    assert all(line.startswith("line ") for line in lines)
    assert len(lines) < 120


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
        ("'authorization': 'token zzz yyy'", "zzz yyy"),
        ("https://u:p%40ss@host/x", "p%40ss"),
        ('{"client_secret":"x y z"}', "x y z"),
        ('{\\"password\\":\\"nested one\\"}', "nested one"),
        ("AWS_SECRET_ACCESS_KEY=abcd/efgh", "abcd/efgh"),
        ("--token hidden-no", ""),
        ("x-api-key: 12345", "12345"),
        ("?sig=abc%2Bdef&x=1", "abc%2Bdef"),
        ("passphrase=open-sesame", "open-sesame"),
        ("pass: hush", "hush"),
        ("x-api-key abc123", "abc123"),
        ('{"password": "a\\"rest of it"}', "rest of it"),
        ("password='a''rest of it'", "rest of it"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, hidden: str) -> None:
    found = Scrubber([]).text(text)
    assert not hidden or (hidden not in found and HIDDEN in found)


@pytest.mark.parametrize(
    "text",
    ["key_hash=abc rule=key.form", "east may not commit to shop.sales", "idempotency-key-lifetime", "monkey business"],
)
def test_what_helps_stays(text: str) -> None:
    assert Scrubber([]).text(text) == text


def test_values_under_the_name_of_a_secret_are_hidden() -> None:
    found = Scrubber([]).value({"password": "a", "list": [{"api_key": "b"}], "table": "shop.sales", "n": 1})
    assert found == {"password": HIDDEN, "list": [{"api_key": HIDDEN}], "table": "shop.sales", "n": 1}


def test_switches_and_regions_are_no_secrets() -> None:
    settings = {"storage": {"s3.region": "eu-west-1", "s3.path-style-access": "true", "x": "a-secret-of-a-plugin"}}
    assert secrets_of_settings(settings) == {"a-secret-of-a-plugin"}
    assert secrets_of_environment({"PATH": "/usr/bin", "MY_TOKEN": "tttt", "U": "http://a:bbbb@c"}) == {"tttt", "bbbb"}


def test_archives_are_the_same_for_the_same_content(tmp_path: Path) -> None:
    from icetower.cli import support_bundle

    support_bundle._write(tmp_path / "a.tar.gz", {"x": "1"}, 5)
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "a.tar.gz").read_bytes())) as archive:
        assert [(each.name, each.mode, each.mtime) for each in archive] == [("icetower-support/x", 0o600, 5)]
    with pytest.raises(IcetowerError, match="cannot be written"):
        support_bundle._write(tmp_path / "none" / "a.tar.gz", {"x": "1"}, 5)


@pytest.mark.parametrize("name", ["WH", "PRICING_HOOK"])
def test_the_secret_of_a_variable_that_the_configuration_names_is_known(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name tells nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "mellon-of-moria")
    hook = f'w = {{url = "https://h/x", secret_env = "{name}"}}'
    (tmp_path / "icetower.toml").write_text(f"[escalations.webhooks]\n{hook}\n")
    (tmp_path / "tower.log").write_text(f"said mellon-of-moria and {b'mellon-of-moria'.hex()}\n")
    status, _, err = run("support-bundle", "--out", "b.tar.gz", "--log", "tower.log")
    assert status == 0, err
    assert parts_of(tmp_path / "b.tar.gz")["log-1.txt"] == f"said {HIDDEN} and {HIDDEN}\n"
