"""Discord: its wire format, the gateway, REST, and a Discord in memory."""
