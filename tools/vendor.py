"""Take newer versions of the scripts and styles that the repository holds, from npm's registry.

    vendor.py             the newest version of each package
    vendor.py --check     says which files differ from their manifests (exit 1)

Each folder of such files has a `manifest.json`: package, version, licence, and of each file where it stands in the
package and its SHA-256. The page of a tower is made of these files alone; nothing is fetched when it is served, built
or tested. A test compares files and manifests.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = "manifest.json"
TIMEOUT_S = 300
FOLDERS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "src/icetower/page/assets/vendor": {
        "htmx.org": {
            "dist/htmx.min.js": "htmx.js",
            "dist/ext/hx-sse.min.js": "hx-sse.js",
            "LICENSE": "htmx.LICENSE.txt",
        },
        "uplot": {
            "dist/uPlot.iife.min.js": "uplot.js",
            "dist/uPlot.min.css": "uplot.css",
            "LICENSE": "uplot.LICENSE.txt",
        },
        "@picocss/pico": {"css/pico.min.css": "pico.css", "LICENSE.md": "pico.LICENSE.txt"},
    },
    "tests/page/vendor": {"axe-core": {"axe.min.js": "axe.js", "LICENSE": "axe.LICENSE.txt"}},
}
"""By folder and package: files of the package, and their names in the folder."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wrong(root: Path = ROOT) -> Iterator[str]:
    """What differs between the folders and their manifests, a line each."""
    for folder, packages in FOLDERS.items():
        place = root / folder
        listed: dict[str, Any] = json.loads((place / MANIFEST).read_text())
        if sorted(listed) != sorted(packages):
            yield f"{folder}: the manifest has {', '.join(sorted(listed))}"
        named = {MANIFEST}
        for package, entry in listed.items():
            if not (entry["version"] and entry["licence"]):
                yield f"{folder}: {package} has no version or no licence"
            for file in entry["files"]:
                named.add(file["name"])
                path = place / file["name"]
                if not path.is_file() or sha256(path) != file["sha256"]:
                    yield f"{folder}/{file['name']}: differs from {package} {entry['version']}"
        yield from (f"{folder}/{path.name}: in no package" for path in place.iterdir() if path.name not in named)


def fetch(folder: str, packages: Mapping[str, Mapping[str, str]]) -> None:
    """Write the files of one folder, and its manifest."""
    manifest: dict[str, Any] = {}
    for package, files in packages.items():
        with tempfile.TemporaryDirectory() as scratch:
            said = subprocess.run(
                ["npm", "pack", "--silent", package],
                cwd=scratch, check=True, capture_output=True, text=True, timeout=TIMEOUT_S,
            )  # fmt: skip
            with tarfile.open(Path(scratch) / said.stdout.split()[-1]) as archive:
                about = json.loads(_content(archive, "package.json"))
                for source, name in files.items():
                    # No map of the source is held: a browser's tools would ask the tower for it.
                    lines = _content(archive, source).decode().splitlines(keepends=True)
                    kept = [line for line in lines if not line.startswith("//# sourceMappingURL=")]
                    (ROOT / folder / name).write_text("".join(kept))
        manifest[package] = {
            "version": about["version"],
            "licence": about["license"],
            "files": [
                {"name": name, "source": source, "sha256": sha256(ROOT / folder / name)}
                for source, name in files.items()
            ],
        }
        print(f"{package} {about['version']} ({about['license']})")
    (ROOT / folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    assert file is not None, name
    return file.read()


def main() -> int:
    if "--check" not in sys.argv[1:]:
        for folder, packages in FOLDERS.items():
            fetch(folder, packages)
    found = list(wrong())
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
