"""What hostile peers do: each attack is bounded in time and count, and names the counters
that must grow by it."""

import dataclasses
from typing import Callable


@dataclasses.dataclass
class Attack:
    name: str
    run: Callable  # (): from its beginning to its end
    # (side, metric, labels): the sum of them grows by at least `refusals`.
    counters: tuple = ()
    refusals: int = 1
    touched: frozenset = frozenset()  # streams that it speaks of itself: excused until it ends
    heal_s: float = 3.0  # a stream that it touched is EXACT again so soon after it
    is_unready: bool = False  # /readyz says so meanwhile, and is right
