"""Sixteen kinds of damage to a checkpoint while no bridge runs; only a file with the last kind may
be used."""

import random


def sections(data):
    """The offset of each section; the last one is the end."""
    at = [0]
    while at[-1] < len(data):
        at.append(at[-1] + 32 + int.from_bytes(data[at[-1] + 12 : at[-1] + 16], "little"))
    return at


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def noise(data):
    return random.Random(len(data)).randbytes(len(data))


def twice(data):
    first = sections(data)[1]
    return data[:first] + data


def spliced(data, early):
    """The list of one point in time with the numbers of another."""
    return early[: sections(early)[-2]] + data[sections(data)[-2] :]


# name: function of (its bytes, those of the same stream some seconds earlier, those of another
# stream)
KINDS = {
    "empty": lambda data, early, other: b"",
    "half a header": lambda data, early, other: data[:8],
    "cut": lambda data, early, other: data[: len(data) // 2],
    "without its last byte": lambda data, early, other: data[:-1],
    "without its last section": lambda data, early, other: data[: sections(data)[-2]],
    "longer": lambda data, early, other: data + b"x",
    "flipped in its head": lambda data, early, other: flip(data, 20),
    "flipped in its entries": lambda data, early, other: flip(data, len(data) // 2),
    "flipped in its state": lambda data, early, other: flip(data, sections(data)[-2] + 16),
    "zeros": lambda data, early, other: bytes(len(data)),
    "noise": lambda data, early, other: noise(data),
    "its head twice": lambda data, early, other: twice(data),
    "of an older program": lambda data, early, other: data[:4] + b"\0" + data[5:],
    "of another stream": lambda data, early, other: other,
    "of two moments": lambda data, early, other: spliced(data, early),
    "old": lambda data, early, other: early,
}


def read_all(folders):
    """{path: bytes} of all checkpoints."""
    return {path: path.read_bytes() for folder in folders for path in folder.iterdir() if not path.suffix}


def newest_seq(data):
    """The sequence number of the newest batch in it."""
    state = sections(data)[-2]
    return int.from_bytes(data[state + 16 : state + 24], "little")


def spoil_all(early, late):
    """Damages each stream's file in a different way."""
    paths = sorted(late)
    for at, (path, kind) in enumerate(zip(paths, KINDS.values())):
        other = late[paths[(at + 1) % len(paths)]]
        path.write_bytes(kind(late[path], early[path], other))
