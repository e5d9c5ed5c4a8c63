"""The methods by name, and what each of them looks at.

A method judges patch vectors, or one vector of the whole image; `features` says which, and `rule`
how the patches' votes become the image's answer where the method's own paper says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any

from ..utils.validation import check_choice, check_kind

MEAN_VECTOR = "mean-vector"


@dataclass(frozen=True)
class MethodSpec:
    """`home` is module:class; `small` are the parameters of the default preset, `published` those
    of the paper's comparison. `features` names the vector of a whole image, MEAN_VECTOR the mean of
    its patches' vectors; None: patches. `channels`: the parameter that must know how many colour
    channels a vector has.
    """

    import_path: str
    summary: str
    features: str | None = None
    aggregation: str | None = None
    default_parameters: dict[str, Any] = field(default_factory=dict)
    paper_parameters: dict[str, Any] = field(default_factory=dict)
    channels: str | None = None

    @property
    def is_patch_level(self) -> bool:
        """Whether it judges patches one by one, and so leaves a map; else the image as a whole."""
        return self.features is None

    @property
    def uses_patch_features(self) -> bool:
        """Whether it sees patches' vectors at all, if only their mean."""
        return self.features in (None, MEAN_VECTOR)

    @property
    def needs_pixels(self) -> bool:
        """Whether vectors of patches are not enough: it looks at the image, or at its colours."""
        return bool(self.channels) or not self.uses_patch_features

    def load(self) -> type:
        """The method's class."""
        module, name = self.import_path.split(":")
        found: type = getattr(import_module(f".{module}", __package__), name)
        return found

    def check(self, parameters: dict[str, Any]) -> None:
        """Refuses parameters that it does not have, or whose values it cannot take."""
        known = signature(self.load()).parameters
        for name, value in parameters.items():
            if name not in known:
                raise ValueError(f"the method has no parameter {name!r}: it has {', '.join(known)}")
            check_kind(name, value, str(known[name].annotation))
        self.load()(**parameters).check_parameters()

    def make(self, parameters: dict[str, Any], **common: Any) -> Any:
        """An untrained method; of the common parameters (seed, threads) those that it has."""
        method = self.load()(**parameters)
        known = method.get_params()
        return method.set_params(**{k: v for k, v in common.items() if k in known})


METHODS: dict[str, MethodSpec] = {
    "dfdl": MethodSpec(
        "dfdl:DFDL",
        "class dictionaries that code their own class well and the others badly (Vu 2016)",
        default_parameters={"n_atoms": 200, "n_iter": 20},
        paper_parameters={
            "n_atoms": 500,
            "penalty": 0.1,
            "rho": 0.001,
            "step": "published",
            "n_iter": 50,
            "tol": 0.0,
        },
    ),
    "odl": MethodSpec(
        "odl:ODL",
        "class dictionaries that code their own class well (online learning, Mairal 2010)",
        default_parameters={"n_atoms": 200},
        paper_parameters={"n_atoms": 500},
    ),
    "lcksvd": MethodSpec(
        "lcksvd:LCKSVD",
        "one dictionary whose codes also tell the class (label-consistent K-SVD, Jiang 2013)",
        default_parameters={"n_atoms": 100, "n_iter": 20, "n_nonzero": 10},
        paper_parameters={"n_atoms": 500, "n_nonzero": 30, "n_iter": 50, "decision": "residual"},
    ),
    "fddl": MethodSpec(
        "fddl:FDDL",
        "class dictionaries whose codes differ between classes (Fisher criterion, Yang 2011)",
        default_parameters={"n_atoms": 100, "n_iter": 10},
        paper_parameters={"n_atoms": 500},
    ),
    "nayak": MethodSpec(
        "nayak:Nayak",
        "unsupervised features with a fast encoder, SVM on their mean (Nayak 2013)",
        aggregation="codes",
        default_parameters={"n_atoms": 200},
        paper_parameters={"n_atoms": 1000},
    ),
    "src": MethodSpec(
        "src:SRC",
        "patches written with few training patches (sparse representation, Wright 2009)",
        paper_parameters={"n_atoms": 2500},
    ),
    "src-image": MethodSpec(
        "src:SRC",
        "the same for the luminance of the whole image, as the paper compares",
        features="luminance",
        default_parameters={"n_atoms": None},
        paper_parameters={"n_atoms": None},
    ),
    "shirc": MethodSpec(
        "shirc:SHIRC",
        "patches whose colour channels use the same few training patches (Srinivas 2014)",
        paper_parameters={"n_atoms": 2500},
        channels="n_channels",
    ),
    "shirc-image": MethodSpec(
        "shirc:SHIRC",
        "the same for the colour channels of the whole image",
        features="planes",
        default_parameters={"n_atoms": None},
        paper_parameters={"n_atoms": None},
    ),
    "wndcharm": MethodSpec(
        "wndcharm:WNDCHARM",
        "thousands of generic image features, the best of them, SVM (Orlov, Shamir 2008)",
        features="wndcharm",
    ),
    "wnd-neighbours": MethodSpec(
        "wndcharm:WNDCHARM",
        "the same features with the original weighted-neighbour distance",
        features="wndcharm",
        default_parameters={"decision": "neighbours"},
        paper_parameters={"decision": "neighbours"},
    ),
    "nearest-mean": MethodSpec(
        "linear_baselines:NearestMeanClassifier",
        "the class of the nearest mean direction (SimpleShot): a baseline for learned vectors",
        aggregation="margin",
    ),
    "logistic": MethodSpec(
        "linear_baselines:LogisticPatchClassifier",
        "logistic regression on patch vectors: a baseline for learned vectors",
        aggregation="margin",
    ),
    "nearest-patches": MethodSpec(
        "linear_baselines:NearestPatchClassifier",
        "votes of the nearest training patches: a baseline for learned vectors",
        aggregation="margin",
    ),
    "mean-logistic": MethodSpec(
        "linear_baselines:LogisticPatchClassifier",
        "logistic regression on the mean patch vector of an image: what most would try first",
        features=MEAN_VECTOR,
        default_parameters={"standardise": True},
        paper_parameters={"standardise": True},
    ),
    "lbp-colour": MethodSpec(
        "svm:StandardizedSVM",
        "local binary patterns and colour histograms, SVM: a strong simple baseline",
        features="lbp-colour",
        default_parameters={"kernel": "linear"},
        paper_parameters={"kernel": "linear"},
    ),
}


def get_method(name: str) -> MethodSpec:
    check_choice("method", name, METHODS)
    return METHODS[name]
