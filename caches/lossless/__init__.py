"""What need not be computed twice at all: the same input gives the same bits."""
