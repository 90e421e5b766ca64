"""Settings of the whole suite."""

import gc
import os
import subprocess
from collections.abc import Generator
from contextlib import suppress

import numpy.fft  # noqa: F401  # before any in-process child run: it cannot be loaded twice in one process
import psutil
import pytest
import scipy.stats  # noqa: F401  # likewise
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """What a failed test started is ended and its pipes are closed: one failure is no trouble of the tests after it."""
    before = {process.pid for process in psutil.Process().children()}
    try:
        return (yield)
    except Exception:
        left = {process.pid for process in psutil.Process().children()} - before
        for started in [each for each in gc.get_objects() if isinstance(each, subprocess.Popen) and each.pid in left]:
            started.kill()
            started.wait()
            for pipe in (started.stdin, started.stdout, started.stderr):
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        raise
