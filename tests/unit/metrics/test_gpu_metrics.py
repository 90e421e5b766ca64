"""GPU energy, price and memory per load, by hand-made numbers and by a recording of a real H200."""

from __future__ import annotations

from typing import Any

import pytest
from driver import recorded
from made import MS, SECOND, record, trial

from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.gpu import cost_value
from pytest_llmperf.metrics.start import start_values
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import GpuSample, StartUp, Telemetry
from pytest_llmperf.stats.value import MetricValue

ENERGY = ("energy_per_mtok",)


def watched(*samples: GpuSample, gpus: tuple[int, ...] | None = (0,), tokens: int = 100, **changes: Any) -> Trial:
    """A trial whose ``tokens`` come at 10, 20 ... ms, in a window of a second, with these samples."""
    chunks = [10 * (n + 1) for n in range(tokens)]
    return trial([record(chunks_ms=chunks)], telemetry=Telemetry(gpu=samples, gpus=gpus), **changes)


def energy(trials: list[Trial]) -> MetricValue:
    return measure(trials, None, ENERGY)["energy_per_mtok"]


def at(ms: float, gpu: int = 0, **figures: Any) -> GpuSample:
    return GpuSample(round(ms * MS), gpu, 1000, None, **figures)


def test_energy_is_the_counters_growth_over_the_tokens_of_the_same_time() -> None:
    # Samples at 95 and 895 ms: tokens at 100, 110 ... 890 ms are 80 of the 100. 40 J / 80 = 0.5 J each.
    found = energy([watched(at(95, energy_j=1000.0), at(495, energy_j=1030.0), at(895, energy_j=1040.0))])
    assert found.value == pytest.approx(0.5e6)
    assert (found.n, found.note) == (3, None)


def test_energy_outside_the_window_is_not_counted() -> None:
    inside = [at(95, energy_j=1000.0), at(895, energy_j=1040.0)]
    found = energy([watched(at(-500, energy_j=0.0), *inside, at(1500, energy_j=9999.0))])
    assert found.value == pytest.approx(0.5e6)


def test_energy_of_several_gpus_is_added_at_times_when_all_told() -> None:
    samples = [at(t, gpu, energy_j=j) for t, gpu, j in [(95, 0, 0.0), (95, 1, 50.0), (495, 0, 999.0), (895, 0, 30.0)]]
    assert energy([watched(*samples, gpus=(0, 1))]).value is None  # they have one common time, which is no interval
    found = energy([watched(*samples, at(895, 1, energy_j=60.0), gpus=(0, 1))])
    assert found.value == pytest.approx(0.5e6)  # 30 + 10 J over 80 tokens


def test_without_a_counter_power_is_integrated_and_said() -> None:
    # Trapezoids: 100 to 300 W over 0.4 s is 80 J, 300 to 100 W over 0.4 s another 80 J; 160 J / 80 tokens.
    found = energy([watched(at(95, power_w=100.0), at(495, power_w=300.0), at(895, power_w=100.0))])
    assert found.value == pytest.approx(2e6)
    assert "power integrated" in (found.note or "")


def test_a_counter_that_began_anew_is_not_believed() -> None:
    samples = [at(95, energy_j=1000.0, power_w=100.0), at(895, energy_j=3.0, power_w=100.0)]
    found = energy([watched(*samples)])
    assert found.value == pytest.approx(1e6)  # 100 W over 0.8 s / 80 tokens
    assert "power integrated" in (found.note or "")


def test_trials_are_pooled_before_the_division() -> None:
    one = watched(at(95, energy_j=0.0), at(895, energy_j=40.0))  # 80 tokens
    two = watched(at(95, energy_j=0.0), at(695, energy_j=100.0))  # 60 tokens
    assert energy([one, two]).value == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("which", "text"),
    [
        (watched(gpus=None), "on the CPU"),
        (watched(at(95, energy_j=1.0)), "fewer than two samples"),
        (watched(at(95), at(895)), "fewer than two samples"),
        (watched(at(95, energy_j=1.0), at(895, energy_j=2.0), tokens=5), "no output tokens"),
        (watched(gpus=(0,)), "not sampled"),
    ],
)
def test_energy_that_cannot_be_told_is_none_and_says_why(which: Trial, text: str) -> None:
    found = energy([which])
    assert found.value is None
    assert text in (found.note or "")


def test_energy_without_token_counts_is_none() -> None:
    silent = record(chunks_ms=[100, 800], output_tokens=None)
    telemetry = Telemetry(gpu=(at(95, energy_j=0.0), at(895, energy_j=40.0)), gpus=(0,))
    found = energy([trial([silent], telemetry=telemetry)])
    assert (found.value, found.note) == (None, "the server gave no token count for 1 requests")


