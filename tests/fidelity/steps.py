"""Steps of the client against the null server, as a Markdown table: errors, shared reads and CPU of each.

    python tests/fidelity/steps.py [--tls] [--seconds 3]

Streams 1 to 4096; constant and random gaps; staggered and in step; one and two processes; with TLS where asked.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pytest_llmperf.doctor.client import faults
from pytest_llmperf.doctor.study import NullServer, Step, run_step

RATES = {1: 50, 16: 50, 64: 50, 256: 50, 1024: 50, 4096: 12}
"""Streams → tokens/s of each; 4096 x 12 is as much as 1024 x 50."""


def steps(seconds: float) -> list[Step]:
    found = []
    for streams, rate in RATES.items():
        for clients in (1, 2) if streams >= 16 else (1,):
            for random, in_step in ((False, False), (True, False), (False, True)):
                found.append(Step(streams, rate, seconds, random=random, in_step=in_step, clients=clients))
    found += [Step(256, 100, seconds), Step(256, 200, seconds), Step(256, 300, seconds), Step(1024, 75, seconds)]
    found += [Step(1, 1000, seconds), Step(16, 1000, seconds)]
    return found


def certificate(folder: Path) -> Path:
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=DNS:localhost -keyout {folder}/key.pem -out {folder}/cert.pem"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    columns = ["streams x tokens/s", "gaps", "processes", "tokens/s", "ICL error p50 / p99 / max, us",
               "TTFT error p50 / p99, us", "shared reads", "busiest process", "CPU us/token", "start s",
               "fault"]  # fmt: skip
    print(f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", sep="\n")
    with ExitStack() as stack:
        pem = certificate(Path(stack.enter_context(tempfile.TemporaryDirectory()))) if arguments.tls else None
        server = stack.enter_context(NullServer(certificate=pem))
        for step in steps(arguments.seconds):
            found = run_step(server, step, ca_file=pem and pem.with_name("cert.pem"))
            kind = "random" if step.random else "in step" if step.in_step else "constant"
            cells = [f"{step.streams} x {step.rate:g}", kind, f"{step.clients}", f"{found.events_per_s:,.0f}",
                     f"{1e6 * found.icl_p50:.1f} / {1e6 * found.icl_p99:.1f} / {1e6 * found.icl_max:.0f}",
                     f"{1e6 * found.ttft_p50:.0f} / {1e6 * found.ttft_p99:.0f}", f"{100 * found.shared:.3f} %",
                     f"{100 * found.busiest:.0f} %", f"{1e6 * found.cpu_per_event:.1f}", f"{found.start_s:.2f}",
                     ", ".join(faults(found)) or "-"]  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
