"""`icetower support-bundle`: what others need in order to help, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

import typer
from pyiceberg.utils.config import Config
from sqlalchemy.engine import make_url

from icetower import __version__
from icetower.agent.causes import without_password
from icetower.ambient import SystemAmbient
from icetower.cli.doctor import looked
from icetower.cli.own_tower import CONFIG_FILE, CONFIG_VARIABLE, SECRET_NAME, config_file
from icetower.cli.progress import waiting
from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.scrubbing import Scrubber, secrets_of_environment, secrets_of_settings, variables_of_settings
from icetower.cli.status import gathered
from icetower.cli.terminal import say, writing
from icetower.database import shown_url
from icetower.errors import IcetowerError, UsageError
from icetower.gateway.settings import Settings, load_settings

LOG_MAX_BYTES = 1024 * 1024
JOURNAL_LINES = 5_000
REFUSALS_MAX = 1_000
SINCE_MS = 24 * 3600 * 1000
TIMEOUT_S = 20.0
_VARIABLES = ("ICETOWER", "PYICEBERG", "AWS_", "JAVA_", "SPARK_", "PYSPARK_", "GOOGLE_", "AZURE_", "OTEL_")


def support_bundle(
    out: Annotated[
        Path | None, typer.Option(help="The file to write.  [default: icetower-support-TIME.tar.gz]")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file with the tower's log, of which the end is taken; may be repeated.  [default: journald's]"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help=f"The tower's settings in TOML.  [default: {CONFIG_VARIABLE}, or ./{CONFIG_FILE}]"),
    ] = None,
    uri: Uri = DEFAULT_URI,
    as_json: Json = False,
) -> None:
    """Write a file with what others need in order to help: no secrets, no rows.

    It has versions, the settings (values that may be secrets are left out), what `icetower doctor` finds, whether the
    tower is ready, recent refusals, and the end of the log. It names tables, principals and partitions: look through it
    before you send it. It works where the tower does not start.

    \b
    Example:
      icetower support-bundle --log /var/log/icetower.log
    """
    now = datetime.fromtimestamp(SystemAmbient().now_ms() / 1000, UTC)
    path = out or Path(f"icetower-support-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    if path.exists():
        raise UsageError(f"{path} exists already, and was not changed; name another with --out")
    missing = [str(each) for each in log or () if not each.is_file()]
    if missing:
        raise UsageError(f"--log {', '.join(missing)}: there is no such file")
    chosen = config or config_file()
    with waiting("asking the tower"):
        scrubber = Scrubber(_known_secrets(chosen))
        files = _files(chosen, uri, log or [])
    clean = {
        name: scrubber.text(text) if isinstance(text, str) else _as_text(scrubber.value(text))
        for name, text in files.items()
    }
    found = sorted(name for name, text in clean.items() if scrubber.finds_known(text))
    if found:  # cannot be, but for a mistake in the scrubber: nothing is written then
        raise IcetowerError(
            f"a secret of this machine would be in {', '.join(found)}; nothing was written: report this"
        )
    _write(path, clean, int(now.timestamp()))
    if as_json:
        say(json.dumps({"file": str(path.absolute()), "bytes": path.stat().st_size, "parts": sorted(clean)}))
        return
    say(f"{path} is written: {', '.join(sorted(clean))}")
    say("it names tables, principals and partitions, and no secret that is known here; look through it first")


def _files(config: Path | None, uri: str, logs: list[Path]) -> dict[str, Any]:
    """The parts of the bundle by name: texts, or values of JSON. A part that fails says why."""
    parts: Mapping[str, Callable[[], Any]] = {
        "versions.json": _versions,
        "configuration.json": lambda: _configuration(config),
        "environment.json": _environment,
        "doctor.json": lambda: [each.to_json() for each in looked(config)],
        "tower.json": lambda: _tower(uri),
    }
    found = {name: _said(part) for name, part in parts.items()}
    for number, file in enumerate(logs, 1):
        found[f"log-{number}.txt"] = _said(lambda file=file: _tail(file))
    if not logs:
        found["log.txt"] = _said(_journal)
    return found


def _said(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except IcetowerError as error:
        return {"failed": error.message}
    except Exception as error:  # noqa: BLE001 - the other parts are of use even so; its text may hold anything
        return {"failed": type(error).__name__}


def _versions() -> dict[str, Any]:
    packages = {each.name: each.version for each in distributions()}
    return {
        "icetower": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


def _configuration(path: Path | None) -> dict[str, Any]:
    """The settings: values of the server, and of all else the names alone, but for what is known to be harmless."""
    if path is None:
        return {"file": None}
    settings = load_settings(path)
    upstream, escalations = settings.upstream, settings.escalations
    return {
        "file": str(path.absolute()),
        "server": settings.server.model_dump(mode="json"),
        "upstream": {
            "uri": None if upstream.uri is None else shown_url(make_url(upstream.uri)),
            "catalog": upstream.catalog,
            "warehouse": None if upstream.warehouse is None else without_password(upstream.warehouse).split("?")[0],
        },
        "escalations": {
            "smtp_host": escalations.smtp_host,
            "smtp_port": escalations.smtp_port,
            "smtp_encryption": escalations.smtp_encryption.value,
            "webhooks": sorted(escalations.webhooks),
        },
        "names_only": _names_only(settings),
    }


def _names_only(settings: Settings) -> dict[str, list[str]]:
    sections = ("storage", "table_config", "client_code", "defaults", "overrides")
    return {name: sorted(getattr(settings, name)) for name in sections}


def _environment() -> list[str]:
    """The names of the variables that matter; no value."""
    return sorted(name for name in os.environ if name.startswith(_VARIABLES))


def _tower(uri: str) -> dict[str, Any]:
    now_ms = SystemAmbient().now_ms()
    with connect(uri) as tower:
        refused = tower.commits(limit=REFUSALS_MAX, refused=True, since_ms=now_ms - SINCE_MS)
        return {"uri": without_password(uri), "status": gathered(tower, now_ms, now_ms - SINCE_MS), "refused": refused}


def _tail(file: Path) -> str:
    """The end of a file, from the beginning of a line on."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - LOG_MAX_BYTES))
        text = opened.read(LOG_MAX_BYTES).decode("utf-8", "replace")
    return text if size <= LOG_MAX_BYTES else text.partition("\n")[2]


