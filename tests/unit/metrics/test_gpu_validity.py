"""GPUs that slowed down, that others used, or that were not alike in two arms."""

from __future__ import annotations

from typing import Any

from driver import recorded
from made import MS, record, trial

from pytest_llmperf.metrics import LoadFacts, assess
from pytest_llmperf.metrics.gpu_validity import GpuFacts, arms_state, gpu_state
from pytest_llmperf.records import Trial
from pytest_llmperf.samples import GPU_LOST, GpuSample, Telemetry


def at(ms: float, **figures: Any) -> GpuSample:
    """Told by a driver that names processes and what holds the clock, unless ``figures`` say otherwise."""
    told = {"throttle": 0, "foreign_pids": (), **figures}
    return GpuSample(round(ms * MS), told.pop("gpu", 0), 1000, None, **told)


def watched(*samples: GpuSample, notes: tuple[str, ...] = (), **changes: Any) -> Trial:
    return trial([record()], telemetry=Telemetry(gpu=samples, gpus=(0,), notes=notes), **changes)


def test_a_power_cap_is_normal() -> None:
    real = [at(6 * n, throttle=row["throttle"], temperature_c=row["temp_c"]) for n, row in enumerate(recorded())]
    assert sum(bool(sample.throttle) for sample in real) > 30  # the cap was active
    assert gpu_state(watched(*real)) == ([], [])


def test_a_thermal_slowdown_is_invalid_with_times_and_share() -> None:
    samples = [at(100 * n, throttle=0x44 if n in (3, 5) else 0x4, temperature_c=80 + n) for n in range(11)]
    reasons, notes = gpu_state(watched(*samples))
    assert notes == []
    slowed = "GPU 0 slowed down: thermal slowdown (hardware) in 18.2 % of 11 samples, between 0.3 s and 0.5 s of the"
    assert reasons == [f"{slowed} window, up to 90 °C: see to its cooling and power supply"]
    validity = assess(watched(*samples), LoadFacts())
    assert not validity.valid
    assert reasons[0] in validity.reasons


def test_each_slowdown_counts_and_no_other_reason() -> None:
    bits = {0x1: 0, 0x2: 0, 0x4: 0, 0x8: 1, 0x10: 0, 0x20: 1, 0x40: 1, 0x80: 1, 0x100: 0}
    assert {bit: len(gpu_state(watched(at(100, throttle=bit)))[0]) for bit in bits} == bits


def test_a_slowdown_outside_the_window_does_not_count_and_a_glimpse_is_a_note() -> None:
    assert gpu_state(watched(at(-100, throttle=0x40), at(500, throttle=0), at(1100, throttle=0x40))) == ([], [])
    reasons, notes = gpu_state(watched(*(at(n, throttle=0x8 if n == 7 else 0) for n in range(200))))
    assert reasons == []
    assert "hardware slowdown in 0.5 % of 200 samples" in notes[0]


def test_a_foreign_process_is_invalid_unless_it_may_be_there() -> None:
    samples = [at(100, foreign_pids=()), at(300, foreign_pids=(41,)), at(700, foreign_pids=(41, 42)), at(800)]
    reasons, notes = gpu_state(watched(*samples))
    when = "between 0.3 s and 0.7 s after the window began"
    text = f"foreign processes 41, 42 on GPU 0 {when}: give the server a GPU of its own"
    assert (reasons, notes) == ([text], [])
    assert gpu_state(watched(*samples), GpuFacts(shared=True)) == ([], [text])
    assert assess(watched(*samples), LoadFacts(gpu=GpuFacts(shared=True))).valid


def test_processes_are_asked_for_seldom_so_those_close_to_the_window_count() -> None:
    near = watched(at(-900, foreign_pids=(41,)), at(100), at(500))
    far = watched(at(-1100, foreign_pids=(41,)), at(100), at(500), at(2100, foreign_pids=(41,)))
    assert "foreign process 41 on GPU 0 between -0.9 s" in gpu_state(near)[0][0]
    assert gpu_state(far) == ([], [])


def test_a_locked_clock_that_the_gpu_did_not_hold_is_invalid() -> None:
    idle = [at(10 * n, sm_clock_mhz=345, throttle=0x1) for n in range(40)]
    held = [at(400 + n, sm_clock_mhz=1500 + (n % 2) * 15, throttle=0x2) for n in range(95)]
    fell = [at(500 + n, sm_clock_mhz=1200 + n, throttle=0x4) for n in range(6)]
    locked = GpuFacts(locked_mhz=1500)
    assert gpu_state(watched(*idle, *held, *fell[:5]), locked) == ([], [])
    assert gpu_state(watched(*idle, *held, *fell), locked)[0] == [
        "GPU 0 did not hold its locked clock of 1500 MHz: 1200 to 1205 MHz in 6 % of 101 samples: lock a lower one"
    ]
    assert gpu_state(watched(*idle, *fell)) == ([], [])
    reasons, _ = gpu_state(watched(*idle), locked)
    assert reasons == ["GPU 0: no sample under load tells its clock, so nothing shows that it held 1500 MHz"]


def test_what_the_driver_does_not_tell_is_said() -> None:
    silent = watched(at(100, throttle=None, foreign_pids=None), at(600, throttle=None, foreign_pids=None))
    reasons, notes = gpu_state(silent)
    assert reasons == []
    assert ["a slowdown cannot be seen" in notes[0], "others cannot be seen" in notes[1]] == [True, True]
    assert len(gpu_state(silent, GpuFacts(shared=True))[1]) == 1
    assert gpu_state(watched(at(100, throttle=None, foreign_pids=None), at(600))) == ([], [])


