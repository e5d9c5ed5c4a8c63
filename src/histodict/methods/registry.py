"""Registry of the methods, with their input features and default parameters.

A method classifies the vectors of patches, or one feature vector of the whole image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any

from ..utils.validation import check_choice, check_type

MEAN_VECTOR = "mean-vector"


@dataclass(frozen=True)
class MethodSpec:
    """Specification of a method.

    Attributes
    ----------
    import_path : "module:class", relative to this package
    summary : one-line description
    features : name of the feature vector of a whole image, a key of `image_features.FEATURES` or
        MEAN_VECTOR for the mean of its patch vectors; None for a method that classifies patches
    aggregation : name of the aggregator of patch predictions that the paper of the method defines;
        None for the default
    default_parameters : default parameters of the method in a recipe
    paper_parameters : parameters of the method in the comparison of the DFDL paper
    channels_parameter : name of the parameter for the number of colour channels; None if the method
        has none
    """

    import_path: str
    summary: str
    features: str | None = None
    aggregation: str | None = None
    default_parameters: dict[str, Any] = field(default_factory=dict)
    paper_parameters: dict[str, Any] = field(default_factory=dict)
    channels_parameter: str | None = None

    @property
    def is_patch_level(self) -> bool:
        """Whether the method classifies patches rather than whole images."""
        return self.features is None

    @property
    def uses_patch_features(self) -> bool:
        """Whether the method uses patch vectors or their mean over the image."""
        return self.features in (None, MEAN_VECTOR)

    @property
    def needs_pixels(self) -> bool:
        """Whether the method needs the image or its colour channels, not only patch vectors."""
        return bool(self.channels_parameter) or not self.uses_patch_features

    def load_class(self) -> type:
        """Import and return the class of the method."""
        module, name = self.import_path.split(":")
        method_class: type = getattr(import_module(f".{module}", __package__), name)
        return method_class

    def check_parameters(self, parameters: dict[str, Any]) -> None:
        """Raise ValueError if a parameter does not exist or its value is invalid."""
        known = signature(self.load_class()).parameters
        for name, value in parameters.items():
            if name not in known:
                raise ValueError(f"unknown parameter {name!r}; the method has {', '.join(known)}")
            check_type(name, value, str(known[name].annotation))
        self.load_class()(**parameters).check_parameters()

    def make_estimator(self, parameters: dict[str, Any], **common: Any) -> Any:
        """Return an unfitted estimator.

        Parameters
        ----------
        parameters : parameters of the method
        common : further parameters, such as the seed; those that the method does not have are
            ignored
        """
        estimator = self.load_class()(**parameters)
        known = estimator.get_params()
        return estimator.set_params(**{k: v for k, v in common.items() if k in known})


METHODS: dict[str, MethodSpec] = {
    "dfdl": MethodSpec(
        "dfdl:DFDL",
        (
            "one dictionary per class, which reconstructs patches of this class well and other "
            "patches poorly (Vu 2016)"
        ),
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
        (
            "one dictionary per class, which reconstructs patches of this class well (online "
            "learning, Mairal 2010)"
        ),
        default_parameters={"n_atoms": 200},
        paper_parameters={"n_atoms": 500},
    ),
    "lcksvd": MethodSpec(
        "lcksvd:LCKSVD",
        "one dictionary with label-consistent codes (label-consistent K-SVD, Jiang 2013)",
        default_parameters={"n_atoms": 100, "n_iter": 20, "n_nonzero": 10},
        paper_parameters={"n_atoms": 500, "n_nonzero": 30, "n_iter": 50, "decision": "residual"},
    ),
    "fddl": MethodSpec(
        "fddl:FDDL",
        "one dictionary per class, with discriminative codes (Fisher criterion, Yang 2011)",
        default_parameters={"n_atoms": 100, "n_iter": 10},
        paper_parameters={"n_atoms": 500},
    ),
    "nayak": MethodSpec(
        "nayak:Nayak",
        "unsupervised features with a fast encoder, and an SVM on their mean (Nayak 2013)",
        aggregation="codes",
        default_parameters={"n_atoms": 200},
        paper_parameters={"n_atoms": 1000},
    ),
    "src": MethodSpec(
        "src:SRC",
        "sparse representation of patches by training patches (Wright 2009)",
        paper_parameters={"n_atoms": 2500},
    ),
    "src-image": MethodSpec(
        "src:SRC",
        "sparse representation of the luminance of whole images, for comparison with Vu 2016",
        features="luminance",
        default_parameters={"n_atoms": None},
        paper_parameters={"n_atoms": None},
    ),
    "shirc": MethodSpec(
        "shirc:SHIRC",
        "joint sparse representation of the colour channels of patches (Srinivas 2014)",
        paper_parameters={"n_atoms": 2500},
        channels_parameter="n_channels",
    ),
    "shirc-image": MethodSpec(
        "shirc:SHIRC",
        "joint sparse representation of the colour channels of whole images",
        features="planes",
        default_parameters={"n_atoms": None},
        paper_parameters={"n_atoms": None},
    ),
    "wndcharm": MethodSpec(
        "wndcharm:WNDCHARM",
        "generic image features, feature selection and an SVM (Orlov, Shamir 2008)",
        features="wndcharm",
    ),
    "wnd-neighbours": MethodSpec(
        "wndcharm:WNDCHARM",
        "the features of wndcharm with the original weighted-neighbour distance",
        features="wndcharm",
        default_parameters={"decision": "neighbours"},
        paper_parameters={"decision": "neighbours"},
    ),
    "nearest-mean": MethodSpec(
        "linear_baselines:NearestMeanClassifier",
        "nearest class mean by cosine similarity (SimpleShot): a simple test of an encoder",
        aggregation="margin",
    ),
    "logistic": MethodSpec(
        "linear_baselines:LogisticPatchClassifier",
        "logistic regression on patch vectors: a simple test of an encoder",
        aggregation="margin",
    ),
    "nearest-patches": MethodSpec(
        "linear_baselines:NearestPatchClassifier",
        "k nearest training patches: a simple test of an encoder",
        aggregation="margin",
    ),
    "mean-logistic": MethodSpec(
        "linear_baselines:LogisticPatchClassifier",
        (
            "logistic regression on the mean patch vector of an image: the simplest test of an "
            "encoder"
        ),
        features=MEAN_VECTOR,
        default_parameters={"standardize": True},
        paper_parameters={"standardize": True},
    ),
    "lbp-colour": MethodSpec(
        "svm:StandardizedSVM",
        "local binary patterns, colour histograms and an SVM: a strong simple baseline",
        features="lbp-colour",
        default_parameters={"kernel": "linear"},
        paper_parameters={"kernel": "linear"},
    ),
}


def get_method(name: str) -> MethodSpec:
    """Return the specification of a method by name; raise ValueError for unknown names."""
    check_choice("method", name, METHODS)
    return METHODS[name]
