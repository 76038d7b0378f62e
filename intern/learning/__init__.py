"""From a team's answer to its topic: filing, review, forgetting, regeneration."""
