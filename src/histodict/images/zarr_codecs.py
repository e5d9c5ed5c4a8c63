"""Accepted codecs of Zarr arrays and their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# At most one of _COMPRESSORS decodes a chunk.
CODECS_2 = {
    "blosc": {"cname", "clevel", "shuffle", "blocksize", "typesize"},
    "gzip": {"level"},
    "lz4": {"acceleration"},
    "zlib": {"level"},
    "zstd": {"level", "checksum"},
}
FILTERS_2 = {"delta": {"dtype", "astype"}, "shuffle": {"elementsize"}}
CODECS_3 = {
    "blosc": {"cname", "clevel", "shuffle", "blocksize", "typesize"},
    "bytes": {"endian"},
    "crc32c": set[str](),
    "gzip": {"level"},
    "transpose": {"order"},
    "zstd": {"level", "checksum"},
}
_COMPRESSORS = {"blosc", "gzip", "lz4", "zlib", "zstd"}
CHECKSUM_BYTES = 4
SAVE_AGAIN = "save it again with the codec zstd or blosc"


def named_2(codec: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(codec, dict) or not isinstance(codec.get("id"), str):
        raise ValueError("it has a codec without a name")
    return codec["id"], {name: value for name, value in codec.items() if name != "id"}


def named_3(codec: Any) -> tuple[str, dict[str, Any]]:
    codec = {"name": codec} if isinstance(codec, str) else codec
    if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
        raise ValueError("it has a codec without a name")
    configuration = codec.get("configuration") or {}
    if not isinstance(configuration, dict) or set(codec) - {"name", "configuration"}:
        raise ValueError(f"its codec {codec['name'][:60]!r} has unknown parameters")
    return codec["name"], configuration


def check_codec(codec: tuple[str, dict[str, Any]], known: Mapping[str, set[str]]) -> None:
    """Refuse unknown codecs and parameters; values are numbers, strings or lists of numbers."""
    name, parameters = codec
    if name not in known:
        raise ValueError(
            f"it is stored with the codec {name[:60]!r}, which is not accepted: a file may name "
            f"codecs that run code. Accepted are {', '.join(sorted(known))}: {SAVE_AGAIN}"
        )
    for parameter, value in parameters.items():
        is_plain = value is None or isinstance(value, bool | int | float | str)
        is_order = isinstance(value, list) and all(type(n) is int for n in value)
        if parameter not in known[name] or not (is_plain or (name == "transpose" and is_order)):
            raise ValueError(f"its codec {name!r} has the unknown parameter {parameter[:60]!r}")


def chain(codecs: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the checked codecs for the metadata."""
    for codec in codecs:
        check_codec(codec, CODECS_3)
    return [{"name": name, "configuration": parameters} for name, parameters in codecs]


def compressor(codecs: Sequence[tuple[str, dict[str, Any]]]) -> tuple[str | None, int]:
    """Return the name of the compressor and the length of the checksums after its output."""
    names = [name for name, _ in codecs]
    places = [place for place, name in enumerate(names) if name in _COMPRESSORS]
    if len(places) > 1:
        raise ValueError(f"it is compressed more than once: {SAVE_AGAIN}")
    after = names[places[0] + 1 :] if places else names
    return (names[places[0]] if places else None), CHECKSUM_BYTES * after.count("crc32c")
