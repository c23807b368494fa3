"""KV blocks and the prefix cache, counted by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.sim.memory import BlockPool


def publish(pool: BlockPool, keys: range) -> list[int]:
    """Compute a prompt's blocks anew, as a lone request does."""
    assert pool.take(len(keys))
    return [key for key in keys if pool.publish(key)]


def test_one_block_is_the_engines_own() -> None:
    pool = BlockPool(10)
    assert pool.usable == pool.available == 9
    assert not pool.take(10)
    assert pool.take(9)
    assert pool.used == 9


def test_a_shared_prefix_is_held_once() -> None:
    pool = BlockPool(41)
    keys = publish(pool, range(10))
    assert pool.used == 10
    for _ in range(5):
        assert pool.match(range(12)) == 10
        assert pool.admit(range(10), 2)
    assert pool.used == 10 + 5 * 2
    pool.release(keys)
    assert pool.used == 10 + 5 * 2, "five requests still use it"


def test_a_match_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(41)
    publish(pool, range(4))
    assert pool.match([0, 1, 99, 3]) == 2
    assert pool.match([99]) == 0


def test_an_unused_prefix_stays_until_its_blocks_are_wanted() -> None:
    pool = BlockPool(11)
    pool.release(publish(pool, range(6)))
    assert pool.used == 0
    assert pool.match(range(6)) == 6
    assert pool.take(4), "there are four blank blocks"
    assert pool.match(range(6)) == 6
    assert pool.take(2)
    assert pool.match(range(6)) == 4, "the prompt's tail goes first"


def test_the_prompt_used_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(13)
    old, new = range(6), range(100, 106)
    pool.release(publish(pool, old))
    pool.release(publish(pool, new))
    assert pool.admit(old, 0)
    pool.release(old)
    assert pool.take(6)
    assert pool.match(old) == 6
    assert pool.match(new) == 0


def test_admission_does_not_evict_the_prefix_it_uses() -> None:
    """Of six idle blocks the request uses all, so two blank ones are all it can have beside."""
    pool = BlockPool(9)
    pool.release(publish(pool, range(6)))
    assert not pool.admit(range(6), 3)
    assert pool.used == 0
    assert pool.admit(range(6), 2)
    assert pool.available == 0


def test_a_block_computed_twice_is_cached_once() -> None:
    pool = BlockPool(11)
    publish(pool, range(1))
    assert pool.take(1)
    assert not pool.publish(0)
    assert pool.cached == 1
    assert pool.used == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(0, 3)), max_size=40))
def test_blocks_are_never_lost_or_made(work: list[tuple[int, int, int]]) -> None:
    """Requests on four prompts come and go; when all are gone every block can be had again."""
    pool = BlockPool(21)
    held: list[tuple[list[int], int]] = []
    for text, blocks, private in work:
        keys = range(100 * text, 100 * text + blocks)
        hits = pool.match(keys)
        if pool.admit(keys[:hits], blocks - hits + private):
            fresh = [key for key in keys[hits:] if pool.publish(key)]
            held.append(([*keys[:hits], *fresh], blocks - hits + private - len(fresh)))
        elif held:
            shared, own = held.pop(0)
            pool.give(own)
            pool.release(shared)
        assert 0 <= pool.used <= pool.usable
        used = {key for shared, _ in held for key in shared}
        assert pool.used == len(used) + sum(own for _, own in held)
    for shared, own in held:
        pool.give(own)
        pool.release(shared)
    assert pool.available == pool.usable
