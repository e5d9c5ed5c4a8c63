"""API requests: concurrency limits, shared state, arguments of handlers and responses.

All requests share the cores and the interpreter lock. Each runs under the concurrency limit of its
kind, so that slow requests do not delay quick ones:

quick           requests that take milliseconds
images          reads of image files: one per core and file, and one more over all files, so that a
                slide on an unresponsive drive delays requests for this slide only
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
from ..utils.validation import check_kind
from .annotation.quick_prediction import InteractiveImage, PatchFeatures
from .dataset_checks import BackgroundChecks, excluded_image_names
from .datasets import RECORD_BYTES, Dataset, DatasetIndexCache, find_dataset
from .jobs import Job, JobQueue, find_job
from .maps import Tiles
from .patch_explanation import CachedPreparedImage, Chunk
from .training import split_training_and_test
from .workspace import DataFolders, ForbiddenFileError, UserWorkspace

QUICK, IMAGES, EXPLANATIONS, LIVE = "quick", "images", "explanations", "live"
PREDICTIONS, DOWNLOADS = "predictions", "downloads"
_MAX_QUICK = 16
_MAX_LIVE = 2


@dataclass(frozen=True)
class DeferredWork:
    """Function that computes a slow response, and the concurrency limit to run it under.

    Attributes
    ----------
    limit : name of the concurrency limit
    work : function that computes the response
    image : image file that the function reads; at most one function per core reads a file
    """

    limit: str
    work: Callable[[], Any]
    image: Path | None = None


class ConcurrencyLimits:
    """Concurrency limits of a server's requests."""

    def __init__(self) -> None:
        self._n_cores = available_cores()
        widths = {QUICK: _MAX_QUICK, PREDICTIONS: 1, DOWNLOADS: 1}
        widths |= dict.fromkeys((IMAGES, EXPLANATIONS), self._n_cores + 1) | {LIVE: _MAX_LIVE}
        self._limits = {name: CapacityLimiter(width) for name, width in widths.items()}
        self._images: WeakValueDictionary[Path, CapacityLimiter] = WeakValueDictionary()

    @property
    def are_busy(self) -> bool:
        """Whether a request is being processed."""
        return any(limit.borrowed_tokens for limit in self._limits.values())

    async def run(self, limit_name: str, work: Callable[..., Any], *args: Any) -> Any:
        """Run a function and the work it defers on threads, under concurrency limits."""
        result = await to_thread.run_sync(work, *args, limiter=self._limits[limit_name])
        while isinstance(result, DeferredWork):
            result = await self._run_deferred(result)
        return result

    async def _run_deferred(self, deferred: DeferredWork) -> Any:
        limit = self._limits[deferred.limit]
        if deferred.image is None:
            return await to_thread.run_sync(deferred.work, limiter=limit)
        file_limit = self._images.get(deferred.image) or CapacityLimiter(self._n_cores)
        self._images[deferred.image] = file_limit
        async with file_limit:
            return await to_thread.run_sync(deferred.work, limiter=limit)


# --- requests -------------------------------------------------------------------------------------


_MAX_BYTES = 64 * 1024  # of a JSON body
_TOO_LARGE = (
    "the file is too large: export fewer objects",
    "the request is too large: open files from the data folders instead of uploading them",
)
_STATUS_CODES = {ForbiddenFileError: 403, KeyError: 404, FileNotFoundError: 404}  # any other: 400
_INDEX = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class LoadedModel:
    """Model of a job.

    Attributes
    ----------
    model : fitted model
    header : header of the model file
    gallery : stored training patches; None if there are none
    """

    model: Model
    header: dict[str, Any]
    gallery: PatchSample | None

    @classmethod
    def load(cls, job: Job) -> tuple[LoadedModel, int]:
        """Return the model of a job and its size in bytes."""
        gallery = PatchSample.read_or_none(job.gallery_file)
        n_bytes = job.model_file.stat().st_size + (gallery.n_bytes if gallery else 0)
        return cls(load_model(job.model_file), read_header(job.model_file), gallery), n_bytes


class AppState:
    """State shared by all requests, and caches."""

    def __init__(self, folders: DataFolders, workspace: Path) -> None:
        self.folders = folders
        self.workspace = workspace
        self.demo: str | None = None  # id of the synthetic data set
        self.limits = ConcurrencyLimits()
        self.queue = JobQueue()
        self.checks = BackgroundChecks(lambda: self.limits.are_busy)
        self.sources = DatasetIndexCache(folders)
        self.tiles = Tiles(workspace / "thumbnails")
        self.rendered: LRUCache[bytes] = LRUCache(32 * 2**20)  # atoms, maps, outlines
        self.reports: LRUCache[bytes] = LRUCache(64 * 2**20)
        self.prepared_images: LRUCache[CachedPreparedImage] = LRUCache(256 * 2**20)
        self.chunks: LRUCache[Chunk] = LRUCache(128 * 2**20)
        self.interactive_images: LRUCache[InteractiveImage] = LRUCache(256 * 2**20)
        self.numbers: LRUCache[PatchFeatures] = LRUCache(192 * 2**20)
        self.suggestion_cache: LRUCache[NDArray[np.float64]] = LRUCache(4 * 2**20)
        self.models: LRUCache[LoadedModel] = LRUCache(512 * 2**20)
        self.trainings: LRUCache[tuple[Manifest, Manifest]] = LRUCache(128 * 2**20)

    def close(self) -> None:
        """Stop the job queue and the checks."""
        self.queue.close()
        self.checks.close()


