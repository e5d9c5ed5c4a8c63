"""Edits of bytes as JSON values, [kind, position, …], which can be left out one by one."""

from __future__ import annotations

from typing import Any

from numpy.random import Generator

Edit = list[Any]
_RUNS = ("00", "ff", "7fc00000", "0000c07f", "5b5b5b5b", "22", "efbbbf", "fffe", "0a", "2c")


def flipped(rng: Generator, n_bytes: int) -> Edit:
    return ["flip", int(rng.integers(n_bytes)), int(rng.integers(8))]


def overwritten(rng: Generator, n_bytes: int) -> Edit:
    run = str(rng.choice(_RUNS)) * int(rng.integers(1, 40))
    return ["write", int(rng.integers(n_bytes)), run]


def inserted(rng: Generator, n_bytes: int) -> Edit:
    return ["insert", int(rng.integers(n_bytes)), str(rng.choice(_RUNS)) * int(rng.integers(1, 9))]


def removed(rng: Generator, n_bytes: int) -> Edit:
    return ["remove", int(rng.integers(n_bytes)), int(rng.integers(1, 200))]


def cut(rng: Generator, n_bytes: int) -> Edit:
    return ["cut", int(rng.integers(n_bytes)), 0]


def apply_bytes(data: bytes, edit: Edit) -> bytes:
    """Return the data after one edit; an edit beyond the end changes nothing."""
    what, place, amount = edit
    if what == "flip":
        if place >= len(data):
            return data
        return data[:place] + bytes([data[place] ^ (1 << amount)]) + data[place + 1 :]
    if what == "cut":
        return data[:place]
    if what == "remove":
        return data[:place] + data[place + amount :]
    run = bytes.fromhex(amount)
    stored = place if what == "insert" else place + len(run)
    return data[:place] + run + data[stored:]
