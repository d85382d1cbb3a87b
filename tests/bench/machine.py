"""What else the machine did while a row was measured: processor time of processes that are no part of the bench, and
steal, both in percent of one core.  A program's figures say which share the kernel had of the time of the process that
they measure; where they do not, it is that of all of the program's processes."""

import dataclasses
import os
import pathlib
import time

PROC = pathlib.Path("/proc")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
MIN_WINDOW_S = 1.0  # ticks of 10 ms, of several processes, say too little about less
MIN_STEP_S = 0.2  # figures that come at once are of one measurement
MIN_KERNEL_TICKS = 10  # of all a window's own ticks, to tell a share of them
BUSY_PERCENT = 10.0  # others and steal together: above it the machine was busy


@dataclasses.dataclass(frozen=True)
class Reading:
    """Ticks since the machine began, in all cores."""

    at_s: float
    busy: int  # of all processes: interrupts are nobody's, so they are not in it
    steal: int
    own_user: int  # of this process and all its children, those that ended among them
    own_kernel: int


def all_ticks(stat_text):
    """(busy, steal) of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.  guest is in user."""
    ticks = [int(word) for word in stat_text.split("\n", 1)[0].split()[1:]]
    return sum(ticks[:3]), ticks[7] if len(ticks) > 7 else 0


def process_ticks(stat_text):
    """(parent, user, kernel) of /proc/PID/stat, with those of children that ended and were waited for."""
    words = stat_text.rpartition(")")[2].split()
    user, kernel, waited_user, waited_kernel = (int(word) for word in words[11:15])
    return int(words[1]), user + waited_user, kernel + waited_kernel


def processes():
    """{pid: (parent, user, kernel)}"""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = process_ticks((folder / "stat").read_text(errors="replace"))
            except (OSError, ValueError):
                pass  # it ended
    return found


def family(found, pid):
    """The process and its children, and theirs."""
    of_parent = {}
    for child, (parent, _user, _kernel) in found.items():
        of_parent.setdefault(parent, []).append(child)
    known, new = set(), [pid] if pid in found else []
    while new:
        one = new.pop()
        if one not in known:
            known.add(one)
            new += of_parent.get(one, [])
    return known


def read():
    at_s, (busy, steal), found = time.monotonic(), all_ticks((PROC / "stat").read_text()), processes()
    own = [found[one] for one in family(found, os.getpid())]
    return Reading(at_s, busy, steal, sum(user for _, user, _ in own), sum(kernel for _, _, kernel in own))


def fields_between(before, after):
    """The fields of a figure; none where the time is too short to tell."""
    window_s = after.at_s - before.at_s
    if window_s < MIN_WINDOW_S:
        return {}
    own_user, own_kernel = after.own_user - before.own_user, after.own_kernel - before.own_kernel
    window = window_s * TICKS_A_SECOND / 100
    others = after.busy - before.busy - own_user - own_kernel
    fields = {"others_percent": round(max(0, others) / window, 1),
              "steal_percent": round((after.steal - before.steal) / window, 1)}
    if own_user >= 0 and own_kernel >= 0 and own_user + own_kernel >= MIN_KERNEL_TICKS:
        fields["kernel_percent"] = round(100 * own_kernel / (own_user + own_kernel), 1)
    return fields


class Watch:
    """From figure to figure, or a window at least: a row that is shorter has the end of the row before in it."""

    def __init__(self):
        self.readings = [read()]

    def fill(self, figure):
        """With what its program did not say itself."""
        if time.monotonic() - self.readings[-1].at_s >= MIN_STEP_S:
            self.readings.append(read())
        now = self.readings[-1]
        older = [one for one in self.readings if now.at_s - one.at_s >= MIN_WINDOW_S]
        if not older:
            return figure
        self.readings = self.readings[self.readings.index(older[-1]):]
        return {**fields_between(older[-1], now), **figure}


def is_busy(figure):
    return figure.get("others_percent", 0) + figure.get("steal_percent", 0) > BUSY_PERCENT


def busy_words(figure):
    if not is_busy(figure):
        return ""
    return f"busy: others {figure['others_percent']:.0f} %, steal {figure['steal_percent']:.0f} % of a core"
