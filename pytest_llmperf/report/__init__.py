"""Reports: results in, text out. One module a format; ``view`` holds what all of them say."""
