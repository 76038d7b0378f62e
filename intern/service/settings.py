"""The settings, for front ends."""

from intern.platforms.discord.options import DiscordOptions
from intern.settings.loading import NO_PRICE, KbSection, Settings, load_settings
from intern.settings.page import PageOptions, is_loopback
from intern.settings.reading import CONFIG_FILE

__all__ = [
    "CONFIG_FILE",
    "NO_PRICE",
    "DiscordOptions",
    "KbSection",
    "PageOptions",
    "Settings",
    "is_loopback",
    "load_settings",
]
