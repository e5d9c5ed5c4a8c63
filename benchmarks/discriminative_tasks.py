"""One training and one judgement: a set, kind of vectors, split, size and variant.

A variant is words and numbers: "published 0.1" and "tangent 0.1" are DFDL's two steps with ρ = 0.1;
VARIANTS lists the others with their base.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histodict.decisions.image_rules import Evidence, ImageRule, patch_margins
from histodict.execution.progress import ignore
from histodict.kernels import load_backend
from histodict.methods.class_dictionaries import learn_class_dictionaries, make_rng
from histodict.methods.dfdl import DFDL

from .discriminative_data import PENALTIES, Place, Sides, load_sides
from .discriminative_variants import (
    ContrastDFDL,
    IncoherentDFDL,
    SharedDFDL,
    coherence,
    mine,
)

N_ITER = 20
RHOS = {
    "published": (0.0, 0.001, 0.01, 0.1, 0.3, 0.6, 1.0),
    "tangent": (0.1, 0.3, 0.6, 1.0, 2.0),
}
# DFDL's own term, by both steps.
TERM = ("odl", *(f"{step} {rho:g}" for step, rhos in RHOS.items() for rho in rhos))
# Variants by name, with the variant that each is held against.
BASE = "published 0"
VARIANTS = {
    "across 0.01": BASE,
    "across 0.1": BASE,
    "across 1": BASE,
    "own 0.1": BASE,
    "shared 20": BASE,
    "shared 50": BASE,
    "shared 50 rho 0.3": "published 0.3",
    "contrast 0.3": BASE,
    "contrast 1": BASE,
    "contrast 3": BASE,
    "mining second 0.2": BASE,
    "mining second 0.4": BASE,
    "mining both 0.2": BASE,
    "mining both 0.4": BASE,
    "random second 0.4": BASE,
    "random both 0.4": BASE,
}


@dataclass(frozen=True)
class Task:
    set: str
    kind: str
    repeat: int
    fold: int
    n_atoms: int
    n_per_class: int
    variant: str


@dataclass(frozen=True)
class Start:
    """Initial dictionaries (n_classes, n_atoms, n_features) and L per class."""

    dictionaries: NDArray[np.float32]
    n_nonzero: NDArray[np.int64]


def run_task(place: Place, task: Task, starts: Path) -> list[dict[str, Any]]:
    """The results of a task, one for every model that it makes."""
    begun = time.process_time()
    size = (task.repeat, task.fold, task.n_per_class)
    sides = load_sides(place, task.set, task.kind, *size)
    results = []
    for name, model in _models(task, sides, starts):
        fitted = time.process_time()
        said = _judge(model, sides)
        facts = asdict(task) | {"variant": name, "n_iter": getattr(model, "n_iter_", 0)}
        seconds = {"fit_s": fitted - begun, "judge_s": time.process_time() - fitted}
        results.append(facts | seconds | said)
        begun = time.process_time()
    return results


# --- training ------------------------------------------------------------------------------------


def _models(task: Task, sides: Sides, starts: Path) -> Iterator[tuple[str, DFDL]]:
    start = _start(task, sides, starts)
    name, *rest = task.variant.split()
    if name == "odl":
        yield task.variant, _from_start(DFDL(), start, task, sides)
    elif name in RHOS:
        model = _trained(DFDL(rho=float(rest[0]), step=name), start, task, sides)
        if task.variant == BASE:
            _write(_file(task, "base", starts), Start(model.dictionaries_, model.n_nonzero_))
        yield task.variant, model
    elif name == "contrast":
        contrast = ContrastDFDL(rho=float(rest[0]), step="published", tol=0.0)
        yield task.variant, _trained(contrast, start, task, sides)
    elif name in ("across", "own"):
        incoherent = IncoherentDFDL(rho=0.0)
        setattr(incoherent, "apart" if name == "across" else "own", float(rest[0]))
        yield task.variant, _trained(incoherent, start, task, sides)
    elif name == "shared":
        shared = SharedDFDL(rho=float(rest[2]) if len(rest) > 1 else 0.0, step="published")
        shared.n_shared = int(rest[0])
        # As many atoms in all as the other variants have.
        shared.set_params(n_atoms=task.n_atoms - shared.n_shared // 2, **_parameters(task))
        yield task.variant, shared.fit(sides.X, sides.y)
    elif name in ("mining", "random"):
        yield from _mined(task, _base(task, start, sides, starts), sides, name == "random", *rest)
    else:
        raise ValueError(f"there is no variant {task.variant!r}: use one of {list(VARIANTS)}")


def _mined(
    task: Task, first: DFDL, sides: Sides, at_random: bool, classes: str, share: str
) -> Iterator[tuple[str, DFDL]]:
    rounds = mine(
        lambda: DFDL(task.n_atoms, rho=0.0, **_parameters(task)),
        first,
        sides.X,
        sides.y,
        share=float(share),
        mined=(1,) if classes == "second" else (0, 1),
        n_rounds=1 if at_random else 2,
        rng=np.random.default_rng(task.repeat) if at_random else None,
    )
    for i, model in enumerate(rounds):
        yield task.variant + (", again" if i else ""), model


def _parameters(task: Task) -> dict[str, Any]:
    penalty = PENALTIES[task.kind]
    return {"penalty": penalty, "n_iter": N_ITER, "random_state": task.repeat, "n_jobs": 1}


def _from_start(model: DFDL, start: Start, task: Task, sides: Sides) -> DFDL:
    model.set_params(n_atoms=task.n_atoms, warm_start=True, **_parameters(task))
    model.classes_ = np.arange(len(start.dictionaries))
    model.n_features_in_ = sides.X.shape[1]
    model.dictionaries_, model.n_nonzero_ = start.dictionaries, start.n_nonzero
    return model


def _trained(model: DFDL, start: Start, task: Task, sides: Sides) -> DFDL:
    """From the initial dictionaries, as a fit with the same seed would make them itself."""
    return _from_start(model, start, task, sides).fit(sides.X, sides.y)


def _base(task: Task, start: Start, sides: Sides, folder: Path) -> DFDL:
    """The base, from its file where it was trained before."""
    file = _file(task, "base", folder)
    if file.exists():
        return _from_start(DFDL(), _read(file), task, sides)
    return _trained(DFDL(rho=0.0), start, task, sides)


def _start(task: Task, sides: Sides, folder: Path) -> Start:
    """Learnt once for all variants and kept in a file."""
    file = _file(task, "start", folder)
    if file.exists():
        return _read(file)
    learnt = learn_class_dictionaries(
        sides.X,
        sides.y,
        make_rng(task.repeat),
        n_atoms=task.n_atoms,
        penalty=PENALTIES[task.kind],
        n_jobs=1,
        backend="cpu",
        stage="initialise",
        report=ignore,
    )
    n_nonzero = np.array([max(1, round(part.mean_nonzero)) for part in learnt])
    start = Start(np.stack([part.atoms for part in learnt]), n_nonzero)
    _write(file, start)
    return start


def _file(task: Task, what: str, folder: Path) -> Path:
    parts = (task.set, task.kind, task.repeat, task.fold, task.n_atoms, task.n_per_class, what)
    return folder / f"{'-'.join(map(str, parts))}.npz"


def _read(file: Path) -> Start:
    with np.load(file) as stored:
        return Start(stored["dictionaries"], stored["n_nonzero"])


def _write(file: Path, start: Start) -> None:
    """Complete or not at all: other processes may be about to read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.stem}-{os.getpid()}.partial")
    with partial.open("wb") as stream:
        np.savez(stream, **asdict(start))
    os.replace(partial, file)


