"""By hand, on a machine with an NVIDIA GPU: what the sampler costs, and what ``doctor gpu`` tells. Reads only.

    python tests/live/gpu.py [SECONDS] [GPU ...]

Needs this checkout, nvidia-ml-py and psutil. Prints one JSON object: milliseconds of the samples with everything and
of those in between, wall clock and CPU; CPU share of one core at 5 samples a second; the last sample of each kind;
notes; the doctor's findings. ``ok`` is whether the share is below 1 %.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pytest_llmperf.cli.doctor_gpu import run
from pytest_llmperf.samples import GpuSample
from pytest_llmperf.telemetry.gpu import GpuSampler

INTERVAL_S = 0.2


def sampled(seconds: float, gpus: list[int]) -> dict[str, object]:
    """What sampling for that long cost."""
    costs: dict[str, list[tuple[float, float]]] = {"everything": [], "between": []}
    last: dict[str, list[GpuSample]] = {}
    with GpuSampler(gpus) as sampler:
        begun, cpu = time.monotonic(), time.process_time()
        rounds = 0
        while (now := time.monotonic()) - begun < seconds:
            before = time.thread_time()
            found = sampler.sample(time.monotonic_ns(), (os.getpid(),))
            kind = "everything" if any(each.temperature_c is not None for each in found) else "between"
            costs[kind].append((time.monotonic() - now, time.thread_time() - before))
            last[kind] = list(found)
            rounds += 1
            time.sleep(max(0.0, begun + rounds * INTERVAL_S - time.monotonic()))
        share = (time.process_time() - cpu) / (time.monotonic() - begun)
    return {
        "rounds": rounds,
        "cpu_share_of_a_core": round(share, 5),
        "ms": {
            kind: {
                "n": len(each),
                "wall_median": round(1e3 * median(wall for wall, _ in each), 3),
                "wall_max": round(1e3 * max(wall for wall, _ in each), 3),
                "cpu_median": round(1e3 * median(used for _, used in each), 3),
            }
            for kind, each in costs.items()
            if each
        },
        "last": {kind: [asdict(each) for each in found] for kind, found in last.items()},
        "note": sampler.note,
        "ok": share < 0.01,
    }


def calls(gpus: list[int]) -> dict[str, float]:
    """Median milliseconds of each question to the driver."""
    from pytest_llmperf.telemetry.nvml import GpuLostError, opened

    names = {
        "nvmlDeviceGetMemoryInfo": (), "nvmlDeviceGetComputeRunningProcesses": (), "nvmlDeviceGetUtilizationRates": (),
        "nvmlDeviceGetPowerUsage": (), "nvmlDeviceGetTotalEnergyConsumption": (), "nvmlDeviceGetTemperature": (0,),
        "nvmlDeviceGetClockInfo": (1,), "nvmlDeviceGetCurrentClocksEventReasons": (),
    }  # fmt: skip
    found = {}
    with opened() as library:
        handle = library.demand("nvmlDeviceGetHandleByIndex", gpus[0])
        for name, arguments in names.items():
            times = []
            for _ in range(20):
                before = time.perf_counter()
                try:
                    library.demand(name, handle, *arguments)
                except (GpuLostError, LookupError) as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    break
                times.append(time.perf_counter() - before)
            if times:
                found[name] = round(1e3 * median(times), 3)
    return found


if __name__ == "__main__":
    wanted = [int(each) for each in sys.argv[2:]] or [0]
    shown = {"sampler": sampled(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0, wanted), "calls_ms": calls(wanted)}
    with contextlib.redirect_stdout(io.StringIO()) as told:
        status = run(argparse.Namespace(json=True))
    print(json.dumps({**shown, "doctor": {"status": status, **json.loads(told.getvalue())}}, indent=1))
