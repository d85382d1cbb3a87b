"""Do the manual pages say what --help says, and can they be read?"""

import pathlib
import re
import subprocess

import pytest

import programs

PAGES = ["kvbridge.8", "kvaggregator.8", "kvctl.1", "kvbridge.cfg.5", "kvaggregator.cfg.5"]
WORDS = pathlib.Path(__file__).resolve().parents[2] / "etc/manual"


def run(*argv):
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def help_of(program):
    return run(programs.BIN / program, "--help")


def page_of(name, program=None):
    """The page as the build makes it: "kvctl.1" for kvctl."""
    program = program or programs.BIN / name.split(".")[0]
    version = run(programs.BIN / "kvctl", "--version").split()[1]
    return run("awk", "-v", f"program={program}", "-v", f"version={version}", "-f", WORDS / "page.awk", WORDS / name)


def rendered(page):
    """The page as a reader sees it, without overstrikes, in one column that is wide enough for
    every line."""
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-cbou", "-rLL=1000n", "-ww"], input=page, capture_output=True,
        text=True, timeout=60,
    )
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def sections(text):
    """{title: lines below it}."""
    found, title = {}, None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][A-Z ]+", line):
            title = line
            found[title] = []
        elif title:
            found[title].append(line)
    return found


OPTION = re.compile(r"^ +((?:-.)?(?:, )?--[a-z-]+(?:=[^ \n]+)?)", re.MULTILINE)


@pytest.mark.first
@pytest.mark.parametrize("name", PAGES[:3])
def test_a_page_has_the_options_of_help_and_no_others(name):
    in_help = OPTION.findall(help_of(name.split(".")[0]).split("\nConfiguration keys:")[0])
    in_page = OPTION.findall("\n".join(sections(rendered(page_of(name)))["OPTIONS"]))
    assert len(in_help) >= 5 and in_help == in_page


def test_a_page_has_the_commands_of_help_and_no_others():
    in_help = re.findall(r"^  ([a-z]+.*?)(?:  |$)", help_of("kvctl"), re.MULTILINE)
    lines = sections(rendered(page_of("kvctl.1")))["COMMANDS"]
    in_page = [re.split("  ", line.strip())[0] for line in lines if re.match(r" {7}[a-z]", line)]
    assert "check FILE" in in_help and [word.split()[0] for word in in_help] == [
        word.split()[0] for word in in_page
    ]


KEY = re.compile(r"^ *([a-z_.]+(?:\[\][a-z_.]+)?) = (.+)$", re.MULTILINE)


@pytest.mark.parametrize("program", ["kvbridge", "kvaggregator"])
def test_the_page_of_a_configuration_has_every_key_with_its_default_and_range(program):
    help_text = help_of(program).split("\nConfiguration keys:")[1]
    keys = "\n".join(sections(rendered(page_of(f"{program}.cfg.5")))["KEYS"])

    def rows(text):
        return [(key, re.sub(" +", " ", value).strip()) for key, value in KEY.findall(text)]

    assert len(rows(help_text)) > 15 and rows(keys) == rows(help_text)
    ranges = re.compile(r"^ +(\d+ \.\. \d+|\"[a-z]+\"(?: \| \"[a-z_]+\")+)$", re.MULTILINE)
    assert len(ranges.findall(help_text)) > 5 and ranges.findall(keys) == ranges.findall(help_text)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_its_sections_and_no_roff_is_wrong_in_it(name):
    page = page_of(name)
    wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "FILES", "SEE ALSO"]
    wanted += ["KEYS"] if name.endswith("5") else ["OPTIONS", "EXIT STATUS", "SIGNALS"]
    text = sections(rendered(page))
    assert set(wanted) <= set(text) and all(any(lines) for lines in text.values()), text.keys()
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-"], input=page, capture_output=True, text=True,
        timeout=60,
    )
    assert done.returncode == 0 and not done.stderr, done


def test_pages_are_built_and_packed():
    if not (programs.BIN / "man").is_dir():
        pytest.skip("KVB_BIN is no build folder")
    for name in PAGES:
        assert run("gzip", "-dc", programs.BIN / "man" / f"{name}.gz") == page_of(name), name
