"""The status page: a small web server beside the bot, for whoever operates it."""
