#!/usr/bin/env bash
# Run tests/unit on every supported Python that this machine has; report a missing one and go on.
# Each gets a virtual environment of its own under .venv/pythons, except the Python of .venv itself.
#   EXTRAS=router,engine,llamacpp,ray,cluster,dev tests/support/each_python.sh [PYTEST_FLAG]...
set -euo pipefail
cd "$(dirname "$0")/../.."

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        [[ $(version_of "$candidate") == "$1" ]] && echo "$candidate" && return
    done
    return 1
}

install() {
    [[ .venv/pythons/$1/.ready -nt pyproject.toml && .venv/pythons/$1/.ready -nt constraints.txt ]] && return
    "$2" -m venv ".venv/pythons/$1"
    ".venv/pythons/$1/bin/python" -m pip install --quiet --constraint constraints.txt --editable ".[$EXTRAS]"
    touch ".venv/pythons/$1/.ready"
}

for version in 3.11 3.12 3.13; do
    folder=.venv
    if [[ $(version_of .venv/bin/python) != "$version" ]]; then
        python=$(find_python "$version") || { echo "Python $version: not found, skipped"; continue; }
        install "$version" "$python"
        folder=.venv/pythons/$version
    fi
    echo "Python $version: tests/unit"
    "$folder/bin/python" -m pytest tests/unit "$@"
done
