"""Searches the smallest mask, or the best network for a speed, that is not worse on other queries."""
