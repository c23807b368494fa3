"""KV memory of a paged engine: blocks, a prefix cache by chained block hashes, LRU eviction.

Only blocks that can be found again have an identity (their hash); all others are a count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """All KV blocks of an engine.

    A block is *free*, *private* to one request (a partly filled or generated block), *shared*
    (cached under its hash, used by one request or more) or *idle* (cached, used by none; the least
    recently used ones are evicted when blocks are wanted).
    """

    def __init__(self, blocks: int) -> None:
        self.usable = blocks - 1
        """vLLM keeps one block as the null block."""
        self._free = self.usable
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be had now, evicting what no one uses."""
        return self._free + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks in use by requests."""
        return self.usable - self.available

    @property
    def cached(self) -> int:
        """Blocks that hold a reusable prefix, in use or not."""
        return len(self._users) + len(self._idle)

    def take(self, count: int) -> bool:
        """Take ``count`` private blocks, evicting idle ones where needed; all or none."""
        if count > self.available:
            return False
        while count > self._free:
            self._idle.popitem(last=False)
            self._free += 1
        self._free -= count
        return True

    def give(self, count: int) -> None:
        """Return private blocks."""
        self._free += count

    def match(self, hashes: Iterable[int]) -> int:
        """How many leading blocks of a prompt are cached."""
        found = 0
        for key in hashes:
            if key not in self._users and key not in self._idle:
                break
            found += 1
        return found

    def admit(self, shared: Sequence[int], private: int) -> bool:
        """Use cached blocks and take ``private`` new ones beside them; all or none."""
        idle = sum(1 for key in shared if key in self._idle)
        if private > self.available - idle:
            return False
        for key in shared:
            self._idle.pop(key, None)
            self._users[key] = self._users.get(key, 0) + 1
        return self.take(private)

    def publish(self, key: int) -> bool:
        """Cache a private block under its hash; False (it stays private) if that hash is known."""
        if key in self._users or key in self._idle:
            return False
        self._users[key] = 1
        return True

    def release(self, shared: Iterable[int]) -> None:
        """Stop using cached blocks. Given in prompt order, a prompt's tail is evicted first."""
        for key in reversed(list(shared)):
            users = self._users[key] - 1
            if users:
                self._users[key] = users
            else:
                del self._users[key]
                self._idle[key] = None
