"""What is kept stays bounded; what was used last stays longest."""

from histodict.web.bytes_cache import BytesCache


def test_the_cache_forgets_what_was_used_longest_ago():
    cache: BytesCache[str] = BytesCache(100)
    for name in "abc":
        cache.put((name,), name, 30)
    assert cache.get(("a",)) == "a"
    cache.put(("d",), "d", 30)
    assert cache.get(("b",)) is None
    assert [cache.get((name,)) for name in "acd"] == ["a", "c", "d"]
    cache.put(("big",), "big", 1000)
    assert cache.get(("big",)) == "big" and cache.get(("d",)) is None
    cache.put(("small",), "small", 1)
    assert cache.get(("big",)) is None
