"""Which of two classes is the one to be found: as asked for, or by its name.

It stands second, and everything downstream goes by that: it scores above 0, is drawn warm, and is
what sensitivity and misses are about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

HEALTHY = frozenset(
    {"healthy", "health", "normal", "benign", "udh", "negative", "control", "controls", "no tumour"}
)
_NEGATED = re.compile(r"(no|not|non)[ _-]|(un|non)(affected|involved|inflamed|diseased)")


def in_order(names: Iterable[str], positive: str | None = None) -> list[str]:
    """Sorted but, of two, with the one to be found at the end."""
    classes = sorted(set(names))
    if len(classes) == 2:
        last = positive if positive in classes else positive_by_name(classes)
        return classes[::-1] if classes[0] == last else classes
    return classes


def positive_by_name(classes: Sequence[str]) -> str | None:
    """Of two classes the one that is not healthy by its name; None where that does not decide."""
    ill = [name for name in classes if not is_healthy(name)]
    return ill[0] if len(ill) == 1 and len(classes) == 2 else None


def is_healthy(name: str) -> bool:
    """Also "0_normal" and "normal tissue"."""
    words = name.strip().casefold()
    plain = re.sub(r"^[\W\d_]+", "", words)
    first = re.split(r"[\W_]+", plain)[0]
    return plain in HEALTHY or first in HEALTHY or _NEGATED.match(plain) is not None
