"""Synthetic prompts of a wanted token length that no prefix cache has seen, but for the part meant to be shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Final

from pytest_llmperf.inputs.traces import BLOCK_TOKENS
from pytest_llmperf.records import Arrival

__all__ = ["VOCABULARY", "Calibration", "fit_calibration", "write_prompt", "write_words"]

_WORDS: Final = """
    able acid aged also area army auto away baby back ball bank base bath bear beat beer belt best bill bird blow
    blue boat body bone book bore born both bowl burn busy cafe cake call calm came camp card care case cell cent
    chip city coal coat code coin cold come cook cool cope copy core corn cost crew crop dark data date dawn dead
    deal dear debt deep desk dial diet disc dish does done door down draw drop duck dust duty each earn ease east
    easy edge else even ever exit face fact fail fair fall farm fast fate fear feed feel feet fell fill film find
    fine fire firm fish five flag flat flow fold folk fond food foot form fort four free from fuel full fund gain
    game gate gave gear gift girl give glad goal gold golf gone good gray grew grey grip grow hair half hand hard
    harm hate have head hear heat held help here hero high hill hint hold hole holy home hope host hour huge hung
    hunt hurt icon idea inch iron item jazz jean join jump jury just keep kick kill kind king knee knew know lady
    lake lamp land lane last late lawn lazy lead leaf left lend less life lift like line lion list live loan logo
    lone long look loss lost loud love luck lung made mail main make mall many mark mask mass mate meal mean meat
    meet menu mess mild mile milk mill mind mine miss mode mood moon more most move much must myth name navy near
    neck need nest next nine noon norm nose note noun only open oral oven over pace pack page pair palm park part
    pass past path peak peer pick pile pine pink pipe plan play plot plug plus poem poet pole poll pond pool poor
    pork port pose post pour pray pull pure push race rail rain rank rare rate read real rear rent rest rice rich
    ride ring rise risk road rock roll roof room root rope rose ruin rule rush sack safe sail sake salt same sand
    save seat seed seem self sell send ship shoe shop show sick side sign silk sing site size skin slip slot slow
    snap snow soap soft soil sole some song soon soup spin spot star stay stem step stop such suit sure swim tail
    take tale talk tall tank tape task taxi team tech tell tent term test than that them then thin tide tile time
    tiny tire told toll tomb tone tool tour town trap tree trip true tube tune turn twin type ugly unit user vary
    vast verb very vice view vote wage wait wake walk wall want warm warn wash wave weak wear week well went west
    when wide wife wild will wind wine wing wire wise wish with wolf wood word work yard year zero zone
"""
VOCABULARY: Final[tuple[str, ...]] = tuple(_WORDS.split())
"""Common English words of four letters. With its leading space nearly each is one token in the vocabularies of real
models, and in any vocabulary equally long words differ least: the length of a prompt can be foretold."""

_NONCE_WORDS: Final = 6


@dataclass(frozen=True, slots=True)
class Calibration:
    """How words become prompt tokens: ``tokens = overhead_tokens + tokens_per_word * words``."""

    tokens_per_word: float
    overhead_tokens: float
    """Tokens that are there without a word: start of text, chat template."""
    exchange_tokens: float = 0.0
    """Tokens that every further exchange of a conversation adds without a word: the template's around the answer and
    the next question."""

    def words(self, tokens: float) -> int:
        """Whole words for a prompt of ``tokens`` in all; at least 1."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_per_word))


def fit_calibration(observations: Sequence[tuple[int, int]]) -> Calibration:
    """Least squares through ``(words, prompt_tokens)`` pairs.

    Raises ValueError with fewer than two different word counts, or where tokens do not grow with words.
    """
    if len({words for words, _ in observations}) < 2:
        raise ValueError(f"need prompts of at least two lengths to learn tokens per word, got {list(observations)}")
    mean_words = math.fsum(words for words, _ in observations) / len(observations)
    mean_tokens = math.fsum(tokens for _, tokens in observations) / len(observations)
    spread = math.fsum((words - mean_words) ** 2 for words, _ in observations)
    slope = math.fsum((words - mean_words) * (tokens - mean_tokens) for words, tokens in observations) / spread
    if slope <= 0:
        raise ValueError(f"prompt tokens do not grow with words: {list(observations)} (words, prompt tokens)")
    return Calibration(slope, mean_tokens - slope * mean_words)


def write_words(count: int, seed: int, salt: str, index: int) -> str:
    """``count`` words that differ from those of any other index, seed or salt from the first words on.

    The first word alone tells ``len(VOCABULARY)`` neighbouring indices apart, the first two that many squared; the
    rest of the opening depends on everything, so equal openings do not occur by accident.
    """
    size = len(VOCABULARY)
    shift = int.from_bytes(_digest(seed, salt, "shift"), "big")
    words = [VOCABULARY[(shift + index) % size], VOCABULARY[(shift // size + index // size) % size]]
    nonce = int.from_bytes(_digest(seed, salt, f"nonce/{index}"), "big")
    for _ in range(_NONCE_WORDS):
        nonce, digit = divmod(nonce, size)
        words.append(VOCABULARY[digit])
    if count > len(words):
        words += Random(_digest(seed, salt, f"text/{index}")).choices(VOCABULARY, k=count - len(words))
    return " ".join(words[: max(1, count)])


def write_prompt(arrival: Arrival, calibration: Calibration, seed: int, salt: str) -> str:
    """The text of one request: the shared prefix of its group, if any, and words of its own.

    ``salt`` names the run: prompts of two runs share nothing but, by intent, nothing either. The prefix is the same for
    all requests of one group (a shorter one is the beginning of a longer one). The length aims at
    ``arrival.input_tokens`` as ``calibration`` sees it; never less than one word.
    """
    assert arrival.input_tokens is not None, "the length of a recorded text is not planned"
    total = calibration.words(arrival.input_tokens)
    if arrival.blocks:
        return _blocks(arrival, total, calibration, seed, salt)
    if arrival.prefix_group is None or arrival.prefix_tokens <= 0:
        return write_words(total, seed, salt, arrival.index)
    # The template's tokens are in front of the prefix and are shared with it.
    prefix = min(calibration.words(arrival.prefix_tokens), total - 1)
    own = write_words(total - prefix, seed, salt, arrival.index)
    return f"{write_words(prefix, seed, f'{salt}/prefix', arrival.prefix_group)} {own}" if prefix else own


def _blocks(arrival: Arrival, total: int, calibration: Calibration, seed: int, salt: str) -> str:
    """One text for each block of a trace, equal where the ids are; what is beyond the blocks is the request's own."""
    texts, done = [], 0
    for number, block in enumerate(arrival.blocks, 1):
        end = min(total, calibration.words(number * BLOCK_TOKENS))
        if end > done:
            texts.append(write_words(end - done, seed, f"{salt}/block", block))
            done = end
    if total > done:
        texts.append(write_words(total - done, seed, salt, arrival.index))
    return " ".join(texts)


def _digest(seed: int, salt: str, use: str) -> bytes:
    return blake2b(f"{seed}\0{salt}\0{use}".encode(), digest_size=16).digest()
