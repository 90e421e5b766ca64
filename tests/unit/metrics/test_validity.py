"""What makes a trial INVALID, what is only noted, and what must not be complained about."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from made import MS, client, failure, record, trial

from pytest_llmperf.metrics.validity import LoadFacts, assess
from pytest_llmperf.records import ClientStats, Outcome, Phase, RequestRecord, Trial

CLOSED = LoadFacts()
OPEN = LoadFacts(request_rate=10)


def open_loop(n: int, stretch: float = 1.0) -> list[RequestRecord]:
    """``n`` requests planned 100 ms apart and sent ``stretch`` times as far apart."""
    return [record(i, sent_ms=100 * i * stretch + 0.5, scheduled_ns=100 * i * MS) for i in range(n)]


def test_a_sound_trial_has_neither_reasons_nor_notes() -> None:
    for found in (assess(trial([record(i) for i in range(10)]), CLOSED), assess(trial(open_loop(50)), OPEN)):
        assert (found.valid, found.reasons, found.notes, found.unsettled) == (True, (), (), None)


def test_a_missed_schedule_is_invalid_and_says_what_to_do() -> None:  # pitfall 16
    found = assess(trial(open_loop(50, stretch=1.05)), OPEN)
    assert not found.valid
    assert "sent at 95.2 % of the planned rate" in found.reasons[0]
    assert "lower request_rate" in found.reasons[0]


def test_one_late_request_of_a_short_run_is_no_missed_schedule() -> None:
    records = open_loop(5)
    late = dataclasses.replace(records[-1], sent_ns=(400 + 15) * MS)  # 3.6 % of 400 ms
    assert assess(trial([*records[:-1], late]), OPEN).valid


def late(n: int, slips_ms: dict[int, float], **changes: Any) -> Trial:
    """As ``open_loop``, with some requests so late and the client's figures of it."""
    records = [
        record(i, sent_ms=100 * i + slips_ms.get(i, 0.5), scheduled_ns=100 * i * MS, **changes) for i in range(n)
    ]
    slips = sorted(round(slips_ms.get(i, 0.5) * MS) for i in range(n))
    p99 = slips[math.ceil(0.99 * n) - 1]
    return trial(records, client=client(slip_p99_ns=p99, slip_max_ns=slips[-1]))


def test_late_sends_are_invalid_although_the_rate_is_kept() -> None:
    found = assess(late(50, {1: 300, 2: 200}), OPEN)
    assert len(found.reasons) == 1
    assert "client lag" in found.reasons[0]
    assert "300 ms" in found.reasons[0]
    slow = assess(late(10, dict.fromkeys(range(10), 25)), OPEN)  # a client that is late every time
    assert "client lag: 1 % of requests were sent 25.0 ms or more" in slow.reasons[0]


def test_a_single_late_send_is_a_hiccup_of_the_machine_and_noted() -> None:
    found = assess(late(50, {1: 300}), OPEN)
    assert found.valid
    assert found.notes == ("one request was sent 300 ms after its scheduled time: two make a trial INVALID",)
    found = assess(late(10, {9: 300}), OPEN)  # it also stretches 0.9 s to 1.2 s
    assert (found.reasons, len(found.notes)) == ((), 1)
    assert "missed schedule" in assess(late(10, {8: 25, 9: 300}), OPEN).reasons[0]
    assert assess(late(150, {1: 300}), OPEN).notes == ()  # less than 1 % of them
    assert not assess(late(150, {1: 300, 2: 300}), OPEN).valid


def test_slip_that_is_small_against_the_latency_is_allowed() -> None:
    assert assess(late(50, {1: 60, 2: 40}, chunks_ms=(900, 950)), OPEN).valid
    assert not assess(late(50, {1: 60, 2: 40}), OPEN).valid  # TTFT 100 ms


def test_a_closed_loop_has_no_schedule_to_miss() -> None:
    assert assess(trial([record(0), record(1, sent_ms=5000)], client=client(slip_p99_ns=None)), CLOSED).valid


def test_requests_that_were_sent_twice_are_noted_beyond_one_in_a_hundred() -> None:
    records = [record(i) for i in range(100)]
    assert not assess(trial(records, client=client(retried=1)), CLOSED).notes
    (note,) = assess(trial(records, client=client(retried=2)), CLOSED).notes
    assert "2 of 100 requests were sent a second time" in note


