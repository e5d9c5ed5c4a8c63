"""Two models' maps of one image: which patches are called otherwise.

The patches are those of the first map. What the second says of one is what it says of the patch
of its own whose middle is nearest; where it has none there, or sees glass, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches.grid import PatchGrid
from ..patches.patch_map import BLANK, COLOURS, PatchMap

_SAME = (135, 149, 161, 70)  # grey, weak


@dataclass(frozen=True)
class MapDifference:
    """`before`, `after`: (n_rows, n_columns), places of classes in `classes`, or BLANK."""

    before: NDArray[np.int16]
    after: NDArray[np.int16]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, first: PatchMap, second: PatchMap) -> MapDifference:
        if set(first.classes) != set(second.classes):
            names = [" / ".join(each.classes) for each in (first, second)]
            raise ValueError(
                f"the two models tell other classes apart ({names[0]}, and {names[1]}): their "
                "difference means nothing. Look at them side by side"
            )
        order = np.array([first.classes.index(name) for name in second.classes], np.int16)
        found = _nearest(first, second)
        after = np.where(found == BLANK, BLANK, order[found]).astype(np.int16)
        return cls(first.winners, after, first.classes)

    @property
    def is_compared(self) -> NDArray[np.bool_]:
        """Where both see tissue."""
        both: NDArray[np.bool_] = (self.before != BLANK) & (self.after != BLANK)
        return both

    def counts(self) -> list[list[int]]:
        """Patches by what they were called before (rows) and after (columns)."""
        n, compared = len(self.classes), self.is_compared
        pairs = self.before[compared].astype(np.int64) * n + self.after[compared]
        table: list[list[int]] = np.bincount(pairs, minlength=n * n).reshape(n, n).tolist()
        return table

    @property
    def n_apart(self) -> int:
        """Patches that only one of the two has judged."""
        return int(((self.before != BLANK) ^ (self.after != BLANK)).sum())

    def picture(self, chosen: Mapping[str, str] | None = None) -> NDArray[np.uint8]:
        """One RGBA pixel per patch: grey where both agree, else the colour of what it is now.

        `chosen`: colours that the user has given to classes, by name, as #rrggbb.
        """
        pixels = np.zeros((*self.before.shape, 4), np.uint8)
        compared = self.is_compared
        pixels[compared] = _SAME
        changed = compared & (self.before != self.after)
        pixels[changed, :3] = COLOURS[self.after[changed] % len(COLOURS)].astype(np.uint8)
        for place, name in enumerate(self.classes):
            if chosen and name in chosen:
                pixels[changed & (self.after == place), :3] = list(bytes.fromhex(chosen[name][1:]))
        pixels[changed, 3] = 255
        return pixels


def _nearest(first: PatchMap, second: PatchMap) -> NDArray[np.int16]:
    """The second map's winners at the middles of the first one's patches."""
    own, other = first.grid, second.grid
    rows = _place_in(other, other.top, _middles(own, own.top, own.n_rows))
    columns = _place_in(other, other.left, _middles(own, own.left, own.n_columns))
    has_row, has_column = rows < other.n_rows, columns < other.n_columns
    has_row &= rows >= 0
    has_column &= columns >= 0
    found = np.full((own.n_rows, own.n_columns), BLANK, np.int16)
    found[np.ix_(has_row, has_column)] = second.winners[np.ix_(rows[has_row], columns[has_column])]
    return found


def _middles(grid: PatchGrid, start: float, count: int) -> NDArray[np.float64]:
    return np.arange(count, dtype=np.float64) * grid.step + (start + grid.patch_side / 2)


def _place_in(grid: PatchGrid, start: float, middles: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rows or columns of a grid whose patches have these middles, if they have any."""
    exact = (middles - start - grid.patch_side / 2) / grid.step
    return np.floor(exact + 0.5).astype(np.int64)
