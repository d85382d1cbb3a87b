"""Is the bill of materials of the build CycloneDX 1.5, and does it name each library that the programs
load, in the version that is installed?"""

import json
import re
import subprocess
import sysconfig

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import programs

pytestmark = pytest.mark.no_nats

FOLDER = sysconfig.get_config_var("MULTIARCH")
PROGRAMS = ("kvbridge", "kvaggregator", "kvctl")


def text():
    return (programs.BIN / "sbom.cdx.json").read_text()


def said(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def needed():
    """The versions that the programs report themselves."""
    names = set()
    for program in PROGRAMS:
        names |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "-dW", programs.BIN / program)))
    return names


def test_the_bill_of_materials_is_cyclonedx_1_5():
    validator = JsonStrictValidator(SchemaVersion.V1_5)
    assert validator.validate_str(text()) is None
    assert validator.validate_str(text().replace('"library"', '"book"')) is not None, "it can fail"


def test_each_library_is_listed_with_its_version():
    bill = json.loads(text())
    listed = {row["name"]: row["version"] for row in bill["components"]}
    packages = said("dpkg-query", "-S", *(f"*/{FOLDER}/{name}" for name in needed()))
    owners = {line.partition(":")[0] for line in packages.splitlines() if not line.startswith("diversion")}
    runtime = {name for name in owners if not name.endswith("-dev")}
    assert {"libzmq5", "libc6"} <= runtime <= set(listed)
    for name in runtime:
        assert listed[name] in said("dpkg-query", "-W", "-f", "${Version}\n", name).splitlines()


def test_the_bill_of_materials_is_of_this_version():
    component = json.loads(text())["metadata"]["component"]
    version = said(programs.BIN / "kvbridge", "--version").split()[-1]
    assert (component["name"], component["version"]) == ("kvbridge", version)
