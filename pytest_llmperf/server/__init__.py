"""The server under test: reaching it, starting it, watching its machine."""
