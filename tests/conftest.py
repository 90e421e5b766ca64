"""Settings of the whole suite."""

import os

import numpy  # noqa: F401  # before any in-process child run: it cannot be loaded twice in one process
import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

# A busy machine makes single examples slow: no test asserts a time.
settings.register_profile("llmperf", deadline=None)
settings.load_profile("llmperf")


@pytest.fixture(autouse=True)
def _runs_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where workers share the suite, a run that a test starts is no worker; its leases are not among the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
        monkeypatch.delenv(name)
