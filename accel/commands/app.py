"""``accel app``: serve the browser app."""

from __future__ import annotations

import argparse
import importlib.util

from accel.errors import AccelError


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted."""
    if importlib.util.find_spec("gradio") is None:
        raise AccelError('the app needs gradio, which is not installed: pip install "diffusers-accel[app]"')
    from accel.app.limits import Limits
    from accel.app.server import start
    from accel.app.studio import Studio

    limits = Limits(steps=options.max_steps, size=options.max_size)
    studio = Studio(options.model, limits, options.allow_hub, options.device, options.dtype)
    demo, url = start(studio, options.host, options.port, options.force_public, options.open)
    print(f"the app is at {url} (stop it with Ctrl-C)", flush=True)
    demo.block_thread()
    return 0
