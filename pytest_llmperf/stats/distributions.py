"""Student's t, and the polygamma functions of moderated variances. Elementwise on arrays."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_NORMAL = NormalDist()
_AS_NORMAL = 1e5
"""Degrees of freedom from which t is the normal distribution to 5 digits."""
_lgamma = np.frompyfunc(math.lgamma, 1, 1)


def sidak(alpha: float, comparisons: int) -> float:
    """Chance of error for each of ``comparisons`` that holds the chance of any at ``alpha``.

    Exact for independent comparisons, safe for positively dependent ones (Sidak 1967, JASA 62).
    """
    return -math.expm1(math.log1p(-alpha) / max(comparisons, 1))


def normal_quantile(tail: float) -> float:
    """The z that a standard normal exceeds with probability ``tail``."""
    return -_NORMAL.inv_cdf(tail)


def t_tail(t: ArrayLike, df: ArrayLike) -> Array:
    """P(T > t) for t >= 0 and any positive degrees of freedom.

    Half the regularised incomplete beta I_x(df/2, 1/2) at x = df / (df + t^2); its continued
    fraction is DLMF 8.17.22, evaluated by the modified Lentz method.
    """
    t2, nu = np.broadcast_arrays(np.square(_array(t)), np.minimum(_array(df), _AS_NORMAL))
    a, b = nu / 2, 0.5
    x = nu / (nu + t2)
    # the fraction converges fast only below the mean of the beta; mirror it elsewhere
    mirrored = x > (a + 1) / (a + b + 2)
    p, q = np.where(mirrored, b, a), np.where(mirrored, a, b)
    y = np.where(mirrored, 1 - x, x)
    log_beta = _log_gamma(a) + math.lgamma(b) - _log_gamma(a + b)
    with np.errstate(divide="ignore"):
        front = np.exp(a * np.log(x) + b * np.log1p(-x) - log_beta) / p
    value = front * _beta_fraction(p, q, y)
    return np.asarray(np.where(mirrored, 1 - value, value) / 2)


def t_quantile(tail: float, df: ArrayLike) -> Array:
    """The t that is exceeded with probability ``tail`` (below 1/2).

    Newton's method from the normal quantile: the tail of t is heavier and convex, so that every
    step comes closer from the left.
    """
    nu = np.minimum(_array(df), _AS_NORMAL)
    t = np.full(nu.shape, normal_quantile(tail))
    log_norm = _log_gamma((nu + 1) / 2) - _log_gamma(nu / 2) - np.log(nu * math.pi) / 2
    for _ in range(500):
        density = np.exp(log_norm - (nu + 1) / 2 * np.log1p(t * t / nu))
        step = (t_tail(t, nu) - tail) / density
        t = t + step
        if np.all(np.abs(step) <= 1e-9 * t):
            break
    return t


def digamma(x: ArrayLike) -> Array:
    """Logarithmic derivative of the gamma function, x > 0 (DLMF 5.5.2 and 5.11.2)."""
    z = _array(x)
    shift = np.zeros_like(z)
    for _ in range(6):
        shift, z = shift - 1 / z, z + 1
    y = 1 / (z * z)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y / 240)))
    return np.asarray(shift + np.log(z) - 1 / (2 * z) - series)


def trigamma(x: ArrayLike) -> Array:
    """Derivative of ``digamma`` for x > 0 (DLMF 5.15.5 and 5.15.8)."""
    z = _array(x)
    shift = np.zeros_like(z)
    for _ in range(6):
        shift, z = shift + 1 / (z * z), z + 1
    y = 1 / (z * z)
    series = (1 + y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y / 30)))) / z
    return np.asarray(shift + series + y / 2)


def trigamma_inverse(value: ArrayLike) -> Array:
    """The x > 0 with ``trigamma(x) == value``, by Newton on 1 / trigamma (Smyth 2004, appendix)."""
    target = _array(value)
    x = 0.5 + 1 / target
    for _ in range(60):
        current = trigamma(x)
        slope = (trigamma(x * (1 + 1e-6)) - trigamma(x * (1 - 1e-6))) / (2e-6 * x)
        step = current * (1 - current / target) / slope
        x = x + step
        if np.all(np.abs(step) <= 1e-8 * x):
            break
    return x


def _array(x: ArrayLike) -> Array:
    return np.asarray(x, float)


def _log_gamma(x: Array) -> Array:
    return np.asarray(_lgamma(x), float)


def _beta_fraction(a: Array, b: Array, x: Array) -> Array:
    tiny = 1e-300
    c = np.ones_like(x)
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 400):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d, tiny)
            c = _away_from_zero(1 + term / c, tiny)
            value = value * c * d
        if np.all(np.abs(c * d - 1) < 1e-14):
            break
    return value


def _away_from_zero(x: Array, tiny: float) -> Array:
    return np.where(np.abs(x) < tiny, tiny, x)
