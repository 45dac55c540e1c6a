"""diffusers' own caches, told by the clock where they are, and refused where they would be wrong."""
