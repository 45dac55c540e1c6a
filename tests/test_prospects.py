"""What parts measured alone say of a combination, and what the search makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.measure.arms import Arm
from accel.measure.intervals import Interval
from accel.measure.prospects import Prospects, alone
from accel.measure.search import search
from accel.plan import Plan
from accel.schedulers.steps import Steps
from accel.technique import Technique

DEEP, DEEPER, GUIDANCE = DeepCache(), DeepCache(interval=3), GuidanceCache()


def exactly(value: float) -> Interval:
    return Interval(value, value, value)


def test_no_combination_keeps_more_than_its_worst_part() -> None:
    plain = {Arm(20): exactly(9.0), Arm(10): exactly(4.0), Arm(6): exactly(-1.0)}
    singles = {Arm(20, "own", Plan((DEEP,))): exactly(2.0), Arm(20, "own", Plan((GUIDANCE,))): exactly(5.0)}
    prospects = Prospects({**plain, **singles})
    assert prospects.most(Arm(20, "own", Plan((DEEP, GUIDANCE)))) == exactly(2.0)
    assert prospects.most(Arm(8, "own", Plan((GUIDANCE,)))) == exactly(4.0)  # 10 plain steps are at least as good as 8
    assert prospects.most(Arm(5, "own", Plan((DEEP, GUIDANCE)))) == exactly(-1.0)


def test_what_is_unknown_bounds_nothing() -> None:
    prospects = Prospects({Arm(10): exactly(-1.0), Arm(20, "own", Plan((DEEP,))): exactly(-2.0)})
    for arm in (Arm(12, "own", Plan((DEEPER,))), Arm(8, "dpm++", Plan((DEEP,)))):  # other settings, another solver
        assert prospects.most(arm).high == float("inf")


def test_plain_steps_do_not_bound_a_schedule_that_may_be_better() -> None:
    prospects = Prospects({Arm(10): exactly(-1.0)})
    assert prospects.most(Arm(10, "own", Plan((Steps(spacing="karras"),)))).high == float("inf")
    assert prospects.most(Arm(10, "own", Plan((DEEP,)))) == exactly(-1.0)


def test_techniques_are_taken_alone_with_their_most_steps() -> None:
    pair = Arm(30, "own", Plan((DEEP, GUIDANCE)))
    ways = [Arm(steps, solver, Plan((DEEP,))) for steps in (10, 20) for solver in ("own", "dpm++")]
    assert alone([*ways, pair]) == [Arm(20, "own", Plan((DEEP,))), Arm(20, "dpm++", Plan((DEEP,)))]


class Wide:
    """Many settings of which only one is sound: it and fewer steps are the way; every other one is faster."""

    SOUND = DeepCache(warm_up=9)
    UNSOUND: Sequence[Technique] = [DeepCache(interval=i, warm_up=w) for i in (3, 4, 5) for w in (2, 3, 4)]
    GUIDED: Sequence[Technique] = [GuidanceCache(interval=i) for i in (2, 3, 4)]

    def __init__(self) -> None:
        self.drawn = 0

    def ways(self) -> list[Arm]:
        settings = (self.SOUND, *self.UNSOUND)
        each = [(one,) for one in (*settings, *self.GUIDED)]
        plans = [*each, *((one, other) for one in settings for other in self.GUIDED)]
        return [Arm(steps, "own", Plan(plan)) for plan in plans for steps in (20, 16, 12)]

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        self.drawn += len(rows)
        techniques = arm.plan.techniques if arm.plan else ()
        lost = sum(0.5 if technique == self.SOUND else 6.0 for technique in techniques)
        return [arm.steps - 14.9 - lost + 0.01 * (row % 3) for row in rows]

    def expected(self, arm: Arm) -> float:
        techniques = arm.plan.techniques if arm.plan else ()
        return float(arm.steps) * 0.6 ** len(techniques) * 0.99 ** sum(each != self.SOUND for each in techniques)

    def ratio(self, arm: Arm, other: Arm) -> Interval:
        return exactly(self.expected(other) / self.expected(arm))


def test_a_sound_setting_is_found_among_many_faster_unsound_ones() -> None:
    measure = Wide()
    plain = [Arm(steps) for steps in (20, 15, 12, 10)]
    found = search(
        plain, measure.ways(), measure, range(16), range(16, 32), left=lambda: max(0.0, 1 - measure.drawn / 500)
    )
    assert found.best == Arm(16, "own", Plan((Wide.SOUND,)))
    doomed = Arm(20, "own", Plan((Wide.SOUND, Wide.GUIDED[0])))
    assert found.rejected[doomed.name].startswith("a part of it alone is below the floor")
    assert found.tried < 40 < found.candidates
