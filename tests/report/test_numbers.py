"""Numbers read alike in every report."""

from __future__ import annotations

import pytest

from pytest_llmperf.report.numbers import change, count, exact, interval, number, with_unit


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1037.5, 1, "1,037.5"),
        (2.34, 1, "2.3"),
        (0.534, 1, "0.53"),
        (0.000123, 1, "0.00012"),
        (4.23, 0, "4.2"),
        (4.0, 0, "4"),
        (1, 0, "1"),
        (0, 1, "0.0"),
        (92488.0, 0, "92,488"),
        (None, 1, "—"),
    ],
)
def test_numbers_are_grouped_and_small_ones_keep_their_meaning(
    value: float | None, digits: int, text: str
) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(769.0, "769"), (762.0791234, "762.079"), (0.00624512, "0.00624512"), (True, "yes"),
     (23038, "23,038"), (1e15, "1,000,000,000,000,000"), ("usage", "usage"), (None, "—")],
)  # fmt: skip
def test_details_show_six_significant_digits(value: object, text: str) -> None:
    assert exact(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(-0.148, "-14.8 %"), (0.02, "+2.0 %"), (0.00001, "0.0 %"), (-0.0004, "0.0 %"), (None, "—")],
)
def test_a_change_has_its_sign_unless_it_rounds_to_none(fraction: float | None, text: str) -> None:
    assert change(fraction) == text


def test_a_missing_value_has_no_unit() -> None:
    assert (with_unit(None, "ms"), with_unit(741.2, "ms", 0)) == ("—", "741 ms")
    assert interval(None) == "—"
    assert interval((760.06, 777.94)) == "760.1 – 777.9"


def test_nouns_follow_their_number() -> None:
    assert [count(n, "cell") for n in (1, 2)] == ["1 cell", "2 cells"]
