"""What the tests need loaded before any of them runs.

A run inside this process (pytester) forgets the modules it imports. What is here already stays:
C extensions do not survive a second import, and hypothesis would be rewritten every time.
"""

import hypothesis  # noqa: F401

import pytest_llmperf.report.publish
import pytest_llmperf.run.startup  # noqa: F401
