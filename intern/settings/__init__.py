"""Settings: intern.toml and the environment."""

from intern.settings.loading import Settings, load_settings

__all__ = ["Settings", "load_settings"]
