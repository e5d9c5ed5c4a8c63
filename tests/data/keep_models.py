"""Model files of the present schema, with the answers they give: `python -m tests.data.keep_models`

Run it before a change of `SCHEMA`: files of users will be of this schema, and test_model_file.py
holds every later version to these answers. It writes schema-N-KIND.histodict, a classifier, a
detector of regions and a panel of two, and schema-N.json.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from histodict.demo.sets import write_synthetic_set
from histodict.images.manifest import read_manifest
from histodict.model_file import SCHEMA
from histodict.pipeline import Panel, RegionDetector, TissueClassifier, save_model
from histodict.recipes import Recipe

MODELS = Path(__file__).with_name("models")
_COMMON: dict[str, Any] = {
    "patch_px": 10,
    "patches_per_class": 200,
    "vectors": "centred",
    "stride_px": 8,
}
_DFDL = Recipe("dfdl", {"n_atoms": 5, "n_iter": 3}, rule="margin", **_COMMON)
_ODL = Recipe("odl", {"n_atoms": 5}, rule="margin", **_COMMON)


def train(folder: Path) -> dict[str, Any]:
    tissue = write_synthetic_set(folder / "tissue", 6, 2, size=(200, 150), seed=5)
    images, regions = (
        read_manifest(tissue / name) for name in ("manifest.csv", "regions/manifest.csv")
    )
    return {
        "classifier": TissueClassifier(_DFDL).fit(images),
        "regions": RegionDetector(_DFDL, region="inflamed").fit(regions),
        "panel": Panel([_DFDL, _ODL], folds=2).fit(images),
    }


def said(answer: Any) -> dict[str, Any]:
    names = ("label", "score", "n_patches", "probabilities", "candidates")
    return {name: value for name in names if (value := getattr(answer, name, None))}


def main() -> None:
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, model in train(Path(folder)).items():
            save_model(model, MODELS / f"schema-{SCHEMA}-{kind}.histodict")
            images = sorted((MODELS / "images").iterdir())
            answers[kind] = {p.name: said(model.answer(p, mpp=0.5)) for p in images}
    text = json.dumps(answers, indent=1, ensure_ascii=False)
    (MODELS / f"schema-{SCHEMA}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