def _journal() -> str:
    """The end of the log of systemd's unit `icetower`, as docs/deployment.md sets it up."""
    program = shutil.which("journalctl")
    if program is None:
        return "there is no journald here; name the file with the log: icetower support-bundle --log FILE\n"
    command = [program, "--unit", "icetower", "--lines", str(JOURNAL_LINES), "--no-pager", "--output", "short-iso"]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
    return done.stdout[-LOG_MAX_BYTES:].decode("utf-8", "replace")


def _known_secrets(config: Path | None) -> set[str]:
    """The secrets that are known on this machine, wherever they stand. What cannot be read has none that we know."""
    found = secrets_of_environment(os.environ)
    content: Any = {}
    if config is not None:
        try:
            content = tomllib.loads(config.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError, RecursionError):
            content = {}
    found |= secrets_of_settings(content)
    found |= {os.environ[name] for name in variables_of_settings(content) if os.environ.get(name)}
    server = content.get("server") if isinstance(content, dict) else None
    data = server.get("data") if isinstance(server, dict) else None
    with suppress(OSError, ValueError):
        found.add((Path(str(data or ".icetower")) / SECRET_NAME).read_text().strip())
    try:
        found |= secrets_of_settings(dict(Config().config), "pyiceberg")
    except Exception:  # noqa: BLE001 - a configuration of PyIceberg's that cannot be read
        return found
    return found


def _as_text(value: Any) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"


def _write(path: Path, files: Mapping[str, str], at_s: int) -> None:
    """Write the archive under another name first: Ctrl-C leaves no half of one. Only its owner can read it."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with writing(path):
        unfinished.unlink(missing_ok=True)  # of one that was killed, or a link that somebody has put there
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for name, text in sorted(files.items()):
                    data = text.encode()
                    about = tarfile.TarInfo(f"icetower-support/{name}")
                    about.size, about.mtime, about.mode = len(data), at_s, 0o600
                    archive.addfile(about, io.BytesIO(data))
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
