"""Random words in the GPU's kernels: Philox for seeded ones, ChaCha20 (RFC 8439) for secure ones.

Both are functions of a key and of a counter of 128 bits. What is counted there never repeats under a key: the
coordinate (64 bits) and the client or group of trials (32 bits), and for Philox the call (32); each call with secure
words has a key of its own, from the operating system of the host.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def philox(key, c0, c1, c2, c3):
    """Philox-4×32-7: four 32-bit words. (Products in 64 bits compile to half the instructions of ``tl.philox``.)"""
    k0, k1 = key.to(tl.uint32), (key.to(tl.int64) >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        left = c0.to(tl.uint64) * 0xD2511F53
        right = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (right >> 32).to(tl.uint32) ^ c1 ^ k0, right.to(tl.uint32)
        c2, c3 = (left >> 32).to(tl.uint32) ^ c3 ^ k1, left.to(tl.uint32)
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _halves(key, zeros):
    """A part of the key, in two words like ``zeros``."""
    return zeros + key.to(tl.uint32), zeros + (key.to(tl.int64) >> 32).to(tl.uint32)


@triton.jit
def chacha(key, key1, key2, key3, c0, c1, c2, c3):
    """ChaCha20: sixteen 32-bit words. ``c0`` is a block of counters; the others may be single numbers."""
    zeros = c0 ^ c0
    k0, k1 = _halves(key, zeros)
    k2, k3 = _halves(key1, zeros)
    k4, k5 = _halves(key2, zeros)
    k6, k7 = _halves(key3, zeros)
    x0, x1, x2, x3 = zeros + 0x61707865, zeros + 0x3320646E, zeros + 0x79622D32, zeros + 0x6B206574
    x4, x5, x6, x7, x8, x9, x10, x11 = k0, k1, k2, k3, k4, k5, k6, k7
    x12, x13, x14, x15 = c0, zeros + c1, zeros + c2, zeros + c3
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        x0 + 0x61707865,
        x1 + 0x3320646E,
        x2 + 0x79622D32,
        x3 + 0x6B206574,
        x4 + k0,
        x5 + k1,
        x6 + k2,
        x7 + k3,
        x8 + k4,
        x9 + k5,
        x10 + k6,
        x11 + k7,
        x12 + c0,
        x13 + c1,
        x14 + c2,
        x15 + c3,
    )


@triton.jit
def words_of(key, key1, key2, key3, c0, c1, c2, c3, SECURE: tl.constexpr):
    """Four words, or if SECURE sixteen."""
    if SECURE:
        return chacha(key, key1, key2, key3, c0, c1, c2, c3)
    else:
        return philox(key, c0, c1, c2, c3)
