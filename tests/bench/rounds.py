"""How rounds differ: as bench_spread() of parts/bench.h, for the programs in Python."""

import statistics


def spread(values):
    """Interquartile range over the median; None: less than three rounds."""
    if len(values) < 3:
        return None
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return round((third - first) / middle, 4) if middle > 0 else float(third > first)


def turns(ours, theirs, is_less_better):
    """The fields of a ratio: the median of the rounds' ratios, and how these differ."""
    pairs = zip(theirs, ours) if is_less_better else zip(ours, theirs)
    ratios = [better / base if base else 0 for better, base in pairs]
    fields = {"ratio": statistics.median(ratios), "rounds": len(ours), "spread": spread(ours), "ratio_spread": spread(ratios)}
    return {name: value for name, value in fields.items() if value is not None}
