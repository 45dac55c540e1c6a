"""How the page looks: one accent, quiet greys, the system's own fonts. Nothing is asked of another host."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

_HERE = Path(__file__).parent
STYLE, SCRIPT = _HERE / "app.css", _HERE / "page.js"

_SANS = ("system-ui", "-apple-system", "Segoe UI", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "monospace")


def theme() -> gr.themes.Base:
    """The page's theme, light and dark."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.zinc,
        radius_size=gr.themes.sizes.radius_md,
        font=_SANS,
        font_mono=_MONO,
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        body_text_color="*neutral_900",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        color_accent="*primary_700",
        block_background_fill="white",
        block_background_fill_dark="*neutral_900",
        block_border_width="1px",
        block_border_color="*neutral_200",
        block_border_color_dark="*neutral_800",
        block_label_background_fill="white",
        block_label_background_fill_dark="*neutral_900",
        block_label_border_width="0px",
        block_label_text_color="*neutral_600",
        block_label_text_color_dark="*neutral_300",
        block_title_text_color="*neutral_700",
        block_title_text_color_dark="*neutral_200",
        block_title_text_weight="600",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_shadow="none",
        input_background_fill="white",
        input_background_fill_dark="*neutral_950",
        input_border_color="*neutral_400",
        input_border_color_dark="*neutral_600",
        input_border_width="1px",
        button_border_width="1px",
        button_primary_border_color="transparent",
        button_primary_border_color_dark="transparent",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        button_primary_text_color="white",
        button_secondary_background_fill="white",
        button_secondary_background_fill_dark="*neutral_800",
        button_secondary_border_color="*neutral_300",
        button_secondary_border_color_dark="*neutral_700",
        slider_color="*primary_700",
        slider_color_dark="*primary_500",
        checkbox_background_color_selected="*primary_700",
        checkbox_background_color_selected_dark="*primary_600",
        link_text_color="*primary_800",
        link_text_color_dark="*primary_300",
    )


def head() -> str:
    """What goes into the page's head: the script that explains the grid's cells."""
    return f"<script>{SCRIPT.read_text('utf-8')}</script>"
