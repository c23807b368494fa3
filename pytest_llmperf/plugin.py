"""Hooks and fixtures, thin."""
