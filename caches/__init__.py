"""Block and pixel axes.

Which outputs inside the denoiser are computed in this step, which are predicted from earlier
steps, and which parts of a picture need no recomputing after an edit.
"""

if __name__ != "accel.caches":
    raise ImportError(f"import accel.caches, not {__name__}")

TECHNIQUES = {
    "deepcache": "accel.caches.deepcache:DeepCache",
    "guidance": "accel.caches.guidance:GuidanceCache",
    "tgate": "accel.caches.tgate:TGate",
}