def test_price_per_million_tokens_follows_from_the_throughput() -> None:
    throughput = measure([watched()], None, ("output_throughput",))["output_throughput"]
    assert throughput.value == 100
    # 2 GPUs of 3.60 USD/h are 0.002 USD/s; a million tokens at 100 tok/s take 10,000 s.
    assert cost_value(throughput, 2 * 3.60).value == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("cpu", 'set e.g. prices."cpu" = "0.10 USD/h" in the configuration'),
        ("NVIDIA H200", 'set e.g. prices."NVIDIA H200" = "3.50 USD/h" in the configuration'),
        ("unknown", "are not known, so that they have no price: declare them in its identity"),
    ],
)
def test_a_missing_price_names_the_key_that_sets_it(gpu: str, said: str) -> None:
    missing = cost_value(measure([watched()], None, ("output_throughput",))["output_throughput"], None, gpu)
    assert missing.value is None
    assert said in (missing.note or "")


def real(window_s: tuple[float, float] = (1.0, 29.0), *, processes: bool = True) -> Trial:
    """The recording as the sampler would have taken it: everything once a second; 2000 tokens a second."""
    rows = recorded()
    samples = []
    for place, row in enumerate(rows):
        t_ns = round((row["t"] - rows[0]["t"]) * SECOND)
        often = {"sm_clock_mhz": row["sm_mhz"], "throttle": row["throttle"]}
        if place % 5:
            samples.append(GpuSample(t_ns, 0, row["mem_used"], None, **often))
            continue
        ours = sum(size for _, size in row["procs"]) if processes else None
        samples.append(
            GpuSample(t_ns, 0, row["mem_used"], ours, (), row["util"][0] / 100, row["power_mw"] / 1e3,
                      row["energy_mj"] / 1e3, row["temp_c"], memory_clock_mhz=row["mem_mhz"], **often)
        )  # fmt: skip
    chunks = [0.5 * (n + 1) for n in range(60_000)]
    start, end = window_s
    return trial([record(chunks_ms=chunks)], start_ms=1e3 * start, end_ms=1e3 * end,
                 telemetry=Telemetry(gpu=tuple(samples), gpus=(0,)))  # fmt: skip


def test_energy_of_a_real_h200_agrees_with_its_power() -> None:
    rows = recorded()
    found = energy([real()])
    # Independent of our sums: mean power over all rows / tokens per second.
    mean_w = sum(row["power_mw"] for row in rows[5:145]) / 140 / 1000
    assert found.value == pytest.approx(mean_w / 2000 * 1e6, rel=0.03)
    assert found.note is None


def test_memory_of_a_real_server_is_that_of_its_process_and_whole_cards_are_said() -> None:
    names = ("peak_memory", "memory_growth")
    own, whole = measure([real()], None, names), measure([real(processes=False)], None, names)
    # As recorded: the process holds 92,952,068,096 B at most; the card has the driver's 615 MiB and more besides.
    assert (own["peak_memory"].value, own["peak_memory"].note) == (92_952_068_096, None)
    assert whole["peak_memory"].value == max(row["mem_used"] for row in recorded())
    assert "whole GPUs" in (whole["peak_memory"].note or "")
    assert whole["peak_memory"].value - own["peak_memory"].value == pytest.approx(656e6, rel=0.02)


def test_processes_are_asked_seldom_and_whole_cards_never_stand_in_between() -> None:
    samples = [GpuSample(t * 200 * MS, 0, 5000, 3000 + t if t % 5 == 0 else None) for t in range(11)]
    found = measure([watched(*samples)], None, ("peak_memory",))["peak_memory"]
    assert (found.value, found.n, found.note) == (3010, 3, None)


def test_memory_of_two_gpus_is_added_where_both_told() -> None:
    both = [GpuSample(0, 0, 10, 5), GpuSample(0, 1, 10, 7), GpuSample(9, 0, 10, 99)]
    both += [GpuSample(SECOND, gpu, 10, 1) for gpu in (0, 1)]
    assert measure([watched(*both, gpus=(0, 1))], None, ("peak_memory",))["peak_memory"].value == 12


def test_a_trial_without_process_memory_does_not_outshine_one_that_has_it() -> None:
    own, whole = (watched(*(GpuSample(t, 0, 900, told) for t in (0, SECOND))) for told in (500, None))
    assert measure([own, whole], None, ("peak_memory",))["peak_memory"].value == 500


def test_memory_until_ready_is_never_a_mean_of_unlike_things() -> None:
    own, whole = StartUp(memory_bytes=60), StartUp(memory_bytes=90, whole_gpus=True)
    both, alone = (start_values(starts)["startup_memory"] for starts in ([own, whole, own], [whole]))
    assert (both.value, both.n, both.definition) == (60, 2, "startup_memory/1")
    assert (alone.value, alone.n, alone.definition) == (90, 1, "startup_memory/1:whole-gpus")
