"""All weights of one training run in one flat buffer.

One buffer makes the optimizer, the moving average, the gradient exchange and the checkpoint single
calls on single tensors, which is what keeps a small model fast on few processor cores.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from accel.tiny.training.muon import Muon


class FlatWeights:
    """Parameters of several modules as views of one buffer, with AdamW and a moving average.

    Args:
        modules: Modules to train; their parameters are re-pointed into the buffer.
        dtype: Type of the working weights. ``bfloat16`` keeps a float32 master copy beside them.
        device: Where everything lives.
        betas: AdamW's decay rates.
        weight_decay: AdamW's decoupled decay.
        muon: Whether matrices take Muon's steps instead of AdamW's.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.01,
        muon: bool = False,
    ) -> None:
        self.modules = [module.to(device) for module in modules]
        self.parameters = [p for module in self.modules for p in module.parameters() if p.requires_grad]
        master = torch.cat([p.detach().float().reshape(-1) for p in self.parameters])
        self.master = nn.Parameter(master)
        self.work = self.master.detach() if dtype == torch.float32 else master.to(dtype)
        self.grad = torch.zeros_like(self.work)
        self.ema = master.clone()
        self.optimizer = torch.optim.AdamW([self.master], lr=0.0, betas=betas, weight_decay=weight_decay, fused=True)
        self.muon = Muon([p.shape for p in self.parameters]) if muon else None
        self.momentum = torch.zeros_like(master) if muon else None
        for module in self.modules:
            module.to(dtype)
        self._point_into(self.work)

    def _point_into(self, buffer: Tensor) -> None:
        start = 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            parameter.data = buffer[start:end].view(parameter.shape)
            parameter.grad = self.grad[start:end].view(parameter.shape)
            start = end

    def step(self, learning_rate: float, ema_decay: float, clip: float = 1.0) -> float:
        """Apply the gradients gathered in ``grad``, then clear them.

        Returns:
            The gradient norm before clipping.
        """
        gradient = self.grad.float() if self.grad.dtype != torch.float32 else self.grad
        norm = float(gradient.norm())
        if norm > clip:
            gradient.mul_(clip / norm)
        if self.muon and self.momentum is not None:  # leaves no gradient for AdamW, which then only decays
            self.muon.step(self.master.detach(), gradient, self.momentum, learning_rate)
        self.master.grad = gradient
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        self.ema.lerp_(self.master.detach(), 1 - ema_decay)
        if self.work.dtype != torch.float32:
            self.work.copy_(self.master.detach())
        self.grad.zero_()
        return norm

    def load_ema(self) -> None:
        """Overwrite the working weights with the moving average (for export and for drawing)."""
        with torch.no_grad():
            self.master.copy_(self.ema)
            self.work.copy_(self.ema)

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as plain tensors."""
        moments = self.optimizer.state.get(self.master, {})
        state = {"master": self.master.detach(), "ema": self.ema}
        if self.momentum is not None:
            state["momentum"] = self.momentum
        state.update({name: moments[name] for name in ("step", "exp_avg", "exp_avg_sq") if name in moments})
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Raises:
            ValueError: if the state belongs to other modules.
        """
        if state["master"].shape != self.master.shape:
            raise ValueError(
                f"checkpoint has {state['master'].numel()} weights, the model {self.master.numel()}: "
                "start in an empty folder or restore the old sizes"
            )
        with torch.no_grad():
            self.master.copy_(state["master"])
            self.work.copy_(state["master"])
            self.ema.copy_(state["ema"])
            if self.momentum is not None and "momentum" in state:
                self.momentum.copy_(state["momentum"])
        if "exp_avg" in state:
            self.optimizer.state[self.master] = {
                "step": state["step"].clone(),
                "exp_avg": state["exp_avg"].to(self.master.device, copy=True),
                "exp_avg_sq": state["exp_avg_sq"].to(self.master.device, copy=True),
            }