# --- judgement -----------------------------------------------------------------------------------


def _judge(model: DFDL, sides: Sides) -> dict[str, Any]:
    """What the model says of the test images, and how far the term does what it says.

    Two ways to judge a patch: `joint`, the product's (codes over all dictionaries at once), and
    `alone`, that of the training objective (every dictionary codes by itself, L atoms at most).
    """
    rows = np.cumsum([0, *map(len, sides.images)])
    every = np.concatenate(sides.images)
    n = sides.n_train
    joint = model.class_residuals(every)
    parts = [slice(a, b) for a, b in pairwise(rows)]
    evidence = [_evidence(joint[part]) for part in parts]
    rule = ImageRule.fit("margin", evidence[:n], sides.labels[:n])
    alone = _alone(model, every[rows[n] :])
    trained = _alone(model, sides.X)
    across, within = coherence(model)
    images: dict[str, Any] = {
        "label": sides.labels[n:].tolist(),
        "patient": sides.patients[n:],
        "score": [float(rule.scores(e)[0]) for e in evidence[n:]],
    }
    test = [slice(part.start - rows[n], part.stop - rows[n]) for part in parts[n:]]
    images |= _columns("joint", joint[rows[n] :], test, sides.labels[n:])
    images |= _columns("alone", alone, test, sides.labels[n:])
    own = trained[np.arange(len(sides.y)), sides.y] ** 2
    facts = {
        "n_nonzero": model.n_nonzero_.tolist(),
        "across": across,
        "within": within,
        "train_own": float(own.mean()),
        "train_other": float((trained**2).sum(axis=1).mean() - own.mean()),
    }
    return facts | {"images": _rounded(images)}


def _columns(
    name: str, residuals: NDArray[np.float64], images: list[slice], labels: NDArray[np.int64]
) -> dict[str, list[float]]:
    """Per image: mean margin of the second class, share of right patches, squared residuals."""
    found: dict[str, list[float]] = {"margin": [], "right": [], "own": [], "other": []}
    for part, label in zip(images, labels, strict=True):
        r = residuals[part]
        found["margin"].append(float(patch_margins(r)[:, 1].mean()))
        found["right"].append(float(np.mean(r.argmin(axis=1) == label)))
        found["own"].append(float((r[:, label] ** 2).mean()))
        found["other"].append(float((r[:, 1 - label] ** 2).mean()))
    return {f"{name}_{key}": values for key, values in found.items()}


def _alone(model: DFDL, Y: NDArray[np.float32]) -> NDArray[np.float64]:
    """‖y − sD_c‖ of every class's dictionary by itself: (n_samples, n_classes)."""
    module = load_backend(model.backend)
    shared = model.shared_ if isinstance(model, SharedDFDL) else Y[:0]
    columns = []
    for D, L in zip(model.dictionaries_, model.n_nonzero_, strict=True):
        coder = module.OMPCoder(np.concatenate([shared, D]), int(L), 0.0, True)
        blocks = range(0, len(Y), module.BLOCK_ROWS)
        columns.append([coder.code(Y[at : at + module.BLOCK_ROWS])[1] for at in blocks])
    return np.sqrt(np.stack([np.concatenate(parts) for parts in columns], axis=1))


def _evidence(residuals: NDArray[np.float64]) -> Evidence:
    wins = np.bincount(residuals.argmin(axis=1), minlength=residuals.shape[1])
    return Evidence(len(residuals), wins, patch_margins(residuals).sum(axis=0), np.zeros(0))


def _rounded(images: dict[str, Any]) -> dict[str, Any]:
    """Floats to six digits, which keeps the files small."""
    return {
        name: [float(f"{v:.6g}") if isinstance(v, float) else v for v in values]
        for name, values in images.items()
    }
