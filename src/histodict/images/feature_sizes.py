"""Limits of memory for reading a feature file."""

from __future__ import annotations

MAX_CHUNK_BYTES = 2**24
MAX_ARRAY_BYTES = 2**27
_MAX_RATIO = 4  # compression ratio of feature vectors
MAX_CHUNKS = 100_000  # per array, as they are read one by one


def check_chunk(name: str, n_bytes: int, file_bytes: int) -> None:
    """Raise an error if a chunk is much larger than its file."""
    if n_bytes > max(MAX_CHUNK_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"a chunk of {name} takes {n_bytes >> 20} MiB of memory, and the file has "
            f"{file_bytes} bytes: save it again in chunks of, say, 64 rows"
        )


def check_whole(name: str, n_bytes: int, file_bytes: int) -> None:
    """Raise an error if an array that is read whole is much larger than its file."""
    if n_bytes > max(MAX_ARRAY_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"{name} takes {n_bytes >> 20} MiB of memory, and the file has {file_bytes} bytes: it "
            "is damaged, or compresses so well that it must be saved without compression"
        )
