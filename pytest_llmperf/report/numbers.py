"""How numbers are written for people: one place, so that all reports agree."""

from __future__ import annotations

import math

MISSING = "—"


def number(value: float | None, digits: int = 1) -> str:
    """Write ``1,037.5``: thousands grouped, ``digits`` decimals, more if it would lose meaning.

    A small value that is not whole keeps two significant digits: ``0.53``, and ``4.2`` of 0.
    """
    if value is None:
        return MISSING
    if 0 < abs(value) < 10 and value != round(value, digits):
        digits = max(digits, 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def exact(value: float | int | bool | str | None) -> str:
    """Write a value in full for a table of details: up to 6 significant digits, no exponent."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value == round(value):
        return f"{value:,.0f}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else math.floor(math.log10(abs(value))) + 1
    return f"{value:,.{max(0, 6 - whole)}f}".rstrip("0").rstrip(".")


def with_unit(value: float | None, unit: str, digits: int = 1) -> str:
    """Write ``741 ms``; a missing value gets no unit."""
    return MISSING if value is None else f"{number(value, digits)} {unit}".rstrip()


def percent(fraction: float | None, digits: int = 1) -> str:
    """Write an amount, ``7.0 %``."""
    return MISSING if fraction is None else f"{fraction * 100:.{digits}f} %"


def change(fraction: float | None, digits: int = 1) -> str:
    """Write a change with its sign, ``-14.8 %``; a change that rounds to none has no sign."""
    if fraction is None:
        return MISSING
    text = f"{fraction * 100:+.{digits}f}"
    return (text.lstrip("+-") if float(text) == 0 else text) + " %"


def interval(bounds: tuple[float, float] | None, digits: int = 1) -> str:
    """Write a confidence interval, ``760.1 – 777.9``."""
    return MISSING if bounds is None else " – ".join(number(bound, digits) for bound in bounds)


def count(n: int, noun: str, plural: str = "") -> str:
    """Write ``1 cell``, ``12 cells``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
