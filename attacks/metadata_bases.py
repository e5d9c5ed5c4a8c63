"""Valid feature files and an OME-Zarr image, and edits of their metadata as JSON values.

["set", place, value]   an attribute or an element of `uns`; `value` as `odd_value` makes it
["drop", place, 0]
["own", edit, 0]        in the JSON of the attribute `histodict`, or of an OME-Zarr
["coord", row, text]    a coordinate, as the text of a number
"""

from __future__ import annotations

import json
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from numpy.random import Generator

from histodict.export.h5ad_writer import set_encoding, write
from histodict.precomputed.formats import ATTRIBUTES, COORDS, FEATURES, HISTODICT_ATTRIBUTE

from . import json_edits

Edit = list[Any]
LENGTH, SIDE, N_ACROSS = 6, 16, 5
_CORNERS = SIDE * np.stack(np.meshgrid(np.arange(N_ACROSS), np.arange(4)), -1).reshape(-1, 2)
N_PATCHES = len(_CORNERS)
SIZE = (N_ACROSS * SIDE, 4 * SIDE)
_ATTRIBUTES: dict[str, Any] = {
    "patch_size": 16,
    "patch_size_level0": 16,
    "overlap": 0,
    "target_magnification": 20,
    "level0_width": SIZE[0],
    "level0_height": SIZE[1],
    "level0_mpp": 0.5,
}
_OWN = {
    "offset": [0, 0],
    "recipe": {"features": "rgb", "patch_px": 16},
    "grid": {
        "n_rows": 4,
        "n_columns": N_ACROSS,
        "patch_px": 16,
        "stride_px": 16,
        "downsample": 1.0,
        "left": 0.0,
        "top": 0.0,
        "chunk_px": 1024,
    },
    "image": ["a.svs", 1, 2, 3],
    "size": [None, None, None],
    "format_version": 1,
    "version": "0.1",
}
_CLAM: dict[str, Any] = {
    "patch_size": 16,
    "patch_level": 0,
    "downsample": [1.0, 1.0],
    "custom_downsample": 1,
}
_LAZYSLIDE = {
    "slide_properties": {
        "bounds": np.array([0, 0, *SIZE]),
        "magnification": 20.0,
        "mpp": 0.5,
        "shape": np.array(SIZE[::-1]),
    },
    "spatial": {"connectivities_key": "spatial_connectivities", "params": {"n_neighbors": 6}},
    "tile_spec": {
        "base_downsample": 1.0,
        "base_level": 0,
        "height": 16,
        "mpp": 0.5,
        "ops_downsample": 1.0,
        "stride_height": 16,
        "stride_width": 16,
        "tissue_name": "tissues",
        "width": 16,
    },
}
_VISIUM = {"spatial": {"a": {"scalefactors": {"spot_diameter_fullres": 16.0}, "images": {}}}}
_OURS = {
    "histodict": {
        "patch_side": 16.0,
        "mpp": 0.5,
        "offset": np.array([0, 0]),
        "size": np.array(SIZE),
        "model_digest": "0123456789abcdef",
    }
}
_OME = {
    "ome": {
        "version": "0.5",
        "multiscales": [
            {
                "name": "image",
                "axes": [
                    {"name": "c", "type": "channel"},
                    {"name": "y", "type": "space", "unit": "micrometer"},
                    {"name": "x", "type": "space", "unit": "micrometer"},
                ],
                "datasets": [
                    {
                        "path": "s0",
                        "coordinateTransformations": [{"type": "scale", "scale": [1, 0.5, 0.5]}],
                    }
                ],
                "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 1]}],
            }
        ],
        "omero": {"channels": [{"label": "red", "color": "FF0000"}]},
    }
}
# By file name: attributes of an .h5, .npz and .zarr, `uns` of an .h5ad.
BASES: dict[str, dict[str, Any]] = {
    "trident.h5": _ATTRIBUTES | {"encoder": "uni_v1"},
    "own.h5": _ATTRIBUTES | {"encoder": "uni_v1", HISTODICT_ATTRIBUTE: _OWN},
    "clam.h5": _CLAM,
    "plain.npz": _ATTRIBUTES,
    "plain.zarr": _ATTRIBUTES | {HISTODICT_ATTRIBUTE: _OWN},
    "lazyslide.h5ad": _LAZYSLIDE,
    "visium.h5ad": _VISIUM,
    "ours.h5ad": _OURS,
    "image.ome.zarr": _OME,
}
_NUMBERS = (
    *("0", "-1", "1", "16", "15.5", "1e-300", "1e300", "-1e300", "1e400", "nan", "-inf", "1e6"),
    *("1e8", "9007199254740993", "9223372036854775807", "0.05", "3", "1e-4", "255", "-16", "32"),
)
_DTYPES = ("f8", "f4", "f2", "i8", "u8", "i1", "c16", "?", "S8", "O", "V4")


