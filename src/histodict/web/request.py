"""API requests: concurrency limits, shared state, arguments of handlers and responses.

All requests share the cores and the interpreter lock. Each request runs under a concurrency limit,
so that slow requests do not delay quick ones:

quick           requests that take milliseconds
images          reads of image files: as many as cores for one file, and one more for all files, so
                that a slide on an unresponsive drive delays requests for this slide only
explanations    explanations of patches, with the same limit as images
live            predictions after a brush stroke, two at a time
predictions     predictions of models, one at a time
downloads       files to save, one at a time
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from anyio import CapacityLimiter, to_thread
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..datasets.manifest import ImageRecord, Manifest
from ..explain.patch_sample import PatchSample
from ..models import Model, load_model
from ..models.model_file import read_header
from ..utils.cache import Key, LRUCache
from ..utils.files import file_key
from ..utils.parallel import available_cores
from ..utils.text_io import parse_json, shorten
from ..utils.validation import check_type
from .annotation.quick_prediction import InteractiveImage, PatchFeatures
from .dataset_checks import BackgroundChecks, excluded_image_names
from .datasets import RECORD_BYTES, Dataset, DatasetIndexCache, find_dataset
from .jobs import Job, JobQueue, find_job
from .maps import TileCache
from .patch_explanation import CachedPreparedImage, ChunkFeatures
from .schema import Json
from .training import split_training_and_test
from .workspace import DataFolders, ForbiddenFileError, UserWorkspace

# Names of the concurrency limits of responses.
QUICK, IMAGES, EXPLANATIONS, LIVE = "quick", "images", "explanations", "live"
PREDICTIONS, DOWNLOADS = "predictions", "downloads"
_MAX_QUICK = 16  # threads
_MAX_LIVE = 2  # threads


@dataclass(frozen=True)
class SlowResponse:
    """Slow response that is not computed yet: a function and its concurrency limit.

    Attributes
    ----------
    limit_name : name of the concurrency limit
    compute : function that computes the response
    image_file : image file that the function reads, with at most one thread per core; None if it
        reads none
    """

    limit_name: str
    compute: Callable[[], Any]
    image_file: Path | None = None


class ConcurrencyLimits:
    """Concurrency limits of a server: a number of threads for each limit name."""

    def __init__(self) -> None:
        self._n_cores = available_cores()
        max_threads = {QUICK: _MAX_QUICK, PREDICTIONS: 1, DOWNLOADS: 1}
        max_threads |= dict.fromkeys((IMAGES, EXPLANATIONS), self._n_cores + 1) | {LIVE: _MAX_LIVE}
        self._limits = {name: CapacityLimiter(n_threads) for name, n_threads in max_threads.items()}
        self._images: WeakValueDictionary[Path, CapacityLimiter] = WeakValueDictionary()

    @property
    def are_busy(self) -> bool:
        """Whether a request is being processed."""
        return any(limit.borrowed_tokens for limit in self._limits.values())

    async def run(self, limit_name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a thread, and return its result.

        If the result is a `SlowResponse`, compute and return the response under its own limit.

        Parameters
        ----------
        limit_name : concurrency limit of the function itself
        function, args : function and its arguments
        """
        result = await to_thread.run_sync(function, *args, limiter=self._limits[limit_name])
        while isinstance(result, SlowResponse):
            result = await self._compute_response(result)
        return result

    async def _compute_response(self, response: SlowResponse) -> Any:
        limit = self._limits[response.limit_name]
        if response.image_file is None:
            return await to_thread.run_sync(response.compute, limiter=limit)
        file_limit = self._images.get(response.image_file) or CapacityLimiter(self._n_cores)
        self._images[response.image_file] = file_limit
        async with file_limit:
            return await to_thread.run_sync(response.compute, limiter=limit)


# --- requests -------------------------------------------------------------------------------------


_MAX_BODY_BYTES = 64 * 1024  # of a JSON body
_TOO_LARGE_MESSAGES = (
    "the file is too large: export fewer objects",
    "the request is too large: open files from the data folders instead of uploading them",
)
_STATUS_CODES = {ForbiddenFileError: 403, KeyError: 404, FileNotFoundError: 404}  # any other: 400
_INDEX = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class LoadedModel:
    """Model of a training, with its file header and stored training patches.

    Attributes
    ----------
    model : fitted model
    header : header of the model file
    gallery : stored training patches; None if there are none
    """

    model: Model
    header: Json
    gallery: PatchSample | None

    @classmethod
    def load(cls, job: Job) -> tuple[LoadedModel, int]:
        """Load the model of a job; return it with its approximate memory in bytes."""
        gallery = PatchSample.read_or_none(job.gallery_file)
        n_bytes = job.model_file.stat().st_size + (gallery.n_bytes if gallery else 0)
        return cls(load_model(job.model_file), read_header(job.model_file), gallery), n_bytes


