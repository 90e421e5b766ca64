"""``[tool.llmperf]`` of pyproject.toml, or ``llmperf.toml``: read, validated, overridden from the command line.

Every error names the file, the key, the value and what would be right.
"""

from __future__ import annotations

from pytest_llmperf.settings.faults import describe_validation_error
from pytest_llmperf.settings.load import load_settings
from pytest_llmperf.settings.model import Accept, Budget, Overrides, Settings
from pytest_llmperf.settings.servers import check_speaks, server_named
from pytest_llmperf.settings.workloads import load_workload

__all__ = [
    "Accept",
    "Budget",
    "Overrides",
    "Settings",
    "check_speaks",
    "describe_validation_error",
    "load_settings",
    "load_workload",
    "server_named",
]