def vectors(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((N_PATCHES, LENGTH)) + 3 * (seed % 2)).astype(np.float32)


# --- edits --------------------------------------------------------------------------------------


def odd_value(rng: Generator) -> dict[str, Any]:
    """Return a value of any type, as JSON that `_stored` reads."""
    kind = str(
        rng.choice(["number", "number", "number", "array", "json", "null", "large", "group"])
    )
    if kind == "number":
        return {"number": str(rng.choice(_NUMBERS)), "dtype": str(rng.choice(_DTYPES[:6]))}
    if kind == "array":
        numbers = [str(rng.choice(_NUMBERS)) for _ in range(int(rng.integers(0, 5)))]
        return {"array": numbers, "dtype": str(rng.choice(_DTYPES))}
    if kind == "json":
        return {"json": json_edits.json_edit(rng, {})[2]}
    return {kind: int(rng.integers(1, 4))}


def metadata_edit(rng: Generator, base: str) -> Edit:
    reported = BASES[base]
    if base.endswith(".ome.zarr"):
        return ["own", json_edits.json_edit(rng, reported), 0]
    probability = rng.random()
    if HISTODICT_ATTRIBUTE in reported and not base.endswith(".h5ad") and probability < 0.35:
        return ["own", json_edits.json_edit(rng, reported[HISTODICT_ATTRIBUTE]), 0]
    if probability > 0.93:
        return ["coord", int(rng.integers(N_PATCHES)), str(rng.choice(_NUMBERS))]
    if base.endswith(".h5ad"):
        places = [*_places(reported), "obsm/spatial@encoding-type", "obsm/features@encoding-type"]
        place = str(rng.choice(["", *places])) or "spatial/new"
    else:
        home = str(rng.choice(["", FEATURES, COORDS]))
        place = f"{home}@{rng.choice(sorted(ATTRIBUTES))}"
    return ["drop", place, 0] if rng.random() < 0.1 else ["set", place, odd_value(rng)]


def _places(attributes: dict[str, Any], start: str = "uns") -> list[str]:
    """Yield the paths of all nested elements and groups."""
    found = []
    for name, value in attributes.items():
        found.append(f"{start}/{name}")
        found += _places(value, found[-1]) if isinstance(value, dict) else []
    return found


def _stored(value: dict[str, Any]) -> Any:
    """Return the value as h5py and NumPy take it; a group is a dict."""
    if "null" in value:
        return h5py.Empty("f8")
    if "large" in value:
        return np.zeros(10**4 * value["large"])
    if "group" in value:
        return {"inner": 1.0}
    if "json" in value:
        return json_edits.dumps(value["json"])
    numbers = [value["number"]] if "number" in value else value["array"]
    dtype = np.dtype(value["dtype"])
    if dtype.kind == "O":
        made: Any = np.array(numbers, h5py.string_dtype())
    elif dtype.kind == "V":
        made = np.zeros(len(numbers), dtype)
    else:
        with np.errstate(all="ignore"):
            made = np.array(numbers, "S32" if dtype.kind == "S" else np.float64).astype(dtype)
    return made[0] if "number" in value else made


# --- files --------------------------------------------------------------------------------------


def write_base(path: Path, edits: list[Edit], base: str | None = None, seed: int = 0) -> Path:
    """Write the base file of this name with its edits."""
    reported = BASES[base or path.name]
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    makers = {".npz": _write_npz, ".h5ad": _write_h5ad, ".h5": _write_h5}
    maker = makers.get(path.suffix, _write_ome if path.name.endswith(".ome.zarr") else _write_zarr)
    maker(path, reported, edits, seed)
    return path


def _own_text(attributes: dict[str, Any], edits: list[Edit]) -> str:
    own = [edit[1] for edit in edits if edit[0] == "own"]
    return json_edits.dumps(reduce(json_edits.apply_json, own, attributes))


def _coords(edits: list[Edit], shift: float = 0.0) -> Any:
    coords = (_CORNERS + shift) if shift else _CORNERS.copy()
    for what, row, text in edits:
        if what == "coord":
            coords = coords.astype(np.float64)
            coords[row, row % 2] = float(text)
    return coords


def _attributes(attributes: dict[str, Any], edits: list[Edit]) -> dict[str, dict[str, Any]]:
    """Yield (group, name, value) of the attributes of the base, except the coordinates."""
    found: dict[str, dict[str, Any]] = {"": {}, FEATURES: {}, COORDS: dict(attributes)}
    if HISTODICT_ATTRIBUTE in attributes:
        found[COORDS][HISTODICT_ATTRIBUTE] = _own_text(attributes[HISTODICT_ATTRIBUTE], edits)
    for what, place, value in edits:
        if what in ("set", "drop"):
            home, _, name = place.partition("@")
            found[home].pop(name, None)
            if what == "set":
                found[home][name] = value
    return found


