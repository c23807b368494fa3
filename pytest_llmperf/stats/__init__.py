"""Estimates with their errors, and the distributions behind them. Pure; numpy only."""

from pytest_llmperf.stats.window import (
    batch_count,
    batch_mean_error,
    chunk_error,
    confidence_95,
    itl_error,
    median_error,
    trend,
)

__all__ = [
    "batch_count",
    "batch_mean_error",
    "chunk_error",
    "confidence_95",
    "itl_error",
    "median_error",
    "trend",
]
