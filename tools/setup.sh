#!/bin/sh
# A virtual environment in .venv with exactly what requirements.lock names, hashes checked, and Icetower itself editable.
# Run by `make setup` when requirements.lock, pyproject.toml or this script has changed. PYTHON chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."
uv_version=0.13.8

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for python in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        if new_enough "$python"; then
            echo "$python"
            return
        fi
    done
    echo "Python 3.11 or later is needed, and neither python3.13, python3.12, python3.11 nor python3 is one. Install it," >&2
    echo "or say where it is: make setup PYTHON=..." >&2
    return 1
}

if ! new_enough .venv/bin/python; then
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            echo "$python cannot make virtual environments: install $package" >&2
            exit 1
        fi
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" </dev/null
    fi
    "$python" -m venv --clear .venv
fi

if [ "$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "$uv_version" ]; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
fi
export VIRTUAL_ENV="$PWD/.venv"
.venv/bin/uv pip sync --quiet --require-hashes requirements.lock
.venv/bin/uv pip install --quiet --no-deps --editable .
touch .venv/ready
