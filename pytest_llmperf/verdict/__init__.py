"""Measurement against baseline: tolerances, verdicts, and the words for them. Pure."""

from pytest_llmperf.verdict.gate import Gate
from pytest_llmperf.verdict.judge import fails, judge, needs_confirmation
from pytest_llmperf.verdict.matrix import MatrixVerdict, judge_matrix
from pytest_llmperf.verdict.totals import Totals, count

__all__ = [
    "Gate",
    "MatrixVerdict",
    "Totals",
    "count",
    "fails",
    "judge",
    "judge_matrix",
    "needs_confirmation",
]
