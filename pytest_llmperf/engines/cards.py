"""What ``/v1/models`` lists, and which of it a run means."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_llmperf.engines.answers import child, objects, read_object, whole, word
from pytest_llmperf.model.errors import ConfigError

_SHOWN = 20
_LONGEST = 300
"""Characters of a model's name."""


@dataclass(frozen=True)
class Card:
    """One served model."""

    id: str
    root: str | None = None
    owned_by: str | None = None
    max_model_len: int | None = None
    aliases: tuple[str, ...] = ()
    simulated: str | None = None
    """The profile that a simulated server plays."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The card as it came."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.id, *self.aliases, *([self.root] if self.root else []))


def read_cards(text: str) -> list[Card] | None:
    """The models listed; None when this is no such list."""
    body = read_object(text)
    if "data" not in body or not isinstance(body["data"], list | None):
        return None
    return [_read_card(card) for card in objects(body["data"]) if _is_name(card.get("id"))]


def _is_name(value: object) -> bool:
    """Whether it can be shown to people and sent to the server as it is."""
    return word(value) is not None and str(value).isprintable() and len(str(value)) <= _LONGEST


def _read_card(card: dict[str, Any]) -> Card:
    aliases = card.get("aliases")
    return Card(
        id=str(card["id"]),
        root=word(card.get("root")),
        owned_by=word(card.get("owned_by")),
        max_model_len=whole(card.get("max_model_len")) or whole(card.get("context_length")),
        aliases=tuple(a for a in aliases if isinstance(a, str))
        if isinstance(aliases, list)
        else (),
        simulated=word(child(card, "llmperf_simulated")),
        extra=card,
    )


def choose(cards: Sequence[Card], wanted: str | None) -> Card:
    """The model to measure.

    Raises:
        ConfigError: none is served, several are and none was named, or the named one is not.
    """
    if not cards:
        raise ConfigError("the server serves no model: load one first, then run again")
    if wanted is not None:
        for name_of in (lambda card: (card.id,), lambda card: card.names):
            for card in cards:
                if wanted in name_of(card):
                    return card
        close = difflib.get_close_matches(wanted, [card.id for card in cards], n=3, cutoff=0.5)
        near = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError(
            f"the server does not serve {wanted!r}{near}\n"
            f"It serves {_list(cards)}. Name one of them with --llm-model."
        )
    if len(cards) > 1 and not _one_model(cards):
        raise ConfigError(
            f"the server serves several models: {_list(cards)}\nName one with --llm-model."
        )
    return cards[0]


def _one_model(cards: Sequence[Card]) -> bool:
    """Whether these are names of one model: the same root, and no adapter among them."""
    roots = {card.root for card in cards}
    return len(roots) == 1 and None not in roots and not any(c.extra.get("parent") for c in cards)


def _list(cards: Sequence[Card]) -> str:
    names = ", ".join(card.id for card in cards[:_SHOWN])
    return names + (f" and {len(cards) - _SHOWN} more" if len(cards) > _SHOWN else "")
