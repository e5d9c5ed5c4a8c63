"""Concepts without labels: one dictionary over the patches of many images, and how each uses it.

Vectors of a network are drawn from every image, as many of each; `dictionaries.stable` makes atoms
of them. Then every patch of every image is coded with at most 8 atoms. An image's usage is the
share of its patches that use an atom, and the mean weight of each, by sign.

A handful of labels on top of concepts: linear heads on usage, whose scores are sums over them.

    score = bias + Σ_k c_k      c_k = what the weights of concept k, of both signs, add

Usage is centred and scaled by the labelled images together, not feature by feature: a deviation
from six images is mostly chance. Logistic regression with a ridge, classes weighted equally. Of two
classes there is one score, above 0 for the second; of more, one per class against all others, and
the highest wins.

What is known of concepts, in a folder: made once, named by people, used with a few labels.

concepts.safetensors   atoms and usage, with what they were made with; not made again
concepts.csv           a row per concept; the column `name` is for people, and is kept
usage.csv              a row per image: the share of its patches that use each concept
answers.csv            where some images have labels: a row per image, and because of what
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
from ..decision.aggregation import n_scores
from ..dictionaries.atoms import normalise
from ..dictionaries.online import PENALTY, SHRINKAGE, learn_axis_anchored, split_half_similarity
from ..encoders import get_patch_features
from ..images.pixel_size import PixelSize, PixelSizeOption, is_mixed
from ..kernels import encode_omp
from ..models.feature_extraction import extraction_recipe
from ..models.model_file import digest, serialize
from ..models.patch_pipeline import map_images
from ..models.prepared_image import open_prepared_image
from ..models.recipe import PRESETS, Recipe
from ..precomputed.feature_file import FeatureMetadata, common_metadata, is_feature_file
from ..utils.files import atomic_write
from ..utils.parallel import Executor, Threads
from ..utils.progress import Callback, Progress, no_callback
from ..utils.text_io import Row, parse_json, pluralize
from ..utils.validation import check_whole_number

_FORM = 3  # increased when the computation of concepts or usage changes
N_NONZERO = 8  # atoms of a patch, at most
_MAX_VECTORS, _MAX_OF_IMAGE = 40_000, 1_000  # learnt from: they are held in memory


@dataclass(frozen=True)
class ConceptUsage:
    """Of every image: patches (n_images,); shares of them that use an atom, and the mean positive
    and negative weights of each (n_images, n_atoms).
    """

    patches: NDArray[np.int64]
    fractions: NDArray[np.float64]
    positive: NDArray[np.float64]
    negative: NDArray[np.float64]

    @property
    def weights(self) -> NDArray[np.float64]:
        """What a head sees (n_images, 2·n_atoms): the weights of one sign, then of the other."""
        return np.concatenate([self.positive, self.negative], axis=1)


@dataclass(frozen=True)
class ConceptDictionary:
    """centre (n_features,), atoms (n_atoms, n_features), the axis of each (n_atoms,), and how well
    halves of the patients agree on each: |cos| (n_atoms,), NaN if not known.
    """

    centre: NDArray[np.float32]
    atoms: NDArray[np.float32]
    axes: NDArray[np.int64]
    recurrence: NDArray[np.float64]

    def features(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """As the atoms code them: centred, of unit norm."""
        return np.ascontiguousarray(normalise(X - self.centre), dtype=np.float32)

    def encode(self, X: NDArray[np.float32], n_jobs: int | None = None) -> Any:
        """Codes (n, n_atoms) of vectors as a network gives them."""
        return encode_omp(self.atoms, self.features(X), N_NONZERO, n_jobs=n_jobs)


@dataclass(frozen=True)
class ConceptTrainingSet:
    """Images to learn from: as a recipe sees them, at these pixel sizes.

    `records` are sorted by content; `places` are their positions in the given list.
    """

    records: Sequence[ImageRecord]
    recipe: Recipe
    origin: FeatureMetadata | None = None
    settings: PixelSizeOption = field(default_factory=PixelSizeOption)
    positions: Sequence[int] = ()

    @classmethod
    def of(
        cls, records: Sequence[ImageRecord], vectors: str, given: PixelSizeOption
    ) -> ConceptTrainingSet:
        """Refuses images beside feature files, vectors of pixels, and records in trouble."""
        for record in records:
            if record.error:
                raise ValueError(record.error)
        places = content_order(records)
        records = [records[place] for place in places]
        n_given = sum(is_feature_file(record.path) for record in records)
        if n_given not in (0, len(records)):
            raise ValueError("give images or feature files, not both: one dictionary, one encoder")
        if n_given:
            origin = common_metadata(record.path for record in records)
            return cls(records, PRESETS["precomputed"], origin, given, places)
        if get_patch_features(vectors).are_images:
            raise ValueError(
                f"--vectors {vectors}: concepts are held to what a network sees; name one, such as "
                "efficientnet-lite0"
            )
        return cls(records, extraction_recipe(vectors, {}), None, given, places)

    def as_listed(self, rows: list[Row]) -> list[Row]:
        """Return rows, one per record, in the order of the given list."""
        return [row for _, row in sorted(zip(self.positions, rows, strict=True), key=itemgetter(0))]

    def size(self, record: ImageRecord) -> PixelSize:
        return self.settings.with_table(record.mpp).at(record.path)

    def open(self, place: int) -> Any:
        record = self.records[place]
        mpp = self.size(record).is_user_given
        return open_prepared_image(
            record.path, mpp, self.recipe, trained=self.origin, within=record.region_of_interest
        )

    def size_doubts(self) -> str:
        """What there is to say of pixel sizes: images are cut at their own. Empty if all is well,
        and of feature files, whose patches were cut before.
        """
        if self.origin is not None:
            return ""
        sizes = [self.size(record).mpp for record in self.records]
        known = [size for size in sizes if size is not None]
        if known and is_mixed(known):
            differ = f"the images' pixel sizes differ ({min(known):g} to {max(known):g} µm)"
        elif known and len(known) < len(sizes):
            n = len(sizes) - len(known)
            differ = f"the pixel size of {n} of {pluralize(len(sizes), 'image')} is not known"
        else:
            return ""
        most = max(known)
        return (
            f"{differ}, and they are not made alike: concepts may stand for sizes, not for tissue. "
            f"Write features at one size first (histodict features --set mpp={most:g})"
        )

    @property
    def patients(self) -> list[str]:
        """An image of which none is named counts as one."""
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
    """One dictionary over all images. `n_rounds`: partings of the patients to learn from again."""
    check_whole_number("atoms", n_atoms, 1)
    X, patients = _draw(source, random_state, callback, executor or Threads(n_jobs))
    centre = X.mean(axis=0, dtype=np.float64).astype(np.float32)
    Y = np.ascontiguousarray(normalise(X - centre), dtype=np.float32)
    rng = np.random.default_rng(random_state)

    def report(done: int, total: int) -> None:
        callback(Progress("train", done, total))

    learnt = learn_axis_anchored(Y, patients, n_atoms, rng, n_jobs=n_jobs, callback=report)

    def again(Z: NDArray[Any], whose: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        # The mean is part of what is learnt: halves have their own.
        own = np.ascontiguousarray(normalise(Z - Z.mean(axis=0)))
        return learn_axis_anchored(own, whose, n_atoms, rng, n_jobs=n_jobs).atoms

    raw = np.ascontiguousarray(X)
    found = split_half_similarity(raw, patients, learnt.atoms, rng, n_rounds=n_rounds, learn=again)
    unknown = np.full(n_atoms, np.nan)
    return ConceptDictionary(centre, learnt.atoms, learnt.axes, unknown if found is None else found)


def _draw(
    source: ConceptTrainingSet, random_state: int, callback: Callback, executor: Executor
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Vectors of random patches, about as many of every image; and whose they are."""
    wanted = max(1, min(_MAX_OF_IMAGE, _MAX_VECTORS // len(source.records)))

    def work(place: int) -> NDArray[np.float32]:
        with source.open(place) as view:
            found = view.sample_features(wanted, np.random.default_rng([random_state, place]))
        if not len(found):
            raise ValueError(f"{source.records[place].path}: shows no tissue; leave it out")
        return np.asarray(found, np.float32)

    parts = map_images(work, len(source.records), "patches", callback, executor)
    patients = np.repeat(source.patients, [len(part) for part in parts])
    return np.concatenate(parts), patients


def usage_of(
    source: ConceptTrainingSet,
    concepts: ConceptDictionary,
    *,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
    executor: Executor | None = None,
) -> ConceptUsage:
    """How all patches of every image use the atoms; a slide is read chunk by chunk."""

    def work(place: int) -> tuple[int, NDArray[np.float64]]:
        n, sums = 0, np.zeros((3, len(concepts.atoms)))
        with source.open(place) as view:
            grid = view.grid()
            for chunk in view.chunks(grid):
                vectors = view.chunk_features(grid, *chunk)[1]
                if len(vectors):
                    S = concepts.encode(vectors, n_jobs=1)
                    n += len(vectors)
                    parts = (S != 0, S.maximum(0), (-S).maximum(0))
                    sums += np.stack([part.sum(axis=0, dtype=np.float64) for part in parts])
        return n, sums / max(1, n)

    executor = executor or Threads(n_jobs)
    found = map_images(work, len(source.records), "answer", callback, executor)
    means = np.stack([sums for _, sums in found])
    return ConceptUsage(np.array([n for n, _ in found]), means[:, 0], means[:, 1], means[:, 2])


def settings_of(
    source: ConceptTrainingSet, n_atoms: int, random_state: int, keys: list[Any]
) -> dict[str, Any]:
    """All that decides which concepts are learnt."""
    return {
        "form": _FORM,
        "recipe": source.recipe.to_dict(),
        "weights": get_patch_features(source.recipe.features).weights()
        if source.origin is None
        else "",
        "atoms": n_atoms,
        "random_state": random_state,
        "penalty": PENALTY,
        "pull": SHRINKAGE,
        "n_nonzero": N_NONZERO,
        "patients": source.patients,
        "sizes": [source.size(record).is_user_given for record in source.records],
        "within": [
            record.region_of_interest.fingerprint() if record.region_of_interest else []
            for record in source.records
        ],
        "images": keys,
    }


def image_names(records: Sequence[ImageRecord]) -> list[str]:
    """Their file names; whole paths where two are the same."""
    names = [Path(record.path).name for record in records]
    return names if len(set(names)) == len(names) else [str(record.path) for record in records]


_STRENGTH = 100.0  # C of the ridge
_NAMED = 3  # concepts named in an answer


@dataclass(frozen=True)
class ConceptClassifier:
    """weights (n_scores, 2·n_atoms) on `ConceptUsage.weights`, bias (n_scores,)"""

    classes: tuple[str, ...]
    centre: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: NDArray[np.float64]

    @classmethod
    def fit(cls, features: NDArray[np.float64], labels: Sequence[str]) -> ConceptClassifier:
        """From the images that have labels."""
        names = sorted(set(labels))
        if len(names) < 2:
            raise ValueError(f"labels must be of two classes or more, not of {names[0]} alone")
        centre = features.mean(axis=0)
        size = np.sqrt(((features - centre) ** 2).sum(axis=1).mean()) or 1.0
        scaled, known = (features - centre) / size, np.array(labels)
        heads = [_fitted(scaled, known == name) for name in names[-n_scores(len(names)) :]]
        weights = np.concatenate([head.coef_ for head in heads]) / size
        return cls(tuple(names), centre, weights, np.concatenate([h.intercept_ for h in heads]))

    def contributions(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_images, n_scores, n_atoms): with the bias they add up to the scores."""
        parts = (features - self.centre)[:, None] * self.weights
        n_atoms = parts.shape[2] // 2
        return parts[..., :n_atoms] + parts[..., n_atoms:]

    def scores(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_images, n_scores)"""
        scores: NDArray[np.float64] = self.bias + self.contributions(features).sum(axis=2)
        return scores

    def order(self, scores: NDArray[np.float64]) -> tuple[int, int]:
        """The places of the class that won, and of the one that came second."""
        if len(scores) == 1:
            won = int(scores[0] > 0)
            return won, 1 - won
        first, second = np.argsort(-scores, kind="stable")[:2].tolist()
        return first, second

    def margin(self, values: NDArray[np.float64], won: int, second: int) -> NDArray[np.float64]:
        """Of scores, or parts of them (n_scores, …): how much they speak for who won."""
        if len(values) == 1:
            return values[0] if won else -values[0]
        found: NDArray[np.float64] = values[won] - values[second]
        return found

    def predict(self, features: NDArray[np.float64]) -> list[str]:
        return [self.classes[self.order(scores)[0]] for scores in self.scores(features)]


def _fitted(features: NDArray[np.float64], positive: NDArray[np.bool_]) -> Any:
    options: dict[str, Any] = {"class_weight": "balanced", "solver": "liblinear", "dual": True}
    model = LogisticRegression(C=_STRENGTH, max_iter=10_000, random_state=0, **options)
    return model.fit(features, positive)


def leave_one_patient_out_accuracy(
    usage: ConceptUsage, labels: Sequence[str], patients: Sequence[str]
) -> tuple[int, int]:
    """Of the labelled images: how many are answered right by a head that lacks their patient, and
    how many could be asked. A patient without whom a class has no image cannot.
    """
    own = np.array([bool(label) for label in labels])
    F, y, whose = usage.weights[own], np.array(labels)[own], np.array(patients)[own]
    n_right = n_asked = 0
    for patient in np.unique(whose):
        out = whose == patient
        if len(set(y[~out])) < len(set(y)):
            continue
        head = ConceptClassifier.fit(F[~out], y[~out].tolist())
        n_right += int((np.array(head.predict(F[out])) == y[out]).sum())
        n_asked += int(out.sum())
    return n_right, n_asked


def concept_prediction_rows(
    usage: ConceptUsage, labels: Sequence[str], images: Sequence[str], names: Sequence[str]
) -> tuple[ConceptClassifier, list[Row]]:
    """The head that the labelled images give, and an answer for every image."""
    own = np.array([bool(label) for label in labels])
    known = [label for label in labels if label]
    for name, count in Counter(known).items():
        if count < 2:
            raise ValueError(f"only one image has the label {name!r}: give two or more")
    head = ConceptClassifier.fit(usage.weights[own], known)
    parts, scores = head.contributions(usage.weights), head.scores(usage.weights)
    usual = {name: usage.fractions[np.array(labels) == name].mean(axis=0) for name in head.classes}
    rows = []
    for place, image in enumerate(images):
        won, second = head.order(scores[place])
        lead = head.margin(parts[place], won, second)
        shown = {head.classes[n]: usual[head.classes[n]] for n in sorted((won, second))}
        because = [
            _describe(names[k], usage.fractions[place, k], {n: s[k] for n, s in shown.items()})
            for k in np.argsort(-lead, kind="stable")[:_NAMED].tolist()
            if lead[k] > 0
        ]
        row = {"image": image, "label": labels[place], "answer": head.classes[won]}
        row |= _score_columns(head.classes, scores[place])
        rows.append(row | {"because": "; ".join(because)})
    return head, rows


def _score_columns(classes: Sequence[str], scores: NDArray[np.float64]) -> Row:
    """The highest; of more than two classes, that of each, too."""
    values = np.round(scores, 6).tolist()
    if len(values) == 1:
        return {"score": values[0]}
    each = {f"score_{name}": value for name, value in zip(classes, values, strict=True)}
    return {"score": max(values)} | each


def _describe(name: str, share: float, usual: dict[str, float]) -> str:
    beside = ", ".join(f"{label} {value:.0%}" for label, value in usual.items())
    return f"{share:.0%} of its patches use '{name}' (labelled {beside})"


FILE, TABLE, USAGE, PREDICTIONS = "concepts.safetensors", "concepts.csv", "usage.csv", "answers.csv"
_FOLDER_FORMAT = 1  # goes up when the file is written otherwise
_KEY, _DIGEST = "histodict", "sha256"


def write_concepts(
    folder: Path, concepts: ConceptDictionary, usage: ConceptUsage, settings: dict[str, Any]
) -> None:
    arrays = {f"concepts.{k}": v for k, v in asdict(concepts).items()}
    arrays |= {f"usage.{k}": v for k, v in asdict(usage).items()}
    with atomic_write(folder / FILE) as partial:
        partial.write_bytes(serialize({"concepts": _FOLDER_FORMAT, "settings": settings}, arrays))


def read_concepts(folder: Path) -> tuple[ConceptDictionary, ConceptUsage, dict[str, Any]] | None:
    """What the folder holds, and what it was made with; None if it holds no concepts yet."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="numpy") as opened:
            header = parse_json((opened.metadata() or {})[_KEY])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if header.pop(_DIGEST) != digest(header, arrays) or header["concepts"] != _FOLDER_FORMAT:
            raise ValueError("its digest or form does not fit")
        made = [
            _part(kind, name, arrays)
            for kind, name in ((ConceptDictionary, "concepts"), (ConceptUsage, "usage"))
        ]
        return made[0], made[1], header["settings"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: is damaged, or has another format ({error}): remove it to learn again"
        ) from error


def _part(kind: Any, name: str, arrays: dict[str, NDArray[Any]]) -> Any:
    own = {k.partition(".")[2]: v for k, v in arrays.items() if k.startswith(f"{name}.")}
    return kind(**own)


def check_settings_match(folder: Path, before: dict[str, Any], today: dict[str, Any]) -> None:
    """Refuses a folder of concepts that were made otherwise."""
    plain = json.loads(json.dumps(today))
    others = sorted(k for k in plain.keys() | before.keys() if plain.get(k) != before.get(k))
    if others:
        raise ValueError(
            f"{folder}: holds concepts that were made otherwise ({', '.join(others)} differ): "
            "choose another folder (--output), or remove it"
        )


def names_in(folder: Path, n_atoms: int) -> list[str]:
    """What people called the concepts; those without a name are numbered."""
    names = [f"concept {place + 1}" for place in range(n_atoms)]
    file = folder / TABLE
    if not file.exists():
        return names
    (_, header), *lines = read_csv_rows(file) or [(0, [])]
    rows = [dict(zip(header, cells, strict=False)) for _, cells in lines]
    try:
        given = {int(row["concept"]): row["name"].strip() for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: must have the columns concept and name, a number and a word ({error})"
        ) from error
    wrong = sorted(set(given) - set(range(1, n_atoms + 1)))
    if wrong:
        raise ValueError(f"{file}: there is no concept {wrong[0]}; there are 1 to {n_atoms}")
    return [given.get(place + 1) or name for place, name in enumerate(names)]


def concept_rows(
    concepts: ConceptDictionary,
    usage: ConceptUsage,
    names: list[str],
    patients: list[str],
    images: list[str],
) -> list[Row]:
    """A row per concept; the images that use it most are of different patients."""
    rows = []
    for place, name in enumerate(names):
        shares = usage.fractions[:, place]
        most: dict[str, str] = {}
        for image in np.argsort(-shares, kind="stable").tolist():
            most.setdefault(patients[image], images[image])
        recurs = concepts.recurrence[place]
        rows.append(
            {
                "concept": place + 1,
                "name": "" if name == f"concept {place + 1}" else name,
                "share": round(float(np.average(shares, weights=usage.patches)), 4),
                "patients": len({p for p, s in zip(patients, shares, strict=True) if s >= 0.01}),
                "recurrence": None if np.isnan(recurs) else round(float(recurs), 3),
                "most_in": "; ".join(list(most.values())[:3]),
            }
        )
    return rows


def usage_rows(
    usage: ConceptUsage, names: list[str], patients: list[str], images: list[str]
) -> list[Row]:
    """A row per image: the share of its patches that use each concept."""
    taken = ("image", "patient", "patches")
    columns = [
        name if names.count(name) == 1 and name not in taken else f"{name} (concept {i + 1})"
        for i, name in enumerate(names)
    ]
    if len(set(columns)) < len(columns):
        raise ValueError("two concepts would have the same column: give them other names")
    return [
        {"image": image, "patient": patient, "patches": int(n)}
        | dict(zip(columns, np.round(shares, 4).tolist(), strict=True))
        for image, patient, n, shares in zip(
            images, patients, usage.patches, usage.fractions, strict=True
        )
    ]
