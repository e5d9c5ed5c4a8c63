"""A script that uses every public name. `mypy --strict` checks it against the installed package
(make release): every public type is asserted, so that none is `Any` unintentionally. It is never
run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image

import histodict
from histodict import (
    DFDL,
    FDDL,
    LCKSVD,
    ODL,
    SHIRC,
    SRC,
    WNDCHARM,
    AnnotationFile,
    AtomStatistics,
    EnsembleClassifier,
    Explanation,
    ImagePrediction,
    Manifest,
    Nayak,
    PatchMap,
    PixelSizeOption,
    Plan,
    Predictions,
    Recipe,
    RegionDetector,
    RegionPrediction,
    TissueClassifier,
    allow_missing_chunks,
    atom_statistics,
    load,
    read_manifest,
    split_by_annotation,
    to_anndata,
    to_spatialdata,
    with_annotations,
)
from histodict.models import DetectedRegion

# --- from images to predictions -----------------------------------------------------------------

images = assert_type(read_manifest("tissue.csv"), Manifest)
assert_type(images.labels, list[str])
model = assert_type(TissueClassifier("fast", n_atoms=100).fit(images), TissueClassifier)
prediction = assert_type(model.predict_one("new.png", mpp=0.5), ImagePrediction)
assert_type(prediction.label, str | None)
assert_type(model.predict_one("new.png", mpp=PixelSizeOption(override=0.5)), ImagePrediction)
assert_type(prediction.score, float)
assert_type(prediction.probabilities, dict[str, float])
assert_type(prediction.patch_map, PatchMap | None)
assert_type(prediction.plot(), Axes)
assert_type(model.predict(Image.open("new.png")), ImagePrediction)
predictions = assert_type(
    model.predict(["a.png", Path("b.png")], mpp=0.5), Predictions[ImagePrediction]
)
assert_type(model.predict(images), Predictions[ImagePrediction])
assert_type(predictions[0], ImagePrediction)
assert_type(predictions[:2], Predictions[ImagePrediction])
assert_type(predictions.labels, list[str])
assert_type([one.score for one in predictions], list[float])
assert_type(model.score("tissue.csv"), float)
assert_type(model.fit(["a.png", "b.png"], [0, 1], groups=["p", "q"]), TissueClassifier)
assert_type(model.score([np.zeros((9, 9, 3), np.uint8)], np.array([0])), float)
assert_type(model.decision_function(["a.png"]), NDArray[np.float64])
assert_type(model.classes_, NDArray[Any])  # labels have the type of y
assert_type(model.set_fit_request(groups=True), TissueClassifier)
assert_type(model.explain("new.png"), Explanation)
assert_type(model.plot_atoms(), Sequence[Axes])
assert_type(model.save("tissue.histodict"), Path)
assert_type(TissueClassifier.load("tissue.histodict"), TissueClassifier)
assert_type(model.get_params(), dict[str, Any])

finder = assert_type(RegionDetector(region="tumour").fit("tissue.csv"), RegionDetector)
found = assert_type(finder.predict_one("new.png"), RegionPrediction)
assert_type(found.regions, list[DetectedRegion])
assert_type(found.patch_map.predicted_classes, NDArray[np.int16])
assert_type(finder.predict(["new.png"]), Predictions[RegionPrediction])

ensemble = assert_type(EnsembleClassifier().fit("tissue.csv"), EnsembleClassifier)
assert_type(ensemble.predict_proba("new.png"), NDArray[np.float64])
assert_type(ensemble.predict(["new.png"]), Predictions[ImagePrediction])

statistics = assert_type(atom_statistics(model, images, stability=2), list[AtomStatistics])
assert_type(statistics[0].auc, float)

# --- files, settings, outlines ------------------------------------------------------------------

loaded = assert_type(
    load("tissue.histodict"), TissueClassifier | RegionDetector | EnsembleClassifier
)
recipe = assert_type(Recipe("odl", {"n_atoms": 20}, stain="reinhard"), Recipe)
plan = assert_type(Plan.named("default"), Plan)
assert_type(plan.build_model(), TissueClassifier | RegionDetector | EnsembleClassifier)
with allow_missing_chunks():
    assert_type(loaded.predict("slide.zarr"), Any)
outlined = assert_type(with_annotations("slides/", "outlines/"), Manifest)
assert_type(split_by_annotation(outlined, ["tumour"]), Manifest)
assert_type(AnnotationFile(Path("a.geojson")).with_classes("tumour"), AnnotationFile)
to_spatialdata(to_anndata(loaded, "new.png"))  # their types are those of the other packages
assert_type(histodict.__version__, str)

# --- patch vectors ------------------------------------------------------------------------------

X: NDArray[np.float64] = np.ones((4, 3))
y = np.array([0, 0, 1, 1])
dfdl = assert_type(DFDL(n_atoms=2, random_state=0).fit(X, y), DFDL)
assert_type(dfdl.predict(X), NDArray[Any])  # labels have the type of y
assert_type(dfdl.predict_proba(X), NDArray[np.float64])
assert_type(dfdl.decision_function(X), NDArray[np.float64])
assert_type(dfdl.dictionaries_, NDArray[Any])  # float32 or float64, as X
assert_type(SRC().fit(X, y), SRC)
assert_type(SHIRC().fit(X, y), SHIRC)
assert_type(LCKSVD().fit(X, y), LCKSVD)
assert_type(FDDL().fit(X, y), FDDL)
assert_type(ODL().fit(X, y), ODL)
assert_type(Nayak().fit(X, y), Nayak)
assert_type(WNDCHARM().fit(X, y), WNDCHARM)
