# Sourced by the scripts in tests/ that need Python, from the top of the tree.

# make_venv FOLDER: a virtual environment of Debian's Python with what tests/requirements.txt
# names: another python3 that comes first in PATH would not be the one whose venv package is
# installed.
make_venv() {
    local venv=$1
    if cmp -s tests/requirements.txt "$venv/requirements.txt"; then
        return 0
    fi
    rm -rf "$venv"
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt
    cp tests/requirements.txt "$venv/requirements.txt" # last: its presence says "complete"
}
