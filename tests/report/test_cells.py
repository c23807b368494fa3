"""What reports show of a cell's speed: the steadiest change, and none within the window's error."""

from __future__ import annotations

from pytest_llmperf.report.cells import headline, speed_change, steadiest
from pytest_llmperf.report.numbers import change
from tests.support.results import find, published_run


def test_a_change_that_the_window_cannot_tell_from_none_is_shown_as_none() -> None:
    """Within 1.96 standard errors; beyond, and where a verdict stands on it, it is a number."""
    record = find(published_run("rtxpro6k_x4"), "decode[8K-c1]")
    assert record.measurement is not None
    value = record.measurement.total_tok_s
    assert value is not None
    judged = headline(record)
    assert judged is not None

    def shown(error: float) -> str:
        noisy = record.measurement.model_copy(update={"std_errors": {"total_tok_s": error * value}})
        return speed_change(record.model_copy(update={"measurement": noisy}))

    assert shown(0.05) == "±0 %"
    assert shown(0.0001) == change(judged.delta)


def test_the_change_is_that_of_steps_where_both_sides_count_them() -> None:
    """tok/s of a few draft tokens wander with the text; steps do not."""
    record = find(published_run("rtxpro6k_x4"), "decode[8K-c1]")
    steps = record.comparisons[0].model_copy(update={"metric": "steps_s", "delta": -0.101})
    both = record.model_copy(update={"comparisons": [*record.comparisons, steps]})
    assert steadiest(both) == steps
    assert speed_change(both) == "-10.1 %"
