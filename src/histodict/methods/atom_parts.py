"""What every atom of a code has to do with the distances to the classes: parts that add up.

A residual is r_i = ‖y − x_i‖ with x_i = Σ s_j d_j over the atoms of class i. Its square is
quadratic in the atoms, and splits evenly: in the game v(A) = ‖y − Σ_{j∈A} s_j d_j‖² the value by
Shapley of atom j has the closed form

    q_j = s_j²‖d_j‖² − 2 s_j⟨y, d_j⟩ + Σ_{k≠j} s_j s_k⟨d_j, d_k⟩ = s_j⟨d_j, x_i − 2y⟩,

and Σ_j q_j = r_i² − ‖y‖². From squares to what is compared, r_i − ‖y‖ = (r_i² − ‖y‖²)/(r_i + ‖y‖),
so p_j = q_j/(r_i + ‖y‖) and r_i = ‖y‖ + Σ_j p_j. ‖y‖ is the same for all classes: where distances
are compared it cancels, and nothing is left over.

Reference: Shapley, "A value for n-person games", 1953.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array


@dataclass(frozen=True)
class DistanceContributions:
    """distances_i = a number that is the same for all classes + rest_i + Σ_j by_class[i]_j.

    by_class : per class (n_samples, n_codes), what each atom adds to the distance
    rest : (n_samples, n_classes), what belongs to no atom
    """

    by_class: list[csr_array]
    rest: NDArray[np.float64]

    @classmethod
    def of(
        cls, by_class: list[csr_array], distances: NDArray[np.float64], base: NDArray[np.float64]
    ) -> DistanceContributions:
        """With what is left of the distances beyond the parts and `base` (n_samples,)."""
        told = np.stack([np.asarray(part.sum(axis=1)).ravel() for part in by_class], axis=1)
        return cls(by_class, distances - base[:, None] - told)

    def of_margin(self, place: int) -> csr_array:
        """Parts of a class's margin: mean distance of the others less its own, (n, n_codes)."""
        n_classes = len(self.by_class)
        total = sum(self.by_class[1:], start=self.by_class[0])
        found: csr_array = (total - self.by_class[place]) / (n_classes - 1) - self.by_class[place]
        return csr_array(found)


def squared_residual_contributions(D: NDArray[Any], Y: NDArray[Any], S: csr_array) -> csr_array:
    """q_j of the atoms D of one class, from codes S over these: (n_samples, n_atoms)."""
    atoms, samples = np.asarray(D, np.float64), np.asarray(Y, np.float64)
    codes = csr_array(S, dtype=np.float64)
    slopes = (codes @ atoms - 2 * samples) @ atoms.T
    return csr_array(codes.multiply(slopes))


def scaled_rows(parts: csr_array, scale: NDArray[np.float64]) -> csr_array:
    """Every row times a number."""
    return csr_array(parts.multiply(scale[:, None]))


def pad_columns(parts: csr_array, columns: NDArray[np.int64], n_columns: int) -> csr_array:
    """The same columns at other places of a wider matrix of zeros."""
    narrow = csr_array(parts)
    wide = narrow.data, columns[narrow.indices], narrow.indptr
    return csr_array(wide, shape=(narrow.shape[0], n_columns))
