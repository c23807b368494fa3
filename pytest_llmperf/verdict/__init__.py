"""Measurement against baseline: tolerances, verdicts, and the words for them. Pure."""

from pytest_llmperf.verdict import words
from pytest_llmperf.verdict.empty import why_empty
from pytest_llmperf.verdict.gate import Gate
from pytest_llmperf.verdict.judge import fails, judge, needs_confirmation
from pytest_llmperf.verdict.limits import Limits, check_limits
from pytest_llmperf.verdict.matrix import MatrixVerdict, choose_sample, confirm, judge_matrix

__all__ = [
    "Gate",
    "Limits",
    "MatrixVerdict",
    "check_limits",
    "choose_sample",
    "confirm",
    "fails",
    "judge",
    "judge_matrix",
    "needs_confirmation",
    "why_empty",
    "words",
]
