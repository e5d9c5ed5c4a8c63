"""All there is of a fitted model: what it is made of, and what that must be.

What models give and take; how it lies in a file is the affair of `model_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any

from numpy.typing import NDArray

from .decisions.atom_notes import check_notes
from .decisions.image_rules import n_scores
from .decisions.tuning import check_tuning
from .learnt_arrays import Learnt, Sizes, check_arrays
from .parameters import check_kind, check_number, check_whole_number

# The numbers that an answer depends on beside the arrays, by the kind of model.
DECISIONS = {
    "tissue-classifier": ("shift",),
    "region-detector": ("least_patches", "cut"),
    "panel": ("shift", "offset", "bend"),
}
# What the arrays of a model are, beside "method.NAME" of its method (`fitted_arrays`) and
# "rule.NAME" of its rule over patches (`learnt`). The words of their shapes: classes; scores, 1 for
# two classes, else classes; features, the length of a vector as the method sees it; inputs, before
# it is projected; members, of a panel.
ARRAYS = {
    "projection.mean": Learnt("inputs"),
    "projection.components": Learnt("features, inputs"),
    # What training patches of each class say, atom by atom: see `AtomEvidence`.
    "use.shares": Learnt("classes, codes", "shares from 0 to 1"),
    "use.codes": Learnt("classes, codes"),
    "use.leaning": Learnt("classes, codes"),
    "use.margins": Learnt("classes, classes, codes"),
    "use.wins": Learnt("classes, classes, codes"),
    # For m = 1 … 20.
    "curve.miss": Learnt("20", "shares from 0 to 1"),
    "curve.alarm": Learnt("20", "shares from 0 to 1"),
    # What the members' scores are divided by.
    "combination.scales": Learnt("members", "positive numbers"),
    "combination.weights": Learnt("members", "positive numbers"),
    "calibration.slopes": Learnt("scores, classes"),
    "calibration.offsets": Learnt("classes"),
    # Of the images that it was calibrated on.
    "calibration.misfits": Learnt("images", "shares from 0 to 1"),
}


def arrays_of(*parts: str) -> dict[str, Learnt]:
    """Those of ARRAYS that belong to these parts of a model."""
    return {name: what for name, what in ARRAYS.items() if name.partition(".")[0] in parts}


@dataclass(frozen=True)
class ModelContent:
    """All there is of a fitted model.

    kind : "tissue-classifier", "region-detector" or "panel"
    classes : names in the order of scores; with two, the second scores positive
    recipe : the settings of the model; of a panel, those of its first member
    mpp : pixel size of the training images, where all have the same
    n_features : length of a vector as the method sees it
    weights : digest of the network behind the vectors; empty for vectors of pixels
    decision : numbers that an answer depends on beside the arrays, see DECISIONS
    training : what is known of the training, for the record
    members : of a panel, each like this
    atoms : what people have said of its atoms, see `decisions.atom_notes`; of a panel, its members'
    arrays : by name, see ARRAYS
    """

    kind: str
    classes: list[str]
    recipe: dict[str, Any]
    mpp: float | None
    n_features: int
    weights: str
    decision: dict[str, float]
    training: dict[str, Any]
    members: list[ModelContent] = field(default_factory=list)
    atoms: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        words = {name: getattr(self, name) for name in _WORDS}
        return words | {"members": [member.header() for member in self.members]}

    def all_arrays(self) -> dict[str, NDArray[Any]]:
        found = dict(self.arrays)
        for place, member in enumerate(self.members):
            own = member.all_arrays()
            found |= {f"member{place}.{name}": array for name, array in own.items()}
        return found

    @classmethod
    def of(cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ModelContent:
        """The reverse of `header` and `all_arrays`."""
        own: dict[str, NDArray[Any]] = {}
        parts: dict[str, dict[str, NDArray[Any]]] = {
            f"member{place}": {} for place in range(len(header["members"]))
        }
        for name, array in arrays.items():
            start, _, rest = name.partition(".")
            if start in parts:
                parts[start][rest] = array
            else:
                own[name] = array
        pairs = zip(header["members"], parts.values(), strict=True)
        members = [cls.of(words, theirs) for words, theirs in pairs]
        return cls(**{name: header[name] for name in _WORDS}, members=members, arrays=own)

    def check_arrays(self, declared: Mapping[str, Learnt], sizes: Sizes) -> None:
        """Refuses arrays other than those declared; `sizes` beside those known of any model."""
        known: dict[str, int | str] = {
            "classes": len(self.classes),
            "scores": n_scores(len(self.classes)),
            "features": self.n_features,
            "members": len(self.members),
        }
        for word in set(known) & set(sizes):
            if known[word] != sizes[word]:
                there = short(known[word])
                raise ValueError(f"there are {there} {word}, by the recipe {sizes[word]}")
        check_arrays(declared, self.arrays, known | dict(sizes))


# --- words --------------------------------------------------------------------------------------


def check_words(header: Mapping[str, Any]) -> None:
    """Refuses a header that is none: its words, their types, and whether they fit each other.

    What the settings of the recipe mean is looked at when the model is made.
    """
    words = {*_WORDS, "members"}
    for name in sorted(words ^ (set(header) - {"schema", "versions"})):
        raise ValueError(f"{short(name)} is {'missing' if name in words else 'not known'}")
    for name, check in _WORDS.items():
        check(header[name])
    kind, members = header["kind"], header["members"]
    if set(header["decision"]) != set(DECISIONS[kind]):
        raise ValueError(f"a {kind} decides by {DECISIONS[kind]}, not {short(header['decision'])}")
    if kind == "region-detector":
        check_whole_number("least_patches", header["decision"]["least_patches"], 1)
        if len(header["classes"]) != 2:
            raise ValueError("a region-detector has two classes")
    _check_members(kind, header["classes"], members)
    for name in _OF_FIRST if members else ():
        if header[name] != members[0][name]:
            raise ValueError(f"{name} of a panel must be that of its first member")


def _check_members(kind: str, classes: list[str], members: object) -> None:
    if not isinstance(members, list) or bool(members) != (kind == "panel"):
        raise ValueError("members are a list of models, of a panel and of nothing else")
    for member in members:
        check_kind("a member", member, "dict[str, Any]")
        if member.get("kind") != "tissue-classifier" or member.get("classes") != classes:
            raise ValueError("members are tissue-classifiers of the panel's classes")
        check_words(member)


def _check_kind_of_model(kind: object) -> None:
    if not isinstance(kind, str) or kind not in DECISIONS:
        raise ValueError(f"kind must be one of {sorted(DECISIONS)}, not {short(kind)}")


def _check_classes(classes: object) -> None:
    names = classes if isinstance(classes, list) else []
    if not all(isinstance(name, str) and _is_text(name) for name in names) or not (
        len(set(names)) == len(names) >= 2
    ):
        raise ValueError(f"classes must be two different names or more, not {short(classes)}")


def _is_text(name: str) -> bool:
    """Letters that can be written: half of a pair of UTF-16 cannot."""
    return bool(name.strip()) and name == name.encode("utf-8", "replace").decode()


def _check_mpp(mpp: object) -> None:
    if mpp is not None:
        check_number("mpp", mpp, above=True)


def _check_decision(decision: object) -> None:
    check_kind("decision", decision, "dict[str, Any]")
    assert isinstance(decision, dict)
    for name, value in decision.items():
        check_kind(name, value, "float")
        check_number(name, value, low=-float("inf"))


def _check_training(training: object) -> None:
    check_kind("training", training, "dict[str, Any]")
    assert isinstance(training, dict)
    missing = sorted({n for n, (_, needed) in _TRAINING.items() if needed} - set(training))
    if missing:
        raise ValueError(f"training lacks {', '.join(missing)}")
    for name, (annotation, _) in _TRAINING.items():
        if name in training:
            check_kind(f"training: {name}", training[name], annotation)
    check_tuning(training.get("tuning", []))
    for heard in _list(training.get("members", [])):
        check_kind("training: a member", heard, "dict[str, Any]")
        check_kind("unseen", heard.get("unseen"), "float | None")
        check_kind("a member's recipe", heard.get("recipe"), "dict[str, Any]")
        parameters = heard["recipe"].get("method_parameters")
        check_kind("method_parameters", parameters, "dict[str, Any]")


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"a list is expected, not {short(value)}")
    return value


def _check_recipe(recipe: object) -> None:
    check_kind("recipe", recipe, "dict[str, Any]")
    assert isinstance(recipe, dict)
    check_kind("method_parameters", recipe.get("method_parameters"), "dict[str, Any]")
    check_kind("vectors", recipe.get("vectors"), "str")


def _check_weights(weights: object) -> None:
    check_kind("weights", weights, "str")


def _check_n_features(n_features: object) -> None:
    check_whole_number("n_features", n_features, 1)


# What a panel has from its first member, which is the one that is shown.
_OF_FIRST = ("recipe", "mpp", "n_features", "weights")
# Of what is known of a training: what it is, and whether any model has it.
_TRAINING = {
    "manifest_digest": ("str", True),
    "n_images": ("int", True),
    "n_patients": ("int", True),
    "random_state": ("int | None", True),
    "n_patches": ("int", False),
    "folds": ("int", False),
    "started_from": ("dict[str, Any]", False),
    "left_out": ("list[str]", False),
    "confounders": ("list[str]", False),
}
_WORDS: dict[str, Callable[[object], None]] = {
    "kind": _check_kind_of_model,
    "classes": _check_classes,
    "recipe": _check_recipe,
    "mpp": _check_mpp,
    "n_features": _check_n_features,
    "weights": _check_weights,
    "decision": _check_decision,
    "training": _check_training,
    "atoms": check_notes,
}
