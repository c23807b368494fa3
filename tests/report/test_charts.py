"""Charts place what they are given, and nothing else."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.report.charts import Line, histogram, line_chart


def points(text: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in text.split())]


@given(st.lists(st.floats(0.001, 1e7), min_size=2, max_size=20))
def test_lines_are_to_scale_from_zero_and_within_the_axes(values: list[float]) -> None:
    line = Line("8K", list(enumerate(values)))
    names = [str(i) for i in range(len(values))]
    chart = line_chart("t", "s", "x", "tok/s", [line], x_names=names)
    assert chart is not None
    places = points(chart.lines[0].points)
    rise = chart.floor - min(tick.at for tick in chart.y_ticks)
    top = float(chart.y_ticks[-1].text.replace(",", ""))
    assert max(values) <= top * (1 + 1e-6)
    for (x, y), tick, value in zip(places, chart.x_ticks, values, strict=True):
        assert x == tick.at
        assert abs((chart.floor - y) / rise - value / top) < 0.01
    assert all(a[0] < b[0] for a, b in pairwise(places))


def test_labels_at_the_same_end_do_not_cover_each_other() -> None:
    lines = [Line(f"{k}K", [(0, 10.0), (1, 100.0 + k)]) for k in range(6)]
    chart = line_chart("t", "s", "x", "tok/s", lines, x_names=["1", "2"])
    assert chart is not None
    heights = sorted(line.label_at[1] for line in chart.lines)
    assert all(below - above >= 14.9 for above, below in pairwise(heights))


def test_the_baseline_is_drawn_without_dots_or_label() -> None:
    before, now = [(0.0, 1.0), (1.0, 1.5)], [(0.0, 2.0), (1.0, 2.5)]
    lines = [Line("8K", before, baseline=True), Line("8K", now)]
    chart = line_chart("t", "s", "x", "tok/s", lines, x_names=["1", "2"])
    assert chart is not None
    assert [(line.baseline, len(line.dots), line.label) for line in chart.lines] == [
        (True, 0, ""),
        (False, 2, "8K"),
    ]
    assert chart.compared


@given(st.lists(st.floats(0.1, 1e5), min_size=10, max_size=300))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    chart = histogram("t", values, "ms")
    assert chart is not None
    counts = [int(bar.text.split(" of ")[0]) for bar in chart.bars]
    assert sum(counts) == len(values)
    assert all(bar.y >= 13.9 and bar.height >= 0 for bar in chart.bars)


def test_nothing_to_draw_is_no_chart() -> None:
    assert line_chart("t", "s", "x", "y", [Line("8K", [])], x_names=["1"]) is None
    assert histogram("t", [1.0, 2.0] * 4, "ms") is None


def test_a_single_place_is_no_line() -> None:
    """Though its baseline be drawn from edge to edge."""
    lines = [Line("", [(0, 1.0), (1, 1.0)], baseline=True), Line("", [(0, 1.0)])]
    assert line_chart("t", "s", "x", "y", lines) is None
