"""A/B tests inside the server: assignment, exposures, shadow, guardrails, roll-out, analysis."""
