"""The model itself.

Training a cheaper model, or an adapter for the same one, that does the job in fewer or lighter
steps; and the artefacts such training leaves behind.
"""

if __name__ != "accel.distill":
    raise ImportError(f"import accel.distill, not {__name__}")
