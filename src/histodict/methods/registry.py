"""The methods by name, and what each of them looks at.

A method judges patch vectors, or one vector of the whole image; `features` says which, and `rule`
how the patches' votes become the image's answer where the method's own paper says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any

from ..parameters import check_choice, check_kind

MEAN_VECTOR = "mean-vector"


@dataclass(frozen=True)
class MethodEntry:
    """`home` is module:class; `small` are the parameters of the default preset, `published` those
    of the paper's comparison. `features` names the vector of a whole image, MEAN_VECTOR the mean of
    its patches' vectors; None: patches. `channels`: the parameter that must know how many colour
    channels a vector has.
    """

    home: str
    summary: str
    features: str | None = None
    rule: str | None = None
    small: dict[str, Any] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    channels: str | None = None

    @property
    def on_patches(self) -> bool:
        """Whether it judges patches one by one, and so leaves a map; else the image as a whole."""
        return self.features is None

    @property
    def sees_patches(self) -> bool:
        """Whether it sees patches' vectors at all, if only their mean."""
        return self.features in (None, MEAN_VECTOR)

    @property
    def needs_pixels(self) -> bool:
        """Whether vectors of patches are not enough: it looks at the image, or at its colours."""
        return bool(self.channels) or not self.sees_patches

    def load(self) -> type:
        """The method's class."""
        module, name = self.home.split(":")
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


METHODS: dict[str, MethodEntry] = {
    "dfdl": MethodEntry(
        "dfdl:DFDL",
        "class dictionaries that code their own class well and the others badly (Vu 2016)",
        small={"n_atoms": 200, "n_iter": 20},
        published={
            "n_atoms": 500,
            "penalty": 0.1,
            "rho": 0.001,
            "step": "published",
            "n_iter": 50,
            "tol": 0.0,
        },
    ),
    "odl": MethodEntry(
        "odl:ODL",
        "class dictionaries that code their own class well (online learning, Mairal 2010)",
        small={"n_atoms": 200},
        published={"n_atoms": 500},
    ),
    "lcksvd": MethodEntry(
        "lcksvd:LCKSVD",
        "one dictionary whose codes also tell the class (label-consistent K-SVD, Jiang 2013)",
        small={"n_atoms": 100, "n_iter": 20, "n_nonzero": 10},
        published={"n_atoms": 500, "n_nonzero": 30, "n_iter": 50, "decision": "residual"},
    ),
    "fddl": MethodEntry(
        "fddl:FDDL",
        "class dictionaries whose codes differ between classes (Fisher criterion, Yang 2011)",
        small={"n_atoms": 100, "n_iter": 10},
        published={"n_atoms": 500},
    ),
    "nayak": MethodEntry(
        "nayak:Nayak",
        "unsupervised features with a fast encoder, SVM on their mean (Nayak 2013)",
        rule="codes",
        small={"n_atoms": 200},
        published={"n_atoms": 1000},
    ),
    "src": MethodEntry(
        "src:SRC",
        "patches written with few training patches (sparse representation, Wright 2009)",
        published={"n_atoms": 2500},
    ),
    "src-image": MethodEntry(
        "src:SRC",
        "the same for the luminance of the whole image, as the paper compares",
        features="luminance",
        small={"n_atoms": None},
        published={"n_atoms": None},
    ),
    "shirc": MethodEntry(
        "shirc:SHIRC",
        "patches whose colour channels use the same few training patches (Srinivas 2014)",
        published={"n_atoms": 2500},
        channels="n_channels",
    ),
    "shirc-image": MethodEntry(
        "shirc:SHIRC",
        "the same for the colour channels of the whole image",
        features="planes",
        small={"n_atoms": None},
        published={"n_atoms": None},
    ),
    "wndcharm": MethodEntry(
        "wndcharm:WNDCHARM",
        "thousands of generic image features, the best of them, SVM (Orlov, Shamir 2008)",
        features="wndcharm",
    ),
    "wnd-neighbours": MethodEntry(
        "wndcharm:WNDCHARM",
        "the same features with the original weighted-neighbour distance",
        features="wndcharm",
        small={"decision": "neighbours"},
        published={"decision": "neighbours"},
    ),
    "nearest-mean": MethodEntry(
        "vector_heads:NearestMean",
        "the class of the nearest mean direction (SimpleShot): a baseline for learned vectors",
        rule="margin",
    ),
    "logistic": MethodEntry(
        "vector_heads:LogisticPatches",
        "logistic regression on patch vectors: a baseline for learned vectors",
        rule="margin",
    ),
    "nearest-patches": MethodEntry(
        "vector_heads:NearestPatches",
        "votes of the nearest training patches: a baseline for learned vectors",
        rule="margin",
    ),
    "mean-logistic": MethodEntry(
        "vector_heads:LogisticPatches",
        "logistic regression on the mean patch vector of an image: what most would try first",
        features=MEAN_VECTOR,
        small={"standardise": True},
        published={"standardise": True},
    ),
    "lbp-colour": MethodEntry(
        "support_vectors:SupportVectors",
        "local binary patterns and colour histograms, SVM: a strong simple baseline",
        features="lbp-colour",
        small={"kernel": "linear"},
        published={"kernel": "linear"},
    ),
}


def method_entry(name: str) -> MethodEntry:
    check_choice("method", name, METHODS)
    return METHODS[name]
