"""Do the manual pages say what --help says, and can they be read?"""

import re
import subprocess

import pytest

import programs

PROGRAMS = ["kvbridge", "kvaggregator", "kvctl", "kvfleet"]
PAGES = [(program, "--man") for program in PROGRAMS]
PAGES += [(program, "--man-config") for program in PROGRAMS[:2]]


def output_of(program, option):
    done = subprocess.run([programs.BIN / program, option], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def rendered(page):
    """As a reader sees it, without overstrikes, one column wide enough for anything."""
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-cbou", "-rLL=1000n", "-ww"], input=page, capture_output=True,
        text=True, timeout=30,
    )
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def sections(text):
    """Title -> lines below it."""
    found, title = {}, None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][A-Z ]+", line):
            title = line
            found[title] = []
        elif title:
            found[title].append(line)
    return found


OPTION = re.compile(r"^ +((?:-.)?(?:, )?--[a-z-]+(?:=[^ \n]+)?)", re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_page_has_the_options_of_help_and_no_others(program):
    in_help = OPTION.findall(output_of(program, "--help").split("\nConfiguration keys:")[0])
    in_page = OPTION.findall("\n".join(sections(rendered(output_of(program, "--man")))["OPTIONS"]))
    assert len(in_help) >= 5 and sorted(in_help) == sorted(in_page)


def test_a_page_has_the_commands_of_help_and_no_others():
    in_help = re.findall(r"^  ([a-z]+.*?)(?:  |$)", output_of("kvctl", "--help"), re.MULTILINE)
    lines = sections(rendered(output_of("kvctl", "--man")))["COMMANDS"]
    in_page = [re.split("  ", line.strip())[0] for line in lines if re.match(r" {7}[a-z]", line)]
    assert "check FILE" in in_help and [word.split()[0] for word in in_help] == [
        word.split()[0] for word in in_page
    ]


KEY = re.compile(r"^ *([a-z_.]+(?:\[\][a-z_.]+)?) = (.+)$", re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS[:2])
def test_the_page_of_a_configuration_has_every_key_with_its_default_and_range(program):
    help_text = output_of(program, "--help").split("\nConfiguration keys:")[1]
    keys = "\n".join(sections(rendered(output_of(program, "--man-config")))["KEYS"])

    def rows(text):
        return [(key, re.sub(" +", " ", value).strip()) for key, value in KEY.findall(text)]

    assert len(rows(help_text)) > 15 and rows(keys) == rows(help_text)
    ranges = re.compile(r"^ +(\d+ \.\. \d+|\"[a-z]+\"(?: \| \"[a-z_]+\")+)$", re.MULTILINE)
    assert len(ranges.findall(help_text)) > 5 and ranges.findall(keys) == ranges.findall(help_text)


@pytest.mark.parametrize("program, option", PAGES)
def test_a_page_has_its_sections_and_no_roff_is_wrong_in_it(program, option):
    page = output_of(program, option)
    wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "FILES", "SEE ALSO"]
    wanted += ["OPTIONS", "EXIT STATUS", "SIGNALS"] if option == "--man" else ["KEYS"]
    text = sections(rendered(page))
    assert set(wanted) <= set(text) and all(any(lines) for lines in text.values()), text.keys()
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-"], input=page, capture_output=True, text=True,
        timeout=30,
    )
    assert done.returncode == 0 and not done.stderr, done


@pytest.mark.parametrize("program, option", PAGES)
def test_no_line_of_a_page_is_taken_for_a_request(program, option):
    """Only the writer's own macros; all else is text."""
    macros = {"TH", "nh", "ad", "SH", "SS", "TP", "PP", "br"}
    for line in output_of(program, option).splitlines():
        if line.startswith((".", "'")):
            assert line[1:].split()[0] in macros, line


def test_pages_are_built_and_packed():
    if not (programs.BIN / "man").is_dir():
        pytest.skip("KVB_BIN is no build folder")
    for program, option in PAGES:
        name = program + (".cfg.5" if option != "--man" else ".8" if program in PROGRAMS[:2] else ".1")
        packed = subprocess.run(
            ["gzip", "-dc", programs.BIN / "man" / f"{name}.gz"], capture_output=True, text=True, timeout=30
        )
        assert packed.stdout == output_of(program, option), name


def test_a_program_of_another_name_has_no_page(tmp_path):
    other = tmp_path / "other"
    other.symlink_to(programs.BIN / "kvctl")
    done = subprocess.run([other, "--man"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and "no page" in done.stderr, done
