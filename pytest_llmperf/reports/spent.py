"""What a run cost: GPU time from the launches, and its price where one is known."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.reports.phrases import digits
from pytest_llmperf.result import CampaignReport, RunReport

__all__ = ["spent_text"]

NO_GPU: Final = ("unknown", "cpu")


def spent_text(report: RunReport) -> str | None:
    """E.g. ``about 41 GPU-min ($2.39)``; None where no launch on a GPU was ours, or its time or device is not known.

    The price is left out unless that of every device is known.
    """
    seconds, price, priced = 0.0, 0.0, True
    for campaign in report.campaigns:
        if campaign.identity is None or campaign.identity.value("gpu") in NO_GPU:
            continue
        device, count = campaign.identity.value("gpu"), campaign.identity.value("gpu_count")
        held = _held_s(campaign)
        if held is None or not count.isdecimal():
            return None
        seconds += held * int(count)
        rate = report.prices.get(device)
        priced = priced and rate is not None
        price += held * int(count) / 3600 * (rate or 0.0)
    if not seconds:
        return None
    return f"about {digits(seconds / 60)} GPU-min" + (f" (${price:,.2f})" if priced else "")


def _held_s(campaign: CampaignReport) -> float | None:
    """Seconds that the campaign's launches held their devices, unjudged ones included; None where one is not known.

    Of a server that was running already nothing is ours.
    """
    known = [launch.lifetime_s for launch in campaign.launches if launch.command is not None]
    return None if None in known else sum(each for each in known if each is not None)
