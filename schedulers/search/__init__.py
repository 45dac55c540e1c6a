"""Looking for a good starting noise instead of taking more steps (Ma et al., arXiv:2501.09732)."""

from accel.schedulers.search.searching import Found as Found
from accel.schedulers.search.searching import search as search
