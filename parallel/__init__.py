"""Device axis.

Which rank computes which rows of the picture, and what it needs from the others to do so:
splitting one generation over several devices or processes.
"""

if __name__ != "accel.parallel":
    raise ImportError(f"import accel.parallel, not {__name__}")
