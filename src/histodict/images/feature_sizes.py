"""How much memory a feature file may take for what is read of it at once."""

from __future__ import annotations

MAX_CHUNK_BYTES = 2**24
MAX_ARRAY_BYTES = 2**27
_MAX_RATIO = 4  # of numbers as encoders give them to their compressed form
MAX_CHUNKS = 100_000  # that are read one by one


def check_chunk(name: str, n_bytes: int, file_bytes: int) -> None:
    """Refuse chunks much larger than their file."""
    if n_bytes > max(MAX_CHUNK_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"a chunk of {name} takes {n_bytes >> 20} MiB of memory, and the file has "
            f"{file_bytes} bytes: save it again in chunks of, say, 64 rows"
        )


def check_whole(name: str, n_bytes: int, file_bytes: int) -> None:
    """Refuse arrays that are read whole and are much larger than their file."""
    if n_bytes > max(MAX_ARRAY_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"{name} takes {n_bytes >> 20} MiB of memory, and the file has {file_bytes} bytes: it "
            "is damaged, or so regular that it must be saved without compression"
        )
