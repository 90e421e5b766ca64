"""From records to metrics.

Formulas on one request, values of pooled trials, whether a trial can be trusted.
"""

from __future__ import annotations

from pytest_llmperf.metrics.invariants import check_invariants
from pytest_llmperf.metrics.trial import MEASURED, counts, in_flight, measure
from pytest_llmperf.metrics.validity import LoadFacts, Validity, assess

__all__ = [
    "MEASURED",
    "LoadFacts",
    "Validity",
    "assess",
    "check_invariants",
    "counts",
    "in_flight",
    "measure",
]
