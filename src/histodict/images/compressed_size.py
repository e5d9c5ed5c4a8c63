"""Size of compressed data before it is unpacked, so that a small file cannot fill the memory."""

from __future__ import annotations

import zlib

# Deflate makes at most so many bytes of one.
MAX_DEFLATE = 1032
_ZSTD, _ZSTD_SKIPPED = 0xFD2FB528, 0x184D2A50
_BLOSC_HEADER = 16
_ZSTD_BLOCK = 128 * 1024
_STEP = 2**20


def unpacked_bytes(compressor: str | None, data: bytes, spare: int) -> int:
    """Upper bound of the length of unpacked data; exact where the format states it.

    spare : more than this need not be known of deflate (gzip, zlib), which states nothing: what
        may have more is unpacked step by step and counted until there is more
    """
    if compressor is None:
        return len(data)
    if compressor == "blosc":
        # The library goes by this length, whatever there is, and reads beyond the end.
        if int.from_bytes(data[12:16], "little") > len(data) or len(data) < _BLOSC_HEADER:
            raise ValueError("a compressed chunk is cut short: copy it again")
        return int.from_bytes(data[4:8], "little")
    if compressor == "lz4":
        return int.from_bytes(data[:4], "little")
    if compressor == "zstd":
        return _zstd_bytes(data)
    return deflated_bytes(data, spare)


def deflated_bytes(data: bytes, spare: int) -> int:
    """Upper bound of the length of unpacked zlib or gzip data; see `unpacked_bytes`."""
    if len(data) * MAX_DEFLATE <= spare:
        return 0
    total = 0
    while data and total <= spare:  # gzip allows several streams, one after another
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            while data and not unpacker.eof and total <= spare:
                total += len(unpacker.decompress(data, _STEP))
                data = unpacker.unconsumed_tail
        except zlib.error:  # damaged: whoever unpacks it says so
            return total
        if not unpacker.eof:
            break
        data = unpacker.unused_data.lstrip(b"\0")
    return total


def _zstd_bytes(data: bytes) -> int:
    """Of all frames; where one does not state its size, the most that its blocks can hold.

    RFC 8878. Of damaged data 0: whoever unpacks it says so.
    """
    total = at = 0
    while at + 5 <= len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPED:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD:
            break
        descriptor = data[at + 4]
        single, checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
        n_size = (single, 2, 4, 8)[descriptor >> 6]
        at += 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
        stated = int.from_bytes(data[at : at + n_size], "little") + 256 * (n_size == 2)
        at, most = _zstd_blocks(data, at + n_size)
        total += stated if n_size else most
        at += 4 * checksum
    return total


def _zstd_blocks(data: bytes, at: int) -> tuple[int, int]:
    """Where the blocks of a frame end, and the most that they hold."""
    total = 0
    while at + 3 <= len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
        total += _ZSTD_BLOCK if kind == 2 else size
        if header & 1:
            break
    return at, total
