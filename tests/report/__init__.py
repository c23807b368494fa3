"""Reports, from results to text."""
