"""Geometry of the report's charts; ``templates/chart.svg.j2`` draws it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pytest_llmperf.report.numbers import exact, number

_TOP, _RIGHT, _BOTTOM, _LEFT = 14, 52, 46, 84
_LABEL_GAP = 19.0
_SHAPE = 10

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line to draw: values at x, which is a place among ``x_names`` or a number."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    baseline: bool = False


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """A line in SVG coordinates."""

    points: str
    dots: list[Dot]
    colour: int
    baseline: bool
    label: str = ""
    label_at: Point = (0, 0)


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart, ready for the template. ``summary`` says in words what the picture shows."""

    title: str
    summary: str
    x_name: str
    y_name: str
    width: int
    height: int
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Drawn] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    @property
    def compared(self) -> bool:
        """Whether there is a baseline in it."""
        return any(line.baseline for line in self.lines)

    @property
    def left(self) -> int:
        return _LEFT

    @property
    def right(self) -> int:
        return self.width - _RIGHT

    @property
    def floor(self) -> int:
        return self.height - _BOTTOM


def line_chart(
    title: str,
    summary: str,
    x_name: str,
    y_name: str,
    lines: Sequence[Line],
    *,
    x_names: Sequence[str] | None = None,
    size: tuple[int, int] = (640, 340),
    dots: bool = True,
) -> Chart | None:
    """Lay out lines from zero up; None when no line is measured at two places.

    With ``x_names`` the places 0, 1, … are evenly spaced and carry those names.
    """
    lines = [line for line in lines if line.points]
    if not any(len(line.points) > 1 for line in lines if not line.baseline):
        return None
    width, height = size
    xs = [x for line in lines for x, _ in line.points]
    top, y_ticks = _scale(max(y for line in lines for _, y in line.points))
    if x_names is not None:
        last = float(max(len(x_names) - 1, 1))
        x_ticks = [Tick(float(i), name) for i, name in enumerate(x_names)]
    else:
        last = max(xs) or 1.0
        x_ticks = [Tick(value, exact(value)) for value in _scale(last)[1] if value <= last]

    def place_x(x: float) -> float:
        return round(_LEFT + x / last * (width - _LEFT - _RIGHT), 1)

    def place_y(y: float) -> float:
        return round(height - _BOTTOM - y / top * (height - _BOTTOM - _TOP), 1)

    def where(x: float) -> str:
        return x_names[int(x)] if x_names is not None else exact(x)

    drawn = []
    for line in lines:
        places = [(place_x(x), place_y(y)) for x, y in line.points]
        name = f"{line.label}{', baseline' if line.baseline else ''}"
        texts = [f"{name}, {where(x)}: {number(y)} {y_name}" for x, y in line.points]
        drawn.append(
            Drawn(
                points=" ".join(f"{x:g},{y:g}" for x, y in places),
                dots=[Dot(x, y, text) for (x, y), text in zip(places, texts, strict=True)]
                if dots and not line.baseline
                else [],
                colour=line.colour % 8,
                baseline=line.baseline,
                label="" if line.baseline else line.label,
                label_at=places[-1],
            )
        )
    return Chart(
        title,
        summary,
        x_name,
        y_name,
        width,
        height,
        [Tick(place_x(tick.at), tick.text) for tick in x_ticks],
        [Tick(place_y(value), exact(value)) for value in y_ticks],
        lines=_apart(drawn),
    )


def histogram(
    title: str, values: Sequence[float], unit: str, *, size: tuple[int, int] = (420, 240)
) -> Chart | None:
    """Count values in equal bins; None for too few values to have a shape."""
    if len(values) < _SHAPE:
        return None
    width, height = size
    low, high = min(values), max(values)
    bins = min(16, max(4, round(math.sqrt(len(values))))) if high > low else 1
    step = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / step))] += 1
    top, y_ticks = _scale(max(counts), whole=True)
    room, rise = width - _LEFT - _RIGHT, height - _BOTTOM - _TOP
    bars = []
    for i, n in enumerate(counts):
        tall = round(n / top * rise, 1)
        span = f"{number(low + i * step, 1)} to {number(low + (i + 1) * step, 1)} {unit}"
        bars.append(
            Bar(
                x=round(_LEFT + i * room / bins + 1, 1),
                y=round(height - _BOTTOM - tall, 1),
                width=round(room / bins - 2, 1),
                height=tall,
                text=f"{n} of {len(values)}: {span if high > low else f'{number(low)} {unit}'}",
            )
        )
    edges = (low, (low + high) / 2, high) if high > low else (low,)
    spots = (0.0, 0.5, 1.0) if high > low else (0.5,)
    summary = f"{len(values)} values from {number(low)} to {number(high)} {unit}."
    return Chart(
        title,
        summary,
        unit,
        "requests",
        width,
        height,
        [Tick(_LEFT + s * room, number(e)) for s, e in zip(spots, edges, strict=True)],
        [Tick(round(height - _BOTTOM - y / top * rise, 1), exact(y)) for y in y_ticks],
        bars=bars,
    )


def _scale(largest: float, *, whole: bool = False) -> tuple[float, list[float]]:
    """The top of an axis from zero and its ticks: 1, 2 or 5 times a power of ten apart."""
    if largest <= 0:
        return 1.0, [0.0, 1.0]
    rough = largest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * 0.999)
    if whole:
        step = max(1.0, step)
    n = math.ceil(largest / step - 1e-9)
    return n * step, [i * step for i in range(n + 1)]


def _apart(lines: list[Drawn]) -> list[Drawn]:
    """Move the labels at the ends of lines so far up or down that none covers another."""
    labelled = sorted((line for line in lines if line.label), key=lambda line: line.label_at[1])
    places = {id(line): line.label_at for line in labelled}
    for above, line in pairwise(labelled):
        (ax, ay), (x, y) = places[id(above)], places[id(line)]
        if abs(ax - x) < 40 and y - ay < _LABEL_GAP:
            places[id(line)] = (x, ay + _LABEL_GAP)
    return [
        Drawn(
            line.points, line.dots, line.colour, line.baseline, line.label,
            places.get(id(line), line.label_at),
        )
        for line in lines
    ]  # fmt: skip
