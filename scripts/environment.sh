#!/bin/sh
# Build the environment DIRECTORY from requirements.lock: environment.sh DIRECTORY [PYTHON]
# Without PYTHON it takes the first interpreter that Postroom supports. Only what changed is installed again.
set -eu
directory=$1

fail() {
    echo "postroom: $*" >&2
    exit 1
}

supported() { # A name on PATH proves nothing: version managers put shims there that cannot run.
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

interpreter() {
    for candidate in "$@"; do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

python=$(interpreter ${2:-python3 python3.14 python3.13 python3.12 python3.11}) ||
    fail "Python 3.11 or newer is needed; none was found${2:+ at $2}."

if ! supported "$directory/bin/python"; then
    # --clear: what is there was made with an interpreter that is gone, or only half.
    "$python" -m venv --clear "$directory" >/dev/null 2>&1 ||
        fail "'$python -m venv' fails; install its venv module (on Debian and Ubuntu: apt-get install python3-venv)."
fi

if [ ! -x "$directory/bin/uv" ]; then
    # The lock's entry for uv with its hashes: from its name to the first line that is not continued.
    sed -n '/^uv==/,/[^\\]$/p' requirements.lock >"$directory/uv.lock"
    "$directory/bin/python" -m pip install -qq --disable-pip-version-check \
        --no-deps --require-hashes --requirement "$directory/uv.lock"
fi

VIRTUAL_ENV=$(cd "$directory" && pwd)
export VIRTUAL_ENV
"$directory/bin/uv" pip sync --quiet --require-hashes --compile-bytecode requirements.lock
"$directory/bin/uv" pip install --quiet --no-deps --no-build-isolation --editable .
