"""The contract that every technique is tested against, on tiny pipelines of every family."""
