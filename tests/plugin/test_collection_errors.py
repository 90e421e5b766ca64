"""Whatever a test or a configuration file says wrongly is one clear line at collection, never a traceback."""

from __future__ import annotations

import pytest

TEST = """
import pytest

{markers}
def test_it(llmperf):
    llmperf.run()
"""
LOAD = "@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1, requests=4)"
SHAPE = "@pytest.mark.llmperf(server='embedded', workload='chat', {})"
INLINE = "@pytest.mark.llmperf(server='embedded', concurrency=1, requests=4, workload={{{}}})"


def refused(pytester: pytest.Pytester, markers: str, *options: str) -> str:
    """Run a test with these markers; gives the one error line."""
    pytester.makepyfile(TEST.format(markers=markers))
    (pytester.path / "test_bad.csv").write_text("a,b\n1,2\n")
    (pytester.path / "test_short.csv").write_text("Timestamp,Request tokens,Response tokens\n1,5,5\n2,5,5\n3,5,5\n")
    result = pytester.runpytest("--llmperf", "-p", "no:cacheprovider", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.stdout.str()
    lines = [line for line in result.stderr.lines if line.startswith("ERROR: ")]
    assert len(lines) == 1, result.stderr.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    return lines[0]


@pytest.mark.parametrize(
    ("markers", "expected"),
    [
        (
            LOAD + "\n@pytest.mark.sla(ttft_95='500 ms')",
            "test_it: @pytest.mark.sla(ttft_95=...): unknown metric 'ttft_95'; did you mean 'ttft_p95'?",
        ),
        (
            LOAD + "\n@pytest.mark.sla(ttft='500 ms')",
            "@pytest.mark.sla(ttft=...): 'ttft' needs a statistic; did you mean 'ttft_p95' or 'ttft_mean'?",
        ),
        (
            LOAD + "\n@pytest.mark.sla(ttft_p95='500 msec')",
            "@pytest.mark.sla(ttft_p95=...): '500 msec' has the unknown unit 'msec'; allowed here: us, ms, s, min, h",
        ),
        (LOAD.replace("requests", "api='grpc', requests"), "'grpc': input should be 'chat', 'completions', 'tgi'"),
        (
            LOAD.replace("requests", "api='triton', requests"),
            "api: the embedded engine does not speak 'triton'; it speaks: chat, completions, llamacpp",
        ),
        (LOAD + "\n@pytest.mark.sla(ttft_p95=0.5)", "0.5 has no unit; write e.g. '500 ms'"),
        (LOAD + "\n@pytest.mark.sla(ttft_p95='-3 ms')", "'-3 ms' is negative"),
        (LOAD + "\n@pytest.mark.sla(ttft_p95='1e999 ms')", "is not a finite number"),
        (
            LOAD + "\n@pytest.mark.sla(mfu='30 %')",
            "@pytest.mark.sla(mfu=...): mfu is not measured by this version: leave it out",
        ),
        (
            LOAD.replace("requests", "expects=['scaling_efficiency > 0.8'], requests"),
            "@pytest.mark.llmperf(expects=...): scaling_efficiency is not measured by this version",
        ),
        (LOAD + "\n@pytest.mark.sla()", "@pytest.mark.sla: names no metric"),
        (
            LOAD + "\n@pytest.mark.sla('500 ms')",
            "@pytest.mark.sla: takes keyword arguments only, not '500 ms'",
        ),
        (LOAD + "\n@pytest.mark.sla(ttft_p95='1 s', confidence=95)", "95 is not a number between 0.5 and 1"),
        (LOAD + "\n@pytest.mark.sla(output_throughput='5 tok/s', confidence=0.9)", "applies to percentiles"),
        ("@pytest.mark.sla(ttft_p95='1 s')", "@pytest.mark.sla: needs @pytest.mark.llmperf"),
        ("", "@pytest.mark.llmperf: is missing"),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chat', concurency=1, requests=4)",
            "@pytest.mark.llmperf(concurency=...): unknown argument; did you mean 'concurrency'?",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1, request_rate=2.0, requests=4)",
            "give exactly one of concurrency (closed loop) and request_rate (open loop)",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1)",
            "give exactly one of requests and duration",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1, duration=10)",
            "@pytest.mark.llmperf(duration=...): 10 has no unit; write e.g. '60 s'",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1, requests=4, clients=0)",
            "@pytest.mark.llmperf(clients=...): 0 is not a whole number from 1 to 256, nor 'auto'",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=0, requests=4)",
            "@pytest.mark.llmperf(concurrency=...): 0: input should be greater than or equal to 1",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chta', concurrency=1, requests=4)",
            "no workload 'chta'; did you mean 'chat'?",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', concurrency=1, requests=4)",
            "@pytest.mark.llmperf(workload=...): is required",
        ),
        (
            "@pytest.mark.llmperf(server='embeded', workload='chat', concurrency=1, requests=4)",
            "unknown server 'embeded'; did you mean 'embedded'?",
        ),
        (
            "@pytest.mark.llmperf(workload='chat', concurrency=1, requests=4)",
            "no server is named: set it, give server= in the marker, --llmperf-server or --llmperf-url",
        ),
        (
            "@pytest.mark.llmperf(server='embedded', workload='chat', concurrency=1, requests=4, slo={'tfft': '1 s'})",
            "@pytest.mark.llmperf(slo=...): unknown per-request metric 'tfft'; did you mean 'ttft'?",
        ),
        (
            (
                "@pytest.mark.llmperf(server='embedded', workload={'input': 5, 'output': {'uniform': [9, 3]}}, "
                "concurrency=1, requests=4)"
            ),
            "high (3) is below low (9)",
        ),
        (
            SHAPE.format("arrival='gamma', request_rate=2.0, requests=4"),
            "arrival='gamma' needs burstiness: 1 is Poisson",
        ),
        (
            SHAPE.format("arrival='poisson', burstiness=2.0, request_rate=2.0, requests=4"),
            "burstiness belongs to arrival=",
        ),
        (
            SHAPE.format("burstiness=-1, request_rate=2.0, requests=4"),
            "@pytest.mark.llmperf(burstiness=...): -1: input",
        ),
        (SHAPE.format("burstiness=0.5, concurrency=2, requests=4"), "burstiness belongs to request_rate (open loop)"),
        (SHAPE.format("max_concurrency=2, concurrency=2, requests=4"), "max_concurrency caps an open loop"),
        (SHAPE.format("schedule=[0, 1], concurrency=2, requests=4"), "concurrency and schedule exclude each other"),
        (SHAPE.format("schedule=[2, 1, 3]"), "schedule: the times are not in ascending order"),
        (SHAPE.format("schedule=[1, 2]"), "schedule: 2 times leave nothing to measure after 2 of warm-up"),
        (SHAPE.format("time_scale=2.0, schedule=[1, 2, 3]"), "time_scale belongs to trace, not to schedule"),
        (
            SHAPE.format("concurrency=2, ramp={'from': 1}, requests=4"),
            "@pytest.mark.llmperf(ramp.over=...): is required",
        ),
        (SHAPE.format("concurrency=2, ramp={'from': 1.5, 'over': '3 s'}, requests=4"), "1.5 is not a whole number"),
        (SHAPE.format("concurrency=2, ramp={'from': 1, 'to': 9, 'over': '3 s'}, requests=4"), "to=9 is not the level"),
        (SHAPE.format("concurrency=2, ramp=[[1, 10]], requests=4"), "10 has no unit; write e.g. '10 s'"),
        (SHAPE.format("concurrency=2, ramp=[4], requests=4"), "step 4: write [level, duration]"),
        (SHAPE.format("schedule=[1, 2, 3], ramp=[[1, '1 s']]"), "ramp belongs to concurrency or request_rate"),
        (SHAPE.format("concurrency=2, stagger=3, requests=4"), "@pytest.mark.llmperf(stagger=...): 3 has no unit"),
        (
            SHAPE.format("trace='nowhere.csv'"),
            "@pytest.mark.llmperf(trace=...): 'nowhere.csv' does not exist; looked for",
        ),
        (
            SHAPE.format("trace='test_bad.csv'").replace("workload='chat', ", ""),
            "test_bad.csv: line 1: 'a,b': expected a",
        ),
        (SHAPE.format("trace='test_bad.csv'"), "input cannot stand beside trace, which says that itself"),
        (SHAPE.format("trace='test_short.csv', requests=4").replace("workload='chat', ", ""), "need 6 requests, and "),
        (INLINE.format("'input': {'normal': 5}, 'output': 5"), "normal = 5: write { mean = 128, sd = 32 }"),
        (
            INLINE.format("'input': {'gauss': 5}, 'output': 5"),
            "unknown distribution 'gauss'; allowed: a number, uniform",
        ),
        (
            INLINE.format("'input': {'empirical': [5], 'kind': 1}, 'output': 5"),
            "@pytest.mark.llmperf(workload=...): input",
        ),
        (INLINE.format("'input': {'empirical': 'no.txt'}, 'output': 5"), "'no.txt' does not exist; looked for"),
        (
            INLINE.format("'input': {'empirical': {'values': [5], 'weights': [1, 2]}}, 'output': 5"),
            "2 weights for 1 values",
        ),
        (INLINE.format("'input': 5"), "output: is required (or dataset, or trace)"),
        (INLINE.format("'mixed': [{'input': 5}]"), "mixed[0]: output: is required"),
        (INLINE.format("'mixed': [{'input': 5, 'output': 5}], 'input': 5"), "input cannot stand beside mixed"),
        (INLINE.format("'input': 5, 'output': 5, 'think_time': '2 s'"), "think_time is the time between turns"),
        (INLINE.format("'input': 5, 'output': 5, 'turns': 2, 'think_time': 2"), "2 has no unit; write e.g. '2 s'"),
        (
            INLINE.format("'input': 5, 'output': 5, 'stream_share': 90"),
            "stream_share: 90: input should be less than or",
        ),
        (INLINE.format("'input': 5, 'output': 5, 'sampling': {'stream': False}"), "write stream_share = 0 for whole"),
    ],
)
def test_bad_marker_is_one_clear_error(pytester: pytest.Pytester, markers: str, expected: str) -> None:
    assert expected in refused(pytester, markers)