def test_a_gpu_without_samples_has_not_shown_that_it_held_its_clock() -> None:
    """The sampler died before the window; one of two GPUs was never seen."""
    locked = GpuFacts(locked_mhz=1500)
    unshown = "no sample under load tells its clock, so nothing shows that it held 1500 MHz"
    dead = watched(at(-4000, sm_clock_mhz=1500), notes=("the sampler failed: OSError: x",))
    assert gpu_state(dead, locked)[0] == [f"GPU 0: {unshown}"]
    held = tuple(at(100 * n, sm_clock_mhz=1500) for n in range(9))
    half = trial([record()], telemetry=Telemetry(gpu=held, gpus=(0, 1)))
    assert gpu_state(half, locked)[0] == [f"GPU 1: {unshown}"]
    unseen = "GPU 1: no sample of the window: neither a slowdown nor others on it can be seen"
    assert gpu_state(half) == ([], [unseen])


def test_without_a_driver_it_is_said_that_throttling_cannot_be_seen() -> None:
    absent = ("GPU memory not measured: no NVIDIA driver",)
    named = trial([record()], telemetry=Telemetry(gpus=(0,), notes=absent))
    unknown = trial([record()], telemetry=Telemetry(gpus=(), notes=absent))
    for each, which in ((named, "GPU 0: no sample of the window"), (unknown, "which GPUs the server has is not known")):
        validity = assess(each, LoadFacts())
        assert validity.valid
        assert f"{which}: neither a slowdown nor others on" in " ".join(validity.notes)


def test_a_lost_gpu_is_a_reason() -> None:
    assert gpu_state(watched(notes=("x", f"{GPU_LOST}: GPU 0: gone")))[0] == [f"{GPU_LOST}: GPU 0: gone"]


def launches(
    *temperatures: float, clock: int = 1980, throttle: int = 0, every: int = 1, capped_mhz: int | None = None
) -> list[Trial]:
    """One trial for each launch, that began at that temperature; each ``every``-th busy sample is free of the cap."""
    free = at(500, sm_clock_mhz=clock, throttle=throttle)
    found = []
    for launch, temperature in enumerate(temperatures):
        first = at(-50, temperature_c=temperature, sm_clock_mhz=345, throttle=0x1)
        load = [at(100 + 10 * n, sm_clock_mhz=capped_mhz, throttle=0x4) for n in range(10)] if capped_mhz else []
        load += [free] * every
        found.append(watched(first, at(50, temperature_c=70.0), *load, launch=launch))
    return found


def test_arms_that_began_alike_are_comparable() -> None:
    assert arms_state(launches(36, 50, 50, 52), launches(44, 48, 51, 50)) == (None, ())


def test_arms_that_began_at_different_temperatures_are_not() -> None:
    fault, _ = arms_state(launches(40, 42), launches(52, 54))
    assert fault is not None
    assert "different GPU temperatures, 41 °C and 53 °C on average" in fault
    assert arms_state(launches(40, 42), launches(51, 51))[0] is None  # 10 K are allowed


def test_one_launch_of_each_arm_is_no_ground_for_a_temperature() -> None:
    """Whichever goes first finds a cooler GPU."""
    assert arms_state(launches(36), launches(60)) == (None, ())


def test_what_one_arm_alone_tells_is_no_comparison_and_said() -> None:
    blind = [watched(launch=2), watched(launch=3)]
    apart = "of the baseline alone: whether the arms were alike cannot be told"
    known = [f"the GPU's {what} is known {apart}" for what in ("temperature before the load", "clock under load")]
    assert arms_state(launches(30, 30), blind) == (None, tuple(known))
    assert "of the candidate alone" in arms_state(blind, launches(30, 30))[1][0]
    assert arms_state([], launches(30, 30)) == (None, ())  # stored launches have no samples


def test_only_the_first_replay_of_a_launch_tells_its_start() -> None:
    cold = [*launches(40, 40), watched(at(-50, temperature_c=80.0), launch=0, replay=1)]
    assert arms_state(cold, launches(41, 41))[0] is None


def test_a_clock_limit_in_one_arm_is_a_fault() -> None:
    fault, notes = arms_state(launches(40, 40, every=3), launches(40, 40, clock=1500, throttle=0x2, every=3))
    assert fault is not None
    assert "reached 1980 MHz in the baseline and 1500 MHz in the candidate" in fault
    assert notes == ()


def test_a_clock_held_by_the_power_cap_may_be_the_variables_doing() -> None:
    capped = launches(40, 40, every=0, capped_mhz=1500)
    fault, notes = arms_state(launches(40, 40, every=3), capped)
    assert fault is None
    assert "1500 MHz in the candidate, with the power cap active" in notes[0]


def test_clocks_that_differ_below_the_same_limit_are_a_note() -> None:
    fault, notes = arms_state(launches(40, 40, every=3), launches(40, 40, every=3, capped_mhz=1600))
    assert fault is None
    clocks = "the GPU's clock under load was 1980 MHz in the baseline and 1600 MHz in the candidate (median)"
    assert notes == (f"{clocks}, with the power cap active in 0 % and 77 % of the samples",)


def test_servers_without_gpus_have_no_state() -> None:
    assert arms_state([trial([record()])] * 2, [trial([record()])] * 2) == (None, ())
    assert gpu_state(trial([record()])) == ([], [])
