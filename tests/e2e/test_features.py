"""Does each feature in the list of tests/README.md have a scene in what tests/run answers with?"""

import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).parent
MARK = "@pytest.mark." + "first"


@pytest.mark.first
def test_each_feature_has_a_scene_that_tests_run_runs():
    rows = re.findall(r"^\| .*`test_\w+`.* \|$", (HERE.parent / "README.md").read_text(), re.M)
    listed = {name for row in rows for name in re.findall(r"`(test_\w+)`", row)}
    marked = {path.stem for path in HERE.glob("test_*.py") if re.search(MARK + r"|= pytest\.mark\.first", path.read_text())}
    assert len(rows) > 30
    assert listed == marked - {pathlib.Path(__file__).stem}
