"""Good recipes by name, and which one to take where none is named."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .images.quality import NONE
from .methods.registry import METHODS, get_method
from .networks import PRECOMPUTED, get_patch_features, missing_dependency
from .patches.vectors import PATCH_FEATURES
from .recipes import Recipe

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
