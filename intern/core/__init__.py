"""What every other package builds on: ids, messages, errors, clock, log and text."""
