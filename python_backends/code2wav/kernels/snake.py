"""SnakeBeta inside a kernel."""

import triton
import triton.language as tl

# Adding and subtracting 1.5 · 2^23 rounds a float32 of moderate size to the nearest integer.
_ROUND = tl.constexpr(12582912.0)
_INVERSE_PI = tl.constexpr(0.3183098861837907)


@triton.jit
def snake_beta(x, alpha, inverse_beta):
    """x + inverse_beta · sin²(alpha · x) in float32.

    sin² has period π, so its argument is reduced to r in [-1/2, 1/2] turns of π, where sin²(πr) is r² times a
    polynomial in r² (Chebyshev fit of degree 5, absolute error under 3e-7). That is a dozen multiply-adds, without the
    slow path that a library sine keeps for large arguments.
    """
    turns = x * alpha * _INVERSE_PI
    r = turns - ((turns + _ROUND) - _ROUND)
    z = r * r
    p = z * -3.35659262 + 13.0500989
    p = z * p - 30.1014658
    p = z * p + 42.7271963
    p = z * p - 32.4696712
    p = z * p + 9.86960431
    return x + inverse_beta * (z * p)
