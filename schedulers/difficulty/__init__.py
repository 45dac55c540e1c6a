"""How many steps does *this* prompt need? Measured, learnt from the text embedding, and judged against constants."""
