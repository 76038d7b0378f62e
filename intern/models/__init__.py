"""Language models: typed prompts, endpoints, limits, cost."""
