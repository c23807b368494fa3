"""The ``llmperf`` command: what needs no pytest session."""
