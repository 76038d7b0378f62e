"""What people say, on any platform: batching, routing, context, outbox."""
