"""What is measured, by which program, and what it is to reach.

A row more: its program prints the figure (parts/bench.h says how), and a Goal stands here.
A program more: a Program stands here, and a kvb_bench() in CMakeLists.txt."""

import dataclasses

# ---- Programs ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Program:
    """One that is run with --seconds N [--corpus FILE]... [NAME...]."""

    path: str  # below the build folder; below tests/bench when is_script
    rows: tuple  # how the names of its figures begin
    corpora: tuple = ()  # workers of each corpus that it gets
    is_script: bool = False
    needs_python: bool = False  # build/venv, as KVB_PYTHON in its environment
    is_peer: bool = False  # only with --peers


PROGRAMS = [
    Program("tests/bench_index", ("index.conversation", "index.events", "index.query", "index.bytes_per_membership"),
            corpora=(128, 1000)),
]

# ---- Goals ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Goal:
    name: str
    text: str
    what: str  # "value" or "ratio"
    comparison: str  # ">=" or "<="
    bound: float

    def is_met(self, figure):
        number = figure[self.what]
        if number is None:
            return False
        return number >= self.bound if self.comparison == ">=" else number <= self.bound


GOALS = [
    # 2.5 times ChainIndex on the machine that it was measured on; --peers compares for real.
    Goal("index.conversation.128", "a fleet of 128 replayed, one thread", "value", ">=", 57),
    Goal("index.conversation.1000", "a fleet of 1,000 replayed, one thread", "value", ">=", 36),
    Goal("index.events.128", "the same fleet of 128, events only", "value", ">=", 38),
    Goal("index.query.p99", "a query on a quiet index, 128 workers", "value", "<=", 2.5),
    Goal("index.query.1000.p99", "the same, 1,000 workers", "value", "<=", 9.6),
    Goal("index.bytes_per_membership", "memory for each (worker, block), 128 workers", "value", "<=", 43),
    Goal("index.bytes_per_membership.1000", "the same, 1,000 workers", "value", "<=", 33),
]
