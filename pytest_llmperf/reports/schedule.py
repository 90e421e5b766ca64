"""The campaign in words, before the first second is spent: printed after collection and by a dry run."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.comparisons import Forecast
from pytest_llmperf.plan import LoadProfile, Plan
from pytest_llmperf.reports.phrases import digits
from pytest_llmperf.result import RunReport
from pytest_llmperf.units import format_quantity

__all__ = ["describe_campaign", "describe_load", "extent_of"]


def describe_campaign(plans: Sequence[Plan], last: RunReport | None, forecast: Forecast) -> list[str]:
    """The campaign in a few lines, one per test. Times of loads are those of the last report, where it has them."""
    server = plans[0].server
    where = server.url or f"engine {server.engine}" + (f", model {server.model}" if server.model else "")
    seconds = [_seconds(plan, last) for plan in plans]
    known = [value for value in seconds if value is not None]
    total = (
        f"about {format_quantity(sum(known), 's')} of load a launch"
        if len(known) == len(plans)
        else "its load has not been timed yet"
    )
    launches = "a running server" if server.targeted else _launches(forecast)
    lines = [f"llmperf: server {server.name} ({where}): {launches}, {len(plans)} test(s), {total}"]
    lines.append(f"  {forecast.mode}{_cost(forecast)}")
    if forecast.detects:
        shown = ", ".join(f"{name} {digits(100 * change)} %" for name, change in forecast.detects.items())
        lines.append(f"  smallest change that this shows in four of five cases: {shown}")
    lines += [f"  note: {note}" for note in forecast.notes]
    for plan, value in zip(plans, seconds, strict=True):
        estimate = f", about {format_quantity(value, 's')}" if value is not None else ""
        replays = f", {plan.replays} replays" if (plan.replays or 1) > 1 else ""
        lines.append(f"  {plan.nodeid}: {plan.workload.name}, {describe_load(plan.load)}{replays}{estimate}")
        lines += [f"    note: {note}" for note in plan.notes]
    return lines


def _launches(forecast: Forecast) -> str:
    least, most = forecast.launches
    return f"{least} launch{'es' if least > 1 else ''}" if least == most else f"{least} to {most} launches"


def _cost(forecast: Forecast) -> str:
    """Minutes, GPU hours and price, as far as earlier runs and the configuration tell."""
    if forecast.seconds is None:
        return "; its time is not known before it has run once"
    least, most = forecast.seconds
    text = f"; about {format_quantity(least, 's')}"
    if most > 1.05 * least:
        text += f" to {format_quantity(most, 's')}"
    if forecast.gpus:
        text += f", at most {digits(most * forecast.gpus / 3600, 2)} GPUh"
    return text if forecast.price_usd is None else f"{text} (${forecast.price_usd:,.2f})"


def describe_load(load: LoadProfile) -> str:
    """E.g. ``concurrency 16, 200 requests`` or ``5 req/s poisson, 60 s``."""
    return f"{shape_of(load)}, {extent_of(load)} after {load.warmup_requests} of warm-up"


def shape_of(load: LoadProfile) -> str:
    """The level without the amount; a plain closed loop as its marker has it."""
    plain = load.concurrency is not None and load.ramp is None
    return f"concurrency {load.concurrency}" if plain else load.describe().removeprefix("open loop, ")


def extent_of(load: LoadProfile) -> str:
    """How much is measured."""
    if load.requests is not None:
        return f"{load.requests} requests"
    return format_quantity(load.duration, "s") if load.duration is not None else "every time of it"


def _seconds(plan: Plan, last: RunReport | None) -> float | None:
    """Seconds of load that the test took last time, else what its own duration or rate says; None: not known."""
    replays = plan.replays or 1
    for test in last.tests if last is not None else ():
        if test.nodeid == plan.nodeid and test.plan.load == plan.load and test.trials:
            return replays * sum(trial.client.wall_seconds for trial in test.trials) / len(test.trials)
    load = plan.load
    if load.duration is not None:
        return replays * load.duration
    if load.schedule is not None:
        return replays * load.schedule[-1]
    if load.request_rate is not None and load.requests is not None and load.ramp is None:
        return replays * (load.requests + load.warmup_requests) / load.request_rate
    return None
