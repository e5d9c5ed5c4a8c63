"""Requests: how many run at a time, the arguments of their handlers, and their responses.

All requests share the cores and the interpreter lock. If all ran at once, a list would take as long
as the pictures and reports that others wait for. Each therefore runs in a lane of limited width:

quick       requests that take a moment; they hardly ever wait
pictures    from image files: as many per file as there are cores, and one more over all files, so
            that a slide on a drive that hangs delays requests for this slide only
whys        explanations of patches, with the same width; they do not wait for tiles
live        predictions after a stroke of the brush, two at a time
answers     predictions of models, one at a time
downloads   files to save, one at a time
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
from .annotation.quick_prediction import InteractiveImage, Numbers
from .dataset_checks import BackgroundChecks, excluded_image_names
from .datasets import RECORD_BYTES, Dataset, DatasetIndexCache, find_dataset
from .jobs import Job, JobQueue, find_job
from .maps import Tiles
from .patch_explanation import CachedPreparedImage, Chunk
from .training import train_and_test
from .workspace import DataFolders, ForbiddenFileError, UserWorkspace

QUICK, IMAGES, EXPLANATIONS, LIVE = "quick", "pictures", "whys", "live"
PREDICTIONS, DOWNLOADS = "answers", "downloads"
_N_QUICK = 16
_N_LIVE = 2


@dataclass(frozen=True)
class DeferredWork:
    """What a quick answer has found to take longer, and the lane for that.

    image : the file that it reads, of which no more is done at a time than there are cores
    """

    limit: str
    work: Callable[[], Any]
    image: Path | None = None


class ConcurrencyLimits:
    """The lanes of one server."""

    def __init__(self) -> None:
        self._n_cores = available_cores()
        widths = {QUICK: _N_QUICK, PREDICTIONS: 1, DOWNLOADS: 1}
        widths |= dict.fromkeys((IMAGES, EXPLANATIONS), self._n_cores + 1) | {LIVE: _N_LIVE}
        self._limits = {name: CapacityLimiter(width) for name, width in widths.items()}
        self._images: WeakValueDictionary[Path, CapacityLimiter] = WeakValueDictionary()

    @property
    def are_busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return any(limit.borrowed_tokens for limit in self._limits.values())

    async def run(self, lane: str, work: Callable[..., Any], *given: Any) -> Any:
        """What the work gives, done by a thread when its turn has come."""
        result = await to_thread.run_sync(work, *given, limiter=self._limits[lane])
        while isinstance(result, DeferredWork):
            result = await self._run_later(result)
        return result

    async def _run_later(self, later: DeferredWork) -> Any:
        limit = self._limits[later.limit]
        if later.image is None:
            return await to_thread.run_sync(later.work, limiter=limit)
        own = self._images.get(later.image) or CapacityLimiter(self._n_cores)
        self._images[later.image] = own
        async with own:
            return await to_thread.run_sync(later.work, limiter=limit)


# --- requests -------------------------------------------------------------------------------------


_MAX_BYTES = 64 * 1024  # of a request: nothing is uploaded
_TOO_LARGE = (
    "the file is too large: export fewer objects",
    "the request is too large: files are not uploaded, they are opened",
)
_STATUS = {ForbiddenFileError: 403, KeyError: 404, FileNotFoundError: 404}  # any other: 400
_PLACE = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class LoadedModel:
    """A job's model, what its file says of it, and the training patches that were kept, if any."""

    model: Model
    header: dict[str, Any]
    gallery: PatchSample | None

    @classmethod
    def of(cls, job: Job) -> tuple[LoadedModel, int]:
        """With its number of bytes."""
        gallery = PatchSample.read_if_whole(job.gallery_file)
        n_bytes = job.model_file.stat().st_size + (gallery.n_bytes if gallery else 0)
        return cls(load_model(job.model_file), read_header(job.model_file), gallery), n_bytes


class AppState:
    """What all calls share, and what is kept between them because it takes long to read."""

    def __init__(self, folders: DataFolders, workspace: Path) -> None:
        self.folders = folders
        self.workspace = workspace
        self.demo: str | None = None  # the data set that the demonstration opens
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
        self.numbers: LRUCache[Numbers] = LRUCache(192 * 2**20)
        self.suggestion_cache: LRUCache[NDArray[np.float64]] = LRUCache(4 * 2**20)
        self.models: LRUCache[LoadedModel] = LRUCache(512 * 2**20)
        self.trainings: LRUCache[tuple[Manifest, Manifest]] = LRUCache(128 * 2**20)

    def close(self) -> None:
        self.queue.close()
        self.checks.close()


