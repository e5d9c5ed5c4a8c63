"""Contributions of concepts and of ensemble members to the scores of an image."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..utils.text_io import percent


@dataclass(frozen=True)
class ConceptContribution:
    """Contribution of one concept to the scores of an image.

    Attributes
    ----------
    class_name : class of the atoms; empty for a whole model and for atoms of several classes
    adds : (n_scores,), contribution to the scores
    usage : fraction of the patches that use the concept; None for a whole model
    reference_usage, reference_contribution : for each class, the values of its training patches
    positions : (rows, columns), fraction of the patches that use it; NaN on background
    atoms, sign : atom indices, the most used first, and the sign in which that one is used
    member, of_ensemble : index of the model, and whether it is a member of an ensemble
    """

    name: str
    class_name: str
    adds: NDArray[np.float64]
    usage: float | None = None
    reference_usage: dict[str, float] = field(default_factory=dict)
    reference_contribution: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    positions: NDArray[np.float32] | None = None
    group: str = ""
    artefact: bool = False
    is_named: bool = False
    atoms: tuple[int, ...] = ()
    sign: float = 1.0
    member: int = 0
    of_ensemble: bool = False
    no_atoms_reason: str = ""

    @property
    def full_name(self) -> str:
        """Name, prefixed with the member number in an ensemble."""
        note = ", as a whole" * (self.usage is None)
        return f"view {self.member + 1}: {self.name}{note}" if self.of_ensemble else self.name

    @property
    def quoted(self) -> str:
        """Name as it is written within a sentence."""
        name = f"“{self.name}”" if self.is_named else self.name
        return f"{name} of view {self.member + 1}" if self.of_ensemble else name

    def describe_reference(self, name: str) -> str:
        """Format the reference usage of a class; an upper bound for several atoms."""
        if name not in self.reference_usage:
            return ""
        return "at most " * (len(self.atoms) > 1) + percent(self.reference_usage[name])


@dataclass(frozen=True)
class MemberContribution:
    """Contribution of one ensemble member, with its index and description."""

    member: int
    name: str
    adds: NDArray[np.float64]
