"""The content of a fitted model, and its validation.

`model_file` writes it to a file and reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any

from numpy.typing import NDArray

from .decisions.atom_notes import check_notes
from .decisions.image_rules import n_scores
from .decisions.tuning import check_tuning
from .learnt_arrays import ArraySpec, Sizes, validate_arrays
from .parameters import check_choice, check_kind, check_number, check_whole_number

# Parameters of the decision that are not arrays, by the kind of model.
DECISIONS = {
    "tissue-classifier": ("shift",),
    "region-detector": ("min_patches", "margin_threshold"),
    "ensemble": ("shift", "offset", "tanh_scale"),
}
# Arrays of a model, in addition to "method.NAME" of its method (`fitted_arrays`) and "rule.NAME" of
# its aggregator (`array_schema`). Dimensions: classes; scores, 1 for two classes, else the number
# of classes; features, the length of a feature vector as the method sees it; inputs, its length
# before projection; estimators, of an ensemble.
ARRAYS = {
    "projection.mean": ArraySpec("inputs"),
    "projection.components": ArraySpec("features, inputs"),
    # Reference of each class per atom, from training patches: see `AtomReference`.
    "class_reference.usage": ArraySpec("classes, codes", "shares from 0 to 1"),
    "class_reference.codes": ArraySpec("classes, codes"),
    "class_reference.mean_codes": ArraySpec("classes, codes"),
    "class_reference.margins": ArraySpec("classes, classes, codes"),
    "class_reference.class_votes": ArraySpec("classes, classes, codes"),
    # For m = 1 … 20.
    "region_size.false_negative_rate": ArraySpec("20", "shares from 0 to 1"),
    "region_size.false_positive_rate": ArraySpec("20", "shares from 0 to 1"),
    # Divisors of the scores of the estimators.
    "combination.scales": ArraySpec("estimators", "positive numbers"),
    "combination.weights": ArraySpec("estimators", "positive numbers"),
    "calibration.slopes": ArraySpec("scores, classes"),
    "calibration.offsets": ArraySpec("classes"),
    # Of the calibration images.
    "calibration.nonconformity_scores": ArraySpec("images", "shares from 0 to 1"),
}


def array_specs(*parts: str) -> dict[str, ArraySpec]:
    """Those of ARRAYS that belong to these parts of a model."""
    return {name: what for name, what in ARRAYS.items() if name.partition(".")[0] in parts}


@dataclass(frozen=True)
class ModelData:
    """The content of a fitted model.

    kind : "tissue-classifier", "region-detector" or "ensemble"
    classes : names in the order of scores; with two, the second scores positive
    recipe : settings of the model; for an ensemble, those of its first estimator
    mpp : pixel size of the training images if all have the same
    n_features : length of a feature vector as the method sees it
    weights : digest of the encoder's weights; empty for pixel features
    decision_parameters : numbers of the decision, see DECISIONS
    training_info : record of the training
    estimators : content of each model of an ensemble
    atom_annotations : labels and states of atoms set by users, see `decisions.atom_notes`
    arrays : by name, see ARRAYS
    """

    kind: str
    classes: list[str]
    recipe: dict[str, Any]
    mpp: float | None
    n_features: int
    weights: str
    decision_parameters: dict[str, float]
    training_info: dict[str, Any]
    estimators: list[ModelData] = field(default_factory=list)
    atom_annotations: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in _FIELDS}
        return fields | {"estimators": [member.header() for member in self.estimators]}

    def all_arrays(self) -> dict[str, NDArray[Any]]:
        found = dict(self.arrays)
        for place, member in enumerate(self.estimators):
            own = member.all_arrays()
            found |= {f"member{place}.{name}": array for name, array in own.items()}
        return found

    @classmethod
    def of(cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ModelData:
        """Make the content from a header and the arrays, as `header` and `all_arrays` give them."""
        own: dict[str, NDArray[Any]] = {}
        parts: dict[str, dict[str, NDArray[Any]]] = {
            f"member{place}": {} for place in range(len(header["estimators"]))
        }
        for name, array in arrays.items():
            start, _, rest = name.partition(".")
            if start in parts:
                parts[start][rest] = array
            else:
                own[name] = array
        pairs = zip(header["estimators"], parts.values(), strict=True)
        members = [cls.of(words, theirs) for words, theirs in pairs]
        return cls(**{name: header[name] for name in _FIELDS}, estimators=members, arrays=own)

    def check_arrays(self, declared: Mapping[str, ArraySpec], sizes: Sizes) -> None:
        """Refuses arrays other than those declared; `sizes` beside those known of any model."""
        known: dict[str, int | str] = {
            "classes": len(self.classes),
            "scores": n_scores(len(self.classes)),
            "features": self.n_features,
            "estimators": len(self.estimators),
        }
        for word in set(known) & set(sizes):
            if known[word] != sizes[word]:
                there = short(known[word])
                raise ValueError(f"there are {there} {word}, by the recipe {sizes[word]}")
        validate_arrays(declared, self.arrays, known | dict(sizes))


# --- header -------------------------------------------------------------------------------------

# Types of the header's fields.
_FIELDS = {
    "kind": "str",
    "classes": "list[str]",
    "recipe": "dict[str, Any]",
    "mpp": "float | None",
    "n_features": "int",
    "weights": "str",
    "decision_parameters": "dict[str, Any]",
    "training_info": "dict[str, Any]",
    "atom_annotations": "list[Any]",
}
# Fields of an ensemble that must equal those of its first member.
_OF_FIRST = ("recipe", "mpp", "n_features", "weights")
_RECIPE = {"method_parameters": "dict[str, Any]", "features": "str"}
# Of the record of the training: what every model has, and what some have.
_TRAINING = {
    "manifest_digest": "str",
    "n_images": "int",
    "n_patients": "int",
    "random_state": "int | None",
}
_TRAINING_OF_SOME = {
    "n_patches": "int",
    "folds": "int",
    "started_from": "dict[str, Any]",
    "left_out": "list[str]",
    "confounders": "list[str]",
    "tuning": "list[Any]",
    "estimators": "list[Any]",
}


def validate_header(header: Mapping[str, Any]) -> None:
    """Validate the fields of a header, their types, and whether they fit each other.

    The settings of the recipe are checked when the model is made.
    """
    fields = {*_FIELDS, "estimators"}
    for name in sorted(fields ^ (set(header) - {"schema", "versions"})):
        raise ValueError(f"{short(name)} is {'missing' if name in fields else 'not known'}")
    _check_fields("", header, _FIELDS)
    check_choice("kind", header["kind"], DECISIONS)
    _check_classes(header["classes"])
    if header["mpp"] is not None:
        check_number("mpp", header["mpp"], above=True)
    check_whole_number("n_features", header["n_features"], 1)
    _check_fields("recipe: ", header["recipe"], _RECIPE)
    _check_decision(header["kind"], header["decision_parameters"])
    _check_training(header["training_info"])
    check_notes(header["atom_annotations"])
    if header["kind"] == "region-detector" and len(header["classes"]) != 2:
        raise ValueError("a region-detector has two classes")
    _check_members(header)


def _check_fields(where: str, values: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{where}{name} is missing")
        check_kind(f"{where}{name}", values[name], kind)


def _check_classes(classes: list[str]) -> None:
    if not all(map(_is_text, classes)) or not len(set(classes)) == len(classes) >= 2:
        raise ValueError(f"classes must be two different names or more, not {short(classes)}")


def _is_text(name: str) -> bool:
    """Return whether a name is visible and valid Unicode, without lone surrogates."""
    return bool(name.strip()) and name == name.encode("utf-8", "replace").decode()


def _check_decision(kind: str, decision: Mapping[str, Any]) -> None:
    if set(decision) != set(DECISIONS[kind]):
        raise ValueError(f"a {kind} decides by {DECISIONS[kind]}, not {short(decision)}")
    for name, value in decision.items():
        check_kind(name, value, "float")
        check_number(name, value, low=-float("inf"))
    if "min_patches" in decision:
        check_whole_number("min_patches", decision["min_patches"], 1)


def _check_training(training: Mapping[str, Any]) -> None:
    _check_fields("training_info: ", training, _TRAINING)
    known = {name: kind for name, kind in _TRAINING_OF_SOME.items() if name in training}
    _check_fields("training_info: ", training, known)
    check_tuning(training.get("tuning", []))
    for heard in training.get("estimators", []):
        check_kind("training_info: an estimator", heard, "dict[str, Any]")
        own = {"unseen": "float | None", "recipe": "dict[str, Any]"}
        # A member that could not be trained has no weight.
        _check_fields(
            "a member's ", heard, own if "failure" in heard else own | {"weight": "float"}
        )
        _check_fields("a member's recipe: ", heard["recipe"], _RECIPE)


def _check_members(header: Mapping[str, Any]) -> None:
    members = header["estimators"]
    if not isinstance(members, list) or bool(members) != (header["kind"] == "ensemble"):
        raise ValueError("only an ensemble has estimators, a list of models")
    for member in members:
        check_kind("a member", member, "dict[str, Any]")
        if member.get("kind") != "tissue-classifier" or member.get("classes") != header["classes"]:
            raise ValueError(
                "the estimators of an ensemble must be tissue-classifiers of its classes"
            )
        validate_header(member)
    for name in _OF_FIRST if members else ():
        if header[name] != members[0][name]:
            raise ValueError(f"{name} of an ensemble must be that of its first estimator")