def test_requests_that_were_sent_twice_are_no_matter_where_a_connection_is_quick() -> None:
    def noted(connect_ms: float) -> bool:
        """First output after 100 ms, every connection opened anew."""
        opened = [
            dataclasses.replace(record(i), connect_start_ns=0, connected_ns=round(connect_ms * 1e6)) for i in range(100)
        ]
        return bool(assess(trial(opened, client=client(retried=30)), CLOSED).notes)

    assert not noted(4.9)
    assert noted(5.1)


def test_an_incomplete_run_is_invalid() -> None:
    assert "interrupted" in assess(trial([record()], complete=False), CLOSED).reasons[0]
    assert "only 1 of 40 planned" in assess(trial([record()], planned=40), CLOSED).reasons[0]
    assert assess(trial([record()], planned=0), CLOSED).valid  # a duration ended it


def test_no_measured_and_no_finished_request_are_invalid() -> None:
    assert assess(trial([record(phase=Phase.WARMUP)]), CLOSED).reasons[0].startswith("no request was measured: ")
    lost = trial([failure(0), failure(1, Outcome.HTTP_STATUS)])
    assert assess(lost, CLOSED).valid  # the error rate fails it: that is the server's doing
    found = assess(lost, LoadFacts(asked=("error_rate",)))  # but where errors were allowed, nothing was measured
    assert "none of 2 measured requests finished well: 1 connection_lost, 1 http_status" in found.reasons[0]


def test_a_violated_invariant_is_invalid() -> None:
    assert "token counts" in assess(trial([record(chunk_tokens=(1,))]), CLOSED).reasons[0]


def test_missing_usage_is_noted_with_the_metrics_that_rest_on_it() -> None:
    facts = LoadFacts(asked=("tpot_p95", "ttft_p95"))
    found = assess(trial([record(i, output_tokens=None) for i in range(4)]), facts)
    assert found.valid
    assert found.notes == ("no usage: the server gave no token count for any request; tpot_p95 rests on it",)


def test_early_stops_are_noted_and_failures_are_not_early_stops() -> None:  # pitfall 12
    stopped = [record(i, requested_output_tokens=3) for i in range(9)] + [record(9, requested_output_tokens=30)]
    assert "length mismatch: 30 output tokens of 57 requested" in assess(trial(stopped), CLOSED).notes[0]
    broken = failure(9, Outcome.TRUNCATED, requested_output_tokens=1000)
    assert assess(trial([*stopped[:9], broken]), CLOSED).notes == ()


def test_prompts_of_another_length_are_noted_beyond_a_fifth() -> None:
    assert assess(trial([record(prompt_tokens=12)]), CLOSED).notes == ()
    assert "prompts had 13 tokens where 10" in assess(trial([record(prompt_tokens=13)]), CLOSED).notes[0]


def test_cache_hits_are_noted_unless_prefixes_are_shared_on_purpose() -> None:
    hits = trial([record(cached_tokens=5)])  # one of them may be chance
    assert "40.0 % of the prompt tokens" in assess(hits, CLOSED).notes[0]
    assert assess(hits, LoadFacts(shared_prefix=True)).notes == ()
    assert assess(trial([record(cached_tokens=0)]), CLOSED).notes == ()


@pytest.mark.parametrize(
    ("stats", "complaint"),
    [
        (client(stamps="user"), "no kernel receive stamps"),
        (client(unstamped_reads=2), "ICL and ITL are INVALID: 0.2 % of the reads came without"),
        (client(shared_reads=20), "ICL and ITL are INVALID: 2 % of the chunks came in one read"),
    ],
)
def test_a_doubtful_client_is_noted(stats: ClientStats, complaint: str) -> None:
    found = assess(trial([record()], client=stats), CLOSED)
    assert found.valid
    assert complaint in found.notes[0]


def test_a_check_on_gaps_says_itself_that_they_are_invalid() -> None:
    facts = LoadFacts(asked=("icl_p99", "ttft_p50"))
    assert assess(trial([record()], client=client(shared_reads=20)), facts).notes == ()
    assert assess(trial([record()], client=client(shared_reads=20)), LoadFacts(asked=("ttft_p50",))).notes != ()


