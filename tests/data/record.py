"""Digests of models, predictions and files for every preset and method on a small synthetic set.

`python -m tests.data.record FILE` writes them; `test_same_predictions` compares new digests with
the recorded file. Bits depend on the processor, so the file names the one it was recorded on.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info
from typer.testing import CliRunner

SMALL = {"n_atoms": 24, "n_iter": 3, "n_epochs": 2, "n_coding_steps": 10, "n_nonzero": 5}


def processor() -> str:
    """Return what determines the last bits: the machine, and the kernels that BLAS selected for
    it."""
    import scipy.linalg  # noqa: F401  brings its own BLAS

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    kernels = sorted({str(pool.get("architecture")) for pool in pools})
    return " ".join([platform.machine(), *kernels])


def digest(*parts: Any) -> str:
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(str((part.shape, part.dtype.str)).encode())
            total.update(np.ascontiguousarray(part).tobytes())
        else:
            total.update(json.dumps(part, sort_keys=True, default=repr).encode())
    return total.hexdigest()[:16]


# --- data ---------------------------------------------------------------------------------------


def draw(folder: Path) -> Path:
    from histodict.synthetic.dataset import write_synthetic_dataset

    return write_synthetic_dataset(folder / "tissue", 6, 4, size=(200, 150), seed=5)


def halves(tissue: Path) -> tuple[Any, Any]:
    """Return three patients for training and three for testing, with an image of each class."""
    from histodict.datasets.manifest import read_manifest

    manifest = read_manifest(tissue / "manifest.csv")
    places = {(r.patient, r.label): i for i, r in enumerate(manifest.records)}
    first = sorted(set(manifest.patients))[:3]
    train = [i for (patient, _), i in places.items() if patient in first]
    return manifest.select(train), manifest.select(sorted(set(places.values()) - set(train)))


# --- models -------------------------------------------------------------------------------------


def small(preset_name: str, method: str | None = None, **changes: Any) -> Any:
    """Return the plan of a preset at a size that trains in a second, with changes of plan or
    recipe."""
    from dataclasses import replace

    from histodict.models import Plan

    plan = Plan.named(preset_name, method)
    own = {k: v for k, v in SMALL.items() if plan.has_setting(k)}
    if (method or "").endswith("-image"):
        own.pop("n_atoms")
    base: dict[str, Any] = {"patches_per_class": 300, "downsample": 1.0}
    uses_encoder = preset_name in ("embeddings", "default")
    base |= {"n_components": 20} if uses_encoder else {"patch_px": 12}
    procedure = {k: changes.pop(k) for k in ("ensemble", "calibration_folds") if k in changes}
    parameters = plan.recipe.method_parameters | own
    recipe = plan.recipe.with_changes(method_parameters=parameters, **base, **changes)
    return replace(plan, recipe=recipe, **procedure)


def arrays_of(model: Any) -> list[Any]:
    """Return the fitted arrays of all members."""
    found: list[Any] = []
    for one in getattr(model, "estimators_", [model]):
        method = one.model_.classifier_
        found += [np.asarray(getattr(method, name)) for name in method.fitted_arrays]
        rule = one.model_.aggregator_
        found += [rule.weights, rule.bias] if rule is not None else []
    return found


def predictions_of(model: Any, test: Any) -> list[Any]:
    return [model.predict_one(record.path, mpp=record.mpp) for record in test.records]


def plain(prediction: Any) -> Any:
    values = {"label": prediction.top_label, "score": float(prediction.score).hex()}
    values["n_patches"] = prediction.n_patches
    for name in (
        "scores",
        "proportions",
        "probabilities",
        "prediction_set",
        "threshold",
        "n_abstaining",
    ):
        if hasattr(prediction, "scores"):
            values[name] = getattr(prediction, name)
    if "n_abstaining" in values:
        values["n_abstaining"] = values["n_abstaining"] or 0
    for region in prediction.regions:
        values.setdefault("regions", []).append([region.n_patches, region.score, region.box])
    return values


def case(model: Any, test: Any) -> dict[str, str]:
    predictions = predictions_of(model, test)
    maps = [a.patch_map for a in predictions if a.patch_map is not None]
    return {
        "model": digest(*arrays_of(model)),
        "predictions": digest(*[plain(prediction) for prediction in predictions]),
        "maps": digest(*[x for m in maps for x in (m.predicted_classes, m.margins)]),
    }


def model_cases(tissue: Path) -> dict[str, dict[str, str]]:
    from dataclasses import replace

    from histodict.methods.registry import METHODS

    train, test = halves(tissue)
    cache = tissue / "cache"

    def fit(plan: Any, **options: Any) -> Any:
        return plan.build_model(random_state=1, cache=cache).fit(train, **options)

    found: dict[str, dict[str, str]] = {}
    for method in sorted(METHODS):
        found[f"method {method}"] = case(fit(small("fast", method)), test)
    for name in ("paper", "fast", "embeddings", "regions", "pixels", "default"):
        found[f"preset {name}"] = case(fit(small(name)), test)
    found["preset embeddings, no turn"] = case(
        fit(small("embeddings", augment_patches=False)), test
    )
    base = fit(small("fast"))
    found["calibrated"] = case(fit(small("fast", calibration_folds=2)), test)
    found["panel of embeddings"] = case(
        fit(small("embeddings", ensemble=True, calibration_folds=2)), test
    )
    found["panel of textures"] = case(
        fit(small("fast", "lbp-colour", ensemble=True, calibration_folds=2)), test
    )
    found["working pixel size"] = case(fit(small("fast", mpp=1.0)), test)
    found["warm start"] = case(fit(small("fast"), start_from=base), test)
    found["threshold moved"] = case(base.with_threshold(0.01), test)
    scores = [prediction.score for prediction in predictions_of(base, test)] * 2
    found["adapted"] = case(base.adapt_threshold(scores, force=True), test)
    three = replace(
        train,
        records=tuple(
            replace(r, label=f"{r.label} of {r.patient}") if r.label == "inflamed" else r
            for r in train.records
        ),
    )
    model = small("fast").build_model(random_state=1).fit(three)
    found["more classes"] = case(model, test)
    crops = small("regions").build_model(region="inflamed", random_state=1).fit(train)
    found["regions of crops"] = case(crops, test)
    from histodict.datasets.manifest import read_manifest

    masked = read_manifest(tissue / "regions" / "manifest.csv")
    found["regions of masks"] = case(
        small("regions").build_model(region="x", random_state=1).fit(masked), masked
    )
    return found


# --- the command line ---------------------------------------------------------------------------


def call(*arguments: Any) -> None:
    from histodict.cli import app

    run = CliRunner().invoke(app, [str(word) for word in arguments])
    if run.exit_code:
        raise RuntimeError(f"{arguments}: {run.output}") from run.exception


def table(path: Path, root: Path, without: tuple[str, ...] = ()) -> str:
    import pyarrow.csv

    found = pyarrow.csv.read_csv(path).to_pydict()
    stored = {k: [str(v) for v in found[k]] for k in sorted(found) if k not in without}
    return digest(json.dumps(stored).replace(str(root), ""))


def pictures(folder: Path) -> str:
    from PIL import Image

    return digest(*[np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))])


def command_cases(folder: Path, tissue: Path) -> dict[str, dict[str, str]]:
    size = ["--set", "n_atoms=24", "--set", "n_iter=3", "--set", "patches_per_class=300"]
    size += ["--set", "patch_px=12", "--set", "downsample=1"]
    model, finder = folder / "m.histodict", folder / "r.histodict"
    call("train", tissue, "-o", model, "--preset", "fast", *size)
    call("train", tissue, "-o", finder, "--regions", "inflamed", "--preset", "regions", *size)
    found: dict[str, dict[str, str]] = {}
    for name, file, command in (("predict", model, "predict"), ("detect", finder, "predict")):
        out = folder / name
        call(command, file, tissue / "healthy", tissue / "regions" / "patient07_1.jpg", "-o", out)
        geo = [p.read_text() for p in sorted((out / "geojson").glob("*"))]
        tables = sorted(p.name for p in out.glob("*.csv"))
        found[name] = {
            "overlays": pictures(out / "overlays"),
            "geojson": digest(*geo),
            **{t: table(out / t, folder, ("key",)) for t in tables},
        }
    methods = "dfdl,pixels:dfdl,lbp-colour,paper:odl,dfdl+unlabelled"
    out = folder / "evaluation"
    call("evaluate", tissue, "--methods", methods, "--folds", "2", *size, "-o", out)
    found["evaluate"] = {
        t: table(out / f"{t}.csv", folder)
        for t in ("predictions", "results", "comparisons", "confusion", "errors")
    }
    for name in ("accuracy", "confusion", "roc", "bases", "codes", "training-images"):
        call("reproduce", name, "--quick", "--methods", "dfdl", "-o", folder / "paper")
        files = sorted((folder / "paper" / "synthetic").glob(f"{name}*.csv"))
        found[f"reproduce {name}"] = {p.name: table(p, folder) for p in files}
    return found


def record() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        tissue = draw(folder)
        return {
            "processor": processor(),
            "models": model_cases(tissue),
            "commands": command_cases(folder, tissue),
        }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1) + "\n")
