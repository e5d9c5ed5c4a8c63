"""Concepts learnt without labels: dictionary, usage per image, linear classifier and files.

One dictionary is learnt from patch features of many images, about the same number from each
(`dictionaries.online`); its atoms are the concepts. Every patch is encoded with at most 8 atoms.
The usage of an image is the fraction of its patches that use each atom, and the mean positive and
negative weight of each atom.

A few labelled images are enough to fit a linear classifier on the mean weights, whose scores are
sums over concepts:

    score = bias + Σ_k c_k      c_k = contribution of concept k, of positive and negative weights

The usage is centred and scaled by one factor for all features, because the standard deviations of
single features over few images are unreliable. The classifier is a ridge logistic regression with
balanced class weights. For two classes there is one score, above 0 for the second class; for more,
one score per class against all others.

Files in the output folder:

concepts.safetensors   atoms, usage and the settings they were computed with
concepts.csv           one row per concept; users fill in the column `name`, which is preserved
usage.csv              one row per image: the fraction of its patches that use each concept
predictions.csv        one row per image with its prediction, if some images have labels
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from sklearn.linear_model import LogisticRegression

from ..datasets.record import ImageRecord, read_csv_rows
from ..datasets.survey import content_order
from ..decision.aggregation import count_scores, score_columns
from ..dictionaries.atoms import normalize
from ..dictionaries.online import ANCHOR_WEIGHT, PENALTY, learn_axis_anchored, split_half_similarity
from ..encoders import get_patch_features
from ..images.pixel_size import PixelSize, PixelSizeOption, have_mixed_pixel_sizes
from ..kernels import encode_omp
from ..models.feature_extraction import extraction_recipe
from ..models.model_file import digest, serialize
from ..models.patch_pipeline import map_with_progress
from ..models.prepared_image import open_prepared_image
from ..models.recipe import PRESETS, Recipe
from ..precomputed.feature_file import FeatureMetadata, common_metadata, is_feature_file
from ..utils.files import atomic_write
from ..utils.parallel import Executor, ThreadExecutor
from ..utils.progress import Callback, Progress, no_callback
from ..utils.text_io import Row, parse_json, pluralize
from ..utils.validation import check_whole_number

_FORMAT_VERSION = 3  # increased when the computation of concepts or usage changes
N_NONZERO = 8  # maximum number of atoms per patch
_MAX_VECTORS, _MAX_PER_IMAGE = 40_000, 1_000  # training vectors, which are all in memory


@dataclass(frozen=True)
class ConceptUsage:
    """Usage of the atoms in each image.

    Attributes
    ----------
    patches : (n_images,), number of patches
    fractions : (n_images, n_atoms), fraction of the patches that use the atom
    positive, negative : (n_images, n_atoms), mean positive part and mean negative part of the code
    """

    patches: NDArray[np.int64]
    fractions: NDArray[np.float64]
    positive: NDArray[np.float64]
    negative: NDArray[np.float64]

    @property
    def weights(self) -> NDArray[np.float64]:
        """Features of `ConceptClassifier`, (n_images, 2·n_atoms): positive, then negative."""
        return np.concatenate([self.positive, self.negative], axis=1)


@dataclass(frozen=True)
class ConceptDictionary:
    """Dictionary of concepts.

    Attributes
    ----------
    centre : (n_features,), mean of the training vectors
    atoms : (n_atoms, n_features)
    axes : (n_atoms,), index of the encoder feature to which each atom is anchored
    recurrence : (n_atoms,), `split_half_similarity` of the atoms; NaN for fewer than 4 patients
    """

    centre: NDArray[np.float32]
    atoms: NDArray[np.float32]
    axes: NDArray[np.int64]
    recurrence: NDArray[np.float64]

    def normalize_features(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return encoder features X (n, n_features), centred and scaled to unit norm."""
        return np.ascontiguousarray(normalize(X - self.centre), dtype=np.float32)

    def encode(self, X: NDArray[np.float32], n_jobs: int | None = None) -> Any:
        """Return the sparse codes (n, n_atoms) of encoder features X (n, n_features)."""
        return encode_omp(self.atoms, self.normalize_features(X), N_NONZERO, n_jobs=n_jobs)


