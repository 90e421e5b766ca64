"""Settings of the whole suite."""

from hypothesis import settings

pytest_plugins = ["pytester"]

# A busy machine makes single examples slow: no test asserts a time.
settings.register_profile("llmperf", deadline=None)
settings.load_profile("llmperf")
