"""Everything that decides how one model is made, in one object."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .decisions.image_rules import AGGREGATORS
from .execution.texts import parse_json
from .images.quality import check_quality
from .images.stain import NORMALISERS
from .methods.registry import METHODS, get_method
from .networks import BORDERS, get_patch_features
from .parameters import check_choice, check_kind, check_names, check_number, check_whole_number

_MAX_REDUCED = 10_000.0  # times; and µm per pixel: no image is seen so from afar
_MAX_PX = 8192  # side of what is read for one patch: more would be no patch, and fill the memory
# Settings that decide nothing where vectors are given.
_OF_PIXELS = {
    *(
        "patch_px",
        "stride_px",
        "downsample",
        "mpp",
        "augment_patches",
        "stain",
        "min_tissue_fraction",
    ),
    *("border_mode", "quality_filters"),
}


@dataclass(frozen=True, repr=False)
class Recipe:
    """How images become patches, patches vectors, and vectors an answer.

    Patches are cut from the image reduced to `mpp` µm per pixel if that is given, else reduced by
    the factor `downsample`. `method_parameters` go to the method as they are. With `neighbours` > 0
    a patch is judged together with those so many steps around it. With `turn_patches` training
    patches of pixels are turned and mirrored at random; a network sees every image also mirrored
    along the diagonal, and cells are the mean of both. Beyond an image's `border` a network sees
    the image reflected (`reflect`), or the constant of the network itself (`constant`); with `drop`
    the
    latter, and cells along the border are not learnt from. With `context` > 1 the vector of a patch
    also shows its surroundings, so many times as wide, in as many pixels. With `components` > 0
    vectors are reduced to so many principal components of the training vectors. What `quality`
    names, of blur, pen and folds, is left out (`images.quality`).
    """

    method: str = "dfdl"
    method_parameters: dict[str, Any] = field(default_factory=dict)
    patch_px: int = 20
    stride_px: int | None = None
    downsample: float = 1.0
    mpp: float | None = None
    patches_per_class: int = 10_000
    augment_patches: bool = False
    stain: str = "none"
    features: str = "rgb"
    aggregation: str = "proportion"
    min_tissue_fraction: float = 0.5
    smoothing_radius: int = 0
    n_components: int = 0
    whiten: bool = False
    context_scale: int = 1
    border_mode: str = "drop"
    quality_filters: str = "none"

    def __post_init__(self) -> None:
        for own in fields(self):
            check_kind(own.name, getattr(self, own.name), str(own.type))
        check_quality(
            self.quality_filters, self.method, get_method(self.method).uses_patch_features
        )
        check_whole_number("patch_px", self.patch_px, 2)
        check_whole_number("patches_per_class", self.patches_per_class, 1)
        check_whole_number("smoothing_radius", self.smoothing_radius, 0)
        check_whole_number("context_scale", self.context_scale, 1)
        check_whole_number("n_components", self.n_components, 0)
        if max(self.context_scale, 2 * self.smoothing_radius + 1) * self.patch_px > _MAX_PX:
            raise ValueError(
                f"patch_px={self.patch_px} with context_scale={self.context_scale} and "
                "smoothing_radius="
                f"{self.smoothing_radius} asks for more than {_MAX_PX} pixels around a patch"
            )
        check_number("downsample", self.downsample, low=1)
        check_number("min_tissue_fraction", self.min_tissue_fraction)
        if self.stride_px is not None:
            check_whole_number("stride_px", self.stride_px, 1)
        if self.mpp is not None:
            check_number("mpp", self.mpp, above=True)
        if max(self.downsample, self.mpp or 0) > _MAX_REDUCED:
            raise ValueError(f"downsample and mpp must be at most {_MAX_REDUCED:g}")
        for name, value, known in (
            ("method", self.method, METHODS),
            ("stain", self.stain, NORMALISERS),
            ("aggregation", self.aggregation, AGGREGATORS),
            ("border_mode", self.border_mode, BORDERS),
        ):
            check_choice(name, value, known)
        self._check_features()

    def _check_features(self) -> None:
        kind, entry = get_patch_features(self.features), get_method(self.method)
        if self.context_scale > 1 and not kind.uses_context:
            raise ValueError(
                "a network's cells know their surroundings: set context_scale=1, or take the "
                "preset "
                "embeddings"
            )
        if kind.is_precomputed and entry.needs_pixels:
            raise ValueError(f"{self.method} looks at pixels, of which feature files have none")
        channels = entry.channels
        if channels and self.method_parameters.get(channels, 3) == 9 - self.n_channels:
            raise ValueError(
                f"{self.method} codes every colour channel by itself; there are three, or six with "
                f"context > 1: set {channels}={self.n_channels} as well"
            )

    @property
    def n_channels(self) -> int:
        """Colour channels of a vector: those of the patch, and those of its surroundings."""
        return 3 * min(self.context_scale, 2)

    @property
    def is_patch_level(self) -> bool:
        """Whether patches are judged one by one, and so leave a map."""
        return get_method(self.method).is_patch_level

    @property
    def grid_stride_px(self) -> int:
        return self.stride_px or self.patch_px

    def __repr__(self) -> str:
        """Like scikit-learn's estimators, only with parameters that differ from their defaults."""
        mine, default = self.to_dict(), Recipe().to_dict()
        changed = (f"{name}={mine[name]!r}" for name in mine if mine[name] != default[name])
        return f"Recipe({', '.join(changed)})"

    def describe_differences(self, other: Recipe) -> str:
        """Settings in which two recipes differ, those of this one first."""
        theirs = other.to_dict()
        return ", ".join(
            f"{name} ({value!r}, not {theirs[name]!r})"
            for name, value in self.to_dict().items()
            if value != theirs[name]
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def check_method(self) -> None:
        """Refuses parameters that the method cannot take: before hours of training, say."""
        get_method(self.method).check(self.method_parameters)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        check_kind("a recipe", values, "dict[str, Any]")
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"the recipe has settings this version does not know: {unknown}")
        return cls(**values)

    def with_changes(self, **changes: Any) -> Recipe:
        """A copy with some settings changed; None leaves one as it is."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})

    def with_applicable_settings(self, changes: dict[str, Any]) -> Recipe:
        """A copy with fields and method parameters changed; those it does not have are left out."""
        own = {f.name for f in fields(self)}
        if not get_method(self.method).uses_patch_features:
            changes = {name: value for name, value in changes.items() if name != "quality_filters"}
        parameters = {k: v for k, v in changes.items() if k not in own and self.has_setting(k)}
        channels = get_method(self.method).channels
        if channels in self.method_parameters and "context_scale" in changes:
            parameters[str(channels)] = 3 * min(changes["context_scale"], 2)
        return replace(
            self,
            method_parameters=self.method_parameters | parameters,
            **{k: v for k, v in changes.items() if k in own},
        )

    def has_setting(self, setting: str) -> bool:
        """Whether it is a field of the recipe, or a parameter of its method."""
        return setting in self.settings()

    def settings(self) -> set[str]:
        """The names that `parse_settings` takes."""
        parameters = inspect.signature(get_method(self.method).load()).parameters
        own = {f.name for f in fields(self)} - {"method", "method_parameters"}
        return own | set(parameters) - {"n_jobs", "random_state"}

    def parse_settings(self, settings: dict[str, str]) -> Recipe:
        """A copy with settings given as text: fields of the recipe, else method parameters."""
        check_names(settings, self.settings())
        kinds = {f.name: str(f.type) for f in fields(self)}
        return self.replace_settings(
            {
                name: parse_setting(name, text, kinds.get(name, ""))
                for name, text in settings.items()
            }
        )

    def replace_settings(self, values: dict[str, Any]) -> Recipe:
        """A copy with settings by name: fields of the recipe, else method parameters."""
        check_names(values, self.settings())
        own = {f.name for f in fields(self)}
        others = {name: value for name, value in values.items() if name not in own}
        changed = {name: value for name, value in values.items() if name in own}
        made = replace(self, method_parameters=self.method_parameters | others, **changed)
        made.check_method()
        wasted = [f"{k}={v}" for k, v in changed.items() if k in _OF_PIXELS and v != vars(self)[k]]
        if wasted and get_patch_features(made.features).is_precomputed:
            raise ValueError(
                f"{wasted[0]} is of pixels, and vectors of feature files were computed before: "
                "leave it out"
            )
        return made

    def values(self) -> dict[str, Any]:
        """All that `replace_settings` takes, as it is in effect; for the method, also what it
        leaves.
        """
        found = get_method(self.method).make(self.method_parameters).get_params()
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: (own | found)[name] for name in sorted(self.settings())}


def parse_setting(name: str, text: str, kind: str) -> Any:
    """A setting's text as what its field holds; for method parameters, as what it looks like."""
    if "str" in kind.split(" | "):
        return text
    if text.lower() in ("none", "null"):
        return None
    try:
        value = parse_json(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        if kind:
            raise ValueError(f"{name}={text}: a value of the kind {kind} is expected") from None
        return text
    is_whole = type(value) is int and abs(value) < 2**53
    return float(value) if kind.startswith("float") and is_whole else value