class AppState:
    """State of the server that all requests share: folders, job queue, checks and caches."""

    def __init__(self, folders: DataFolders, workspace: Path) -> None:
        self.folders = folders
        self.workspace = workspace
        self.demo_id: str | None = None  # id of the synthetic data set
        self.limits = ConcurrencyLimits()
        self.queue = JobQueue()
        self.checks = BackgroundChecks(lambda: self.limits.are_busy)
        self.indexes = DatasetIndexCache(folders)
        self.tiles = TileCache(workspace / "thumbnails")
        self.rendered: LRUCache[bytes] = LRUCache(32 * 2**20)  # atoms, maps, outlines
        self.reports: LRUCache[bytes] = LRUCache(64 * 2**20)
        self.prepared_images: LRUCache[CachedPreparedImage] = LRUCache(256 * 2**20)
        self.chunks: LRUCache[ChunkFeatures] = LRUCache(128 * 2**20)
        self.interactive_images: LRUCache[InteractiveImage] = LRUCache(256 * 2**20)
        self.patch_features: LRUCache[PatchFeatures] = LRUCache(192 * 2**20)
        self.suggestion_cache: LRUCache[NDArray[np.float64]] = LRUCache(4 * 2**20)
        self.models: LRUCache[LoadedModel] = LRUCache(512 * 2**20)
        self.manifest_pairs: LRUCache[tuple[Manifest, Manifest]] = LRUCache(128 * 2**20)

    def close(self) -> None:
        """Stop the job queue and the checks."""
        self.queue.close()
        self.checks.close()


@dataclass(frozen=True)
class ApiRequest:
    """Request of a user; properties load the objects that its parameters name.

    Attributes
    ----------
    context : state of the application
    user : workspace of the user
    path_parameters : parameters in the path of the URL, as text
    query : parameters in the query of the URL, as text
    body : JSON body; empty without a body
    raw_body : body of an endpoint that does not take JSON; otherwise empty
    """

    context: AppState
    user: UserWorkspace
    path_parameters: dict[str, str]
    query: dict[str, str]
    body: Json
    raw_body: bytes = b""

    def parse_argument(self, parameter: Parameter) -> Any:
        """Return the value of a parameter of a handler, checked against its annotation.

        The value is taken from the path, the body or the query, in this order, or is the default. A
        trailing underscore of the name is ignored. A missing or invalid value raises an error.
        """
        name, kind = parameter.name.rstrip("_"), parameter.annotation
        if name in self.path_parameters:  # an index
            if not _INDEX.fullmatch(self.path_parameters[name]):
                raise KeyError(f"the {name} does not exist")
            return int(self.path_parameters[name])
        value = {**self.query, **self.body}.get(name, parameter.default)
        if value is Parameter.empty:
            raise ValueError(f"{name} is missing")
        if kind == "int" and isinstance(value, str) and name not in self.body:
            with suppress(ValueError):
                value = int(value)
        check_type(name, value, kind)
        return value

    @cached_property
    def dataset(self) -> Dataset:
        """Data set of the request; with an image, only its folders are checked for changes."""
        image = self.path_parameters.get("image")
        return find_dataset(
            self.user, self.context.indexes, str(self.path_parameters["data"]), image
        )

    @cached_property
    def record(self) -> ImageRecord:
        """Manifest record of the image of the request, after a check of its path."""
        return self.dataset.find_image(str(self.path_parameters["image"]))

    @property
    def image_id(self) -> str:
        """Id of the image, after a check that the data set contains it."""
        assert self.record
        return str(self.path_parameters["image"])

    @cached_property
    def job(self) -> Job:
        """Job of the request."""
        return find_job(self.user, str(self.path_parameters["job"]))

    @cached_property
    def loaded_model(self) -> LoadedModel:
        """Model of the job, cached."""
        job = self.job
        if not job.model_file.is_file():
            raise KeyError("this training has no model yet")
        # The gallery is written after the model, and may be rewritten.
        gallery = job.gallery_file
        key = (*file_key(job.model_file), *(file_key(gallery) if gallery.is_file() else ()))
        return self.context.models.get(key, lambda: LoadedModel.load(job))

    def model_at_threshold(self) -> Model:
        """Return the job's model at the threshold "point" in the query (default: as trained)."""
        model, threshold = self.loaded_model.model, self.query.get("point")
        return model if threshold is None else model.with_threshold(float(threshold))

    def render_cached(self, key: Key, render: Callable[[], bytes]) -> bytes:
        """Return the encoded image or text with this cache key; call `render` if not cached."""

        def render_sized() -> tuple[bytes, int]:
            data = render()
            return data, len(data)

        return self.context.rendered.get(key, render_sized)

    def prepared_image(self) -> CachedPreparedImage:
        """Return the image as prepared for the job's model, cached."""
        record, model = self.record, self.loaded_model.model
        size, image = self.dataset.pixel_size(record), file_key(record.path)
        key = (*file_key(self.job.model_file), repr(image), size)

        def open_cached() -> tuple[CachedPreparedImage, int]:
            sized = replace(record, mpp=size.user_mpp)
            source, patches = self.context.tiles.open(sized), model.model_
            prepared = CachedPreparedImage(source, model.recipe, patches.mpp_, patches.cache, image)
            prepared.set_cache(self.context.chunks, key)
            return prepared, source.memory_bytes

        return self.context.prepared_images.get(key, open_cached)

    def training_and_test_images(self) -> tuple[Manifest, Manifest]:
        """Return the training images and the test images of the job, cached."""
        job = self.job

        def split() -> tuple[tuple[Manifest, Manifest], int]:
            training, test = split_training_and_test(job.request, excluded)
            return (training, test), RECORD_BYTES * (len(training.records) + len(test.records))

        excluded = excluded_image_names(job)
        key = (*file_key(job.folder / "job.json"), excluded)
        return self.context.manifest_pairs.get(key, split)


