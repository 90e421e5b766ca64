"""The embedded engine's default model: a random Llama of 4.5 M parameters, made here, the same bytes everywhere.

The text it writes is nonsense; batching, queueing, prompt cache and streaming around it are real. Two properties make
it fit for measuring: every token it can pick is plain ASCII letters (a leading space allowed), so one content chunk
is exactly one token, and the end-of-sequence token is never picked, so answers have the length that was asked for.

The file is written with the standard library alone, from ``random.Random``'s guaranteed bit stream: its SHA-256 is a
constant of this module, so a damaged or foreign file in the cache is recognised and replaced.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pytest_llmperf.engines.folders import home
from pytest_llmperf.errors import InfraError

__all__ = ["CACHE_VARIABLE", "DIGEST", "NAME", "build", "cache_dir", "ensure", "path"]

NAME: Final = "llmperf-tiny-4m"
"""The model's name in requests, identities and baselines."""
DIGEST: Final = "f8e94940950bea4cf6ae2c666a4f4898d965cba3fc5ed1f37bb00d3a8f6da784"
"""SHA-256 of the file that ``build`` returns."""
CACHE_VARIABLE: Final = "PYTEST_LLMPERF_CACHE_DIR"

_LOCK_SECONDS: Final = 60.0
_SEED: Final = 20261201
_VOCABULARY: Final = 4096
_WIDTH, _FEED_FORWARD, _LAYERS, _HEADS, _KV_HEADS = 256, 512, 4, 4, 2
_KV_WIDTH: Final = _WIDTH // _HEADS * _KV_HEADS
_ALIGNMENT: Final = 32
_F32, _F16 = 0, 1  # ggml tensor types
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # token types
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_SPACE: Final = "\u2581"  # SentencePiece's mark for a space
_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
# Frequent words are one token each, as in a trained vocabulary; other words fall into pairs of letters.
_WORDS: Final = """\
the of and to in is that it was for on are as with his they be at one have this from or had by not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down
only way find use may water long little very after words called just where most know get through back much before go
good new write our used me man too any day same right look think also around another came come work three word must
because does part even place well such here take why things help put years different away again off went old number
great tell men say small every found still between name should home big give air line set own under read last never
us left end along while might next sound below saw something thought both few those always looked show large often
together asked house world going want school important until form food keep children feet land side without boy once
animals life enough took sometimes four head above kind began almost live page got earth need far hand high year mother
light parts country father let night following picture being study second eyes soon times story boys since white days
ever paper hard near sentence better best across during today others however sure means knew try told young miles sun
ways thing whole hear example heard several change answer room sea against top turned learn point city play toward five
using himself usually model server request token latency memory cache batch prompt output input engine measure load
"""


def ensure() -> Path:
    """The model file, made first where it is absent, truncated or altered. Raises InfraError if it can't be written.

    Safe when several processes start at once: one of them writes, atomically; the others wait and use its file.
    """
    target = path()
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _intact(target):
            return target
        with _locked(folder / f"{NAME}.lock"):
            if not _intact(target):
                _write(target, build())
    except OSError as error:
        raise InfraError(
            f"the embedded engine's model can't be written to {folder}: {error}; {CACHE_VARIABLE} names another folder"
        ) from error
    return target


def path() -> Path:
    """Where ``ensure`` keeps the file; its name changes with its content."""
    return cache_dir().absolute() / f"{NAME}-{DIGEST[:12]}.gguf"


def cache_dir() -> Path:
    """Where generated files are kept: ``$PYTEST_LLMPERF_CACHE_DIR``, else ``pytest-llmperf`` in the user's cache."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override)
    if sys.platform == "darwin":
        return home("PYTEST_LLMPERF_CACHE_DIR") / "Library" / "Caches" / "pytest-llmperf"
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that a relative path is to be ignored.
    return (Path(base) if base and Path(base).is_absolute() else home("XDG_CACHE_HOME") / ".cache") / "pytest-llmperf"


def build() -> bytes:
    """The whole GGUF file (version 3, about 9 MB); the same bytes on every machine and Python version."""
    tokens, scores, types = _vocabulary()
    tensors = list(_tensors(tokens))
    infos, offset = [], 0
    for name, shape, kind, data in tensors:
        infos.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += len(_padded(data))
    metadata = _metadata(tokens, scores, types)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + b"".join(infos)
    return _padded(head) + b"".join(_padded(data) for *_, data in tensors)


def _vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores, types of a SentencePiece vocabulary; a higher score is merged first.

    Pieces with a leading space outrank the others and include every prefix of every frequent word. So a word is
    read from its start as far as a piece reaches, and the rest in pairs of letters: the same tokens in any context.
    """
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{value:02X}>" for value in range(256)]
    begins = [_SPACE + a for a in _LETTERS] + [_SPACE + a + b for a in _LETTERS for b in _LETTERS]
    begins += [_SPACE + word[:length] for word in _WORDS.split() for length in range(3, len(word) + 1)]
    pairs = [a + b for a in _LETTERS for b in _LETTERS]
    pieces = list(dict.fromkeys([*begins, *pairs, *_LETTERS, *_LETTERS.upper(), _SPACE]))
    room = _VOCABULARY - len(special) - len(octets) - len(pieces)
    # Never needed to read text (all their parts outrank them); they only bring the vocabulary to its size.
    pieces += [a + b + c for a in _LETTERS for b in "aeiou" for c in _LETTERS][:room]
    scores = [0.0] * (len(special) + len(octets)) + [-float(rank) for rank in range(1, len(pieces) + 1)]
    types = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * len(octets) + [_NORMAL] * len(pieces)
    return special + octets + pieces, scores, types


