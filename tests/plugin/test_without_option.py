"""Without --llmperf the plugin is not noticed: performance tests are skipped with a reason, all others run."""

from __future__ import annotations

import pytest


def test_performance_tests_are_skipped_with_a_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.llmperf(workload="no such thing", nonsense=True)
        def test_performance(llmperf):
            raise AssertionError("must not run")

        def test_plain():
            pass
        """
    )
    result = pytester.runpytest("-rs", "--strict-markers")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*performance test: run with --llmperf"])
    assert not (pytester.path / "llmperf-report").exists()
