"""What people say, on any platform: batching, routing, context, checkpoints, and exactly-once posting."""
