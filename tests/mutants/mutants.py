"""Do the tests notice?  Without BASE: the known mistakes of the table in README.md, each of which the
suites that its row names have to catch.  With BASE: small mistakes in what was changed since.

    *.patch     "# What is wrong.", then a unified diff
    caught      the suite fails, and passes without the mutant
    survived    it passes: a test is missing"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from mutate import choose, find_mutations
from workshop import HERE, TREE, Broken, Workshop, cpu_of_children

WHOLE = ["sim", "fuzz.bridge", "fuzz.aggregator", "kvbridge", "kvaggregator"]  # have the code of many rooms


def parse():
    parser = argparse.ArgumentParser(
        prog="tests/mutants/run", description="Do the tests notice mistakes?",
        epilog="Ends with 0 when each was caught, with 1 when one survived or could not be tried, with 64 when it "
               "was called wrongly. The output of each build and suite is in build/mutants/log.")
    parser.add_argument("--list", action="store_true", help="print the known mistakes, and what catches each")
    parser.add_argument("--only", metavar="NAME,...", help="only these of them")
    parser.add_argument("--diff", metavar="BASE", help="change the lines of C in bridge/ that differ from this commit")
    parser.add_argument("--most", type=int, default=40, metavar="N", help="with --diff: at most N changes (40)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="with --diff: which ones (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="compilers at a time (all cores)")
    try:
        options = parser.parse_args()
        if options.diff and (options.only or options.list):
            parser.error("--diff goes with neither --only nor --list")
        return options
    except SystemExit as error:
        sys.exit(64 if error.code else 0)


# ---- Known mistakes -----------------------------------------------------------


class Mutant:
    def __init__(self, promise, name, suites):
        self.promise, self.name, self.suites = promise, name, suites
        self.patch = HERE / f"{name}.patch"

    def text(self):
        return self.patch.read_text()

    def files(self):
        return re.findall(r"^\+\+\+ b/(\S+)", self.text(), re.M)

    def what(self):
        return self.text().split("\n", 1)[0].lstrip("# ")


def read_table():
    """The rows of README.md: promise, `name`, `suite`, `suite`.  A patch has a row, and a row a patch."""
    rows = re.findall(r"^\| (.+) \| `(\w+)` \| (`.+`) \|$", (HERE / "README.md").read_text(), re.M)
    mutants = [Mutant(promise, name, re.findall(r"`([^`]+)`", suites)) for promise, name, suites in rows]
    odd = {m.name for m in mutants} ^ {patch.stem for patch in HERE.glob("*.patch")}
    if odd:
        raise Broken(f"without a row in tests/mutants/README.md, or without a patch: {', '.join(sorted(odd))}")
    return mutants


def select(mutants, names):
    if not names:
        return mutants
    unknown = set(names.split(",")) - {m.name for m in mutants}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}", file=sys.stderr)
        sys.exit(64)
    return [m for m in mutants if m.name in names.split(",")]


def try_known(workshop, mutant):
    """Returns what caught it, and which suites did not."""
    with workshop.keeping(mutant.files()):
        workshop.apply_patch(mutant.patch)
        workshop.build(mutant.suites, f"{mutant.name}.txt")
        failed = {suite: workshop.run(suite, mutant.name) for suite in mutant.suites}
    return [word for word in failed.values() if word], [suite for suite in failed if not failed[suite]]


def run_known(workshop, mutants):
    workshop.pass_without(sorted({suite for mutant in mutants for suite in mutant.suites}))
    bad = []
    for number, mutant in enumerate(mutants, 1):
        began = time.monotonic()
        try:
            caught, survived = try_known(workshop, mutant)
            word = "; ".join([f"SURVIVED {suite}" for suite in survived] + [f"caught by {what}" for what in caught])
        except Broken as broken:
            word = f"ERROR: {broken}"
        if not word.startswith("caught"):
            bad.append(f"{mutant.name}: {word}\n    {mutant.what()}")
        print(f"{number}/{len(mutants)}  {mutant.name}  {word}  {time.monotonic() - began:.1f} s", flush=True)
    print(f"\n{len(mutants) - len(bad)} of {len(mutants)} mutants caught; {cpu_of_children():.0f} s of processor time")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


# ---- Changed lines --------------------------------------------------------------


def changed_lines(base):
    """{file: {line}} of C in bridge/ that is not in BASE, as it is in the work tree."""
    command = ["git", "diff", "-U0", "--no-color", "--no-ext-diff", "--dst-prefix=b/", base, "--", "bridge/*.[ch]"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
    if done.returncode != 0:
        raise Broken(done.stderr.strip().splitlines()[0])
    lines, name = {}, None
    for line in done.stdout.splitlines():
        file = re.match(r"\+\+\+ (?:b/(\S+)|/dev/null)", line)
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if file:
            name = file.group(1)
        elif hunk and name:
            first, count = int(hunk.group(1)), int(hunk.group(2) or 1)
            lines.setdefault(name, set()).update(range(first, first + count))
    return lines


def suites_of(workshop, name):
    """The room's own first: they are quick.  Then the others that have the file's code."""
    own = name.split("/")[1]
    rooms = [own] if f"unit.{own}" in workshop.targets else []
    return rooms + [suite for suite in WHOLE if suite != own and workshop.links(suite, name)]


def try_change(workshop, name, mutation, suites):
    """Returns a word.  What the compiler makes the same of is no mistake."""
    path = workshop.src / name
    with workshop.keeping([name]):
        path.write_text(mutation.apply(path.read_text()))
        for suite in suites:
            try:
                workshop.build([suite], "change.txt")
            except Broken:
                return "does not compile"
            failed = workshop.run(suite, "change") if workshop.differs(suite) else ""
            if failed:
                return f"caught by {failed}"
        return "SURVIVED" if not suites or any(map(workshop.differs, suites)) else "makes no difference"


def run_changes(workshop, options):
    lines = changed_lines(options.diff)
    found = [(name, mutation) for name in sorted(lines)
             for mutation in find_mutations((TREE / name).read_text(), lines[name])]
    chosen = choose(found, options.most, options.seed)
    count = sum(map(len, lines.values()))
    print(f"{count} changed lines in {len(lines)} files: {len(chosen)} of {len(found)} mistakes are made", flush=True)
    if not chosen:
        return 0
    suites = {name: suites_of(workshop, name) for name, _ in chosen}
    workshop.pass_without(sorted({suite for some in suites.values() for suite in some}))
    survivors, words = [], []
    for number, (name, mutation) in enumerate(chosen, 1):
        began = time.monotonic()
        word = try_change(workshop, name, mutation, suites[name])
        words.append(word.split()[0])
        line = f"{name}:{mutation.line}: {mutation.what}"
        print(f"{number}/{len(chosen)}  {line}  {word}  {time.monotonic() - began:.1f} s", flush=True)
        if word == "SURVIVED":
            survivors.append(line)
    print(f"\n{words.count('caught')} caught, {len(survivors)} survived, "
          f"{words.count('makes')} make no difference, {words.count('does')} do not compile")
    print("\n".join(survivors), end="\n" if survivors else "")
    return 1 if survivors else 0


# ---- Both -----------------------------------------------------------------------


def main():
    options = parse()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.default_int_handler)
    try:
        if options.diff:
            return run_changes(Workshop(options.jobs), options)
        mutants = select(read_table(), options.only)
        if options.list:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # into head
            for mutant in mutants:
                print(f"{mutant.name} ({', '.join(mutant.suites)})\n    {mutant.what()}")
            return 0
        return run_known(Workshop(options.jobs), mutants)
    except Broken as broken:
        print(f"error: {broken}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
