"""The browser app.

Type a prompt, pick a plan, see the accelerated picture beside the plain one and what it
saved. Needs the `app` extra.
"""

if __name__ != "accel.app":
    raise ImportError(f"import accel.app, not {__name__}")
