"""Does every list become right again after each fault, with real programs and an oracle that knows what the engines
hold?  Not part of a plain run: `-m matrix`, one row with `-k '[F13]'`."""

import os

import pytest

from matrix import judge
from matrix.rows import ROWS

pytestmark = [pytest.mark.matrix, pytest.mark.no_nats]


@pytest.mark.parametrize("row", [
    pytest.param(row, id=row.name, marks=[pytest.mark.first] if row.is_first else []) for row in ROWS])
def test_every_list_becomes_right_again(row, tmp_path, record_property):
    done = judge.run(row, tmp_path, int(os.environ.get("KVB_MATRIX_SEED", "1")))
    record_property("figures", f"{row.title}: {done.figures}")
    assert not done.wrong, done.text()
