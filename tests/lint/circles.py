#!/usr/bin/env python3
"""Fails when the files of one room call each other in larger circles than the table allows.

A circle is a set of files of one folder each of which reaches all others by calls (a
strongly connected component, found by Tarjan's algorithm).  Two files that call each
other are fine; of a larger circle no file can be read, tested or moved alone.

usage: circles.py [REPO_ROOT]            each circle above its room's number, and its calls
       circles.py [REPO_ROOT] --all      every circle
       circles.py [REPO_ROOT] --uses F   what file F uses of its room, and who uses F

It reads the sources, not the built objects, so that it needs no compiler.  A definition
is a name before "(...) {" or "[...] = {" outside all braces.  A use is such a name within
braces, in an initialiser or in a macro: a function passed as a pointer counts as called.

What it does not see: names that a macro pastes together, functions that are defined in
the folder under the same name twice (#if ... #else: the first counts), calls through
pointers that were passed elsewhere (the file that passed the pointer has the use).
A header and the .c file of the same name are one file; an inline function is its
header's.  Of what is no function only arrays with an initialiser are seen (tables).
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

# How many files of a room may be in circles of more than two: {'bridge/room': files}. The goal is none,
# and there is none today. The number of a room may only decrease.
ALLOWED = {}

# Comments, strings and characters, in this order of what begins first.
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
DEFINITION = re.compile(r'\b([A-Za-z_]\w*)\s*\($')
TABLE = re.compile(r'\b([A-Za-z_]\w*)(?:\[[^\[\]]*\])+\s*=$')


def blank(match):
    """Only the line ends of a text, so that line numbers stay the same."""
    return ' ' + '\n' * match.group().count('\n')


def read_code(path):
    """The text of a file without comments and strings, and its preprocessor lines apart."""
    text = NOT_CODE.sub(blank, path.read_text(encoding='utf-8'))
    macros = []

    def take(match):
        if re.match(r'\s*#\s*define\b', match.group()):
            macros.append((text.count('\n', 0, match.start()) + 1, match.group()))
        return blank(match)

    return re.sub(r'^[ \t]*#(?:[^\n\\]|\\.)*', take, text, flags=re.M | re.S), macros


def names_in(text, line):
    """(name, line) of each identifier that is not the tag of a struct, union or enum,
    nor a member."""
    for match in re.finditer(r'(\b(?:struct|union|enum)\s+|\.\s*|->\s*)?\b([A-Za-z_]\w*)', text):
        if not match.group(1):
            yield match.group(2), line + text.count('\n', 0, match.start())


def read_file(path):
    """({function or public table: is_static}, {name: first line that uses it}) of one file."""
    text, macros = read_code(path)
    defined = {}
    used = {}
    depth = 0
    start = 0  # of what stands outside all braces, or of the body
    for match in re.finditer(r'[{}]', text):
        if match.group() == '{':
            if depth == 0:
                name = defined_name(text[start:match.start()])
                if name:
                    defined[name[0]] = name[1]
                start = match.end()
            depth += 1
            continue
        depth -= 1
        if depth == 0:
            for name, line in names_in(text[start:match.start()], text.count('\n', 0, start) + 1):
                used.setdefault(name, line)
            start = match.end()
    for line, macro in macros:
        for name, at in names_in(macro, line):
            used.setdefault(name, at)
    # `x = name;` outside all braces is an initialiser too.
    for match in re.finditer(r'^[^\n{}();]*=\s*([A-Za-z_]\w*)\s*;', text, re.M):
        used.setdefault(match.group(1), text.count('\n', 0, match.start()) + 1)
    return defined, used


def defined_name(head):
    """(name, is_static) of the function or public table whose body follows, else None."""
    head = head[head.rfind(';') + 1:].rstrip()
    table = TABLE.search(head)
    if table and not re.search(r'\bstatic\b', head):
        return table.group(1), False
    if not head.endswith(')'):
        return None
    depth = 0
    for at in range(len(head) - 1, -1, -1):
        depth += (head[at] == ')') - (head[at] == '(')
        if depth == 0:
            match = DEFINITION.search(head[:at + 1])
            if not match:
                return None
            return match.group(1), bool(re.search(r'\bstatic\b', head[:match.start()]))
    return None


def calls_of_room(folder):
    """{file: {other file: [(name, line, path)]}} of the files of one folder."""
    files = defaultdict(dict)
    owner = {}
    for path in sorted(folder.glob('*.[ch]')):
        defined, used = read_file(path)
        for name, is_static in defined.items():
            if not is_static or path.suffix == '.h':
                owner.setdefault(name, path.stem)
        for name, line in used.items():
            files[path.stem].setdefault(name, (line, path))
    calls = defaultdict(lambda: defaultdict(list))
    for stem, used in files.items():
        calls[stem]  # a file without calls is one too
        for name, (line, path) in sorted(used.items()):
            if owner.get(name, stem) != stem:
                calls[stem][owner[name]].append((name, line, path))
    return calls


def circles_of(calls):
    """The strongly connected components of more than two files, largest first."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in calls[node]:
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 2:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(calls):
        if node not in number:
            visit(node)
    return sorted(found, key=lambda circle: (-len(circle), circle))


def print_circle(room, circle, calls):
    print(f'{room}: a circle of {len(circle)} files: {", ".join(circle)}')
    for stem in circle:
        for other in sorted(set(calls[stem]) & set(circle)):
            names = ', '.join(f'{name} (line {line})' for name, line, _ in calls[stem][other])
            print(f'    {stem} -> {other}: {names}')


def print_uses(root, file):
    path = root / file
    calls = calls_of_room(path.parent)
    for stem, others in sorted(calls.items()):
        for other, names in sorted(others.items()):
            if path.stem in (stem, other):
                print(f'{stem} -> {other}: {", ".join(name for name, _, _ in names)}')


def main(arguments):
    root = Path(arguments[0] if arguments else Path(__file__).parents[2]).resolve()
    if arguments[1:2] == ['--uses']:
        print_uses(root, arguments[2])
        return 0
    print_all = arguments[1:] == ['--all']
    bad = 0
    sources = [path for top in ('bridge', 'tests/fleet') for path in (root / top).rglob('*.c')]
    for folder in sorted({path.parent for path in sources}):
        room = folder.relative_to(root).as_posix()
        calls = calls_of_room(folder)
        circles = circles_of(calls)
        count = sum(map(len, circles))
        most = ALLOWED.get(room, 0)
        if print_all or count > most:
            for circle in circles:
                print_circle(room, circle, calls)
        if count > most:
            print(f'{room}: {count} files in circles of more than two; '
                  f'tests/lint/circles.py allows {most}')
            bad = 1
        elif count < most:
            print(f'{room}: {count} files in circles: lower {most} in tests/lint/circles.py')
    return bad


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
