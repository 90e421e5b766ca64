from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from secrets import token_hex

import pytest
from kept import s3_server

from pytest_llmperf.baseline.store import Store

NUMBERS = count()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """URL of a bucket, reached over HTTP."""
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        from s3fs import S3FileSystem

        bucket = f"baselines-{token_hex(4)}"
        S3FileSystem().mkdir(bucket)
        yield f"s3://{bucket}"


@pytest.fixture(params=["directory", "s3", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store."""
    if request.param == "directory":
        return str(tmp_path / "baselines")
    if request.param == "memory":
        return f"memory://baselines-{token_hex(4)}"
    return f"{request.getfixturevalue('s3')}/runs-{next(NUMBERS)}"


@pytest.fixture
def store(location: str) -> Store:
    return Store(location)
