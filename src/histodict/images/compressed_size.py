"""Size of compressed data after decompression, so that a small file cannot fill the memory."""

from __future__ import annotations

import zlib

# Maximum compression ratio of deflate.
MAX_DEFLATE = 1032
_ZSTD, _ZSTD_SKIPPED = 0xFD2FB528, 0x184D2A50
_BLOSC_HEADER = 16
_ZSTD_BLOCK = 128 * 1024
_STEP = 2**20


def unpacked_bytes(compressor: str | None, data: bytes, spare: int) -> int:
    """Return an upper bound of the decompressed length, exact if the format states it.

    spare : for gzip and zlib, which do not state it: data whose bound is larger are decompressed
        in steps, until the length exceeds this number
    """
    if compressor is None:
        return len(data)
    if compressor == "blosc":
        # The library trusts this length and would read beyond the end.
        if int.from_bytes(data[12:16], "little") > len(data) or len(data) < _BLOSC_HEADER:
            raise ValueError("a compressed chunk is cut short: copy it again")
        return int.from_bytes(data[4:8], "little")
    if compressor == "lz4":
        return int.from_bytes(data[:4], "little")
    if compressor == "zstd":
        return _zstd_bytes(data)
    return deflated_bytes(data, spare)


def deflated_bytes(data: bytes, spare: int) -> int:
    """Return an upper bound of the decompressed length of zlib or gzip data."""
    if len(data) * MAX_DEFLATE <= spare:
        return 0
    total = 0
    while data and total <= spare:  # gzip allows several consecutive streams
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            while data and not unpacker.eof and total <= spare:
                total += len(unpacker.decompress(data, _STEP))
                data = unpacker.unconsumed_tail
        except zlib.error:  # damaged data: reported by the decompressor
            return total
        if not unpacker.eof:
            break
        data = unpacker.unused_data.lstrip(b"\0")
    return total


def _zstd_bytes(data: bytes) -> int:
    """Return the decompressed length of all frames, an upper bound if one does not state it.

    See RFC 8878. 0 for damaged data, which the decompressor reports.
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
    """Return the end of the blocks of a frame, and an upper bound of their length."""
    total = 0
    while at + 3 <= len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
        total += _ZSTD_BLOCK if kind == 2 else size
        if header & 1:
            break
    return at, total