@dataclass(frozen=True)
class ConceptTrainingSet:
    """Images that concepts are learnt from.

    Attributes
    ----------
    records : images, sorted by content
    recipe : recipe of the feature extraction
    metadata : metadata of the feature files; None for images
    pixel_sizes : pixel sizes given by the user
    positions : index of each record in the original list
    """

    records: Sequence[ImageRecord]
    recipe: Recipe
    metadata: FeatureMetadata | None = None
    pixel_sizes: PixelSizeOption = field(default_factory=PixelSizeOption)
    positions: Sequence[int] = ()

    @classmethod
    def from_records(
        cls, records: Sequence[ImageRecord], encoder: str, pixel_sizes: PixelSizeOption
    ) -> ConceptTrainingSet:
        """Create the training set from records, the name of an encoder and the pixel sizes.

        Raise ValueError for invalid records, images mixed with feature files, or pixel features.
        """
        for record in records:
            if record.error:
                raise ValueError(record.error)
        positions = content_order(records)
        records = [records[position] for position in positions]
        n_feature_files = sum(is_feature_file(record.path) for record in records)
        if n_feature_files not in (0, len(records)):
            raise ValueError("images and feature files cannot be combined. Give one or the other")
        if n_feature_files:
            metadata = common_metadata(record.path for record in records)
            return cls(records, PRESETS["precomputed"], metadata, pixel_sizes, positions)
        if get_patch_features(encoder).atoms_are_images:
            raise ValueError(
                f"--encoder {encoder}: concepts need features of a pretrained encoder. Name one, "
                "for example efficientnet-lite0"
            )
        return cls(records, extraction_recipe(encoder, {}), None, pixel_sizes, positions)

    def restore_order(self, rows: list[Row]) -> list[Row]:
        """Return rows, one per record, in the order of the original list."""
        return [row for _, row in sorted(zip(self.positions, rows, strict=True), key=itemgetter(0))]

    def pixel_size(self, record: ImageRecord) -> PixelSize:
        """Return the pixel size of the image of a record."""
        return self.pixel_sizes.with_table_mpp(record.mpp).resolve(record.path)

    def open(self, index: int) -> Any:
        """Open the image at an index as a prepared image."""
        record = self.records[index]
        mpp, region = self.pixel_size(record).user_mpp, record.region_of_interest
        return open_prepared_image(
            record.path, mpp, self.recipe, trained_metadata=self.metadata, region_of_interest=region
        )

    def describe_size_differences(self) -> str:
        """Return a warning if pixel sizes differ or some are unknown; otherwise ""."""
        if self.metadata is not None:
            return ""
        sizes = [self.pixel_size(record).mpp for record in self.records]
        known = [size for size in sizes if size is not None]
        if known and have_mixed_pixel_sizes(known):
            issue = f"the pixel sizes of the images differ ({min(known):g} to {max(known):g} µm)"
        elif known and len(known) < len(sizes):
            n = len(sizes) - len(known)
            issue = f"the pixel size of {n} of {pluralize(len(sizes), 'image')} is unknown"
        else:
            return ""
        largest = max(known)
        return (
            f"{issue}, and the images are not resampled: concepts may reflect the magnification "
            "instead of the tissue. Extract features at one pixel size first (histodict "
            f"features --set mpp={largest:g})"
        )

    @property
    def patients(self) -> list[str]:
        """Patient of each record; an image without a patient counts as a separate patient."""
        names = image_names(self.records)
        return [record.patient or name for record, name in zip(self.records, names, strict=True)]