@dataclass(frozen=True)
class ApiRequest:
    """One request: who asks, the parts of the address, the query and the JSON body.

    What it is about is looked up once, and stays as it was then.
    """

    context: AppState
    user: UserWorkspace
    parts: dict[str, Any]
    query: dict[str, str]
    body: dict[str, Any]
    sent: bytes = b""  # where the request is no JSON

    def argument(self, parameter: Parameter) -> Any:
        """Return the value of a handler's parameter, checked against its annotation.

        It comes from the address, or else from the body, or else from the query. A trailing
        underscore in the parameter's name is left out.
        """
        name, kind = parameter.name.rstrip("_"), parameter.annotation
        if name in self.parts:  # a number: where something stands
            if not _PLACE.fullmatch(self.parts[name]):
                raise KeyError(f"there is no such {name}")
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
        """As it is now; where an image is asked for, as far as that goes."""
        image = self.parts.get("image")
        return find_dataset(self.user, self.context.sources, str(self.parts["data"]), image)

    @cached_property
    def record(self) -> ImageRecord:
        """The image asked for, to be read now."""
        return self.dataset.image(str(self.parts["image"]))

    @cached_property
    def job(self) -> Job:
        return find_job(self.user, str(self.parts["job"]))

    @cached_property
    def trained(self) -> LoadedModel:
        """What the job has trained, loaded once."""
        job = self.job
        if not job.model_file.is_file():
            raise KeyError("this training has no model yet")
        # The gallery comes later than the model, and may be made anew.
        kept = job.gallery_file
        key = (*file_key(job.model_file), *(file_key(kept) if kept.is_file() else ()))
        return self.context.models.get(key, lambda: LoadedModel.of(job))

    def model_at_threshold(self) -> Model:
        """The job's model, with its line where the query says, if it does."""
        model, text = self.trained.model, self.query.get("point")
        return model if text is None else model.with_threshold(float(text))

    def rendered(self, key: Key, draw: Callable[[], bytes]) -> bytes:
        """Return an image or a file from the cache, or draw it."""

        def made() -> tuple[bytes, int]:
            data = draw()
            return data, len(data)

        return self.context.rendered.get(key, made)

    def prepared_image(self) -> CachedPreparedImage:
        """The image as the job's model sees it."""
        record, model = self.record, self.trained.model
        size, image = self.dataset.size_of(record), file_key(record.path)
        key = (*file_key(self.job.model_file), repr(image), size)

        def opened() -> tuple[CachedPreparedImage, int]:
            sized = replace(record, mpp=size.is_user_given)
            source, patches = self.context.tiles.open(sized), model.model_
            view = CachedPreparedImage(source, model.recipe, patches.mpp_, patches.cache, image)
            view.add(self.context.chunks, key)
            return view, source.memory_bytes

        return self.context.prepared_images.get(key, opened)

    def learn_and_test(self) -> tuple[Manifest, Manifest]:
        """The images that the job learns from, and those it is tested on; read once."""
        job = self.job

        def listed() -> tuple[tuple[Manifest, Manifest], int]:
            learn, test = train_and_test(job.request, missing)
            return (learn, test), RECORD_BYTES * (len(learn.records) + len(test.records))

        missing = excluded_image_names(job)
        key = (*file_key(job.folder / "job.json"), missing)
        return self.context.trainings.get(key, listed)


def endpoint(
    work: Callable[..., Any],
    lane: str = QUICK,
    *,
    most_bytes: int = _MAX_BYTES,
    is_json: bool = True,
) -> Callable[[Request], Awaitable[Response]]:
    """Return the view of a handler, which runs on a thread.

    Parameters
    ----------
    work : takes the `Call`, and the values of its keyword-only parameters, see `Call.argument`;
        returns a response, or what becomes JSON; its errors become refusals
    lane : where it runs
    most_bytes : limit for the request's body
    is_json : whether the body is a JSON object; else it is any content
    """
    wanted = list(signature(work).parameters.values())[1:]

    async def answer(request: Request) -> Response:
        try:
            sent = await _sent(request, most_bytes, is_json)
            call = ApiRequest(
                request.app.state.context,
                request.state.user,
                dict(request.path_params),
                dict(request.query_params),
                _body(sent) if is_json else {},
                b"" if is_json else sent,
            )
            given = {parameter.name: call.argument(parameter) for parameter in wanted}
            result = await call.context.limits.run(lane, partial(work, call, **given))
            return result if isinstance(result, Response) else _Json(result)
        except (KeyError, ValueError, OSError, MemoryError) as error:
            return _refusal(error)
        except ClientDisconnect:
            return _refusal(ValueError("the request broke off"))

    return answer


class _Json(JSONResponse):
    """In ASCII: names of files may hold bytes that are no characters."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def _refusal(error: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
    words = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return _Json({"error": shorten(words) or type(error).__name__}, status)


async def _sent(request: Request, most_bytes: int, is_json: bool) -> bytes:
    parts, n_bytes = [], 0
    if request.method == "POST":
        async for part in request.stream():
            parts.append(part)
            n_bytes += len(part)
            if n_bytes > most_bytes:
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
    """A picture that the browser may keep for an hour."""
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(data, media_type=f"image/{kind}", headers=headers)
