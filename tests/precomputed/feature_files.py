"""Write feature files like other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

TRIDENT = {
    "patch_size": 256,
    "patch_size_level0": 512,
    "level0_magnification": 40,
    "target_magnification": 20,
    "overlap": 0,
    "level0_width": 6000,
    "level0_height": 5000,
}


def write_trident(
    path: Path,
    vectors: NDArray[Any],
    coords: NDArray[Any],
    encoder: str | None = "uni_v1",
    **attributes,
) -> Path:
    """Write one row per chunk, attributes of both datasets, and None as text."""
    with h5py.File(path, "w") as file:
        features = file.create_dataset(
            "features", data=vectors, maxshape=(None, *vectors.shape[1:]), chunks=True
        )
        features.attrs["encoder"] = "None" if encoder is None else encoder
        features.attrs["savetodir"] = str(path.parent)
        placed = file.create_dataset("coords", data=coords)
        for name, value in (TRIDENT | attributes | {"name": path.stem}).items():
            placed.attrs[name] = "None" if value is None else value
    return path


def write_clam(path: Path, vectors: NDArray[Any], coords: NDArray[Any]) -> Path:
    """Write a file without attributes."""
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=vectors, chunks=(1, vectors.shape[1]))
        file.create_dataset("coords", data=coords.astype(np.int32), chunks=(1, 2))
    return path


# As wsidata 0.12.0 (LazySlide 0.13.0) and anndata 0.12.19 write it: `uns` of
# `wsi.fetch.features_anndata(…).write_h5ad(…)`, of an .svs of 2220 x 2967 pixels at 0.499 µm.
LAZYSLIDE_SLIDE = {
    "bounds": np.array([0, 0, 2220, 2967]),
    "level_downsample": np.array([1.0]),
    "level_shape": np.array([[2967, 2220]]),
    "magnification": 20.0,
    "mpp": 0.499,
    "n_level": 1,
    "n_scenes": 1,
    "raw": '{"aperio.AppMag": "20", "openslide.mpp-x": "0.499"}',
    "scene": 0,
    "scene_names": ["Image 0"],
    "shape": np.array([2967, 2220]),
}
LAZYSLIDE_GRAPH = {  # after zs.pp.tile_graph
    "connectivities_key": "spatial_connectivities",
    "distances_key": "spatial_distances",
    "params": {"n_neighbors": 6, "transform": None},
}
_ENCODINGS: dict[type, tuple[str, str]] = {
    int: ("numeric-scalar", "0.2.0"),
    float: ("numeric-scalar", "0.2.0"),
    str: ("string", "0.2.0"),
    list: ("string-array", "0.2.0"),
    np.ndarray: ("array", "0.2.0"),
    type(None): ("null", "0.1.0"),
    dict: ("dict", "0.1.0"),
}


def write_lazyslide(
    path: Path,
    vectors: NDArray[Any],
    corners: NDArray[Any],
    *,
    mpp: float | None = 0.5,
    width: int = 64,
    stride: int | None = None,
    has_graph: bool = False,
    slide: dict[str, Any] | None = None,
    **spec: Any,
) -> Path:
    """Write tiles of LazySlide with vectors in X, at `mpp`; `spec` has further values of its
    TileSpec."""
    slide = LAZYSLIDE_SLIDE | (slide or {})
    reduced = (mpp or slide["mpp"]) / slide["mpp"] if slide["mpp"] else 1.0
    stride = width if stride is None else stride
    tiles = {
        "base_downsample": reduced,
        "base_level": 0,
        "height": width,
        "mpp": mpp,
        "ops_downsample": reduced,
        "ops_level": 0,
        "stride_height": stride,
        "stride_width": stride,
        "tissue_name": "tissues",
        "width": width,
    }
    uns: dict[str, Any] = {"slide_properties": slide}
    if has_graph:
        uns["spatial"] = LAZYSLIDE_GRAPH
    uns["tile_spec"] = tiles | spec
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        _write_element(file, "X", vectors)
        for name in ("layers", "obsp", "varm", "varp"):
            _write_element(file, name, {})
        for name, n_rows in (("obs", len(vectors)), ("var", vectors.shape[1])):
            frame = file.create_group(name)
            frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0"})
            frame.attrs["_index"] = "_index"
            frame.attrs.create("column-order", [], dtype=h5py.string_dtype())
            _write_element(frame, "_index", [str(row) for row in range(n_rows)])
        _write_element(file, "obsm", {"spatial": corners.astype(np.float64)})
        _write_element(file, "uns", uns)
    return path


def _write_element(home: Any, name: str, value: Any) -> None:
    if isinstance(value, dict):
        made = home.create_group(name)
        for key, part in value.items():
            _write_element(made, key, part)
    elif value is None:
        made = home.create_dataset(name, data=h5py.Empty("f4"))
    else:
        text = h5py.string_dtype() if isinstance(value, str | list) else None
        made = home.create_dataset(name, data=value, dtype=text)
    kind, version = _ENCODINGS[type(value)]
    made.attrs.update({"encoding-type": kind, "encoding-version": version})


def some_vectors(n: int = 40, length: int = 6, seed: int = 0) -> tuple[NDArray, NDArray]:
    """Return vectors, and corners of a part of a grid in the order of TRIDENT: column by column."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(np.arange(9), np.arange(8), indexing="ij"), -1).reshape(-1, 2)
    chosen = np.sort(rng.choice(len(cells), n, replace=False))
    return rng.standard_normal((n, length)).astype(np.float32), cells[chosen] * 512


def planted_slides(folder: Path, n_slides: int = 8, n: int = 60, length: int = 12) -> Path:
    """Write slides of two classes that differ in the share of one kind of tissue, and a table."""
    (folder / "features").mkdir(parents=True)
    rng = np.random.default_rng(7)
    kinds = 3 * rng.standard_normal((3, length))
    lines = ["slide_id,label,case_id"]
    for number in range(n_slides):
        label = number % 2
        own = rng.choice(3, n, p=[0.5, 0.45, 0.05] if label == 0 else [0.2, 0.2, 0.6])
        vectors = (kinds[own] + rng.standard_normal((n, length))).astype(np.float32)
        name = f"TCGA-{number:02d}.DX1"  # a dot that does not begin a suffix
        write_trident(folder / "features" / f"{name}.h5", vectors, some_vectors(n)[1])
        lines.append(f"{name}.svs,{('normal', 'tumour')[label]},patient{number // 2}{label}")
    (folder / "slides.csv").write_text("\n".join(lines) + "\n")
    return folder / "slides.csv"
