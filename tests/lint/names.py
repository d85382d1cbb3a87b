#!/usr/bin/env python3
"""Fails when too many file-private functions share their name with one of another file.

A backtrace of `refuse <- read <- run` says nothing; each function carries its noun.
Prints every name that stands in more than one file of bridge/, and the files.

usage: names.py [REPO_ROOT]            fails above the number below
       names.py [REPO_ROOT] --list     every such name

It finds definitions as circles.py does, whose limits it shares.
"""

import sys

sys.dont_write_bytecode = True  # nothing new in this folder

from collections import defaultdict  # noqa: E402
from pathlib import Path  # noqa: E402

from circles import read_file  # noqa: E402

# The number today, which is below the goal of 30. It may only decrease.
ALLOWED = 4


def main(arguments):
    root = Path(arguments[0] if arguments else Path(__file__).parents[2]).resolve()
    files = defaultdict(list)
    for path in sorted((root / 'bridge').rglob('*.[ch]')):
        for name, is_static in read_file(path)[0].items():
            if is_static:
                files[name].append(path.relative_to(root / 'bridge').as_posix())
    shared = {name: where for name, where in files.items() if len(where) > 1}
    if arguments[1:] == ['--list'] or len(shared) > ALLOWED:
        for name, where in sorted(shared.items()):
            print(f'{name}: {" ".join(where)}')
    if len(shared) > ALLOWED:
        print(f'{len(shared)} file-private names stand in more than one file; '
              f'tests/lint/names.py allows {ALLOWED}')
        return 1
    if len(shared) < ALLOWED:
        print(f'{len(shared)} names: lower {ALLOWED} in tests/lint/names.py')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