def _tensors(tokens: list[str]) -> Iterator[tuple[str, tuple[int, ...], int, bytes]]:
    """Name, shape (fastest dimension first), type and data of each tensor."""
    source = random.Random(_SEED)
    ones = struct.pack("<f", 1.0) * _WIDTH
    yield "token_embd.weight", (_WIDTH, _VOCABULARY), _F16, _weights(source, _WIDTH * _VOCABULARY, -1)
    for layer in range(_LAYERS):
        shapes = {
            "attn_q": (_WIDTH, _WIDTH),
            "attn_k": (_WIDTH, _KV_WIDTH),
            "attn_v": (_WIDTH, _KV_WIDTH),
            "attn_output": (_WIDTH, _WIDTH),
            "ffn_gate": (_WIDTH, _FEED_FORWARD),
            "ffn_up": (_WIDTH, _FEED_FORWARD),
            "ffn_down": (_FEED_FORWARD, _WIDTH),
        }
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (_WIDTH,), _F32, ones
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", shape, _F16, _weights(source, shape[0] * shape[1], -5)
    yield "output_norm.weight", (_WIDTH,), _F32, ones
    # A row of zeros gives the logit 0. The rows of letter tokens give logits with a standard deviation near 6, the
    # largest of thousands near 20: a zero row is out of reach of greedy and of sampled decoding.
    rows = []
    for token in tokens:
        row = _weights(source, _WIDTH, -2)
        text = token.removeprefix(_SPACE)
        rows.append(row if text.isascii() and text.isalpha() else bytes(len(row)))
    yield "output.weight", (_WIDTH, _VOCABULARY), _F16, b"".join(rows)


def _weights(source: random.Random, count: int, exponent: int) -> bytes:
    """``count`` half-precision numbers of random sign whose magnitude is uniform in ``[2**exponent, 2**(exponent+1))``.

    Sign and mantissa are random bits and the exponent is fixed, so no floating-point arithmetic is involved that
    could differ between machines.
    """
    octets = bytearray(source.randbytes(2 * count))
    fixed = (exponent + 15) << 2  # bits 10 to 14 of the number, bits 2 to 6 of its upper byte
    octets[1::2] = octets[1::2].translate(bytes((value & 0x83) | fixed for value in range(256)))
    return bytes(octets)


def _metadata(tokens: list[str], scores: list[float], types: list[int]) -> list[bytes]:
    def entry(key: str, kind: int, value: bytes) -> bytes:
        return _string(key) + struct.pack("<I", kind) + value

    def text(key: str, value: str) -> bytes:
        return entry(key, 8, _string(value))

    def number(key: str, value: int) -> bytes:
        return entry(key, 4, struct.pack("<I", value))

    def array(key: str, kind: int, values: bytes) -> bytes:
        return entry(key, 9, struct.pack("<IQ", kind, _VOCABULARY) + values)

    return [
        text("general.architecture", "llama"),
        text("general.name", NAME),
        number("general.file_type", 1),  # mostly f16
        number("general.alignment", _ALIGNMENT),
        number("llama.vocab_size", _VOCABULARY),
        number("llama.context_length", 32768),
        number("llama.embedding_length", _WIDTH),
        number("llama.block_count", _LAYERS),
        number("llama.feed_forward_length", _FEED_FORWARD),
        number("llama.attention.head_count", _HEADS),
        number("llama.attention.head_count_kv", _KV_HEADS),
        number("llama.rope.dimension_count", _WIDTH // _HEADS),
        entry("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        text("tokenizer.ggml.model", "llama"),
        text("tokenizer.ggml.pre", "default"),
        array("tokenizer.ggml.tokens", 8, b"".join(map(_string, tokens))),
        array("tokenizer.ggml.scores", 6, struct.pack(f"<{len(scores)}f", *scores)),
        array("tokenizer.ggml.token_type", 5, struct.pack(f"<{len(types)}i", *types)),
        number("tokenizer.ggml.unknown_token_id", 0),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        entry("tokenizer.ggml.add_bos_token", 7, b"\x01"),
        text("tokenizer.chat_template", _TEMPLATE),
    ]


def _string(text: str) -> bytes:
    octets = text.encode()
    return struct.pack("<Q", len(octets)) + octets


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _intact(file_path: Path) -> bool:
    try:
        with file_path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == DIGEST
    except FileNotFoundError:
        return False


def _write(target: Path, data: bytes) -> None:
    """Put ``data`` at ``target`` so that a reader sees the old file or the whole new one, never a part."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold the lock file for the block. After a minute, or where there are no locks, go on without it.

    The lock only spares double work: the write itself is atomic, and everyone writes the same bytes.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("ab") as file:
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:  # e.g. a network file system without locks
                break
        yield
