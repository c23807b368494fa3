"""One streaming request -> stamped arrivals. Stamps are ``time.monotonic()`` seconds."""
