"""Discord: wire format, gateway, REST and exports."""