def endpoint(
    handler: Callable[..., Any],
    limit_name: str = QUICK,
    *,
    max_bytes: int = _MAX_BODY_BYTES,
    is_json: bool = True,
) -> Callable[[Request], Awaitable[Response]]:
    """Return the Starlette endpoint of a handler, which runs on a thread.

    `KeyError`, `ValueError`, `OSError` and `MemoryError` become error responses.

    Parameters
    ----------
    handler : function of an `ApiRequest` and keyword-only parameters, which are parsed by
        `ApiRequest.parse_argument`; returns a response, a `SlowResponse` or a JSON object
    limit_name : name of the concurrency limit
    max_bytes : maximum size of the request body
    is_json : whether the request body must be a JSON object
    """
    parameters = list(signature(handler).parameters.values())[1:]

    async def respond(request: Request) -> Response:
        try:
            content = await _read_content(request, max_bytes, is_json)
            api_request = ApiRequest(
                request.app.state.context,
                request.state.user,
                dict(request.path_params),
                dict(request.query_params),
                _parse_body(content) if is_json else {},
                b"" if is_json else content,
            )
            arguments = {each.name: api_request.parse_argument(each) for each in parameters}
            result = await api_request.context.limits.run(
                limit_name, partial(handler, api_request, **arguments)
            )
            return result if isinstance(result, Response) else _AsciiJSONResponse(result)
        except (KeyError, ValueError, OSError, MemoryError) as error:
            return _error_response(error)
        except ClientDisconnect:
            return _error_response(ValueError("the request was interrupted"))

    return respond


class _AsciiJSONResponse(JSONResponse):
    """JSON response in ASCII, as file names may be invalid Unicode, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        """Encode a JSON-serialisable object."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def _error_response(error: Exception) -> Response:
    status = next((code for kind, code in _STATUS_CODES.items() if isinstance(error, kind)), 400)
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return _AsciiJSONResponse({"error": shorten(message) or type(error).__name__}, status)


async def _read_content(request: Request, max_bytes: int, is_json: bool) -> bytes:
    parts, n_bytes = [], 0
    if request.method == "POST":
        async for part in request.stream():
            parts.append(part)
            n_bytes += len(part)
            if n_bytes > max_bytes:
                raise ValueError(_TOO_LARGE_MESSAGES[is_json])
    return b"".join(parts)


def _parse_body(data: bytes) -> Json:
    try:
        body = parse_json(data or b"{}")
    except ValueError:
        raise ValueError("the request is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the request must be a JSON object")
    return body


def image_response(data: bytes, image_format: str = "jpeg") -> Response:
    """Return a response with an encoded image (JPEG or PNG) that the browser caches for an hour."""
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(data, media_type=f"image/{image_format}", headers=headers)
