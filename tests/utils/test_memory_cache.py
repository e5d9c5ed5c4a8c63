"""Tests of the memory cache: bounded size, least recently used entries evicted first."""

from functools import partial

from histodict.utils.cache import LRUCache


class RecordingCache:
    """A cache of names that records which of them were computed."""

    def __init__(self) -> None:
        self.cache: LRUCache[str] = LRUCache(100)
        self.made = ""

    def request(self, names: str, n_bytes: int = 30, is_good: bool = True) -> str:
        """Return the names that were not in the cache."""
        self.made = ""
        for name in names:
            self.cache.get((name,), partial(self._make, name, n_bytes), lambda _: is_good)
        return self.made

    def _make(self, name: str, n_bytes: int) -> tuple[str, int]:
        self.made += name
        return name, n_bytes


def test_least_recently_used_entries_are_evicted():
    stored = RecordingCache()
    assert stored.request("abc") == "abc"
    assert stored.request("a") == ""
    assert stored.request("d") == "d"
    assert stored.request("acd") == ""
    assert stored.request("b") == "b"
    assert stored.request("x", 1000) == "x"
    assert stored.request("x") == ""
    assert stored.request("d") == "d"
    assert stored.request("x") == "x"


def test_invalid_entries_are_computed_again():
    stored = RecordingCache()
    assert stored.request("a") == "a"
    assert stored.request("a", is_good=False) == "a"
    assert stored.request("abc") == "bc"  # the replaced entry is counted once
    assert stored.request("abc") == ""
