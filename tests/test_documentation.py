"""What can be set, called or refused is in the documentation, or a test here fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from icetower import errors
from icetower.ambient import SystemAmbient
from icetower.contracts.document import load
from icetower.gateway.settings import (
    AlertSettings,
    EscalationSettings,
    EventsSettings,
    LineageSettings,
    Server,
    Settings,
    TracesSettings,
    UpstreamSettings,
)
from icetower.gateway.tower import open_tower

ROOT = Path(__file__).parent.parent
README, OPERATIONS, PROTOCOL, ARCHITECTURE = (
    (ROOT / name).read_text() for name in ("README.md", "docs/operations.md", "docs/protocol.md", "ARCHITECTURE.md")
)


@pytest.mark.parametrize(
    "model",
    [
        Server,
        UpstreamSettings,
        EscalationSettings,
        AlertSettings,
        TracesSettings,
        EventsSettings,
        LineageSettings,
    ],
)
def test_every_setting_is_documented(model: type[BaseModel]) -> None:
    for name in model.model_fields:
        assert f"`{name}`" in OPERATIONS, name


def test_every_section_of_the_settings_is_documented() -> None:
    for name, field in Settings.model_fields.items():
        assert f"`[{field.alias or name}]`" in OPERATIONS, name


def test_every_control_route_is_documented(tmp_path: Path) -> None:
    settings = Settings.model_validate({"server": {"data": str(tmp_path)}})
    paths = {getattr(route, "path", "") for route in open_tower(settings, SystemAmbient()).routes()}
    control = {path.removeprefix("/icetower/v1") for path in paths if path.startswith("/icetower/v1")}
    assert control
    for path in control:
        assert f"{path}`" in PROTOCOL, path


def test_every_status_is_documented() -> None:
    def tree(root: type[errors.IcetowerError]) -> list[type[errors.IcetowerError]]:
        return [root, *(leaf for branch in root.__subclasses__() for leaf in tree(branch))]

    for error in tree(errors.IcetowerError):
        if error.status not in (500,):
            assert f"| {error.status}" in PROTOCOL or f"{error.status}, " in PROTOCOL or f", {error.status}" in PROTOCOL
        assert f"`{error.default_next_step}`" in PROTOCOL, error.default_next_step


def test_the_contract_in_the_readme_is_one() -> None:
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "agent:" in block)
    contract = load(text, source="README.md")
    assert contract.name == yaml.safe_load(text)["agent"]
    # Its agent is advised to upsert, and an upsert that finds no row to update is an append that is not blind.
    assert contract.tables[0].reads_owned
    assert not contract.tables[0].blind_appends


def test_every_room_is_in_the_architecture() -> None:
    rooms = {path.parent.name for path in (ROOT / "src").rglob("__init__.py")} - {"icetower"}
    for room in rooms:
        assert f"`{room}/`" in ARCHITECTURE, room


def test_every_target_that_the_readme_names_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make (\w+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_page_on_conflicts_names_modules_where_they_are() -> None:
    page = (ROOT / "docs" / "conflicts.md").read_text()
    section = page.split("## Where it stands\n")[1].split("\n## ")[0]
    folders = re.split(r"`(src/\w+(?:/\w+)?)/`", section)
    named = dict(zip(folders[1::2], folders[2::2], strict=True))
    assert len(named) == 3
    for folder, text in named.items():
        modules = re.findall(r"`(\w+\.py)`", text)
        assert modules
        assert [name for name in modules if not (ROOT / folder / name).is_file()] == [], folder