def test_a_busy_client_is_noted() -> None:  # pitfall 18; what its lateness does is a reason of its own
    found = assess(trial([record()], client=client(cpu_seconds=0.95)), LoadFacts(concurrency=1))
    assert found.valid
    assert "the client was busy for 95 % of the time" in found.notes[0]
    assert assess(trial([record()], client=client(cpu_seconds=0.85)), CLOSED).notes == ()


def closed_loop(n: int, idle_ms: float) -> list[RequestRecord]:
    """One stream of requests of 120 ms, ``idle_ms`` apart."""
    return [record(i, sent_ms=(120 + idle_ms) * i) for i in range(n)]


def test_a_closed_loop_that_was_not_kept_full_is_no_measurement_of_it() -> None:
    one = LoadFacts(concurrency=1)
    assert assess(trial(closed_loop(20, 1), end_ms=2420), one).notes == ()  # 99.2 % full
    noted = assess(trial(closed_loop(20, 6), end_ms=2520), one)
    assert noted.valid
    assert "0.95 of 1 requests in flight on average: the client was late with the next send" in noted.notes[0]
    starved = assess(trial(closed_loop(20, 30), end_ms=3000, client=client(wake_lag_p99_ns=28 * MS)), one)
    assert "missed load: 0.8 of 1 requests in flight on average (at least 90 %)" in starved.reasons[0]
    assert "1 % of reads waited 28.0 ms or more for the client" in starved.reasons[0]
    assert "lower concurrency" in starved.reasons[0]
    short = assess(trial(closed_loop(4, 30), end_ms=600), one)  # 90 ms lost: a hiccup
    assert short.valid
    assert "0.8 of 1 requests" in short.notes[0]


def test_the_drain_after_the_last_send_and_a_load_that_changes_by_plan_are_not_held_against_it() -> None:
    two = LoadFacts(concurrency=2)
    pairs = [record(i, sent_ms=120 * (i // 2)) for i in range(19)] + [record(19, sent_ms=1080, chunks_ms=(100, 5000))]
    assert assess(trial(pairs, end_ms=6080), two).notes == ()
    ramp = LoadFacts(concurrency=4, stationary=False)
    assert assess(trial(pairs, end_ms=6080), ramp).valid
    assert not assess(trial(pairs, end_ms=6080), LoadFacts(concurrency=4)).valid


def test_every_reason_names_a_remedy() -> None:
    """A reason is a sentence with a colon, a semicolon or a bracket before what to do."""
    trials = [
        (trial([record()], complete=False), CLOSED),
        (trial([record()], planned=40), CLOSED),
        (trial([]), CLOSED),
        (trial([failure()]), LoadFacts(asked=("error_rate",))),
        (trial([record()], end_ms=0), CLOSED),
        (trial([record(chunk_tokens=(1,))]), CLOSED),
        (trial(open_loop(50, stretch=1.05), client=client(slip_p99_ns=200 * MS, cpu_seconds=1)), OPEN),
    ]
    reasons = [reason for one, facts in trials for reason in assess(one, facts).reasons]
    remedies = ("run it again", "raise requests", "core of its own", "please report it", "log of the server")
    assert [reason for reason in reasons if not any(remedy in reason for remedy in remedies)] == []
    assert len(reasons) >= 8


def test_a_single_shared_read_of_a_thousand_is_not_worth_a_note() -> None:
    assert assess(trial([record()], client=client(shared_reads=1)), CLOSED).notes == ()


def test_many_cut_requests_are_noted() -> None:
    records = [record(i) for i in range(9)] + [record(9, outcome=Outcome.CUT)]
    assert "1 of 10 requests were cut" in assess(trial(records), CLOSED).notes[0]


def test_usage_beyond_what_was_allowed_is_no_token_count() -> None:
    lying = trial([record(i, output_tokens=1_000_000) for i in range(4)])
    assert "more output tokens than max_tokens allows in 4 of 4" in assess(lying, CLOSED).reasons[0]
    assert assess(trial([record(i, output_tokens=4) for i in range(4)]), CLOSED).valid  # a token for the end of text
