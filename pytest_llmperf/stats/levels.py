"""How the error rates are spread over the looks of an interleaved test.

``c``: the share of alpha that a look may spend, used as ``p_seq = min over looks of p_k / c_k``. ``a``: the level of
"worse by the limit or more" at a look. Made by Lan-DeMets spending (Lan and DeMets, Biometrika 70, 1983), (n/N)^2 for c
at alpha / 9 and n/N for a, on a grid that leaves 4 to 5 % on the safe side. Where there is no row: Bonferroni over the
looks, which is valid for any number of them and costs some power.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

__all__ = ["Levels", "levels"]

Levels = tuple[tuple[float, ...], tuple[float, ...]]
"""(c_2 ... c_N), (a_2 ... a_N)."""

_ALPHA: Final = 0.01
_ALPHA_PASS: Final = 0.05
_C: Final[dict[int, tuple[float, ...]]] = {
    3: (0.4270, 0.6762),
    4: (0.2398, 0.3730, 0.5906),
    6: (0.1063, 0.1608, 0.2533, 0.3656, 0.5046),
    8: (0.0597, 0.0894, 0.1390, 0.2002, 0.2711, 0.3562, 0.4491),
    12: (0.0265, 0.0388, 0.0601, 0.0865, 0.1174, 0.1516, 0.1910, 0.2369, 0.2834, 0.3423, 0.4021),
}
_A: Final[dict[int, tuple[float, ...]]] = {
    3: (0.0325, 0.0311),
    4: (0.0243, 0.0228, 0.0272),
    6: (0.0162, 0.0145, 0.0169, 0.0198, 0.0230),
    8: (0.0121, 0.0105, 0.0123, 0.0145, 0.0165, 0.0189, 0.0211),
    12: (0.0081, 0.0069, 0.0079, 0.0091, 0.0105, 0.0119, 0.0132, 0.0147, 0.0163, 0.0175, 0.0191),
}


@lru_cache(maxsize=64)
def levels(max_blocks: int, alpha: float = _ALPHA, alpha_pass: float = _ALPHA_PASS) -> Levels:
    """The levels of the looks after blocks 2 ... ``max_blocks``. Raises ValueError for impossible arguments."""
    if max_blocks < 2:
        raise ValueError(f"max_blocks = {max_blocks}: a comparison needs at least 2 blocks")
    if not (0 < alpha < 0.5 and 0 < alpha_pass < 0.5):
        raise ValueError(f"alpha and alpha_pass lie between 0 and 0.5, got {alpha} and {alpha_pass}")
    looks = max_blocks - 1
    c = _C.get(max_blocks) if alpha == _ALPHA else None
    a = _A.get(max_blocks) if alpha_pass == _ALPHA_PASS else None
    return c or (1 / looks,) * looks, a or (alpha_pass / looks,) * looks
