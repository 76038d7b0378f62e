"""The running bot: its lifecycle, signals and jobs."""
