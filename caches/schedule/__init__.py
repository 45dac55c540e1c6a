"""Static schedules: measured on a few prompts, solved for a target, stretched to other step counts, read from files."""

from accel.caches.schedule.calibration import calibrate as calibrate
from accel.caches.schedule.curves import ErrorCurves as ErrorCurves
from accel.caches.schedule.measured import Choice as Choice
from accel.caches.schedule.measured import choose_cells as choose_cells
from accel.caches.schedule.solving import Schedule as Schedule
from accel.caches.schedule.solving import solve as solve
