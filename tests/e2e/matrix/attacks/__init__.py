"""What hostile peers do: each attack is bounded in time and count, and names the counters
that must grow by it."""

import dataclasses
from typing import Callable


@dataclasses.dataclass
class Attack:
    name: str
    run: Callable  # called from the beginning to the end of the attack
    # (side, metric, labels): the sum of them grows by at least `refusals`.
    counters: tuple = ()
    refusals: int = 1
    touched: frozenset = frozenset()  # streams that the attacker publishes itself: exempt until the attack ends
    heal_s: float = 3.0  # a stream that it affected must be EXACT again within this time
    is_unready: bool = False  # /readyz reports not ready meanwhile, correctly
