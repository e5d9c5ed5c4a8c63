"""Atoms on matplotlib's axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..parameters import check_whole_number
from ..patches.pictures import atom_mosaic
from .image_model import ImagePipeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS = 10


def plot_atoms(model: Any, n_atoms: int, axes: Sequence[Axes] | None) -> Sequence[Axes]:
    """Per class of a fitted model the first `n_atoms` atoms, on these axes or on new ones."""
    check_whole_number("n_atoms", n_atoms, 1)
    own_model: ImagePipeline = model.model_
    classes, atoms = model.classes_, own_model.atoms()
    if atoms is None:
        raise ValueError(own_model.no_atoms_reason())
    if atoms.patch_px is None:
        raise ValueError(
            f"the atoms of {own_model.recipe.features} vectors are no pictures: the command "
            "`histodict atoms` shows the patches that use them"
        )
    if axes is None:
        from matplotlib import pyplot

        axes = list(pyplot.subplots(len(classes), 1, squeeze=False)[1][:, 0])
    for place, (name, ax) in enumerate(zip(classes, axes, strict=True)):
        own = atoms.with_usage_sign[atoms.classes == place]
        ax.imshow(atom_mosaic(own, atoms.patch_px, n_atoms, min(n_atoms, _ACROSS)))
        ax.set_title(f"{name}: {min(n_atoms, len(own))} of {len(own)} atoms", parse_math=False)
        ax.set_axis_off()
    return axes
