"""Rates: what happened inside the window, by time stamp, divided by the window.

Requests of the warm-up that are still running, failed ones and those that we cut all count with what they
brought inside the window: a rate over finished requests alone falls when requests are cut and rises with
short ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.catalog import metric
from pytest_llmperf.metrics.chunks import credit
from pytest_llmperf.metrics.request import PER_REQUEST, itl_gaps, known_tokens, longest_gap, output_ns
from pytest_llmperf.records import Outcome, Phase, RequestRecord, Trial
from pytest_llmperf.stats.value import MetricValue

__all__ = ["TokenCount", "meets", "rate_values", "spread_tokens", "tokens_between"]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Output tokens that came between two times."""

    tokens: float
    counted: int
    """Requests with output in the interval whose tokens are known."""
    unknown: int
    """Requests with output in the interval that the server gave no token count for.

    They are not in ``tokens``.
    """


def spread_tokens(record: RequestRecord) -> list[tuple[int, float]] | None:
    """The request's output tokens by the time stamps of its chunks; None where their number is unknown.

    Each chunk gets a share in proportion to its ``chunk_tokens``, or an equal one where the server does not
    count per chunk. The total is exact either way; an equal share is only an approximation of *when* tokens
    came, and matters for the two edges of the window alone. A reply that was not streamed has all of them at
    its end.
    """
    tokens = known_tokens(record)
    if tokens is None:
        return None
    stamps: Sequence[int] = output_ns(record)
    weights: Sequence[int] = record.chunk_tokens or ()
    if len(weights) != len(stamps) or sum(weights) <= 0:
        weights = (1,) * len(stamps)
    each = tokens / sum(weights) if weights else 0.0
    return [(stamp, weight * each) for stamp, weight in zip(stamps, weights, strict=True)]


