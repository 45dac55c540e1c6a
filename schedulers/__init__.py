"""Step axis.

How many steps, from which noise, with which model for which noise level: solvers, timestep
schedules and samplers that spend the denoiser's calls where they matter.
"""

if __name__ != "accel.schedulers":
    raise ImportError(f"import accel.schedulers, not {__name__}")

TECHNIQUES = {
    "converged": "accel.schedulers.converged:Converged",
    "deadline": "accel.schedulers.deadline:Deadline",
    "prompt_steps": "accel.schedulers.prompt_steps:PromptSteps",
    "stages": "accel.schedulers.stages:Stages",
    "steps": "accel.schedulers.steps:Steps",
}