@dataclass(frozen=True)
class ApiRequest:
    """Request of a user, which looks up the objects that its parameters name.

    Attributes
    ----------
    context : state of the application
    user : workspace of the user
    parts : path parameters
    query : query parameters
    body : JSON body
    sent : body that is not JSON
    """

    context: AppState
    user: UserWorkspace
    parts: dict[str, Any]
    query: dict[str, str]
    body: dict[str, Any]
    sent: bytes = b""

    def argument(self, parameter: Parameter) -> Any:
        """Return the value of a handler's parameter, checked against its annotation.

        The value comes from the path, else from the body, else from the query. A trailing
        underscore of the parameter's name is ignored.
        """
        name, kind = parameter.name.rstrip("_"), parameter.annotation
        if name in self.parts:  # an index
            if not _INDEX.fullmatch(self.parts[name]):
                raise KeyError(f"the {name} does not exist")
            return int(self.parts[name])
        value = {**self.query, **self.body}.get(name, parameter.default)
        if value is Parameter.empty:
            raise ValueError(f"{name} is missing")
        if kind == "int" and isinstance(value, str) and name not in self.body:
            with suppress(ValueError):
                value = int(value)
        check_kind(name, value, kind)
        return value

    @cached_property
    def dataset(self) -> Dataset:
        """Data set of the request; if an image is named, only this image is checked for changes."""
        image = self.parts.get("image")
        return find_dataset(self.user, self.context.sources, str(self.parts["data"]), image)

    @cached_property
    def record(self) -> ImageRecord:
        """Image of the request, after a check of its path."""
        return self.dataset.image(str(self.parts["image"]))

    @cached_property
    def job(self) -> Job:
        """Job of the request."""
        return find_job(self.user, str(self.parts["job"]))

    @cached_property
    def trained(self) -> LoadedModel:
        """Model of the job, from the cache."""
        job = self.job
        if not job.model_file.is_file():
            raise KeyError("this training has no model yet")
        # The gallery is written after the model, and may be rewritten.
        gallery = job.gallery_file
        key = (*file_key(job.model_file), *(file_key(gallery) if gallery.is_file() else ()))
        return self.context.models.get(key, lambda: LoadedModel.load(job))

    def model_at_threshold(self) -> Model:
        """Return the job's model, with the decision threshold of the query, if given."""
        model, text = self.trained.model, self.query.get("point")
        return model if text is None else model.with_threshold(float(text))

    def rendered(self, key: Key, draw: Callable[[], bytes]) -> bytes:
        """Return the bytes of an image or file from the cache, or render it with `draw`."""

        def render() -> tuple[bytes, int]:
            data = draw()
            return data, len(data)

        return self.context.rendered.get(key, render)

    def prepared_image(self) -> CachedPreparedImage:
        """Return the image as prepared for the job's model, from the cache."""
        record, model = self.record, self.trained.model
        size, image = self.dataset.size_of(record), file_key(record.path)
        key = (*file_key(self.job.model_file), repr(image), size)

        def open_cached() -> tuple[CachedPreparedImage, int]:
            sized = replace(record, mpp=size.user_mpp)
            source, patches = self.context.tiles.open(sized), model.model_
            prepared = CachedPreparedImage(source, model.recipe, patches.mpp_, patches.cache, image)
            prepared.add(self.context.chunks, key)
            return prepared, source.memory_bytes

        return self.context.prepared_images.get(key, open_cached)

    def training_and_test_images(self) -> tuple[Manifest, Manifest]:
        """Return the training images and the test images of the job, from the cache."""
        job = self.job

        def listed() -> tuple[tuple[Manifest, Manifest], int]:
            learn, test = split_training_and_test(job.request, excluded)
            return (learn, test), RECORD_BYTES * (len(learn.records) + len(test.records))

        excluded = excluded_image_names(job)
        key = (*file_key(job.folder / "job.json"), excluded)
        return self.context.trainings.get(key, listed)


def endpoint(
    work: Callable[..., Any],
    limit_name: str = QUICK,
    *,
    max_bytes: int = _MAX_BYTES,
    is_json: bool = True,
) -> Callable[[Request], Awaitable[Response]]:
    """Return the Starlette endpoint of a handler, which runs on a thread.

    `KeyError`, `ValueError`, `OSError` and `MemoryError` become error responses.

    Parameters
    ----------
    work : handler; takes the `ApiRequest` and its keyword-only parameters, see
        `ApiRequest.argument`; returns a response or an object for JSON
    limit_name : name of the concurrency limit
    max_bytes : maximum size of the body
    is_json : whether the body is a JSON object; any content otherwise
    """
    parameters = list(signature(work).parameters.values())[1:]

    async def respond(request: Request) -> Response:
        try:
            content = await _read_content(request, max_bytes, is_json)
            api_request = ApiRequest(
                request.app.state.context,
                request.state.user,
                dict(request.path_params),
                dict(request.query_params),
                _body(content) if is_json else {},
                b"" if is_json else content,
            )
            arguments = {
                parameter.name: api_request.argument(parameter) for parameter in parameters
            }
            result = await api_request.context.limits.run(
                limit_name, partial(work, api_request, **arguments)
            )
            return result if isinstance(result, Response) else _AsciiJSONResponse(result)
        except (KeyError, ValueError, OSError, MemoryError) as error:
            return _error_response(error)
        except ClientDisconnect:
            return _error_response(ValueError("the request was interrupted"))

    return respond


class _AsciiJSONResponse(JSONResponse):
    """JSON response in ASCII, for file names that are not valid Unicode."""

    def render(self, content: Any) -> bytes:
        """Return the encoded content."""
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
                raise ValueError(_TOO_LARGE[is_json])
    return b"".join(parts)


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = parse_json(data or b"{}")
    except ValueError:
        raise ValueError("the request is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the request must be a JSON object")
    return body


def image_response(data: bytes, kind: str = "jpeg") -> Response:
    """Return an image response that the browser may cache for an hour."""
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(data, media_type=f"image/{kind}", headers=headers)
