"""Everything that decides how a model is made, in one object, and good sets of it by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .decisions.image_rules import FEATURES
from .images.stain import NORMALISERS
from .parameters import check_number, check_whole_number
from .patches.vectors import VECTORS

METHODS = ("dfdl",)


@dataclass(frozen=True)
class Recipe:
    """How images become patches, patches vectors, and vectors an answer.

    Patches are cut from the image reduced to `mpp` µm per pixel if that is given, else reduced by
    the factor `downsample`. `method_parameters` go to the method as they are.
    """

    method: str = "dfdl"
    method_parameters: dict[str, Any] = field(default_factory=dict)
    patch_px: int = 20
    stride_px: int | None = None
    downsample: float = 1.0
    mpp: float | None = None
    patches_per_class: int = 10_000
    turn_patches: bool = False
    stain: str = "none"
    vectors: str = "rgb"
    rule: str = "proportion"
    least_tissue: float = 0.5

    def __post_init__(self) -> None:
        check_whole_number("patch_px", self.patch_px, 2)
        check_whole_number("patches_per_class", self.patches_per_class, 1)
        check_number("downsample", self.downsample, low=1)
        check_number("least_tissue", self.least_tissue)
        if self.stride_px is not None:
            check_whole_number("stride_px", self.stride_px, 1)
        if self.mpp is not None:
            check_number("mpp", self.mpp, above=True)
        for name, value, known in (
            ("method", self.method, METHODS),
            ("stain", self.stain, NORMALISERS),
            ("vectors", self.vectors, VECTORS),
            ("rule", self.rule, FEATURES),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {sorted(known)}, not {value!r}")

    @property
    def grid_stride_px(self) -> int:
        return self.stride_px or self.patch_px

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"the recipe has settings this version does not know: {unknown}")
        return cls(**values)

    def with_changes(self, **changes: Any) -> Recipe:
        """A copy with some settings changed; None leaves one as it is."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


PRESETS = {
    # As published: 20 × 20 RGB patches, 10,000 per class, k = 500, λ = γ = 0.1, ρ = 0.001.
    "paper": Recipe(
        method_parameters={"n_atoms": 500, "penalty": 0.1, "rho": 0.001, "n_iter": 50, "tol": 0.0}
    ),
    # Against differences of stain between patients; the rule uses how clearly patches were won.
    "default": Recipe(
        method_parameters={"n_atoms": 200, "n_iter": 20},
        downsample=2.0,
        patches_per_class=6_000,
        turn_patches=True,
        stain="reinhard",
        vectors="centred",
        rule="margin",
    ),
}


def preset(name: str) -> Recipe:
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {sorted(PRESETS)}, not {name!r}")
    return PRESETS[name]
