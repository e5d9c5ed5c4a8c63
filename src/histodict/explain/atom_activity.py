"""Activity of the atoms of a model in the patches of an image."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..decision.atom_annotations import AtomReference

_MAP_SIZE = 48  # cells along the longer side of an activity map


@dataclass(frozen=True)
class AtomActivity:
    """Atom statistics of one image and a coarse map of where each atom is used.

    Attributes
    ----------
    patch_statistics : means over the patches
    positions : (n_codes, rows, columns), fraction of the patches in each cell that use the atom
    tissue : (rows, columns), cells with patches
    total : for atoms that share a name, the fraction of the patches that use any of them
    """

    patch_statistics: AtomReference
    positions: NDArray[np.float32]
    tissue: NDArray[np.bool_]
    total: dict[tuple[int, ...], float] = field(default_factory=dict)


class CoarseActivityMap:
    """Fraction of the patches in each cell of a coarse grid that use each atom."""

    def __init__(self, shape: tuple[int, ...], n_codes: int) -> None:
        self._step = max(1, -(-max(shape) // _MAP_SIZE))
        self._shape = tuple(-(-side // self._step) for side in shape)
        self._users = np.zeros((n_codes, *self._shape), np.float32)
        self._patches = np.zeros(self._shape, np.float32)

    def add(self, positions: NDArray[np.int64], codes: csr_array) -> None:
        """Add patches at these rows and columns, (n, 2), with their codes (n, n_codes)."""
        rows, columns = (positions // self._step).T
        np.add.at(self._patches, (rows, columns), 1)
        used = codes.tocoo()
        patches, atoms = used.coords if hasattr(used, "coords") else (used.row, used.col)
        is_used = used.data != 0
        patches, atoms = patches[is_used], atoms[is_used]
        np.add.at(self._users, (atoms, rows[patches], columns[patches]), 1)

    def fractions(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the fractions (n_codes, rows, columns), and which cells have patches."""
        fractions = self._users / np.maximum(self._patches, 1)
        return fractions.astype(np.float32), self._patches > 0
