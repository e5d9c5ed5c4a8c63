"""Everything that decides how one model is made, in one object.

Good recipes by name, and which one to take where none is named.

Who sits on a panel: a recipe, and others that look at the same tissue in other ways.

They differ in what they look at, in scale and in stain correction, so that their mistakes do:

- beside cells of a network: the same cells of images whose stain was not corrected (each is right
  where the other is not), a dictionary of pixels, and textures and colours of the image as a whole
  (`lbp-colour`) at half the scale;
- beside vectors of feature files: nobody, as these have no pixels;
- beside a dictionary of pixels: such textures at two scales, the coarser without stain correction.

What was changed in the recipe is changed in the others, where they have it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from typing import Any

from ..decision.aggregation import AGGREGATORS
from ..encoders import BORDERS, PRECOMPUTED, get_patch_features, missing_dependency
from ..methods.registry import METHODS, get_method
from ..patches.vectors import PATCH_FEATURES
from ..preprocessing.quality import NONE, check_quality
from ..preprocessing.stain import NORMALISERS
from ..utils.text_io import parse_json
from ..utils.validation import (
    check_choice,
    check_kind,
    check_names,
    check_number,
    check_whole_number,
)

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


# Settings of which the cells of a network leave no choice.
_OF_PATCHES = ("features", "patch_px", "stride_px", "context_scale")

PRESETS = {
    # As published: 20 × 20 RGB patches, 10,000 per class.
    "paper": Recipe(),
    # One dictionary per class, of pixels. Against differences of stain between patients; a patch is
    # seen with its surroundings, codes are sparser than published, and the rule uses how clearly
    # patches were won.
    "fast": Recipe(
        method_parameters={"penalty": 0.4},
        patch_px=16,
        downsample=2.0,
        context_scale=2,
        patches_per_class=6_000,
        augment_patches=True,
        stain="reinhard",
        features="centred",
        aggregation="margin",
    ),
    # Cells of a pretrained network instead of pixels; needs PyTorch. Stain correction pays where
    # images to learn from are few.
    "embeddings": Recipe(
        method_parameters={"rho": 0.1},
        patch_px=32,
        augment_patches=True,
        patches_per_class=6_000,
        stain="reinhard",
        features="efficientnet-lite0",
        n_components=200,
        aggregation="proportion",
    ),
    # Vectors of feature files, learnt from as cells of a network are.
    "precomputed": Recipe(
        method_parameters={"rho": 0.1},
        patches_per_class=6_000,
        features=PRECOMPUTED,
        n_components=200,
        aggregation="proportion",
    ),
    # For regions: a patch alone says little where tissue is mixed, so it is seen with its
    # surroundings, and its neighbours have a say.
    "regions": Recipe(
        method_parameters={"penalty": 0.4},
        patches_per_class=6_000,
        augment_patches=True,
        features="centred",
        context_scale=2,
        smoothing_radius=2,
    ),
}
# What presets are when they are to find regions, beside that neighbours have a say. Cells half way
# through the network are smaller, and know less of what lies around them. There is nothing to gain
# by stain correction, and cells along the border are as good as any others to learn from.
_FOR_REGIONS: dict[str, dict[str, Any]] = {
    "embeddings": {
        "stain": "none",
        "border_mode": "reflect",
        "method_parameters": {"rho": 0.1, "penalty": 0.3},
        "patch_px": 16,
        "features": "efficientnet-lite0-half",
        "smoothing_radius": 2,
    }
}


def preset(name: str, method: str | None = None, *, regions: bool = False) -> Recipe:
    """A preset, for any method: with that method's own parameters and, if it has one, rule.

    Presets are for DFDL where no method is named. `regions`: to find them neighbouring patches have
    a say, and the margin that makes a patch one of a region is fitted; not so as published. Cells
    of a network are told apart so well on the images learnt from that a margin fitted there misses
    much on others: the class that is closest wins them.
    """
    if name not in PRESETS:
        raise ValueError(
            f"preset must be one of {sorted(PRESETS)}, not {name!r}; EnsembleClassifier also has "
            "default and "
            "pixels, which are several models, and Plan.named files of settings"
        )
    base = replace(PRESETS[name], **(_FOR_REGIONS.get(name, {}) if regions else {}))
    made = with_method(base, method or "dfdl", published=name == "paper")
    if not regions or name == "paper":
        return made
    rule = "margin" if get_patch_features(made.features).are_images else "proportion"
    return replace(made, smoothing_radius=max(made.smoothing_radius, 1), aggregation=rule)


def default_uses_encoder(
    settings: Mapping[str, Any], methods: Iterable[str] = ()
) -> tuple[bool, str]:
    """Where no preset is named: whether a pretrained network has a say, and why in words.

    It sees more than pixels tell, so it is taken where it can be had without a download; `settings`
    that go with one of the two decide before that, and `methods` of colour channels, which a
    network's cells do not have.
    """
    asked = {name: settings[name] for name in _OF_PATCHES if name in settings}
    if "features" in asked and asked["features"] not in (*PATCH_FEATURES, PRECOMPUTED):
        return True, f"as {asked['features']} is a network"
    if asked:
        return False, f"of pixels, as {next(iter(asked))} is set"
    of_colours = [name for name in methods if name in METHODS and METHODS[name].channels]
    if of_colours:
        return False, f"of pixels, as {of_colours[0]} codes colour channels"
    missing = missing_dependency(PRESETS["embeddings"].features)
    if missing:
        return False, (
            f"of pixels, as no pretrained network is installed ({missing} is missing); one sees "
            "more: pip install 'histodict[networks]'"
        )
    return True, "as a pretrained network is installed"


def default_region_preset(
    settings: Mapping[str, Any], methods: Iterable[str] = ()
) -> tuple[str, str]:
    """For regions where no preset is named: which one, and why in words."""
    by_network, why = default_uses_encoder(settings, methods)
    if not by_network:
        return "regions", why
    return "embeddings", f"{why}; the preset regions is of pixels"


def resolve_recipe(
    given: Recipe | str, method: str | None = None, *, regions: bool = False
) -> Recipe:
    """A recipe, or a preset by name; with another method, if one is named."""
    if isinstance(given, str):
        return preset(given, method, regions=regions)
    return given if method in (None, given.method) else with_method(given, str(method))


def with_method(base: Recipe, method: str, *, published: bool = False) -> Recipe:
    """The recipe with another method, its own parameters before those of the recipe."""
    entry = get_method(method)
    known = inspect.signature(entry.load()).parameters
    parameters = {k: v for k, v in base.method_parameters.items() if k in known}
    parameters |= entry.paper_parameters if published else entry.default_parameters
    if entry.channels and base.n_channels != 3:
        parameters[entry.channels] = base.n_channels
    fitting = {
        "aggregation": entry.aggregation,
        "quality_filters": base.quality_filters if entry.uses_patch_features else NONE,
    }
    return base.with_changes(method=method, method_parameters=parameters, **fitting)


_TEXTURES = "lbp-colour"
_CORRECTED = "reinhard"
# By how much images are reduced for them.
_COARSE, _COARSER = 2.0, 4.0
# What belongs to a network's cells, or to pixels, and says nothing of the other.
_PRECOMPUTED_RECIPES = (
    "features",
    "patch_px",
    "stride_px",
    "context_scale",
    "n_components",
    "whiten",
    "aggregation",
)

# Finer patches than those of one model alone show less of the tissue at once, so fewer atoms would
# be left for codes as sparse.
_FINER = {"patch_px": 20, "context_scale": 1, "penalty": 0.2, "downsample": 1.0}
PIXELS = (
    PRESETS["fast"].with_changes(aggregation="margin-and-codes").with_applicable_settings(_FINER)
)
ENCODER = PRESETS["embeddings"]


def resolve_ensemble_recipe(
    given: Recipe | str, method: str | None = None, settings: Mapping[str, Any] | None = None
) -> Recipe:
    """The first recipe of a panel: itself, or by the name of a preset, also of one for panels.

    `settings` that will be changed in it decide with whether it may be of a network.
    """
    if given == "features":
        return resolve_recipe("precomputed", method)
    if given not in ("default", "pixels"):
        return resolve_recipe(given, method)
    if given == "default" and default_uses_encoder(settings or {}, [method or ""])[0]:
        return with_method(ENCODER, method or ENCODER.method)
    sees_patches = get_method(method or PIXELS.method).uses_patch_features
    return with_method(PIXELS if sees_patches else PRESETS["fast"], method or PIXELS.method)


def ensemble_recipes(recipe: Recipe) -> list[Recipe]:
    """The recipe first, then the others; each once."""
    found = [recipe]
    for other in _others(recipe):
        if other not in found:
            found.append(other)
    return found


def _others(base: Recipe) -> Iterator[Recipe]:
    if not get_method(base.method).uses_patch_features:
        yield from _whole_images(base)
        return
    if get_patch_features(base.features).is_precomputed:
        return  # there is nothing else to look at
    if not get_patch_features(base.features).uses_context:
        yield replace(base, stain=_CORRECTED if base.stain == "none" else "none")
        pixels = _beside_encoder(base)
        yield pixels
        yield _textures(pixels, _COARSE)
        return
    yield _textures(base, _COARSE)
    yield replace(_textures(base, _COARSER), stain="none")


def _corrected(recipe: Recipe) -> str:
    return _CORRECTED if recipe.stain == "none" else recipe.stain


def _textures(pixels: Recipe, reduced: float) -> Recipe:
    """Of the image reduced by so much, and never less than the patches are cut from."""
    return _rescaled(with_method(pixels, _TEXTURES), max(1.0, reduced / pixels.downsample))


def _beside_encoder(base: Recipe) -> Recipe:
    """The recipe of pixels, changed as the base was."""
    usual, plain = (with_method(recipe, base.method) for recipe in (PIXELS, ENCODER))
    changed = {
        own.name: getattr(base, own.name)
        for own in fields(base)
        if own.name
        not in (*_PRECOMPUTED_RECIPES, "method", "method_parameters", "downsample", "mpp")
        and getattr(base, own.name) != getattr(plain, own.name)
    }
    parameters = {
        name: value
        for name, value in base.method_parameters.items()
        if value != plain.method_parameters.get(name)
    }
    return replace(
        usual,
        **changed,
        method_parameters=usual.method_parameters | parameters,
        downsample=usual.downsample * base.downsample,
        mpp=None if base.mpp is None else usual.downsample * base.mpp,
    )


def _whole_images(base: Recipe) -> Iterator[Recipe]:
    for factor, stain in product((1, 2), (_corrected(base), "none")):
        yield replace(_rescaled(base, factor), stain=stain)


def _rescaled(recipe: Recipe, factor: float) -> Recipe:
    """The recipe on images reduced by so much more."""
    if recipe.mpp is not None:
        return replace(recipe, mpp=recipe.mpp * factor)
    return replace(recipe, downsample=recipe.downsample * factor)
