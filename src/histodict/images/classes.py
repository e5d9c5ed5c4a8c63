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
DISEASED = frozenset(
    {
        "tumor",
        "tumour",
        "cancer",
        "carcinoma",
        "adenocarcinoma",
        "malignant",
        "metastasis",
        "lesion",
    }
)
_NEGATED = re.compile(r"(no|not|non)[ _-]|(un|non)(affected|involved|inflamed|diseased)")


def order_classes(names: Iterable[str], positive: str | None = None) -> list[str]:
    """Sorted but, of two, with the one to be found at the end."""
    classes = sorted(set(names))
    if len(classes) == 2:
        last = positive if positive in classes else guess_positive_class(classes)
        return classes[::-1] if classes[0] == last else classes
    return classes


def guess_positive_class(classes: Sequence[str]) -> str | None:
    """Of two classes the one that is not healthy by its name, or the only one that is a disease's;
    None where neither decides.
    """
    if len(classes) != 2:
        return None
    ill = [name for name in classes if not is_healthy(name)]
    if len(ill) == 2:
        ill = [name for name in classes if _first_word(name) in DISEASED]
    return ill[0] if len(ill) == 1 else None


def is_healthy(name: str) -> bool:
    """Also "0_normal" and "normal tissue"."""
    plain = _plain(name)
    return plain in HEALTHY or _first_word(name) in HEALTHY or _NEGATED.match(plain) is not None


def _plain(name: str) -> str:
    return re.sub(r"^[\W\d_]+", "", name.strip().casefold())


def _first_word(name: str) -> str:
    return re.split(r"[\W_]+", _plain(name))[0]
