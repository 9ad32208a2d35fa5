"""What an lru_cache remembers is read and put back, on every Python, without a line of the function being run."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from detrain.state.handlers import caches

CALLS: list[str] = []


def entries(cache: Any) -> list[Any]:
    return [(args, tuple(named.items()), result) for args, named, result in caches._entries(cache)]


@pytest.fixture(params=[None, 3], ids=["unbounded", "bounded"])
def cache(request: pytest.FixtureRequest) -> Any:
    @functools.lru_cache(maxsize=request.param)
    def function(*args: Any, **named: Any) -> list[Any]:
        CALLS.append("called")
        return [args, named]

    function(1)
    function("text", 2)
    function((1, 2), scale=3)
    return function


def test_calls_are_read_with_arguments_and_results(cache: Any) -> None:
    assert entries(cache) == [
        ((1,), (), [(1,), {}]),
        (("text", 2), (), [("text", 2), {}]),
        (((1, 2),), (("scale", 3),), [((1, 2),), {"scale": 3}]),
    ]


def test_the_least_recently_used_comes_first(cache: Any) -> None:
    cache(1)
    order = [args for args, _, _ in entries(cache)]
    assert order[-1 if cache.cache_info().maxsize else 0] == (1,)


def test_typed_keys_are_read(cache: Any) -> None:
    typed = functools.lru_cache(maxsize=4, typed=True)(lambda *args, **named: (args, named))
    typed(1, 2.0, key="k")
    typed(3)
    assert [(args, named) for args, named, _ in caches._entries(typed)] == [((1, 2.0), {"key": "k"}), ((3,), {})]


def test_what_is_put_back_is_answered_without_the_function_being_run(cache: Any) -> None:
    saved = caches._entries(cache)
    code = cache.__wrapped__.__code__
    cache.cache_clear()
    cache(99)
    before = len(CALLS)
    caches._refill(cache, cache.__wrapped__, saved)
    results = [cache(1), cache("text", 2), cache((1, 2), scale=3)]
    assert [id(one) for one in results] == [id(result) for _, _, result in saved]
    assert len(CALLS) == before
    assert cache.__wrapped__.__code__ is code
    cache(99)
    assert len(CALLS) == before + 1  # what was not remembered is computed


def test_the_cache_of_a_closure_is_put_back() -> None:
    offset = 5

    @functools.cache
    def plus(number: int) -> int:
        return number + offset

    plus(1)
    saved = caches._entries(plus)
    plus.cache_clear()
    caches._refill(plus, plus.__wrapped__, saved)
    assert (plus(1), plus(2), plus.cache_info().currsize) == (6, 7, 2)
