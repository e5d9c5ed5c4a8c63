"""What is kept stays bounded; what was used last stays longest."""

from functools import partial

from histodict.utils.cache import LRUCache


class Kept:
    """A cache of names that notes which of them it had to make."""

    def __init__(self) -> None:
        self.cache: LRUCache[str] = LRUCache(100)
        self.made = ""

    def ask(self, names: str, n_bytes: int = 30, is_good: bool = True) -> str:
        """Those of the names that were not there."""
        self.made = ""
        for name in names:
            self.cache.get((name,), partial(self._make, name, n_bytes), lambda _: is_good)
        return self.made

    def _make(self, name: str, n_bytes: int) -> tuple[str, int]:
        self.made += name
        return name, n_bytes


def test_the_cache_forgets_what_was_used_longest_ago():
    stored = Kept()
    assert stored.ask("abc") == "abc"
    assert stored.ask("a") == ""
    assert stored.ask("d") == "d"
    assert stored.ask("acd") == ""
    assert stored.ask("b") == "b"
    assert stored.ask("x", 1000) == "x"
    assert stored.ask("x") == ""
    assert stored.ask("d") == "d"
    assert stored.ask("x") == "x"


def test_what_is_no_longer_good_is_made_anew():
    stored = Kept()
    assert stored.ask("a") == "a"
    assert stored.ask("a", is_good=False) == "a"
    assert stored.ask("abc") == "bc"  # its bytes count once
    assert stored.ask("abc") == ""
