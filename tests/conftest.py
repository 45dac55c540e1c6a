"""Every test starts from the same global state and leaves none behind."""

from __future__ import annotations

import os

# Before any import reads them: no test may reach a hub.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", DIFFUSERS_VERBOSITY="error")

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

# One thread a process: the models are tiny, and the suite runs in two processes.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def global_state() -> Iterator[None]:
    """Seed what is random, and afterwards put back what a test may have changed for all others."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    environ = dict(os.environ)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    grad, deterministic = torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    yield
    os.environ.clear()
    os.environ.update(environ)
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(grad)
    torch.use_deterministic_algorithms(deterministic)
