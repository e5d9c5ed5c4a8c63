"""Recipe: all settings of one model; named presets."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..decision.aggregation import AGGREGATORS
from ..encoders import BORDER_MODES, PRECOMPUTED, get_patch_features, missing_dependency
from ..methods.registry import METHODS, get_method
from ..patches.vectors import PATCH_FEATURES
from ..preprocessing.quality import NONE, check_quality_filters
from ..preprocessing.stain import NORMALIZERS
from ..utils.text_io import parse_json
from ..utils.validation import (
    check_choice,
    check_number,
    check_setting_names,
    check_type,
    check_whole_number,
    install_command,
)

_MAX_DOWNSAMPLE = 10_000.0  # maximum of `downsample`, and of `mpp` in µm
_MAX_PATCH_SIDE = 8192  # side of the area read for one patch; limits the memory
# Settings without effect on precomputed features.
_PIXEL_SETTINGS = {
    *("patch_px", "stride_px", "downsample", "mpp", "augment_patches", "stain"),
    *("min_tissue_fraction", "border_mode", "quality_filters"),
}


@dataclass(frozen=True, repr=False)
class Recipe:
    """Settings of one model: patches, their features, the method and the aggregation of patches.

    Parameters
    ----------
    method : str, default="dfdl"
        Name of the method; see `methods.registry`.
    method_parameters : dict, optional
        Parameters of the method.
    patch_px : int, default=20
        Side of a patch in pixels of the reduced image.
    stride_px : int, optional
        Step of the patch grid in pixels; None stands for `patch_px`.
    downsample : float, default=1
        Factor by which images are reduced if `mpp` is None.
    mpp : float, optional
        Pixel size in µm to which images are reduced.
    patches_per_class : int, default=10000
        Number of training patches of each class.
    augment_patches : bool, default=False
        Whether to rotate and mirror training patches at random. With an encoder, features are
        averaged over the image and its mirror image along the diagonal instead.
    stain : str, default="none"
        Name of the stain normalisation.
    features : str, default="rgb"
        Feature vectors of patches: name of pixel features or of an encoder, or ``"precomputed"``.
    aggregation : str, default="proportion"
        Name of the aggregator that computes the score of an image from its patches.
    min_tissue_fraction : float, default=0.5
        Minimum fraction of tissue in a patch; other patches are not used.
    smoothing_radius : int, default=0
        Distance in steps of the patch grid up to which margins are averaged over neighbours.
    n_components : int, default=0
        Number of principal components to which feature vectors are reduced; 0 for no reduction.
    whiten : bool, default=False
        Whether to scale the principal components to unit variance.
    context_scale : int, default=1
        If more than 1, the vector of a patch also contains the area around it that is this many
        times as wide, reduced to the size of a patch.
    border_mode : str, default="drop"
        Padding of an image for an encoder: its mirror image (``"reflect"``) or the constant padding
        of the encoder (``"constant"``). ``"drop"`` is like ``"constant"``, but positions along the
        border are excluded from training.
    quality_filters : str, default="none"
        Artefacts to exclude: a combination of blur, pen and folds; see `preprocessing.quality`.
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
        for setting in fields(self):
            check_type(setting.name, getattr(self, setting.name), str(setting.type))
        check_quality_filters(
            self.quality_filters, self.method, get_method(self.method).uses_patch_features
        )
        check_whole_number("patch_px", self.patch_px, 2)
        check_whole_number("patches_per_class", self.patches_per_class, 1)
        check_whole_number("smoothing_radius", self.smoothing_radius, 0)
        check_whole_number("context_scale", self.context_scale, 1)
        check_whole_number("n_components", self.n_components, 0)
        if max(self.context_scale, 2 * self.smoothing_radius + 1) * self.patch_px > _MAX_PATCH_SIDE:
            raise ValueError(
                f"patch_px={self.patch_px} with context_scale={self.context_scale} and "
                f"smoothing_radius={self.smoothing_radius} need more than {_MAX_PATCH_SIDE} pixels "
                "around a patch. Use smaller values"
            )
        check_number("downsample", self.downsample, low=1)
        check_number("min_tissue_fraction", self.min_tissue_fraction)
        if self.stride_px is not None:
            check_whole_number("stride_px", self.stride_px, 1)
        if self.mpp is not None:
            check_number("mpp", self.mpp, exclusive=True)
        if max(self.downsample, self.mpp or 0) > _MAX_DOWNSAMPLE:
            raise ValueError(f"downsample and mpp must be at most {_MAX_DOWNSAMPLE:g}")
        for name, value, known in (
            ("method", self.method, METHODS),
            ("stain", self.stain, NORMALIZERS),
            ("aggregation", self.aggregation, AGGREGATORS),
            ("border_mode", self.border_mode, BORDER_MODES),
        ):
            check_choice(name, value, known)
        self._check_features()

    def _check_features(self) -> None:
        kind, entry = get_patch_features(self.features), get_method(self.method)
        if self.context_scale > 1 and not kind.uses_context:
            raise ValueError(
                "features of an encoder include the context: set context_scale=1, or use the "
                "preset embeddings"
            )
        if kind.is_precomputed and entry.needs_pixels:
            raise ValueError(
                f"{self.method} needs pixels, and feature files have none. Use another method"
            )
        channels = entry.channels_parameter
        if channels and self.method_parameters.get(channels, 3) == 9 - self.n_channels:
            raise ValueError(
                f"{self.method} codes each colour channel separately. There are three channels, "
                f"or six with context_scale > 1: also set {channels}={self.n_channels}"
            )

    @property
    def n_channels(self) -> int:
        """Number of colour channels of a pixel vector: 3, or 6 with the context of the patch."""
        return 3 * min(self.context_scale, 2)

    @property
    def is_patch_level(self) -> bool:
        """Whether the method classifies patches, rather than whole images."""
        return get_method(self.method).is_patch_level

    @property
    def grid_stride_px(self) -> int:
        """Step of the patch grid in pixels."""
        return self.stride_px or self.patch_px

    def __repr__(self) -> str:
        """Return the constructor call with parameters that differ from their defaults."""
        values, default = self.to_dict(), Recipe().to_dict()
        changed = (f"{name}={values[name]!r}" for name in values if values[name] != default[name])
        return f"Recipe({', '.join(changed)})"

    def describe_differences(self, other: Recipe) -> str:
        """Return the settings in which two recipes differ as text, with both values.

        Parameters
        ----------
        other : recipe to compare with

        Returns
        -------
        str
        """
        other_values = other.to_dict()
        return ", ".join(
            f"{name} ({value!r}, not {other_values[name]!r})"
            for name, value in self.to_dict().items()
            if value != other_values[name]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as a dictionary.

        Returns
        -------
        dict
        """
        return asdict(self)

    def check_method(self) -> None:
        """Raise ValueError for parameters that the method does not accept."""
        get_method(self.method).check_parameters(self.method_parameters)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """Make a recipe from settings as returned by `to_dict`.

        Parameters
        ----------
        values : settings by name

        Returns
        -------
        Recipe
        """
        check_type("a recipe", values, "dict[str, Any]")
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(
                f"unknown settings in the recipe: {unknown}. Update histodict if the file is "
                "from a later version"
            )
        return cls(**values)

    def with_changes(self, **changes: Any) -> Recipe:
        """Return a copy with changed fields; a value of None leaves a field unchanged.

        Parameters
        ----------
        **changes : fields by name

        Returns
        -------
        Recipe
        """
        return replace(self, **{k: v for k, v in changes.items() if v is not None})

    def with_applicable_settings(self, changes: dict[str, Any]) -> Recipe:
        """Return a copy with changed fields and method parameters; inapplicable ones are ignored.

        Parameters
        ----------
        changes : fields and parameters by name

        Returns
        -------
        Recipe
        """
        field_names = {f.name for f in fields(self)}
        if not get_method(self.method).uses_patch_features:
            changes = {name: value for name, value in changes.items() if name != "quality_filters"}
        parameters = {
            k: v for k, v in changes.items() if k not in field_names and self.has_setting(k)
        }
        channels = get_method(self.method).channels_parameter
        if channels in self.method_parameters and "context_scale" in changes:
            parameters[str(channels)] = 3 * min(changes["context_scale"], 2)
        return replace(
            self,
            method_parameters=self.method_parameters | parameters,
            **{k: v for k, v in changes.items() if k in field_names},
        )

    def has_setting(self, setting: str) -> bool:
        """Return whether a name is a field of the recipe or a parameter of its method.

        Parameters
        ----------
        setting : name of a setting

        Returns
        -------
        bool
        """
        return setting in self.setting_names()

    def setting_names(self) -> set[str]:
        """Return the names that `parse_settings` accepts.

        Returns
        -------
        set of str
        """
        parameters = inspect.signature(get_method(self.method).load_class()).parameters
        field_names = {f.name for f in fields(self)} - {"method", "method_parameters"}
        return field_names | set(parameters) - {"n_jobs", "random_state"}

    def parse_settings(self, settings: dict[str, str]) -> Recipe:
        """Return a copy with fields or method parameters that are parsed from text.

        Parameters
        ----------
        settings : text of each value, by name

        Returns
        -------
        Recipe
        """
        check_setting_names(settings, self.setting_names())
        types = {f.name: str(f.type) for f in fields(self)}
        return self.replace_settings(
            {
                name: parse_setting(name, text, types.get(name, ""))
                for name, text in settings.items()
            }
        )

    def replace_settings(self, values: dict[str, Any]) -> Recipe:
        """Return a copy with changed fields or method parameters.

        Parameters
        ----------
        values : fields and parameters by name

        Returns
        -------
        Recipe
        """
        check_setting_names(values, self.setting_names())
        field_names = {f.name for f in fields(self)}
        parameters = {name: value for name, value in values.items() if name not in field_names}
        changed = {name: value for name, value in values.items() if name in field_names}
        recipe = replace(self, method_parameters=self.method_parameters | parameters, **changed)
        recipe.check_method()
        unused = [
            f"{k}={v}" for k, v in changed.items() if k in _PIXEL_SETTINGS and v != vars(self)[k]
        ]
        if unused and get_patch_features(recipe.features).is_precomputed:
            raise ValueError(
                f"{unused[0]} has no effect on vectors from feature files: leave it out"
            )
        return recipe

    def setting_values(self) -> dict[str, Any]:
        """Return the values of all settings by name, including defaults of the method.

        Returns
        -------
        dict
        """
        parameters = get_method(self.method).make_estimator(self.method_parameters).get_params()
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: (settings | parameters)[name] for name in sorted(self.setting_names())}


def parse_setting(name: str, text: str, type_name: str) -> Any:
    """Return the value of the setting `name` from its text.

    `type_name` is the type annotation of the setting, such as "int | None"; if it is empty, the
    type is inferred.
    """
    if "str" in type_name.split(" | "):
        return text
    if text.lower() in ("none", "null"):
        return None
    try:
        value = parse_json(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        if type_name:
            raise ValueError(f"{name}={text}: the value must be of type {type_name}") from None
        return text
    is_whole = type(value) is int and abs(value) < 2**53
    return float(value) if type_name.startswith("float") and is_whole else value


# Settings that an encoder determines.
_ENCODER_SETTINGS = ("features", "patch_px", "stride_px", "context_scale")

PRESETS = {
    # As published: 20 × 20 RGB patches, 10,000 per class.
    "paper": Recipe(),
    # One dictionary of pixels per class, with stain normalisation. Patches include their context,
    # codes are sparser than published, and the aggregator uses margins instead of class counts.
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
    # Feature vectors of a pretrained encoder instead of pixels; needs PyTorch. Stain normalisation
    # improves accuracy if there are few training images.
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
    # Vectors of feature files, with the settings of encoder features.
    "precomputed": Recipe(
        method_parameters={"rho": 0.1},
        patches_per_class=6_000,
        features=PRECOMPUTED,
        n_components=200,
        aggregation="proportion",
    ),
    # For regions: a single patch is not specific in mixed tissue, so it includes its context, and
    # margins are averaged over its neighbours.
    "regions": Recipe(
        method_parameters={"penalty": 0.4},
        patches_per_class=6_000,
        augment_patches=True,
        features="centred",
        context_scale=2,
        smoothing_radius=2,
    ),
}
# Changes of presets for regions, in addition to smoothing. Feature vectors from half way through
# the encoder cover less tissue and less context. Stain normalisation does not improve regions, and
# positions along the border are as good for training as others.
_REGION_PRESET_CHANGES: dict[str, dict[str, Any]] = {
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
    """Return the recipe of a preset, adapted to a method.

    Parameters
    ----------
    name : name of the preset
    method : name of the method, whose default parameters and aggregator are used; None is DFDL
    regions : whether the recipe is for a `RegionDetector`. Except for ``"paper"``, margins are then
        smoothed, and for pixel features a margin threshold is fitted (aggregation ``"margin"``).
        Encoder features separate training images so well that a fitted threshold would miss
        regions of other images.
    """
    if name not in PRESETS:
        raise ValueError(
            f"preset must be one of {sorted(PRESETS)}, not {name!r}; the ensemble presets "
            "default and pixels are available in EnsembleClassifier, and settings files in "
            "Plan.named"
        )
    base = replace(PRESETS[name], **(_REGION_PRESET_CHANGES.get(name, {}) if regions else {}))
    recipe = with_method(base, method or "dfdl", uses_paper_parameters=name == "paper")
    if not regions or name == "paper":
        return recipe
    aggregation = "margin" if get_patch_features(recipe.features).atoms_are_images else "proportion"
    return replace(
        recipe, smoothing_radius=max(recipe.smoothing_radius, 1), aggregation=aggregation
    )


def default_uses_encoder(
    settings: Mapping[str, Any], methods: Iterable[str] = ()
) -> tuple[bool, str]:
    """Return whether the default preset uses a pretrained encoder, and the reason as text.

    An encoder is more accurate than pixels and is used if it is available without download, unless
    `settings` (values by name) apply to pixels only or one of `methods` needs colour channels.
    """
    requested = {name: settings[name] for name in _ENCODER_SETTINGS if name in settings}
    if "features" in requested and requested["features"] not in (*PATCH_FEATURES, PRECOMPUTED):
        return True, f"{requested['features']} is an encoder"
    if requested:
        return False, f"{next(iter(requested))} is set"
    colour_methods = [
        name for name in methods if name in METHODS and METHODS[name].channels_parameter
    ]
    if colour_methods:
        return False, f"{colour_methods[0]} codes colour channels"
    missing = missing_dependency(PRESETS["embeddings"].features)
    if missing:
        return False, (
            f"no pretrained encoder is installed ({missing} is missing). For higher accuracy, "
            f"run: {install_command('networks')}"
        )
    return True, "a pretrained encoder is installed"


def default_region_preset(
    settings: Mapping[str, Any], methods: Iterable[str] = ()
) -> tuple[str, str]:
    """Return the name of the default preset for regions and the reason as text.

    `settings` and `methods` are as in `default_uses_encoder`.
    """
    uses_encoder, reason = default_uses_encoder(settings, methods)
    if not uses_encoder:
        return "regions", reason
    return "embeddings", reason


def resolve_recipe(
    recipe: Recipe | str, method: str | None = None, *, regions: bool = False
) -> Recipe:
    """Return a recipe, or the recipe of a preset, adapted to a method.

    Parameters
    ----------
    recipe : recipe, or name of a preset
    method : name of a method that replaces the method of the recipe; None keeps it
    regions : whether the recipe is for a `RegionDetector`; see `preset`
    """
    if isinstance(recipe, str):
        return preset(recipe, method, regions=regions)
    return recipe if method in (None, recipe.method) else with_method(recipe, str(method))


def with_method(base: Recipe, method: str, *, uses_paper_parameters: bool = False) -> Recipe:
    """Return a copy of a recipe with another method.

    The parameters of the method are its defaults or, if `uses_paper_parameters`, those of its
    paper. Other parameters of `base` are kept if the new method has them.
    """
    entry = get_method(method)
    known = inspect.signature(entry.load_class()).parameters
    parameters = {k: v for k, v in base.method_parameters.items() if k in known}
    parameters |= entry.paper_parameters if uses_paper_parameters else entry.default_parameters
    if entry.channels_parameter and base.n_channels != 3:
        parameters[entry.channels_parameter] = base.n_channels
    adapted = {
        "aggregation": entry.aggregation,
        "quality_filters": base.quality_filters if entry.uses_patch_features else NONE,
    }
    return base.with_changes(method=method, method_parameters=parameters, **adapted)
