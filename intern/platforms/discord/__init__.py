"""Discord: payloads, gateway, REST and exports."""
