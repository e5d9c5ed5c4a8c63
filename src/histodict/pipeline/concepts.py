"""Concepts without labels: one dictionary over the patches of many images, and how each uses it.

Vectors of a network are drawn from every image, as many of each; `dictionaries.stable` makes atoms
of them. Then every patch of every image is coded with at most 8 atoms. An image's usage is the
share of its patches that use an atom, and the mean weight of each, by sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dictionaries.atoms import normalise
from ..dictionaries.stable import PENALTY, SHRINKAGE, learn_axis_anchored, split_half_similarity
from ..execution.executor import Executor, Threads
from ..execution.progress import Callback, Progress, no_callback
from ..execution.tables import Row
from ..execution.texts import pluralize
from ..images.feature_file import FeatureMetadata, common_metadata, is_feature_file
from ..images.pixel_size import PixelSize, PixelSizeOption, is_mixed
from ..images.record_order import content_order
from ..images.records import ImageRecord
from ..kernels import encode_omp
from ..networks import get_patch_features
from ..parameters import check_whole_number
from ..presets import PRESETS
from ..recipes import Recipe
from .extraction import extraction_recipe
from .opening import open_prepared_image
from .training_patches import map_images

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
