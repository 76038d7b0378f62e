"""Conversations on any platform: batching, routing, context, outbox."""
