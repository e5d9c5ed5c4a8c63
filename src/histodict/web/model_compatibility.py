"""Imported model files, and warnings about models that do not match images or another model.

An imported file is copied to a finished job, so that it is displayed like a trained model. A file
is imported only once; a changed file counts as another model.
"""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ..decision.threshold import describe_tuning
from ..models import Model, load_model
from ..models.model_file import MODEL_SUFFIX
from ..utils.files import atomic_write, file_key
from ..utils.text_io import shorten, write_checked_json
from .datasets import Dataset
from .jobs import DONE, IMPORTED, Job
from .schema import Json
from .workspace import DataFolders, UserWorkspace, short_id


@dataclass(frozen=True)
class ModelProfile:
    """Properties of a model, compared with those of images or of another model.

    Attributes
    ----------
    name : name of the job
    is_imported : whether the model was imported from a file
    training_set : id of the data set that the model was trained on; for an imported model, the id
        of its job
    classes : class names
    mpp : µm per pixel to which the model resamples images, or else of its training images; None if
        unknown
    features : patch features
    patch_px : side of a patch in pixels
    tuning : description of changes to the decision after training
    """

    name: str
    is_imported: bool
    training_set: str
    classes: tuple[str, ...]
    mpp: float | None
    features: str
    patch_px: int
    tuning: str = ""

    @classmethod
    def from_job(cls, job: Job, model: Model) -> ModelProfile:
        """Return the profile of a job's model."""
        recipe = model.recipe
        mpp = recipe.mpp if recipe.mpp is not None else model.model_.mpp_
        is_file = job.summary["kind"] == IMPORTED
        images = job.id if is_file else job.summary["data"]
        names = tuple(model.class_names_)
        tuning = describe_tuning(model.training_info_)
        return cls(job.name, is_file, images, names, mpp, recipe.features, recipe.patch_px, tuning)


def compatibility_warnings(profile: ModelProfile, dataset: Dataset) -> list[str]:
    """Return warnings about predictions of a model on a data set; empty for its training set."""
    if profile.training_set == dataset.id:
        return []
    source = "comes from a file" if profile.is_imported else "was trained on other images"
    warnings = [f"This model {source} ({profile.name}): its accuracy on these images is unknown."]
    if profile.tuning:
        warnings.append(f"Its decision was changed after training: {profile.tuning}.")
    labels = dataset.manifest.classes
    unknown = [name for name in labels if name not in profile.classes]
    if unknown:
        warnings.append(
            f"These images are labelled {_join_names(labels)}; the classes of the model are "
            f"{_join_names(profile.classes)}, and every patch gets one of these."
        )
    if profile.mpp is None:
        warnings.append(
            "The pixel size of the training images of the model is unknown: cells may have "
            "another size in these images."
        )
    return warnings


def model_differences(one: ModelProfile, other: ModelProfile) -> list[str]:
    """Return sentences on differences in classes, training images and patches of two models."""
    descriptions = []
    if set(one.classes) != set(other.classes):
        descriptions.append(
            f"The models have different classes: {_join_names(one.classes)}, and "
            f"{_join_names(other.classes)}."
        )
    if one.training_set != other.training_set:
        descriptions.append("The models were probably trained on different images.")
    if one.mpp != other.mpp:
        descriptions.append(
            f"The models work at different pixel sizes: {_mpp_text(one)}, and {_mpp_text(other)}."
        )
    if (one.features, one.patch_px) != (other.features, other.patch_px):
        descriptions.append(
            f"The models use different patches: {one.features} of {one.patch_px} pixels, and "
            f"{other.features} of {other.patch_px}."
        )
    return descriptions


def _join_names(names: list[str] | tuple[str, ...]) -> str:
    return " / ".join(names)


def _mpp_text(profile: ModelProfile) -> str:
    return "unknown" if profile.mpp is None else f"{profile.mpp:g} µm"


# --- imported models ------------------------------------------------------------------------------


_MAX_FILE_BYTES = 512 * 2**20
_IMPORT_LOCK = threading.Lock()  # serialises imports, as two could write the same file


def import_model(
    user: UserWorkspace, folders: DataFolders, folder_index: int, relative_path: str
) -> Job:
    """Import a model file from the data folders as a finished job, and return the job.

    Parameters
    ----------
    user : workspace of the user
    folders : data folders
    folder_index : index of the data folder
    relative_path : path of the file, relative to the data folder
    """
    path = folders.find(folder_index, relative_path)
    if path.suffix.lower() != MODEL_SUFFIX or not path.is_file():
        raise ValueError(f"{path.name}: is not a model. Model files end in {MODEL_SUFFIX}")
    if path.stat().st_size > _MAX_FILE_BYTES:
        max_megabytes = _MAX_FILE_BYTES // 2**20
        raise ValueError(
            f"{path.name}: is larger than {max_megabytes} MB, the maximum on this page. Use the "
            "command line"
        )
    job = Job(user.folder / "jobs" / short_id(repr(file_key(path))))
    with _IMPORT_LOCK:
        if not (job.folder / "job.json").is_file():
            try:
                _import_file(job, path)
            except BaseException:
                shutil.rmtree(job.folder, ignore_errors=True)
                raise
    return job


def _import_file(job: Job, path: Path) -> None:
    """Copy a model file to the folder of a job, check the copy, and write the job's request."""
    with atomic_write(job.model_file) as partial:
        shutil.copyfile(path, partial)
    model = _load_model_copy(job.model_file, path.name)
    job.set_state(DONE, 0)
    write_checked_json(job.folder / "job.json", _imported_model_request(path, model))


def _load_model_copy(copy: Path, name: str) -> Model:
    try:
        return load_model(copy)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        message = shorten(error).replace(str(copy), name)
        raise ValueError(message if name in message else f"{name}: {message}") from error


def _imported_model_request(path: Path, model: Model) -> Json:
    """Return the content of job.json for an imported model, with the fields of a training."""
    return {
        "kind": IMPORTED,
        "made": time.time(),
        "name": path.name,
        "data": "",
        "root": str(path.parent),
        "records": [],
        "n_images": 0,
        "test_patients": [],
        "corrections": [],
        "recipe": {"method": model.recipe.method},
        "regions": model.class_names_[1] if model.finds_regions else None,
        "parent": None,
        "n_shapes": 0,
    }
