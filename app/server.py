"""Serving the page: who may reach it, and what the server never does."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accel import console
from accel.app.studio import Studio
from accel.errors import AccelError

if TYPE_CHECKING:
    import gradio as gr

AUTH = "ACCEL_APP_AUTH"
"""Environment variable that holds ``user:password``; not an option, because others can read a command line."""

LARGEST_UPLOAD = "10mb"
_SHORTEST_PASSWORD = 8


def auth(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """User and password from the environment, ``None`` where none are set; raises `AccelError` for half of them."""
    text = environ.get(AUTH, "")
    if not text:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and len(password) >= _SHORTEST_PASSWORD):
        raise AccelError(f"{AUTH} must be user:password, the password of at least {_SHORTEST_PASSWORD} characters")
    return user, password


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name: whatever it means here
        return False


def check_bind(host: str, password: tuple[str, str] | None, force: bool) -> None:
    """Raise `AccelError` where others could reach a server that asks for no password."""
    if is_loopback(host) or password:
        return
    if not force:
        raise AccelError(
            f"--host {host} lets others use this machine without a password: set {AUTH}=user:password in the "
            "environment, or add --force-public if everybody who can reach it may use it"
        )
    console.say("warning", f"everybody who can reach {host} can use this machine: there is no password")


def start(
    studio: Studio, host: str = "127.0.0.1", port: int | None = None, force_public: bool = False, browser: bool = False
) -> tuple[gr.Blocks, str]:
    """Serve the page without blocking, and load the model once it is shown; returns the page, to close, and its URL.

    Without a ``port`` the first free one from 7860 on is taken. Raises `AccelError` for a port that is taken, and where
    others could reach a server without a password.
    """
    password = auth(os.environ)
    check_bind(host, password, force_public)
    os.environ.update(_SILENT)
    from accel.app import theme
    from accel.app.ui import build_demo

    demo = build_demo(studio)
    try:
        _, url, _ = demo.launch(
            server_name=host,
            server_port=port,
            auth=password,
            inbrowser=browser,
            prevent_thread_lock=True,
            quiet=True,
            theme=theme.theme(),
            css_paths=[theme.STYLE],
            head=theme.head(),
            footer_links=["api"],
            **_SWITCHES,
        )
    except OSError as error:
        raise AccelError(f"the server cannot start on {host}: {console.one_line(error)}; try another --port") from None
    studio.load_in_background()
    return demo, url


_SILENT = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(2**31),
}
"""Read when gradio is imported, or its queue is made: no analytics, and no statistics after every event of a monitoring
page that is off."""

_SWITCHES: dict[str, Any] = {
    "share": False,
    "allowed_paths": [],
    "max_file_size": LARGEST_UPLOAD,
    "enable_monitoring": False,
    "run_history": False,
    "strict_cors": True,
    "ssr_mode": False,
    "mcp_server": False,
    "show_error": False,
    "pwa": False,
}
"""What is off, or narrow, whatever Gradio's defaults or its environment variables say."""