def learn_concepts(
    source: ConceptTrainingSet,
    n_atoms: int,
    *,
    random_state: int = 0,
    n_rounds: int = 2,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
    executor: Executor | None = None,
) -> ConceptDictionary:
    """Learn one dictionary from all images.

    Parameters
    ----------
    source : images to learn from
    n_atoms : number of concepts
    n_rounds : number of random halvings of the patients to measure `recurrence`; no other effect
    """
    check_whole_number("atoms", n_atoms, 1)
    X, patients = _sample_training_features(
        source, random_state, callback, executor or ThreadExecutor(n_jobs)
    )
    centre = X.mean(axis=0, dtype=np.float64).astype(np.float32)
    Y = np.ascontiguousarray(normalize(X - centre), dtype=np.float32)
    rng = np.random.default_rng(random_state)

    def report(done: int, total: int) -> None:
        callback(Progress("train", done, total))

    result = learn_axis_anchored(Y, patients, n_atoms, rng, n_jobs=n_jobs, callback=report)

    def learn_atoms(
        Z: NDArray[Any], groups: NDArray[Any], rng: np.random.Generator
    ) -> NDArray[Any]:
        # The mean is learnt as well, so each half is centred by its own mean.
        normalized = np.ascontiguousarray(normalize(Z - Z.mean(axis=0)))
        return learn_axis_anchored(normalized, groups, n_atoms, rng, n_jobs=n_jobs).atoms

    raw = np.ascontiguousarray(X)
    similarity = split_half_similarity(
        raw, patients, result.atoms, rng, n_rounds=n_rounds, learn=learn_atoms
    )
    unknown = np.full(n_atoms, np.nan)
    return ConceptDictionary(
        centre, result.atoms, result.axes, unknown if similarity is None else similarity
    )