def _plain(value: Any) -> Any:
    """Return the stored value of an edit, or the value itself if it is part of the base."""
    stored = _stored(value) if isinstance(value, dict) else value
    return json.dumps(stored) if isinstance(stored, dict) else stored


def _write_h5(path: Path, attributes: dict[str, Any], edits: list[Edit], seed: int) -> None:
    with h5py.File(path, "w") as file:
        file[FEATURES], file[COORDS] = vectors(seed), _coords(edits)
        for home, values in _attributes(attributes, edits).items():
            for name, value in values.items():
                _set_attribute(file[home or "/"], name, _plain(value))


def _set_attribute(home: Any, name: str, value: Any) -> None:
    try:
        home.attrs[name] = value
    except (OSError, RuntimeError, ValueError, TypeError):  # larger than HDF5 can store
        home.attrs[name] = str(value)[:60_000].replace("\0", " ").encode("utf-8", "replace")


def _write_npz(path: Path, attributes: dict[str, Any], edits: list[Edit], seed: int) -> None:
    values = _attributes(attributes, edits)
    flat = {name: _plain(value) for home in values.values() for name, value in home.items()}
    arrays = {
        name: np.asarray(value, "U") if np.asarray(value).dtype.kind == "O" else value
        for name, value in flat.items()
        if not isinstance(value, h5py.Empty)
    }
    np.savez(path, **{FEATURES: vectors(seed), COORDS: _coords(edits)}, **arrays)


def _write_zarr(path: Path, attributes: dict[str, Any], edits: list[Edit], seed: int) -> None:
    """Write attributes as text, including text that no library would write."""
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    group.create_array(FEATURES, data=vectors(seed))
    group.create_array(COORDS, data=_coords(edits))
    for home, values in _attributes(attributes, edits).items():
        file = path / home / "zarr.json"
        content = json.loads(file.read_text()) | {"attributes": "ATTRIBUTES"}
        contents = [f"{json.dumps(name)}: {_json_text(value)}" for name, value in values.items()]
        text = json.dumps(content).replace('"ATTRIBUTES"', f"{{{', '.join(contents)}}}")
        file.write_text(text, encoding="utf-8", errors="replace")


def _json_text(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    if "json" in value:
        return json_edits.dumps(value["json"])
    if "number" in value:
        number = value["number"]
        return {"nan": "NaN", "-inf": "-Infinity"}.get(number, number)
    return json.dumps(value.get("array"))


def _write_h5ad(path: Path, attributes: dict[str, Any], edits: list[Edit], seed: int) -> None:
    are_corners = "tile_spec" in attributes
    with h5py.File(path, "w") as file:
        set_encoding(file, "anndata")
        coords = _coords(edits, 0 if are_corners else SIDE / 2)
        write({FEATURES: vectors(seed), "spatial": coords}, file, "obsm")
        write(np.zeros((N_PATCHES, 1), np.float32), file, "X")
        write(attributes, file, "uns")
        for what, place, value in edits:
            if what in ("set", "drop"):
                _edit_element(file, what, place, value)


def _edit_element(file: Any, what: str, place: str, value: Any) -> None:
    """Replace an element or one of its attributes; an element removed by an earlier edit stays
    removed."""
    element, _, attribute = place.partition("@")
    if attribute:
        _set_attribute(file[element], attribute, _plain(value) if what == "set" else "none")
        return
    home, _, name = element.rpartition("/")
    if not isinstance(file.get(home or "uns"), h5py.Group):
        return
    home_group = file[home or "uns"]
    if name in home_group:
        del home_group[name]
    if what == "set":
        stored = _stored(value)
        if isinstance(stored, dict):
            home_group.create_group(name)["inner"] = 1.0
        elif isinstance(stored, str):
            home_group[name] = stored.encode("utf-8", "replace").replace(b"\0", b" ")
        else:
            home_group[name] = stored


def _write_ome(path: Path, attributes: dict[str, Any], edits: list[Edit], seed: int) -> None:
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    rng = np.random.default_rng(seed)
    noise = rng.integers(-40, 40, (3, SIZE[1], SIZE[0]))
    pixels = (np.array([190, 110, 170])[:, None, None] + noise).astype(np.uint8)  # stained
    group.create_array("s0", data=pixels, chunks=(3, 64, 64))
    file = path / "zarr.json"
    content = json.loads(file.read_text()) | {"attributes": "ATTRIBUTES"}
    text = json.dumps(content).replace('"ATTRIBUTES"', _own_text(attributes, edits))
    file.write_text(text, encoding="utf-8", errors="replace")
