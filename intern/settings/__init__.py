"""Settings: intern.toml and the environment."""

from intern.settings.loading import load_settings
from intern.settings.settings import Settings

__all__ = ["Settings", "load_settings"]
