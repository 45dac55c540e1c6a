"""The closed world of the bundled pipeline: its words, its colours and which of them may meet.

Everything the scenes can contain is listed here, so the grammar, the renderer, the tokenizer
and any reader of the pictures share one vocabulary.
"""

from __future__ import annotations

RGB = tuple[int, int, int]

SIZE = 64
"""Edge of a scene in pixels."""

SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "moon")

COLOURS: dict[str, RGB] = {
    "red": (222, 32, 38),
    "orange": (250, 136, 20),
    "yellow": (252, 214, 24),
    "green": (24, 156, 60),
    "blue": (28, 84, 226),
    "purple": (134, 46, 190),
    "pink": (250, 130, 192),
    "white": (252, 252, 252),
}

SPRITES: dict[str, str] = {
    "penguin": "penguins",
    "panda": "pandas",
    "rocket": "rockets",
    "pizza": "pizzas",
    "strawberry": "strawberries",
    "cactus": "cactuses",
    "car": "cars",
    "frog": "frogs",
    "mushroom": "mushrooms",
    "tree": "trees",
    "sunflower": "sunflowers",
    "pumpkin": "pumpkins",
}
"""Emoji objects: singular to plural, in the order in which the atlas stores them."""

BACKGROUNDS: dict[str, RGB] = {
    "white": (244, 244, 244),
    "black": (16, 16, 20),
    "gray": (136, 140, 146),
    "blue": (72, 136, 236),
    "green": (86, 190, 104),
    "yellow": (250, 224, 110),
}
"""Plain backgrounds: "on a <name> background"."""

LANDSCAPES: dict[str, str] = {
    "meadow": "in a meadow",
    "night": "at night",
    "beach": "at the beach",
}
"""Landscape backgrounds: name to the words that state it."""

NUMBERS = {2: "two", 3: "three", 4: "four"}

PLACES: dict[str, tuple[int, int]] = {
    "top left": (0, 0),
    "top": (1, 0),
    "top right": (2, 0),
    "left": (0, 1),
    "center": (1, 1),
    "right": (2, 1),
    "bottom left": (0, 2),
    "bottom": (1, 2),
    "bottom right": (2, 2),
}
"""Named places: column and row of a 3 by 3 grid."""

# Pairs that a person could not tell apart at 20 pixels.
_HIDDEN_COLOURS: dict[str, frozenset[str]] = {
    "white": frozenset({"white"}),
    "black": frozenset(),
    "gray": frozenset(),
    "blue": frozenset({"blue"}),
    "green": frozenset({"green"}),
    "yellow": frozenset({"yellow", "orange", "white"}),
    "meadow": frozenset({"green", "blue"}),
    "night": frozenset({"blue", "purple"}),
    "beach": frozenset({"yellow", "blue"}),
}
_HIDDEN_SPRITES: dict[str, frozenset[str]] = {
    "white": frozenset(),
    "black": frozenset({"penguin"}),
    "gray": frozenset(),
    "blue": frozenset(),
    "green": frozenset({"cactus", "frog", "tree"}),
    "yellow": frozenset({"pizza"}),
    "meadow": frozenset({"cactus", "frog", "tree"}),
    "night": frozenset({"penguin"}),
    "beach": frozenset({"pizza"}),
}


def shape_name(colour: str, shape: str) -> str:
    """The name of a coloured shape, for example ``"red star"``."""
    return f"{colour} {shape}"


NAMES: tuple[str, ...] = (
    *(shape_name(colour, shape) for shape in SHAPES for colour in COLOURS),
    *SPRITES,
)
"""Every object a scene can hold: 64 coloured shapes, then the emoji."""


def split_name(name: str) -> tuple[str | None, str]:
    """Split an object name into colour and noun; the colour of an emoji is ``None``.

    Raises:
        KeyError: if ``name`` is not one of `NAMES`.
    """
    if name not in NAMES:
        raise KeyError(f"unknown object {name!r}: use one of accel.tiny.world.NAMES")
    colour, _, noun = name.rpartition(" ")
    return (colour or None), noun


def visible(name: str, background: str) -> bool:
    """Whether object ``name`` differs clearly from ``background``."""
    colour, noun = split_name(name)
    if colour is None:
        return noun not in _HIDDEN_SPRITES[background]
    return colour not in _HIDDEN_COLOURS[background]


def plural(name: str) -> str:
    """Plural of an object name, for example ``"red crosses"`` or ``"strawberries"``."""
    colour, noun = split_name(name)
    if colour is None:
        return SPRITES[noun]
    return f"{colour} {noun}{'es' if noun.endswith('s') else 's'}"


def background_phrase(background: str) -> str:
    """The words that state a background."""
    return LANDSCAPES.get(background) or f"on a {background} background"


def words() -> tuple[str, ...]:
    """Every word a caption can contain, sorted."""
    found = {"a", "an", "and", "in", "on", "at", "the", "to", "of", "above", "big", "small", "background"}
    phrases = [*LANDSCAPES.values(), *PLACES, *NUMBERS.values(), *NAMES, *BACKGROUNDS]
    phrases += [plural(name) for name in NAMES]
    for phrase in phrases:
        found.update(phrase.split())
    return tuple(sorted(found))
