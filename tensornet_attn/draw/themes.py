"""Colour themes of pictures, and fills of overlays. The light theme has the colours of `looks`; others replace them.

Kinds differ in shape and line style, so that pictures are readable in every theme and without colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensornet_attn.errors import InputError, nearest

INK, GROUND = "black", "white"
_COLOURED = ("color", "fillcolor", "fontcolor", "bgcolor")
# Fills of overlays: implementations in order of appearance, and shares of the work from small to large.
REGIONS = ("#cfe3f6", "#fde3c2", "#d7efd2", "#e6dbf2", "#fbd5d9", "#d5eef0", "#f3efb8", "#e3e3e3")
SHARES = ("#fff7ec", "#fee0b6", "#fdbb84", "#f68a5c", "#e0593b")


@dataclass(frozen=True)
class Theme:
    """A theme; `colours` maps colours of the light theme to their replacements."""

    name: str
    ground: str = GROUND
    colours: Mapping[str, str] = field(default_factory=dict)

    def colour(self, colour: str) -> str:
        return self.colours.get(colour, colour)

    def of(self, look: Mapping[str, str]) -> dict[str, str]:
        """The attributes of a look in the colours of this theme."""
        return {name: self.colour(value) if name in _COLOURED else value for name, value in look.items()}

    def defaults(self, *names: str) -> dict[str, str]:
        """Attributes whose default in Graphviz is black."""
        return dict.fromkeys(names, self.colours[INK]) if INK in self.colours else {}


def _theme(name: str, ground: str, regions: tuple[str, ...], shares: tuple[str, ...], **others: str) -> Theme:
    looks = ("grey", "pale", "bond", "kept", "core", "trained")
    light = ("#dddddd", "#888888", "#777777", "#1b7f4d", "#b45f06", "#f6b26b")
    colours = {colour: others[look] for look, colour in zip(looks, light, strict=True) if look in others}
    colours |= {colour: others[colour] for colour in (INK, GROUND) if colour in others}
    fills = zip((*REGIONS, *SHARES), (*regions, *shares), strict=True)
    return Theme(name, ground, colours | dict(fills))


LIGHT = Theme("light")
DARK = _theme(
    "dark",
    "#15181d",
    ("#1f3a57", "#5a4019", "#25482a", "#43305c", "#5c2a33", "#1f4a4e", "#4d4a17", "#3d4148"),
    ("#231f1c", "#43301c", "#653c1f", "#85431f", "#a8432a"),
    black="#e6e6e6",
    white="#15181d",
    grey="#4a5361",
    pale="#8a93a0",
    bond="#9aa3b0",
    kept="#46c285",
    core="#f0a24a",
    trained="#7d4d16",
)
PRINT = _theme(
    "print",
    "white",
    ("#ffffff", "#e2e2e2", "#c8c8c8", "#f0f0f0", "#d6d6d6", "#bcbcbc", "#e9e9e9", "#cfcfcf"),
    ("#ffffff", "#ebebeb", "#d6d6d6", "#bdbdbd", "#a3a3a3"),
    pale="#555555",
    bond="#555555",
    kept="black",
    core="black",
    trained="#bbbbbb",
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK, PRINT)}


def theme_named(name: str) -> Theme:
    """A theme by name. Raises InputError.

    >>> theme_named("dark").colour("white")
    '#15181d'
    """
    if name not in THEMES:
        raise InputError(f"there is no theme '{name}'; {nearest(name, THEMES)}")
    return THEMES[name]
