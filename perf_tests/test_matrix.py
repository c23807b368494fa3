"""All cells together: a slowdown too small for any one of them may be certain over many."""

from pytest_llmperf.run.fixture import Matrix


def test_matrix(llm_matrix: Matrix) -> None:
    llm_matrix.check()