def tokens_between(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> TokenCount:
    """Output tokens of all ``records`` with time stamps in [start_ns, end_ns]."""
    credited = credit(tuple(records))
    inside = (credited.stamps >= start_ns) & (credited.stamps <= end_ns)
    counted, unknown = (
        int(((spans[:, 1] >= start_ns) & (spans[:, 0] <= end_ns)).sum()) for spans in (credited.spans, credited.unknown)
    )
    return TokenCount(float(credited.shares[inside].sum()), counted, unknown)


def meets(record: RequestRecord, slo: Mapping[str, float]) -> bool | None:
    """Whether an ok request keeps every limit (family → seconds); None where that cannot be told.

    icl and itl ask it of the largest gap. A limit on something that the request does not have (TPOT of one
    token) does not bind it; a TPOT that is missing because tokens were not counted cannot be told.
    """
    if record.outcome is not Outcome.OK:
        return False
    untold = False
    for family, limit in slo.items():
        value: float | None
        if family == "icl":
            value = longest_gap(record)
        elif family == "itl":
            gaps = itl_gaps(record)
            untold |= gaps is None
            value = max(gaps or (), default=None)
        elif family in PER_REQUEST:
            value = PER_REQUEST[family](record)
            untold |= family == "tpot" and known_tokens(record) is None
        else:
            value, untold = None, True
        if value is not None and value > limit:
            return False
    return None if untold else True


def rate_values(trials: Sequence[Trial], slo: Mapping[str, float] | None) -> dict[str, MetricValue]:
    """Throughputs, goodput and error rate of pooled trials.

    Sums over all windows / seconds of all windows.
    """
    seconds = sum(trial.window.seconds for trial in trials)
    output = _sum([tokens_between(t.records, t.window.start_ns, t.window.end_ns) for t in trials])
    finished = [
        record
        for trial in trials
        for record in trial.records
        if record.outcome is Outcome.OK and _inside(trial, record.last_output_ns)
    ]
    judged = [
        record
        for trial in trials
        for record in trial.records
        if record.phase is Phase.MEASURED and record.outcome is not Outcome.CUT
    ]
    failed = sum(record.failed for record in judged)
    found = {
        "prefix_hit_rate": _hit_rate(judged),
        "output_throughput": _output_rate(output, seconds, any(r.outcome is Outcome.OK for r in judged)),
        "total_throughput": _total_rate(trials, output, seconds),
        "request_throughput": _rate("request_throughput", len(finished), seconds, len(finished)),
        "error_rate": MetricValue(
            metric("error_rate"),
            failed / len(judged) if judged else None,
            len(judged),
            None if judged else "no measured requests",
        ),
    }
    return found | _goodput(finished, judged, seconds, slo)


def _hit_rate(judged: Sequence[RequestRecord]) -> MetricValue:
    """Cached prompt tokens / prompt tokens of the ok requests whose usage states both."""
    which = metric("prefix_hit_rate")
    ok = [record for record in judged if record.outcome is Outcome.OK]
    known = [(r.cached_tokens, r.prompt_tokens) for r in ok if r.cached_tokens is not None and r.prompt_tokens]
    if not known:
        silent = "the server states no cached prompt tokens (vLLM: --enable-prompt-tokens-details)"
        return MetricValue(which, None, 0, silent if ok else "no request finished well")
    untold = len(ok) - len(known)
    note = f"{untold} of {len(ok)} requests have no count of cached prompt tokens" if untold else None
    share = sum(cached for cached, _ in known) / sum(prompt for _, prompt in known)
    return MetricValue(which, share, len(known), note, untold=untold / len(ok))


def _goodput(
    finished: Sequence[RequestRecord],
    judged: Sequence[RequestRecord],
    seconds: float,
    slo: Mapping[str, float] | None,
) -> dict[str, MetricValue]:
    rate, share = metric("goodput"), metric("goodput_share")
    if not slo:
        note = "no limits per request were given (slo=)"
        return {m.name: MetricValue(m, None, 0, note) for m in (rate, share)}
    everyone = {id(record): record for record in (*finished, *judged)}
    known = {number: meets(record, slo) for number, record in everyone.items()}
    in_window, all_measured = ([known[id(record)] for record in some] for some in (finished, judged))
    found: dict[str, MetricValue] = {}
    for which, answers in ((rate, in_window), (share, all_measured)):
        told = [answer for answer in answers if answer is not None]
        untold = len(answers) - len(told)
        left_out = f"{untold} of {len(answers)} requests lack what a limit asks for and are left out"
        missing = left_out if untold else None
        if (answers and not told) or (which is share and not told):
            found[which.name] = MetricValue(which, None, 0, missing or "no measured requests")
        elif which is share:
            share_untold = untold / len(answers)
            found[which.name] = MetricValue(which, sum(told) / len(told), len(told), missing, untold=share_untold)
        else:
            share_untold = untold / len(answers) if answers else 0.0
            found[which.name] = _rate(which.name, sum(told), seconds, len(told), missing, share_untold)
    return found


def _output_rate(output: TokenCount, seconds: float, any_ok: bool) -> MetricValue:
    if any_ok and not output.counted and not output.unknown:
        return MetricValue(metric("output_throughput"), None, 0, "no output fell into the window: make it longer")
    if output.unknown and not output.counted:
        note = f"the server gave no token count for any of {output.unknown} requests"
        return MetricValue(metric("output_throughput"), None, 0, note)
    untold = output.unknown / max(1, output.unknown + output.counted)
    return _rate("output_throughput", output.tokens, seconds, output.counted, _lower_bound(output), untold)


def _total_rate(trials: Sequence[Trial], output: TokenCount, seconds: float) -> MetricValue:
    """Prompt tokens count when the first output shows that the prompt was processed."""
    name = "total_throughput"
    begun = [r for t in trials for r in t.records if _inside(t, next(iter(output_ns(r)), None))]
    prompts = [record.prompt_tokens for record in begun if record.prompt_tokens is not None]
    if (output.unknown and not output.counted) or (begun and not prompts):
        return MetricValue(metric(name), None, 0, "the server gave no token counts")
    notes: list[str | None] = [_lower_bound(output)]
    if len(prompts) < len(begun):
        notes.append(f"a lower bound: {len(begun) - len(prompts)} of {len(begun)} requests have no prompt token count")
    untold = max(output.unknown / max(1, output.unknown + output.counted), 1 - len(prompts) / max(1, len(begun)))
    note = "; ".join(filter(None, notes)) or None
    return _rate(name, output.tokens + sum(prompts), seconds, output.counted, note, untold if note else 0.0)


def _rate(
    name: str, amount: float, seconds: float, n: int, note: str | None = None, untold: float = 0.0
) -> MetricValue:
    if seconds <= 0:
        return MetricValue(metric(name), None, 0, "the window has no length")
    return MetricValue(metric(name), amount / seconds, n, note, untold=untold)


def _lower_bound(output: TokenCount) -> str | None:
    if not output.unknown:
        return None
    total = output.unknown + output.counted
    return f"a lower bound: {output.unknown} of {total} requests with output in the window have no token count"


def _sum(counts: Sequence[TokenCount]) -> TokenCount:
    return TokenCount(
        sum(count.tokens for count in counts),
        sum(count.counted for count in counts),
        sum(count.unknown for count in counts),
    )


def _inside(trial: Trial, stamp_ns: int | None) -> bool:
    return stamp_ns is not None and trial.window.start_ns <= stamp_ns <= trial.window.end_ns
