"""Messages of the package, which name options of the command line, in words for the page."""

from __future__ import annotations

import re

from ..images.pixel_size import HOW_TO_GIVE

# In this order; the last takes away what is left of Python.
_FOR_THE_PAGE = (
    (re.escape(HOW_TO_GIVE), "give it on the data page (µm per pixel), or in a column mpp"),
    (r"Train with --mpp, or with a column mpp", "Give it on the data page before you train"),
    (r"with --set mpp=(\S+?),", r"by setting mpp to \1 in the training settings,"),
    (r"with --override-mpp \(in Python mpp=GivenSize\(override=…\)\)", "in a column mpp"),
    (r", or say which they are, with --column \S+ \(in Python columns=\{[^}]*\}\)", ""),
    (r"say which, with --column \S+ \(in Python columns=\{[^}]*\}\)", "rename some of them"),
    (r"give --regions NAME \(in Python a RegionDetector\)", "ask where in the image it is"),
    (r", say so with --coordinates \(in Python [^()]*\)", " bring them in on the command line"),
    (r", or read them as the fill value: --allow-missing-chunks \(in Python [^()]*\)", ""),
    (r" \(in Python [^()]*\)", ""),
)


def for_the_page(message: str) -> str:
    """The same, without options that the page does not have."""
    for pattern, words in _FOR_THE_PAGE:
        message = re.sub(pattern, words, message)
    return message
