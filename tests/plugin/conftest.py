"""Runs inside this process forget the modules they import; what is here already is kept.

C extensions (yaml, numpy) do not survive a second import, and it would be slow.
"""

import pytest_llmperf.report.publish
import pytest_llmperf.startup  # noqa: F401
