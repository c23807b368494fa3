"""One run of pytest: what is selected, the run itself, its start and its end."""