def test_test_without_the_fixture_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"import pytest\n{LOAD}\ndef test_it():\n    pass\n")
    result = pytester.runpytest("--llmperf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *the test must take the llmperf fixture and call llmperf.run() once"])


def test_every_faulty_test_has_a_line_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        {LOAD}
        @pytest.mark.sla(nonsense=1)
        def test_one(llmperf): ...
        {LOAD}
        @pytest.mark.sla(rubbish=1)
        def test_two(llmperf): ...
        """
    )
    result = pytester.runpytest("--llmperf")
    assert [line.split(":")[3] for line in result.stderr.lines if line.startswith("ERROR")] == [
        "test_one",
        "test_two",
    ]


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            "[servers.a]\nengine = 'vlm'\n",
            "llmperf.toml: servers.a.engine: unknown engine 'vlm'; did you mean 'vllm'?",
        ),
        (
            "[servers.a]\nengine = 'embedded'\nmax_num_seq = 3\n",
            "servers.a.max_num_seq: unknown key; did you mean",
        ),
        (
            "[servers.a]\nengine = 'embedded'\nmax_num_seqs = 'many'\n",
            "servers.a.max_num_seqs: 'many': input should be",
        ),
        (
            "[servers.a]\nengine = 'embedded'\nstartup_timeout = '3 parsecs'\n",
            "servers.a.startup_timeout: '3 parsecs'",
        ),
        ("[servers.a]\nmodel = 'x'\n", "servers.a.engine: is required"),
        (
            "defualt_server = 'a'\n",
            "llmperf.toml: defualt_server: unknown key; did you mean 'default_server'?",
        ),
        ("replays = 0\n", "llmperf.toml: replays: 0: input should be greater than or equal to 1"),
        ("[servers.a\n", "llmperf.toml: not valid TOML"),
        ("[tool.llmperf]\nreplays = 2\n", "in llmperf.toml the keys stand at the top level"),
    ],
)
def test_bad_configuration_names_file_key_and_value(pytester: pytest.Pytester, toml: str, expected: str) -> None:
    pytester.makefile(".toml", llmperf=toml)
    markers = "@pytest.mark.llmperf(server='a', workload='chat', concurrency=1, requests=4)"
    assert expected in refused(pytester, markers)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "--llmperf-set=max_num_seq=4",
            "--llmperf-set: max_num_seq: unknown key; did you mean 'max_num_seqs'?",
        ),
        ("--llmperf-set=max_num_seqs", "--llmperf-set: max_num_seqs: write key=value"),
        ("--llmperf-server=nope", "--llmperf-server: server: unknown server 'nope'"),
        ("--llmperf-replays=0", "--llmperf-replays: '0' is not a whole number from 1 to 100"),
        ("--llmperf-clients=many", "--llmperf-clients: 'many' is neither auto nor a whole number from 1 to 256"),
        ("--llmperf-replays=two", "--llmperf-replays: 'two' is not a whole number from 1 to 100"),
    ],
)
def test_bad_option_is_one_clear_error(pytester: pytest.Pytester, option: str, expected: str) -> None:
    assert expected in refused(pytester, LOAD, option)


def test_settings_in_two_places_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[tool.llmperf]\nreplays = 2\n")
    pytester.makefile(".toml", llmperf="replays = 3\n")
    assert "keep one of the two" in refused(pytester, LOAD)


def test_xdist_without_devices_of_its_own_is_refused(pytester: pytest.Pytester) -> None:
    line = refused(pytester, LOAD, "-n2")
    assert "--llmperf under pytest-xdist needs devices of its own for every worker (gw0, gw1 own none)" in line
