"""A store at a URL, through fsspec: ``s3://bucket/prefix``, ``gs://…``, ``memory://…``. The extra ``store``.

What keeps two writers apart there is the server. On S3 every write is conditional (``If-Match`` with the ETag that
was read, ``If-None-Match`` for a new file): who comes second is refused, reads again and adds to what the first has
written. Whether the server heeds that is tried once per store. Where it does not, and on all other file systems, a
file is compared just before it is replaced and read back after: of two writers within one round trip the earlier
may then be lost, and may not notice. Serialise such writers, or use a directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, final
from urllib.parse import urlsplit

from pytest_llmperf.baseline.files import STATE, Changed, Content
from pytest_llmperf.errors import BaselineError, InfraError, UsageError

__all__ = ["UrlFiles"]

_CONFLICTS: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409"})
_BUCKETS: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss", "cos"})
"""Protocols whose first folder is a bucket (a container), which somebody must have made."""
_READ_ONLY: Final = frozenset({"http", "https"})
_PROBE: Final = f"{STATE}/conditional"


@final
class UrlFiles:
    """Files below a URL."""

    locked: Final = False

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if "::" in url or parts.query or "@" in parts.netloc:
            bare = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
            raise UsageError(f"baselines: {bare}: write it without credentials, query or '::'; keys go where fsspec's "
                             "driver of that protocol looks for them, e.g. AWS_ACCESS_KEY_ID")  # fmt: skip
        try:
            from fsspec.core import url_to_fs

            self._fs, self._root = url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            need = "pip install 'pytest-llmperf[store]', or fsspec's driver of that protocol"
            raise UsageError(f"baselines: {url}: {error}; {need}") from None
        except ValueError as error:
            raise UsageError(f"baselines: {url}: {error}") from None
        if parts.scheme in _READ_ONLY:
            raise UsageError(f"baselines: {url}: a web server cannot be listed or written; name a directory, or the "
                             "URL of an object store such as s3://bucket/prefix")  # fmt: skip
        self._url = url.rstrip("/")
        self._bucket_seen = False

    @property
    def location(self) -> str:
        return self._url

    @cached_property
    def writable(self) -> bool:
        """Tried by writing a small object, once."""
        try:
            self._put(f"{STATE}/writable", b"\n", {})
        except InfraError:
            return False
        return True

    def exclusive(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, path: str, limit: int) -> Content | None:
        full = self._full(path)
        try:  # the tag first: where another writer comes between, the older tag lets our write be refused
            info = self._fs.info(full)
            if info["type"] != "file":
                return None
            if (info.get("size") or 0) > limit:
                raise BaselineError(self._where(path), f"larger than {limit >> 20} MiB", "delete it: it is not ours")
            data = self._fs.cat_file(full)
        except FileNotFoundError:
            self._reached()
            return None
        except BaselineError:
            raise
        except Exception as error:
            raise self._trouble(path, "cannot be read", error) from None
        return Content(data, info.get("ETag") or sha256(data).hexdigest())

    def write(self, path: str, data: bytes, tag: str | None) -> None:
        if self._conditional:
            self._put(path, data, _only_if(tag))
            return
        found = self.read(path, 1 << 40)
        if (None if found is None else found.tag) != tag:
            raise Changed
        self._put(path, data, {})
        found = self.read(path, 1 << 40)
        if found is None or found.data != data:
            raise Changed

    def remove(self, path: str) -> None:
        try:
            self._fs.rm_file(self._full(path))
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._trouble(path, "cannot be removed", error) from None

    def set_aside(self, path: str) -> None:
        try:
            self._fs.mv(self._full(path), f"{self._full(path)}.refused")
        except Exception as error:
            raise self._trouble(path, "cannot be renamed", error) from None

    def exists(self, path: str) -> bool:
        try:
            return bool(self._fs.exists(self._full(path)))
        except Exception as error:
            raise self._trouble(path, "cannot be looked up", error) from None

    def folders(self, path: str) -> list[str]:
        try:
            found = self._fs.ls(self._full(path), detail=True)
        except FileNotFoundError:
            self._reached()
            return []
        except Exception as error:
            raise self._trouble(path, "cannot be listed", error) from None
        return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory")

    def walk(self, path: str = "") -> Iterator[str]:
        try:
            found = self._fs.find(self._full(path))
        except FileNotFoundError:
            found = []
        except Exception as error:
            raise self._trouble(path, "cannot be listed", error) from None
        if not found:
            self._reached()
        prefix = f"{self._root.rstrip('/')}/"
        yield from sorted(name.removeprefix(prefix) for name in found)

    def _reached(self) -> None:
        """An empty store is one whose bucket answers: else nothing found would mean nothing looked at.

        Raises InfraError. On a file system, whose folders need not exist yet, there is nothing to ask.
        """
        bucket = self._root.partition("/")[0]
        if self._bucket_seen or _BUCKETS.isdisjoint(self._protocols):
            return
        try:
            self._bucket_seen = bool(self._fs.exists(bucket))
        except Exception as error:
            raise self._trouble("", "cannot be looked up", error) from None
        if not self._bucket_seen:
            raise InfraError(f"{self._url}: there is no bucket {bucket!r}, or these credentials do not show it; "
                             "check the URL, or make the bucket first")  # fmt: skip

    @property
    def _protocols(self) -> tuple[str, ...]:
        return (self._fs.protocol,) if isinstance(self._fs.protocol, str) else tuple(self._fs.protocol)

    @property
    def _is_s3(self) -> bool:
        return "s3" in self._protocols

    @cached_property
    def _conditional(self) -> bool:
        """Whether the server refuses to create what exists."""
        if not self._is_s3:
            return False
        for _ in range(2):  # the first may have to make it
            try:
                self._put(_PROBE, b"\n", _only_if(None))
            except Changed:
                return True
        return False

    def _put(self, path: str, data: bytes, condition: dict[str, str]) -> None:
        full = self._full(path)
        try:
            if not self._is_s3:  # where making a folder would make a bucket
                self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(full, data, **condition)
        except Exception as error:
            if condition and _refused(error):
                raise Changed from None
            raise self._trouble(path, "cannot be written", error) from None

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def _where(self, path: str) -> str:
        return f"{self._url}/{path}"

    def _trouble(self, path: str, what: str, error: Exception) -> InfraError:
        reason = f"{type(error).__name__}: {error}"[:300]
        return InfraError(f"{self._where(path)}: {what}: {reason}; check the URL, the credentials and the network")


def _only_if(tag: str | None) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}


def _refused(error: BaseException) -> bool:
    """Whether the server's answer was that another writer came first."""
    if isinstance(error, FileExistsError):
        return True
    cause: Any = error.__cause__ or error
    response = getattr(cause, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") in _CONFLICTS
