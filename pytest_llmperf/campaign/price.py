"""What a campaign will cost in money, before its first second."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.comparisons import Forecast
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.telemetry.machine import machine_facts

__all__ = ["priced"]


def priced(forecast: Forecast, spec: ServerSpec, prices: Mapping[str, float]) -> Forecast:
    """With its price at most, where the time and the price of the server's GPUs (USD per hour and GPU) are known."""
    if not prices or not forecast.gpus or forecast.seconds is None:
        return forecast
    gpu = machine_facts(spec, None).get("gpu")
    price = None if gpu is None else prices.get(gpu.value)
    if price is None:
        return forecast
    return forecast.model_copy(update={"price_usd": forecast.seconds[1] / 3600 * forecast.gpus * price})
