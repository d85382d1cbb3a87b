"""Does each threat in etc/security.md name a control, and tests that exist? Does SECURITY.md say how to
report a weakness?"""

import re

import pytest
from programs import TREE

pytestmark = pytest.mark.no_nats


def rows():
    text = (TREE / "etc" / "security.md").read_text()
    table = text.partition("\n## Threats\n")[2].partition("\n\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_each_threat_has_a_control_and_a_test():
    assert len(rows()) >= 20
    for threat, control, tests in rows():
        assert threat and control, threat
        assert re.fullmatch(r"`[^`]+`(, `[^`]+`)*", tests), (threat, tests)


def test_each_named_test_exists():
    missing = []
    for _, _, tests in rows():
        for path, _, name in (test.partition("::") for test in re.findall(r"`([^`]+)`", tests)):
            file = TREE / "tests" / path
            if not file.is_file() or not re.search(rf"(?<![\w-]){re.escape(name)}", file.read_text()):
                missing.append(f"{path}::{name}")
    assert not missing


def test_the_policy_says_how_to_report_in_private_and_the_scope():
    text = (TREE / ".github" / "SECURITY.md").read_text()
    for words in ("Report a vulnerability", "not in a public issue", "--version", "We treat as a vulnerability",
                  "Not a vulnerability", "sbom.cdx.json"):
        assert words in text, words
