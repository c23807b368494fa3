"""Fixed-duration measurements: prompts, load, window arithmetic, decode and prefill cells."""
