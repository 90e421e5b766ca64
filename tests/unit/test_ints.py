"""Compact number sequences behave like the tuples that they stand for, and go to a file and through a pipe."""

from __future__ import annotations

import marshal
import pickle
from dataclasses import replace
from pathlib import Path

from made import record

from pytest_llmperf.load.job import pack_record, unpack_record
from pytest_llmperf.recordfile import read_records, write_records
from pytest_llmperf.records import Ints


def test_ints_equal_tuples_and_lists_of_the_same_numbers() -> None:
    some = Ints("q", [1, 2, 3])
    assert some == (1, 2, 3)
    assert some == [1, 2, 3]
    assert some == Ints("q", [1, 2, 3])
    assert some != (1, 2)
    assert some != (1, 2, 4)
    assert some != 5
    assert hash(some) == hash((1, 2, 3))
    assert (some[0], some[-1], some[1:]) == (1, 3, (2, 3))
    assert pickle.loads(pickle.dumps(some)) == some


def test_a_record_survives_file_and_pipe(tmp_path: Path) -> None:
    chunks, tokens = Ints("q", [10**15, 10**15 + 7, 10**15 + 9]), Ints("i", [1, 4, 2])
    one = record(0)
    counted = replace(
        one, chunk_ns=chunks, chunk_tokens=tokens, first_output_ns=chunks[0], last_output_ns=chunks[-1], output_tokens=7
    )
    bare = replace(one, index=1, chunk_ns=Ints("q"), chunk_tokens=None, first_output_ns=None, last_output_ns=None)
    path = tmp_path / "records.jsonl.gz"
    write_records(path, [counted, bare])
    assert read_records(path) == (counted, bare)
    packed = marshal.dumps([pack_record(counted), pack_record(bare)])
    assert [unpack_record(each) for each in marshal.loads(packed)] == [counted, bare]
