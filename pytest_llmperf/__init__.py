"""Performance of an LLM server, as tests."""

__version__ = "0.1.0"
