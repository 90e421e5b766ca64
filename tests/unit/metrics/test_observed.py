"""What the server's counters and its log say against a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from made import SECOND, client, failure, record, trial

from pytest_llmperf.metrics import LoadFacts, assess
from pytest_llmperf.records import Outcome
from pytest_llmperf.samples import Buckets, EngineSample, Quantity, Telemetry


def judged(
    *pages: Mapping[Quantity, float],
    requests: int = 100,
    facts: LoadFacts | None = None,
    records: list[Any] | None = None,
    ttft: tuple[float, float] | None = None,
    **changes: Any,
) -> tuple[str, str]:
    """Reasons and notes about ``requests`` of 10 prompt tokens each, as text; the pages are a second apart."""
    samples = [
        EngineSample(n * SECOND, values, {} if ttft is None else {"ttft": Buckets(n * ttft[0], n * ttft[0] * ttft[1])})
        for n, values in enumerate(pages)
    ]
    made = records or [record(i, sent_ms=i) for i in range(requests)]
    found = assess(
        trial(made, telemetry=Telemetry(engine=tuple(samples), **changes), client=client()), facts or LoadFacts()
    )
    return "; ".join(found.reasons), "; ".join(found.notes)


def test_as_many_requests_as_we_sent_are_ours() -> None:
    page: dict[Quantity, float] = {"requests": 150, "prompt_tokens": 2000}
    assert judged({"requests": 50, "prompt_tokens": 1000}, page) == ("", "")


def test_more_requests_than_we_sent_are_another_clients() -> None:
    reasons, _ = judged({"requests": 50}, {"requests": 160})
    assert reasons == (
        "another client used the server: the server finished 110 requests while we sent 100; keep it to this test"
    )


def test_a_few_more_are_only_noted() -> None:
    reasons, notes = judged({"requests": 0}, {"requests": 102})
    assert reasons == ""
    assert notes == "the server finished 102 requests while we sent 100: another client may have used it"


def test_requests_that_ran_before_the_load_may_finish_in_it() -> None:
    assert judged({"requests": 0, "running": 8, "waiting": 4}, {"requests": 112}) == ("", "")
    assert "another client" in judged({"requests": 0, "running": 2}, {"requests": 112})[0]


def test_more_prompt_tokens_than_we_sent_are_another_clients() -> None:
    reasons, _ = judged({"prompt_tokens": 0}, {"prompt_tokens": 1400})
    assert "the server read 1,400 prompt tokens while we sent 1,000" in reasons
    assert judged({"prompt_tokens": 0}, {"prompt_tokens": 1040}) == ("", "")


def test_prompts_of_failed_requests_are_ours_too() -> None:
    records = [*(record(i, sent_ms=i) for i in range(60)), *(failure(60 + i, sent_ms=60 + i) for i in range(40))]
    reasons, _ = judged({"prompt_tokens": 0}, {"prompt_tokens": 1000}, records=records)
    assert "another client" not in reasons


def test_without_usage_prompt_tokens_tell_nothing() -> None:
    records = [record(i, sent_ms=i, prompt_tokens=None) for i in range(5)]
    assert "another client" not in judged({"prompt_tokens": 0}, {"prompt_tokens": 1000}, records=records)[0]


def test_counters_that_fall_show_a_restart() -> None:
    reasons, _ = judged({"requests": 500}, {"requests": 550}, {"requests": 10})
    assert reasons == "the engine's counters fell while the load ran: the server was restarted; run it again"


def test_counters_that_go_up_and_down_show_several_servers_and_are_no_reason() -> None:
    pages: list[Mapping[Quantity, float]] = [{"requests": n} for n in (500, 10, 520, 20)]
    reasons, notes = judged(*pages, facts=LoadFacts(targeted=True))
    assert reasons == ""
    assert "several servers answer at this address" in notes


def test_a_server_that_we_started_is_alone_at_its_address() -> None:
    reasons, notes = judged(*({"requests": n} for n in (500, 10, 60, 5, 40)))
    assert reasons == "the engine's counters fell while the load ran: the server was restarted; run it again"
    assert "several servers" not in notes


HITS: dict[Quantity, float] = {"prefix_hits": 500, "prefix_queries": 2000}
NONE: dict[Quantity, float] = {"prefix_hits": 0, "prefix_queries": 0, "preemptions": 0}


def long_prompts(**changes: Any) -> list[Any]:
    return [record(i, sent_ms=i, prompt_tokens=200, **changes) for i in range(10)]


def test_hits_that_the_load_promised_not_to_have_make_it_invalid() -> None:
    reasons, _ = judged(NONE, HITS, records=long_prompts())
    assert reasons.startswith("prefix cache hits in a load that promised none: 24.5 % of the prompt tokens came from")
    assert "by the engine's counters" in reasons
    assert "enable_prefix_caching = false" in reasons


def test_the_requests_own_usage_says_the_same() -> None:
    reasons, _ = judged(records=long_prompts(cached_tokens=50))
    assert reasons.startswith("prefix cache hits in a load that promised none: 24.5 % of the prompt tokens came from")
    # It tells which request it was, so it goes before the counters.
    assert "prefix cache" not in "".join(judged(NONE, HITS, records=long_prompts(cached_tokens=0)))


def test_a_count_that_is_left_out_is_none_of_the_hits() -> None:
    records = [*long_prompts(), record(10, sent_ms=10, prompt_tokens=200, cached_tokens=50)]
    assert "2.2 % of the prompt tokens" in judged(records=records)[0]  # 49 of 2,200
    assert "prefix cache" not in "".join(judged(NONE, {**HITS, "prefix_hits": 20}, records=records))


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        (LoadFacts(shared_prefix=True), False),
        (LoadFacts(template_tokens=49), False),
        (LoadFacts(template_tokens=40), True),  # a word or two in common, by chance
        (LoadFacts(recorded=True), True),
    ],
)
def test_hits_that_may_be_as_intended_do_not(facts: LoadFacts, note: bool) -> None:
    for given in (judged(NONE, HITS, records=long_prompts(), facts=facts),
                  judged(records=long_prompts(cached_tokens=50), facts=facts)):  # fmt: skip
        assert given[0] == ""
        assert ("prefix cache hits" in given[1]) is note


def test_preempted_requests_may_find_their_own_beginning_again() -> None:
    reasons, notes = judged(NONE, {**HITS, "preemptions": 4}, records=long_prompts())
    assert reasons == ""
    assert "prefix cache hits" in notes


def test_hits_without_a_look_prove_nothing() -> None:
    assert judged(NONE, {**NONE, "prefix_hits": 500}, records=long_prompts())[0] == ""


def test_hits_where_nobody_knows_the_length_of_the_template_prove_nothing() -> None:
    records = [record(i, sent_ms=i, prompt_tokens=None) for i in range(10)]
    assert "prefix cache" not in "".join(judged(NONE, HITS, records=records))


def test_errors_in_the_log_are_noted() -> None:
    assert judged(log_errors=("ERROR boom",))[1] == "the server's log reports an error while the load ran: ERROR boom"
    assert judged(log_errors=("ERROR boom", "again"))[1].endswith("ERROR boom (the first of 2 or more)")


def test_a_first_token_that_takes_much_longer_to_us_than_to_the_engine_is_noted() -> None:
    assert "100 ms on average from the send, 20.0 ms by the engine" in judged({}, {}, ttft=(100, 0.02))[1]
    assert judged({}, {}, ttft=(100, 0.09)) == ("", "")


def test_cut_requests_need_not_finish() -> None:
    records = [record(i, sent_ms=i, outcome=Outcome.OK if i < 98 else Outcome.CUT) for i in range(100)]
    assert judged({"requests": 0}, {"requests": 98}, records=records) == ("", "")
