"""The worker id of a pod by its name, as Dynamo computes it: Rust's DefaultHasher over a string, which
is SipHash-1-3 with zero keys over the bytes and 0xff, of which the low 53 bits count."""

MASK = (1 << 64) - 1


def rotated(value, bits):
    return (value << bits | value >> (64 - bits)) & MASK


def round_of(v):
    v0, v1, v2, v3 = v
    v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
    v1, v3 = rotated(v1, 13) ^ v0, rotated(v3, 16) ^ v2
    v0 = rotated(v0, 32)
    v2, v0 = (v2 + v1) & MASK, (v0 + v3) & MASK
    v1, v3 = rotated(v1, 17) ^ v2, rotated(v3, 21) ^ v0
    return v0, v1, rotated(v2, 32), v3


def siphash_1_3(data):
    """With a key of zeros."""
    v = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v = round_of((v[0], v[1], v[2], v[3] ^ word))
        v = (v[0] ^ word, *v[1:])
    v = (v[0], v[1], v[2] ^ 0xFF, v[3])
    for _ in range(3):
        v = round_of(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def worker_id(pod_name):
    return siphash_1_3(pod_name.encode() + b"\xff") & ((1 << 53) - 1)
