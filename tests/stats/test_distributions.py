"""Student's t and the polygamma functions against published values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmperf.stats.distributions import (
    digamma,
    normal_quantile,
    sidak,
    t_quantile,
    t_tail,
    trigamma,
    trigamma_inverse,
)


@pytest.mark.parametrize(
    ("df", "tail", "expected"),
    [
        # the usual printed tables, upper tail
        (1, 0.05, 6.3138),
        (1, 0.025, 12.7062),
        (2, 0.01, 6.9646),
        (4, 0.005, 4.6041),
        (4, 0.0005, 8.6103),
        (10, 0.025, 2.2281),
        (10, 0.0005, 4.5869),
        (30, 0.005, 2.7500),
        (120, 0.01, 2.3578),
        (1e12, 0.025, 1.9600),
    ],
)
def test_t_quantile_agrees_with_tables(df: float, tail: float, expected: float) -> None:
    """The quantile is the tabulated one to its four digits."""
    assert float(t_quantile(tail, df)) == pytest.approx(expected, abs=6e-5)


def test_t_quantile_inverts_the_tail_for_broken_degrees_of_freedom() -> None:
    """Moderated variances have fractional degrees of freedom; arrays of them work at once."""
    df = np.array([0.7, 1.5, 3.3, 17.2, 400.5])
    assert t_tail(t_quantile(8.4e-5, df), df) == pytest.approx(8.4e-5, rel=1e-6)


def test_t_tail_has_the_closed_forms_of_one_and_two_degrees() -> None:
    """df 1 is Cauchy's distribution, df 2 has an algebraic tail."""
    t = np.array([0.0, 1e-6, 0.3, 1.0, 4.0, 1e4])
    assert t_tail(t, 1) == pytest.approx(0.5 - np.arctan(t) / math.pi, rel=1e-9, abs=1e-15)
    assert t_tail(t, 2) == pytest.approx(0.5 - t / (2 * np.sqrt(2 + t * t)), rel=1e-6, abs=1e-15)


def test_sidak_gives_the_normal_limit_of_the_reference_grid() -> None:
    """40 cells x 3 metrics at 1 % in all: 3.76 normal standard deviations."""
    assert normal_quantile(sidak(0.01, 120)) == pytest.approx(3.76, abs=0.005)
    assert 1 - (1 - sidak(0.01, 120)) ** 120 == pytest.approx(0.01)


def test_digamma_and_trigamma_have_their_known_values() -> None:
    """psi(1) = -gamma, psi(1/2) = -gamma - 2 ln 2, psi'(1) = pi^2/6, psi'(1/2) = pi^2/2."""
    gamma = 0.5772156649015329
    assert digamma([1, 0.5]) == pytest.approx([-gamma, -gamma - 2 * math.log(2)], rel=1e-9)
    assert trigamma([1, 0.5]) == pytest.approx([math.pi**2 / 6, math.pi**2 / 2], rel=1e-9)


def test_trigamma_inverse_inverts() -> None:
    """Over the whole range that prior degrees of freedom take."""
    x = np.array([0.05, 0.5, 2.0, 30.0, 5000.0])
    assert trigamma_inverse(trigamma(x)) == pytest.approx(x, rel=1e-5)
