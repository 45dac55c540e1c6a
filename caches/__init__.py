"""Block and pixel axes.

Which outputs inside the denoiser are computed in this step, which are predicted from earlier
steps, and which parts of a picture need no recomputing after an edit.
"""

if __name__ != "accel.caches":
    raise ImportError(f"import accel.caches, not {__name__}")

TECHNIQUES = {
    "deepcache": "accel.caches.deepcache:DeepCache",
    "fitted": "accel.caches.fitted:FittedCache",
    "fora": "accel.caches.fora:Fora",
    "guidance": "accel.caches.guidance:GuidanceCache",
    "interval": "accel.caches.interval:GuidanceInterval",
    "lossless": "accel.caches.lossless.technique:Lossless",
    "native": "accel.caches.native.technique:NativeCache",
    "rehash": "accel.caches.rehash:StepRehash",
    "residual": "accel.caches.dynamic.technique:ResidualCache",
    "slicer": "accel.caches.slicer:Slicer",
    "smoothcache": "accel.caches.smoothcache:SmoothCache",
    "storage": "accel.caches.storing:Storage",
    "tgate": "accel.caches.tgate:TGate",
}
