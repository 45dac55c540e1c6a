"""Measuring: paired timing, quality, and the honest baseline of the plain pipeline with fewer steps."""
