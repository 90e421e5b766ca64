"""Settings of the whole suite."""

import numpy  # noqa: F401  # before any in-process child run: it cannot be loaded twice in one process
from hypothesis import settings

pytest_plugins = ["pytester"]

# A busy machine makes single examples slow: no test asserts a time.
settings.register_profile("llmperf", deadline=None)
settings.load_profile("llmperf")