def _sample_training_features(
    source: ConceptTrainingSet, random_state: int, callback: Callback, executor: Executor
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return features of random patches, about the same number per image, and their patients."""
    n_per_image = max(1, min(_MAX_PER_IMAGE, _MAX_VECTORS // len(source.records)))

    def work(index: int) -> NDArray[np.float32]:
        with source.open(index) as image:
            features = image.sample_features(
                n_per_image, np.random.default_rng([random_state, index])
            )
        if not len(features):
            raise ValueError(
                f"{source.records[index].path}: no tissue found. Remove the image from the list"
            )
        return np.asarray(features, np.float32)

    samples = map_with_progress(work, len(source.records), "patches", callback, executor)
    patients = np.repeat(source.patients, [len(sample) for sample in samples])
    return np.concatenate(samples), patients


def compute_usage(
    source: ConceptTrainingSet,
    concepts: ConceptDictionary,
    *,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
    executor: Executor | None = None,
) -> ConceptUsage:
    """Compute how all patches of each image use the atoms."""

    def work(index: int) -> tuple[int, NDArray[np.float64]]:
        n, sums = 0, np.zeros((3, len(concepts.atoms)))
        with source.open(index) as image:
            grid = image.grid()
            for chunk in image.chunks(grid):
                vectors = image.chunk_features(grid, *chunk)[1]
                if len(vectors):
                    S = concepts.encode(vectors, n_jobs=1)
                    n += len(vectors)
                    parts = (S != 0, S.maximum(0), (-S).maximum(0))
                    sums += np.stack([part.sum(axis=0, dtype=np.float64) for part in parts])
        return n, sums / max(1, n)

    executor = executor or ThreadExecutor(n_jobs)
    results = map_with_progress(work, len(source.records), "predict", callback, executor)
    means = np.stack([sums for _, sums in results])
    return ConceptUsage(np.array([n for n, _ in results]), means[:, 0], means[:, 1], means[:, 2])


def concept_settings(
    source: ConceptTrainingSet, n_atoms: int, random_state: int, image_keys: list[Any]
) -> dict[str, Any]:
    """Return all settings that determine the concepts; `image_keys` are from `file_key`."""
    return {
        "format_version": _FORMAT_VERSION,
        "recipe": source.recipe.to_dict(),
        "weights": get_patch_features(source.recipe.features).weights_digest()
        if source.metadata is None
        else "",
        "atoms": n_atoms,
        "random_state": random_state,
        "penalty": PENALTY,
        "shrinkage": ANCHOR_WEIGHT,
        "n_nonzero": N_NONZERO,
        "patients": source.patients,
        "sizes": [source.pixel_size(record).user_mpp for record in source.records],
        "within": [
            record.region_of_interest.fingerprint() if record.region_of_interest else []
            for record in source.records
        ],
        "images": image_keys,
    }


def image_names(records: Sequence[ImageRecord]) -> list[str]:
    """Return the file names of the images, or the full paths if two names are equal."""
    names = [Path(record.path).name for record in records]
    return names if len(set(names)) == len(names) else [str(record.path) for record in records]


_INVERSE_PENALTY = 100.0  # C, the inverse of the ridge penalty
_MAX_LISTED = 3  # concepts listed per prediction


@dataclass(frozen=True)
class ConceptClassifier:
    """Linear classifier of images by their usage of concepts.

    Attributes
    ----------
    classes : class names
    centre : (2·n_atoms,), mean of `ConceptUsage.weights` over the labelled images
    weights : (n_scores, 2·n_atoms), coefficients
    bias : (n_scores,), intercepts
    """

    classes: tuple[str, ...]
    centre: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def fit(cls, features: NDArray[np.float64], labels: Sequence[str]) -> ConceptClassifier:
        """Fit the classifier to features (n_images, 2·n_atoms) of labelled images."""
        names = sorted(set(labels))
        if len(names) < 2:
            raise ValueError(f"labels must have two classes or more, not only {names[0]}")
        centre = features.mean(axis=0)
        scale = np.sqrt(((features - centre) ** 2).sum(axis=1).mean()) or 1.0
        scaled, y = (features - centre) / scale, np.array(labels)
        models = [_fit_ridge(scaled, y == name) for name in names[-count_scores(len(names)) :]]
        weights = np.concatenate([model.coef_ for model in models]) / scale
        return cls(tuple(names), centre, weights, np.concatenate([h.intercept_ for h in models]))

    def contributions(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the contribution (n_images, n_scores, n_atoms) of each concept to the scores."""
        parts = (features - self.centre)[:, None] * self.weights
        n_atoms = parts.shape[2] // 2
        return parts[..., :n_atoms] + parts[..., n_atoms:]

    def scores(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scores (n_images, n_scores) of images with these features."""
        scores: NDArray[np.float64] = self.bias + self.contributions(features).sum(axis=2)
        return scores

    def rank_classes(self, scores: NDArray[np.float64]) -> tuple[int, int]:
        """Return the indices of predicted class and runner-up from scores (n_scores,)."""
        if len(scores) == 1:
            predicted = int(scores[0] > 0)
            return predicted, 1 - predicted
        first, second = np.argsort(-scores, kind="stable")[:2].tolist()
        return first, second

    def margin(
        self, values: NDArray[np.float64], predicted: int, second: int
    ) -> NDArray[np.float64]:
        """Return the margin of class `predicted` over `second` in values (n_scores, …)."""
        if len(values) == 1:
            return values[0] if predicted else -values[0]
        difference: NDArray[np.float64] = values[predicted] - values[second]
        return difference

    def predict(self, features: NDArray[np.float64]) -> list[str]:
        """Return the predicted class of each image."""
        return [self.classes[self.rank_classes(scores)[0]] for scores in self.scores(features)]


def _fit_ridge(features: NDArray[np.float64], positive: NDArray[np.bool_]) -> Any:
    options: dict[str, Any] = {"class_weight": "balanced", "solver": "liblinear", "dual": True}
    model = LogisticRegression(C=_INVERSE_PENALTY, max_iter=10_000, random_state=0, **options)
    return model.fit(features, positive)


def leave_one_patient_out_accuracy(
    usage: ConceptUsage, labels: Sequence[str], patients: Sequence[str]
) -> tuple[int, int]:
    """Return the numbers of correct and of tested images in leave-one-patient-out validation.

    A patient is not tested if a class has no labelled image of other patients.
    """
    known = np.array([bool(label) for label in labels])
    F, y, groups = usage.weights[known], np.array(labels)[known], np.array(patients)[known]
    n_correct = n_tested = 0
    for patient in np.unique(groups):
        is_test = groups == patient
        if len(set(y[~is_test])) < len(set(y)):
            continue
        classifier = ConceptClassifier.fit(F[~is_test], y[~is_test].tolist())
        n_correct += int((np.array(classifier.predict(F[is_test])) == y[is_test]).sum())
        n_tested += int(is_test.sum())
    return n_correct, n_tested


def concept_prediction_rows(
    usage: ConceptUsage, labels: Sequence[str], images: Sequence[str], names: Sequence[str]
) -> tuple[ConceptClassifier, list[Row]]:
    """Fit a classifier to the labelled images and predict all images.

    Return the classifier and a table row per image. `images` and `names` are the names of images
    and concepts; `labels` contains "" for images without a label.
    """
    is_labelled = np.array([bool(label) for label in labels])
    known = [label for label in labels if label]
    for name, count in Counter(known).items():
        if count < 2:
            raise ValueError(f"only one image has the label {name!r}: give two or more")
    classifier = ConceptClassifier.fit(usage.weights[is_labelled], known)
    parts, scores = classifier.contributions(usage.weights), classifier.scores(usage.weights)
    reference = {
        name: usage.fractions[np.array(labels) == name].mean(axis=0) for name in classifier.classes
    }
    rows = []
    for index, image in enumerate(images):
        predicted, second = classifier.rank_classes(scores[index])
        margins = classifier.margin(parts[index], predicted, second)
        compared = {
            classifier.classes[n]: reference[classifier.classes[n]]
            for n in sorted((predicted, second))
        }
        reasons = [
            _describe_contribution(
                names[k],
                float(margins[k]),
                usage.fractions[index, k],
                {n: s[k] for n, s in compared.items()},
            )
            for k in np.argsort(-margins, kind="stable")[:_MAX_LISTED].tolist()
            if margins[k] > 0
        ]
        row: Row = {"image": image, "truth": labels[index], "label": classifier.classes[predicted]}
        row |= score_columns(classifier.classes, np.round(scores[index], 6).tolist())
        rows.append(row | {"because": "; ".join(reasons)})
    return classifier, rows


def _describe_contribution(
    name: str, contribution: float, fraction: float, reference: dict[str, float]
) -> str:
    references = ", ".join(f"{label} {100 * value:.0f} %" for label, value in reference.items())
    share = f"used by {100 * fraction:.0f} % of its patches"
    return f"'{name}' ({contribution:+.3g}; {share}; in labelled images: {references})"


CONCEPTS_FILE, CONCEPTS_TABLE = "concepts.safetensors", "concepts.csv"
USAGE_TABLE, PREDICTIONS_TABLE = "usage.csv", "predictions.csv"
_FILE_FORMAT = 1  # increased when the format of the file changes
_HEADER_KEY, _DIGEST_KEY = "histodict", "sha256"


def write_concepts(
    folder: Path, concepts: ConceptDictionary, usage: ConceptUsage, settings: dict[str, Any]
) -> None:
    """Write concepts, usage and settings to the folder."""
    arrays = {f"concepts.{k}": v for k, v in asdict(concepts).items()}
    arrays |= {f"usage.{k}": v for k, v in asdict(usage).items()}
    with atomic_write(folder / CONCEPTS_FILE) as partial:
        partial.write_bytes(serialize({"concepts": _FILE_FORMAT, "settings": settings}, arrays))


def read_concepts(folder: Path) -> tuple[ConceptDictionary, ConceptUsage, dict[str, Any]] | None:
    """Read concepts, usage and settings from the folder; return None if the file is missing."""
    file = folder / CONCEPTS_FILE
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="numpy") as tensors:
            header = parse_json((tensors.metadata() or {})[_HEADER_KEY])
            arrays = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        if header.pop(_DIGEST_KEY) != digest(header, arrays) or header["concepts"] != _FILE_FORMAT:
            raise ValueError("its digest or format is wrong")
        parts = [
            _dataclass_from_arrays(kind, name, arrays)
            for kind, name in ((ConceptDictionary, "concepts"), (ConceptUsage, "usage"))
        ]
        return parts[0], parts[1], header["settings"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: is damaged, or has another format ({error}): remove it to compute the "
            "concepts again"
        ) from error


def _dataclass_from_arrays(kind: Any, name: str, arrays: dict[str, NDArray[Any]]) -> Any:
    values = {k.partition(".")[2]: v for k, v in arrays.items() if k.startswith(f"{name}.")}
    return kind(**values)


def check_settings_match(folder: Path, stored: dict[str, Any], current: dict[str, Any]) -> None:
    """Raise ValueError if the `stored` settings of a folder differ from the `current` ones."""
    current = json.loads(json.dumps(current))
    different = sorted(k for k in current.keys() | stored.keys() if current.get(k) != stored.get(k))
    if different:
        raise ValueError(
            f"{folder}: contains concepts computed with other settings ({', '.join(different)}). "
            "Choose another folder (--output), or remove the folder"
        )


def read_concept_names(folder: Path, n_atoms: int) -> list[str]:
    """Return the concept names from the table in `folder`; concepts without a name are numbered."""
    names = [f"concept {index + 1}" for index in range(n_atoms)]
    file = folder / CONCEPTS_TABLE
    if not file.exists():
        return names
    (_, header), *table_rows = read_csv_rows(file) or [(0, [])]
    rows = [dict(zip(header, values, strict=False)) for _, values in table_rows]
    try:
        user_names = {int(row["concept"]): row["name"].strip() for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: must have the columns concept (a number) and name (a text) ({error})"
        ) from error
    unknown = sorted(set(user_names) - set(range(1, n_atoms + 1)))
    if unknown:
        raise ValueError(
            f"{file}: there is no concept {unknown[0]}. Concepts are numbered from 1 to {n_atoms}"
        )
    return [user_names.get(index + 1) or name for index, name in enumerate(names)]


def concept_rows(
    concepts: ConceptDictionary,
    usage: ConceptUsage,
    names: list[str],
    patients: list[str],
    images: list[str],
) -> list[Row]:
    """Return a table row per concept, with the images of three patients that use it most."""
    rows = []
    for index, name in enumerate(names):
        fractions = usage.fractions[:, index]
        top_images: dict[str, str] = {}
        for image in np.argsort(-fractions, kind="stable").tolist():
            top_images.setdefault(patients[image], images[image])
        similarity = concepts.recurrence[index]
        rows.append(
            {
                "concept": index + 1,
                "name": "" if name == f"concept {index + 1}" else name,
                "share": round(float(np.average(fractions, weights=usage.patches)), 4),
                "patients": len({p for p, s in zip(patients, fractions, strict=True) if s >= 0.01}),
                "recurrence": None if np.isnan(similarity) else round(float(similarity), 3),
                "most_in": "; ".join(list(top_images.values())[:3]),
            }
        )
    return rows


def usage_rows(
    usage: ConceptUsage, names: list[str], patients: list[str], images: list[str]
) -> list[Row]:
    """Return a table row per image, with the fraction of its patches that use each concept."""
    reserved = ("image", "patient", "patches")
    columns = [
        name if names.count(name) == 1 and name not in reserved else f"{name} (concept {i + 1})"
        for i, name in enumerate(names)
    ]
    if len(set(columns)) < len(columns):
        raise ValueError("two concepts have the same column name. Give them different names")
    return [
        {"image": image, "patient": patient, "patches": int(n)}
        | dict(zip(columns, np.round(fractions, 4).tolist(), strict=True))
        for image, patient, n, fractions in zip(
            images, patients, usage.patches, usage.fractions, strict=True
        )
    ]
