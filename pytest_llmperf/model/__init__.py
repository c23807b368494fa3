"""What passes between the parts: cells, settings, results, errors. Imports no other part."""
