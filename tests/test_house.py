"""House rules, as tests: what a reader of this project may rely on without looking."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icetower import errors

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80

# Assembled from parts, so that this file does not break its own rule.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(" + "|".join(("home/", "root/", "Users/", "wo" + "rk/")) + r")\w")
URL = re.compile(r"\bhttps?://(\[[^\]]+\]|[^\s/:\"'`)<>,;\]}\\]+)")
# Hosts that name nobody: this machine, placeholders, the namespaces of XML, and formats that are named by an address.
HOSTS_ALLOWED = re.compile(
    r"127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1\]|[\w.-]*\.?example(\.com|\.org|\.net)?|[\w.-]+\.(invalid|test|internal)"
    r"|ant\.apache\.org|openlineage\.io|www\.apache\.org|www\.w3\.org|json-schema\.org|[\w-]+|[^\w].*|.*[{}$*].*"
)
# Registries are named nowhere, not even without a scheme.
REGISTRIES = re.compile(
    "|".join(
        re.escape(f"{name}.{domain}")
        for name, domain in (
            ("pypi", "org"), ("pythonhosted", "org"), ("maven", "org"), ("repo.maven.apache", "org"),
            ("npmjs", "org"), ("npmjs", "com"), ("crates", "io"), ("deb.debian", "org"), ("golang", "org"),
        )
    )
)  # fmt: skip
# Data and locks: not written by hand.
NOT_PROSE = {".lock", ".avro", ".parquet", ".gz", ".png", ".svg", ".jar"}
VENDORED = {SOURCE / "icetower/page/assets/vendor", ROOT / "tests/page/vendor", ROOT / "tests/observe/openlineage"}
"""Files of others as they are, which notes beside them name."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _tracked() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        path = ROOT / name
        ours = path.parent not in VENDORED and path.suffix not in NOT_PROSE and path.name != "LICENSE"
        if name and path.is_file() and ours:
            yield path


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    yield from enumerate(path.read_text(errors="replace").splitlines(), 1)


def _found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{_name(path)}:{number}: {line.strip()[:120]}"
        for path in _tracked()
        for number, line in _lines(path)
        if pattern.search(line)
    ]


@pytest.mark.full
def test_imports_point_down() -> None:
    """The order of the rooms, and the further forbidden pairs, stand in pyproject.toml; import-linter proves them."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_says_what_it_is_and_fits_in_a_head(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not text.strip(), "no docstring"
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    }
    assert not long


def test_nothing_is_left_for_later() -> None:
    assert not _found(UNFINISHED)


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert not _found(MACHINE_PATHS)


def test_no_module_changes_the_import_path() -> None:
    """Helpers are imported as packages from the repository: `tests.…`, `verify.…`, `bench.…`, `tools.…`."""
    assert not [each for each in _found(re.compile(r"\bsys" + r"\.path\b")) if each.split(":")[0].endswith(".py")]


def test_texts_that_the_project_began_with_go_by_their_names() -> None:
    assert _found(re.compile("document" + r"s?[ _]00\d", re.IGNORECASE)) == []


def test_programs_import_no_tests() -> None:
    """What tests share with verify/ and bench/ stands in verify/kit."""
    found = _found(re.compile(r"^\s*(from|import) tests\b"))
    assert not [each for each in found if each.startswith(("src/", "verify/", "bench/", "tools/"))]


def test_no_file_names_a_host() -> None:
    """Addresses of registries and mirrors belong into the configuration of pip, uv and Ivy, not into the project."""
    named = [
        f"{_name(path)}:{number}: {host}"
        for path in _tracked()
        for number, line in _lines(path)
        for host in URL.findall(line)
        if not HOSTS_ALLOWED.fullmatch(host)
    ]
    assert not named
    assert not _found(REGISTRIES)


def test_every_error_stands_in_the_tree_with_its_status_and_parent() -> None:
    """The tree drawn at the top of errors.py is the one that the classes make."""
    drawn: dict[str, tuple[int, str | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│├└─ ]*)(\w+) +(\d{3})\b", line)
        if found is None:
            continue
        depth, name = len(found[1]), found[2]
        while above and above[-1][0] >= depth:
            above.pop()
        drawn[name] = (int(found[3]), above[-1][1] if above else None)
        above.append((depth, name))

    # Never seen by a client: the text below the tree introduces them.
    for_people = {"ConfigurationError", "UsageError"}
    made = {
        name: (kind.status, None if kind is errors.IcetowerError else kind.__bases__[0].__name__)
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.IcetowerError) and name not in for_people
    }
    assert drawn == made
    assert all(name in (errors.__doc__ or "") for name in for_people)


def test_every_error_has_a_kind_a_rule_and_a_next_step() -> None:
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.IcetowerError):
            assert 400 <= kind.status <= 599, name
            assert kind.kind, name
            assert kind.default_rule, name
            assert kind.default_next_step, name
