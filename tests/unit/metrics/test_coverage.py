"""Samples that do not cover the window give no value: limits worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from made import MS, SECOND, record, trial

from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.coverage import LINES_S, gap_in, short_of
from pytest_llmperf.metrics.gpu_validity import gpu_state
from pytest_llmperf.records import Trial, Window
from pytest_llmperf.samples import EngineSample, GpuSample, HostSample, Quantity, Telemetry
from pytest_llmperf.stats.value import MetricValue


def ns(seconds: Sequence[float]) -> list[int]:
    return [round(each * SECOND) for each in seconds]


def over(seconds: float) -> Window:
    return Window(0, round(seconds * SECOND))


@pytest.mark.parametrize(
    ("seen", "seconds", "gap"),
    [
        ((-1, 7), 0.3, None),  # on entry and on exit, as for every load
        ((-1,), 0.3, "0.3"),
        ((), 6, "6.0"),
        ((-1, 0.5, 1.4, 2.4, 3.1), 3, None),
        ((-1, 0.5), 6, "5.5"),
        ((-1, 1, 2, 3, 4), 6, "2.0"),
        ((-1, 1, 2, 3, 4.6), 6, None),
        ((-1, 1, 3.9, 5, 6.5), 6, None),
        ((-1, 1, 4.2, 5, 6.5), 6, "3.2"),
        ((-1, 9, 18, 27, 36, 45, 54, 63, 72, 81, 91), 90, None),  # a tenth of the window
        ((-1, 9, 18, 28, 36, 45, 54, 63, 72, 81, 91), 90, "10.0"),
    ],
)
def test_no_stretch_goes_unseen(seen: Sequence[float], seconds: float, gap: str | None) -> None:
    found = gap_in(ns(seen), over(seconds))
    assert found == (gap and f"not seen for {gap} s of the window of {seconds:g} s")


def test_lines_of_a_log_come_every_ten_seconds() -> None:
    assert gap_in(ns([9.9, 19.9]), over(20), LINES_S) is None
    assert gap_in(ns([9.9, 19.9, 29.9]), over(60), LINES_S) is not None


@pytest.mark.parametrize(
    ("seen", "seconds", "fits"),
    [((0.05, 0.25), 0.3, True), ((0.05, 0.06), 0.3, False), ((0.9, 1.9, 2.9), 3, True), ((0.9, 1.9, 2.9), 6, False),
     ((9, 91), 100, True), ((11, 91), 100, False), ((), 1, False)],
)  # fmt: skip
def test_a_difference_of_two_samples_needs_them_near_the_ends(
    seen: Sequence[float], seconds: float, fits: bool
) -> None:
    assert (short_of(ns(seen), over(seconds)) is None) is fits


def of(name: str, telemetry: Telemetry, seconds: float = 12, start: float = 0) -> MetricValue:
    return measure([loaded(telemetry, seconds, start)], None, [name])[name]


def loaded(telemetry: Telemetry, seconds: float = 12, start: float = 0) -> Trial:
    tokens = record(chunks_ms=[100 * (n + 1) for n in range(119)])
    return trial([tokens], start_ms=1000 * start, end_ms=1000 * seconds, telemetry=telemetry)


def watched(until: float) -> Telemetry:
    """Every 0.2 s from a second before the window; memory, CPU and energy that grow."""
    times = [n * 200 * MS for n in range(-5, 66) if n * 0.2 <= until]
    host = tuple(HostSample(t, 1000 + n, n * 0.1, 1) for n, t in enumerate(times))
    gpu = tuple(GpuSample(t, 0, 5000 + n, 3000 + n, energy_j=n * 1.0) for n, t in enumerate(times))
    return Telemetry(host=host, gpu=gpu, gpus=(0,), notes=("the engine's metrics: HTTP 404", "GPU 0 does not answer"))


@pytest.mark.parametrize("name", ["peak_memory", "memory_growth", "cpu_seconds_per_mtok", "energy_per_mtok"])
def test_memory_cpu_and_energy_are_seen_to_the_end_or_not_measured(name: str) -> None:
    assert of(name, watched(13)).value is not None
    found = of(name, watched(4))
    assert found.value is None
    assert found.note
    assert "404" not in found.note  # what the engine's page says is another matter


def test_a_peak_from_before_the_load_is_none() -> None:
    found = of("peak_memory", watched(0))
    assert (found.value, found.note) == (
        None,
        "the server's memory was not seen for 12.0 s of the window of 12 s; GPU 0 does not answer",
    )


def test_one_load_that_was_not_watched_leaves_the_peak_of_all_unknown() -> None:
    both = [loaded(watched(13)), loaded(watched(0))]
    assert measure(both, None, ["peak_memory"])["peak_memory"].value is None


def test_a_slowdown_that_nobody_could_see_is_noted() -> None:
    assert not [note for note in gpu_state(loaded(watched(13)))[1] if "not seen" in note]
    assert [note for note in gpu_state(loaded(watched(6)))[1] if "GPU 0 was not seen for 6.0 s" in note]


def pages(*told: tuple[float, Mapping[Quantity, float]], untold: Mapping[Quantity, str] | None = None) -> Telemetry:
    made = [EngineSample(round(t * SECOND), values) for t, values in told]
    if untold is not None:
        made[0] = EngineSample(made[0].t_ns, made[0].values, untold=untold)
    return Telemetry(engine=tuple(made))


def every_second(name: Quantity, until: int, value: float = 0.5) -> list[tuple[float, Mapping[Quantity, float]]]:
    return [(t, {name: value}) for t in range(-1, until + 1)]


@pytest.mark.parametrize("name", ["kv_usage", "acceptance_length", "preemptions"])
def test_what_pages_state_is_stated_to_the_end_or_not_measured(name: Quantity) -> None:
    metric = {"kv_usage": "kv_usage_p95"}.get(name, name)
    assert of(metric, pages(*every_second(name, 13))).value is not None
    early = of(metric, pages(*every_second(name, 3)))
    assert early.value is None
    assert "not seen for 9.0 s" in (early.note or "")
    vanished = [*every_second(name, 3), *((t, {"running": 1.0}) for t in range(4, 14))]
    assert of(metric, pages(*vanished)).value is None


def test_a_counter_whose_beginning_is_no_number_does_not_begin_at_zero() -> None:
    later = [(-1, {}), *((t, {"preemptions": 700.0}) for t in range(14))]
    assert of("preemptions", pages(*later)).value == 700  # it was not there: engines make it when they first count
    found = of("preemptions", pages(*later, untold={"preemptions": "done: nan"}))
    assert (found.value, found.note) == (None, "the engine's first pages state it as what it cannot be")
