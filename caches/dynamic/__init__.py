"""Deciding while a run goes on: a stretch of blocks is predicted when an indicator sees little change."""
