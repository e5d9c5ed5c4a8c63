"""An answer as people look at it: a line of text, a picture on axes, a card in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..images.readers import open_image
from ..patches.patch_map import Ring

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLOT_PX, _CARD_PX = 1000, 240


class DisplayMixin:
    """What every answer can do to be looked at."""

    def _short(self) -> str:
        """The label and what is most worth knowing beside it."""
        raise NotImplementedError

    def plot(self, ax: Axes | None = None) -> Axes:
        """The image with its patch map over it, on matplotlib's `ax` or on new axes; the axes."""
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots()
        ax.imshow(_image(self, _PLOT_PX))
        ax.set_title(self._short(), parse_math=False)  # a class may be called "$5"
        ax.set_axis_off()
        return ax

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(_caption(self)['path'])!r}: {self._short()})"

    def _repr_html_(self) -> str:
        """A small overlay beside what is said; nothing in it is taken for HTML."""
        from ..patches.pictures import jpeg_data_uri

        picture = f'<img alt="" src="{jpeg_data_uri(_image(self, _CARD_PX))}">'
        return (
            f'<div style="display:flex; gap:1em; align-items:center">{picture}'
            f"<div><b>{escape(self._short())}</b><br>{escape(str(_caption(self)['path']))}</div></div>"
        )


def region_rings(answer: Any) -> list[Ring]:
    """All rings around an answer's regions."""
    return [ring for region in answer.regions for polygon in region.polygons for ring in polygon]


def _caption(answer: Any) -> dict[str, Any]:
    """The answer's row of a table, with its path."""
    return {"path": str(answer.path)} | answer.row()


def _image(answer: Any, longest_side: int) -> NDArray[np.uint8]:
    """The overlay, no longer than this; of a method without a map, the image itself."""
    if answer.patch_map is None:
        with open_image(answer.path) as source:
            return source.thumbnail(min(longest_side, max(source.size)))
    from ..patches.overlay import draw_overlay

    found = answer.patch_map, answer.summary(), region_rings(answer)
    return draw_overlay(*found, longest_side=longest_side)
