#!/bin/sh
# Installs Debian's Chromium, which the tests of the playground drive.
set -eu
if ! command -v apt-get >/dev/null; then
    echo "error: there is no Chromium, and no apt-get to install it: install it, or set CHROMIUM to its path" >&2
    exit 1
fi
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}
as_root apt-get update --quiet=2
as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --no-install-recommends chromium
