"""What people say on Discord, made into questions to answer, conversations to keep, and replies to post."""
