"""Every method of the paper's comparison on pixels, with settings tuned for the method.

    python -m benchmarks.tuned_methods --output tuned --jobs 16
    python -m benchmarks.tuned_methods --output tuned --tables

Patches and penalty of the preset `fast` were chosen for DFDL on these sets. Here every method, DFDL
included, gets its own settings: in each training half the best of nine candidates (features of
whole images: four or six) in three inner folds by patient, by the mean of balanced accuracy and
AUC. Test patients do not affect the choice. Models are trained on one half of the patients and
tested on the other, both ways, `--repeats` times; the same method with the settings of the preset
is reported too.

Candidates are three kinds of patches, times three values of the parameter that controls sparsity,
around its published value. Inner models use 1,000 training patches per class and, at full scale,
every other patch in both directions; final models use 2,000 and all patches.

`HISTODICT_DATA` is the folder of the sets. Finished results are files in the output folder and are
not computed again. Takes about 2.8 CPU hours.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histodict.datasets.manifest import Manifest
from histodict.decision.aggregation import predicted_class
from histodict.methods.registry import get_method
from histodict.metrics.scores import balanced_accuracy
from histodict.model_selection.protocols import k_folds
from histodict.model_selection.splits import Split
from histodict.models import TissueClassifier
from histodict.models.image_pipeline import WholeImagePipeline
from histodict.models.recipe import Recipe, preset

from . import report
from . import result_store as store
from .cached_patches import max_sampled, read_patches, train_and_test
from .machine import describe_machine
from .result_store import Done, Results, sides

PATCHES: dict[str, dict[str, Any]] = {
    "16 px at half scale, surroundings": {"patch_px": 16, "downsample": 2.0, "context_scale": 2},
    "20 px at half scale": {"patch_px": 20, "downsample": 2.0, "context_scale": 1},
    "20 px at full scale": {"patch_px": 20, "downsample": 1.0, "context_scale": 1},
}
_PENALTIES = ("penalty", (0.4, 0.2, 0.1))
# Parameter that controls the sparsity of codes in prediction or training.
SPARSITY: dict[str, tuple[str, tuple[float, ...]]] = {
    "dfdl": _PENALTIES,  # n_nonzero follows from the initial dictionary
    "odl": _PENALTIES,
    "fddl": _PENALTIES,
    "nayak": _PENALTIES,
    "src": _PENALTIES,
    "lcksvd": ("n_nonzero", (10, 5, 30)),  # greedy codes in training and prediction
    "shirc": ("n_nonzero", (5, 3, 10)),
}
# Downsampling for features of whole images. WND-CHARM at full scale takes half an hour, and some of
# its features were less accurate there.
SCALES = {"wndcharm": (2.0, 4.0), "lbp-colour": (2.0, 4.0, 1.0)}
STAINS = ("reinhard", "none")
METHODS = (*SPARSITY, *SCALES)
INNER_PATCHES, PATCHES_PER_CLASS = 1000, 2000
_COARSE = 2  # step of inner models at full scale, in sides of a patch
_INNER_FOLDS = 3
DEFAULT = "preset"
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Candidate:
    """Settings of a method: their description, and changes of the preset."""

    text: str
    changes: tuple[tuple[str, Any], ...]

    def recipe(self, method: str) -> Recipe:
        return preset("fast", method).with_applicable_settings(
            {"patches_per_class": PATCHES_PER_CLASS, **dict(self.changes)}
        )


def candidates(method: str, patches: str | None = None) -> list[Candidate]:
    """Return the candidates, the preset first; optionally for one kind of patches."""
    if method in SCALES:
        return [
            Candidate(
                f"scale 1/{scale:g}, stain {stain}", (("downsample", scale), ("stain", stain))
            )
            for scale in SCALES[method]
            for stain in STAINS
        ]
    name, values = SPARSITY[method]
    return [
        Candidate(f"{text}, {name} {value:g}", (*PATCHES[text].items(), (name, value)))
        for text in ([patches] if patches else PATCHES)
        for value in values
    ]


def default_candidate(method: str) -> Candidate:
    """Return the preset with fewer patches, which is a candidate of most methods."""
    as_it_is = Candidate(DEFAULT, ())
    wanted = as_it_is.recipe(method).setting_values()
    return next(
        (c for c in candidates(method) if c.recipe(method).setting_values() == wanted), as_it_is
    )


# --- tasks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    """One method with one kind of patches in one training half, for all parameter values."""

    set: str
    place: int  # of the split
    n_repeats: int
    method: str
    patches: str

    @property
    def name(self) -> str:
        patches = list(PATCHES).index(self.patches)
        return f"inner-{self.set}-{self.place}-{self.method}-{patches}"

    @property
    def cost(self) -> float:
        return (2.0 if self.set == "glas" else 1.0) * _SECONDS[self.method]

    def work(self) -> Results:
        manifest, split = split_of(self.set, self.place, self.n_repeats)
        train = manifest.select(split.train)
        folds = inner_folds(train)
        own = candidates(self.method, self.patches)
        recipes = [_with_coarse_grid(candidate.recipe(self.method)) for candidate in own]
        seen = read_patches(train, recipes[0], max_sampled(train, folds, INNER_PATCHES))
        return {
            candidate.text: worth(
                [train_and_test(recipe, seen, train, fold, INNER_PATCHES) for fold in folds]
            )
            for candidate, recipe in zip(own, recipes, strict=True)
        }


@dataclass(frozen=True)
class Tested:
    """One method with the settings of one candidate, trained and tested on the two halves."""

    set: str
    place: int
    n_repeats: int
    method: str
    candidate: Candidate

    @property
    def name(self) -> str:
        text = self.candidate.text.replace(",", "").replace(" ", "-")
        return f"tested-{self.set}-{self.place}-{self.method}-{text}"

    @property
    def cost(self) -> float:
        full = 2.0 if dict(self.candidate.changes).get("downsample") == 1 else 1.0
        return (2.0 if self.set == "glas" else 1.0) * _SECONDS[self.method] * full

    def work(self) -> Results:
        manifest, split = split_of(self.set, self.place, self.n_repeats)
        train, test = sides(manifest, split)
        model = TissueClassifier(self.candidate.recipe(self.method), n_jobs=1).fit(train)
        return store.results_of_model(model, test, split)


@dataclass(frozen=True)
class WholeImages:
    """One candidate of a method of whole images: features once, then all splits."""

    set: str
    n_repeats: int
    method: str
    candidate: Candidate

    @property
    def name(self) -> str:
        text = self.candidate.text.replace(",", "").replace(" ", "-").replace("/", "-")
        return f"whole-{self.set}-{self.method}-{text}"

    @property
    def cost(self) -> float:
        pixels = 4 / dict(self.candidate.changes)["downsample"] ** 2
        return (150.0 if self.set == "glas" else 100.0) * pixels * _SECONDS[self.method]

    def work(self) -> Results:
        manifest = store.manifest_of(self.set)
        recipe = self.candidate.recipe(self.method)
        model = WholeImagePipeline(recipe, manifest.classes, 0, 1)
        X = model._feature_vectors({record.path: record.mpp for record in manifest.records}, None)
        found: Results = {}
        for place, split in enumerate(store.two_folds(manifest, self.n_repeats)):
            train = manifest.select(split.train)
            within = X[split.train]
            inside = [
                _results_of_features(recipe, within, train, fold) for fold in inner_folds(train)
            ]
            found[str(place)] = {
                "inner": worth(inside),
                "tested": _results_of_features(recipe, X, manifest, split),
            }
        return found


def _results_of_features(
    recipe: Recipe, X: NDArray[np.float64], manifest: Manifest, split: Split
) -> Results:
    """Return results as `results_of_model` does; an image without tissue gets the first class."""
    labels = np.array([manifest.classes.index(label) for label in manifest.labels])
    seen = [place for place in split.train if not np.isnan(X[place, 0])]
    method = get_method(recipe.method).make_estimator(
        recipe.method_parameters, random_state=0, n_jobs=1
    )
    method.fit(X[seen], labels[seen])
    background = np.isnan(X[split.test, 0])
    values = np.asarray(method.decision_function(np.nan_to_num(X[split.test])), dtype=float)
    scores = np.where(background.reshape(-1, 1), 0.0, values.reshape(len(background), -1))
    test = manifest.select(split.test)
    return {
        "repeat": split.repeat,
        "classes": manifest.classes,
        "truth": test.labels,
        "patients": test.patients,
        "labels": [manifest.classes[predicted_class(own)] for own in scores],
        "scores": scores.tolist(),
    }


# CPU seconds of a task on UCSB; for whole images, of one image at half scale.
_SECONDS = {
    "dfdl": 20.0,
    "odl": 10.0,
    "fddl": 30.0,
    "nayak": 30.0,
    "src": 30.0,
    "lcksvd": 40.0,
    "shirc": 40.0,
    "wndcharm": 1.2,
    "lbp-colour": 0.4,
}


def split_of(name: str, place: int, n_repeats: int) -> tuple[Manifest, Split]:
    manifest = store.manifest_of(name)
    return manifest, store.two_folds(manifest, n_repeats)[place]


def inner_folds(train: Manifest) -> list[Split]:
    return list(k_folds(train, _INNER_FOLDS))


def worth(results: Sequence[Results]) -> float:
    """Return the criterion of the choice; folds are combined, as some lack a class."""
    (labels,), (scores,) = (store.repeats(results, kind) for kind in ("labels", "scores"))
    right = balanced_accuracy(labels.labels, labels.predictions)
    return (right + store.area(results)(scores.labels, scores.predictions)) / 2


def _with_coarse_grid(recipe: Recipe) -> Recipe:
    """Return the recipe of inner models: every other patch at full scale."""
    step = _COARSE * recipe.patch_px if recipe.downsample == 1 else None
    return recipe.with_changes(stride_px=step)


# --- both stages --------------------------------------------------------------------------------

Key = tuple[str, str, int]  # set, method, place of the split


def first_stage(names: Sequence[str], methods: Sequence[str], n_repeats: int) -> list[Any]:
    """Return the tasks before the choice; for methods of whole images, all tasks."""
    places = range(2 * n_repeats)
    on_patches = [m for m in methods if m in SPARSITY]
    inner = [
        Inner(name, place, n_repeats, method, patches)
        for name in names
        for place in places
        for method in on_patches
        for patches in PATCHES
    ]
    default = [
        Tested(name, place, n_repeats, method, default_candidate(method))
        for name in names
        for place in places
        for method in on_patches
    ]
    whole = [
        WholeImages(name, n_repeats, method, candidate)
        for name in names
        for method in methods
        if method in SCALES
        for candidate in candidates(method)
    ]
    return [*inner, *default, *whole]


def choose(first: Sequence[Any], done: Done) -> dict[Key, Candidate]:
    """Return the best candidate of complete inner folds; of equal ones, the first."""
    worths: dict[Key, dict[str, float]] = {}
    for piece in first:
        found = done.found.get(piece.name)
        if found is None:
            continue
        if isinstance(piece, Inner):
            worths.setdefault((piece.set, piece.method, piece.place), {}).update(found)
        elif isinstance(piece, WholeImages):
            for place, own in found.items():
                key = piece.set, piece.method, int(place)
                worths.setdefault(key, {})[piece.candidate.text] = own["inner"]
    chosen = {}
    for key, own in worths.items():
        requested = candidates(key[1])
        if len(own) == len(requested):
            chosen[key] = max(requested, key=lambda candidate: own[candidate.text])
    return chosen


def second_stage(chosen: dict[Key, Candidate], n_repeats: int) -> list[Tested]:
    return [
        Tested(name, place, n_repeats, method, candidate)
        for (name, method, place), candidate in chosen.items()
        if method in SPARSITY
    ]


def results_by_split(
    name: str, method: str, n_repeats: int, chosen: dict[int, Candidate], done: Done
) -> dict[int, Results]:
    """Return the results of the chosen candidates by split, without missing ones."""
    found = {}
    for place, candidate in chosen.items():
        if method in SCALES:
            piece = WholeImages(name, n_repeats, method, candidate).name
            own = done.found.get(piece, {}).get(str(place), {}).get("tested")
        else:
            own = done.found.get(Tested(name, place, n_repeats, method, candidate).name)
        if own is not None:
            found[place] = own
    return found


def print_tables(
    names: Sequence[str],
    methods: Sequence[str],
    n_repeats: int,
    chosen: dict[Key, Candidate],
    done: Done,
) -> None:
    for name in names:
        tuned, untuned, text = {}, {}, {}
        for method in methods:
            own = {place: c for (n, m, place), c in chosen.items() if (n, m) == (name, method)}
            default = dict.fromkeys(range(2 * n_repeats), default_candidate(method))
            tuned[method] = results_by_split(name, method, n_repeats, own, done)
            untuned[method] = results_by_split(name, method, n_repeats, default, done)
            counts = Counter(candidate.text for candidate in own.values()).most_common()
            text[method] = "; ".join(f"{count} {_TIMES} {what}" for what, count in counts)
        print(f"\n{name}, {n_repeats} {_TIMES} 2 folds by patient")
        for title, found in (("tuned settings", tuned), ("settings of the preset", untuned)):
            rows = [_row(method, own, found.get("dfdl", {})) for method, own in found.items()]
            rows.sort(key=lambda row: row[1].replace(store.NOTHING, ""), reverse=True)
            store.print_table(
                (f"{title}: method", "balanced accuracy", "AUC", "difference of dfdl"), rows
            )
        store.print_table(
            (
                "method",
                "difference of tuned settings",
                "chosen settings, with the number of training halves",
            ),
            [
                (m, store.difference_shown(balanced_accuracy, tuned[m], untuned[m]), text[m])
                for m in methods
            ],
        )


def _row(method: str, own: dict[int, Results], dfdl: dict[int, Results]) -> list[str]:
    results = list(own.values())
    if not results:
        return [method, store.NOTHING, store.NOTHING, store.NOTHING]
    behind = "" if method == "dfdl" else store.difference_shown(balanced_accuracy, dfdl, own)
    right = store.mean_shown(balanced_accuracy, results)
    return [method, right, store.mean_shown(store.area(results), results, "scores"), behind]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", default="ucsb,glas")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--repeats", type=int, default=2, help="repetitions of the two folds")
    store.add_options(parser)
    options = parser.parse_args()
    names, methods = options.sets.split(","), options.methods.split(",")
    report.print_machine(describe_machine())
    first = first_stage(names, methods, options.repeats)
    done = store.run_or_load(first, options)
    chosen = choose(first, done)
    done |= store.run_or_load(second_stage(chosen, options.repeats), options)
    print_tables(names, methods, options.repeats, chosen, done)
    sys.exit(done.report_status())


if __name__ == "__main__":
    main()
