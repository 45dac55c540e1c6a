"""Peers as arms of a comparison: named, switched on and off, put back, and heard when they fail. None is installed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from accel.contract.trace import differences, trace
from accel.measure.arms import Arm
from accel.plan import Plan
from benchmarks import peers
from benchmarks.peers import PEERS, Peer, PeerSetup, arm, failure, notes, put_back
from tests.contract.support import draw
from tests.families import case


@contextmanager
def _untidy(pipe: Any, steps: int) -> Iterator[None]:
    """Replaces what peers replace, on the instance and on the class, and takes nothing off again."""
    plain = type(pipe).__call__
    type(pipe).__call__ = lambda self, *args, **kwargs: plain(self, *args, **{**kwargs, "num_inference_steps": 2})
    type(pipe)._is_cached = True
    pipe.unet.mid_block.forward = lambda hidden_states, *args, **kwargs: hidden_states
    pipe.unet.down_blocks[0].cached = torch.ones(2)
    pipe.unet._modules["conv_in"] = pipe.unet._modules.pop("conv_in")
    pipe.unet.mid_block.register_forward_hook(lambda *_: None)
    pipe.__class__ = type("Other", (type(pipe),), {})
    yield


@pytest.fixture(autouse=True)
def peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "untidy", Peer("untidy", "unet", _untidy))
    monkeypatch.setitem(PEERS, "absent", Peer("absent", "unet", peers.deepcache(2)))


def test_everything_a_peer_changed_is_put_back() -> None:
    pipe = case("sd-plain").build()
    plain, before = draw("sd-plain", pipe), trace(pipe)
    with arm("untidy", "1.0", 4).ready(pipe):
        assert not torch.equal(draw("sd-plain", pipe), plain)
        assert differences(before, trace(pipe)) != []
    assert differences(before, trace(pipe)) == []
    assert torch.equal(draw("sd-plain", pipe), plain)


def test_it_is_put_back_after_an_error_as_well() -> None:
    pipe = case("sd-plain").build()
    before = trace(pipe)
    with pytest.raises(KeyError), put_back(pipe), _untidy(pipe, 4):
        raise KeyError
    assert differences(before, trace(pipe)) == []


def test_failing_peer_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it cannot be imported or cannot draw; nothing of it stays."""
    pipe = case("sd-plain").build()
    before = trace(pipe)
    monkeypatch.setattr(peers.arms, "draw", lambda *_: 1 / 0)
    assert failure(pipe, "absent", "a star", 4, {}) == "ModuleNotFoundError: No module named 'DeepCache'"
    assert failure(pipe, "untidy", "a star", 4, {}) == "ZeroDivisionError: division by zero"
    assert differences(before, trace(pipe)) == []
    monkeypatch.setattr(peers.arms, "draw", lambda *_: torch.ones(1))
    assert failure(pipe, "untidy", "a star", 4, {}) is None


def test_peers_take_part_like_plans() -> None:
    """Beside every solver's plans, told apart by name, and part of what the journal's head says is measured."""
    own = PeerSetup("tiny", ["a star"], [Plan.of("deepcache")], 5, peers={"untidy": "1.0"}, solvers=("own", "dpm++"))
    names = [each.name for each in own.arms]
    assert names.count("untidy (untidy 1.0), 5 steps") == names.count("untidy (untidy 1.0), 5 steps, dpm++") == 1
    assert len(set(names)) == len(names) and Arm(5).name in names and Arm(20).name in names
    found = [each for each in own.arms if isinstance(each, peers.PeerArm)]
    assert all(each.plan is not None and not each.plan.techniques for each in found)
    assert len({hash(each) for each in found}) == 2 and all(a != b for a, b in itertools.combinations(found, 2))
    head = own.head(case("sd-plain").build())
    assert json.loads(json.dumps(head))["peers"] == {"untidy": "1.0"}


def test_notes_say_what_the_table_does_not() -> None:
    text = notes({"T-GATE": "TypeError: no"}, ["cache-dit, DBCache"], same=False)
    assert "- T-GATE fails with the installed versions: `TypeError: no`" in text
    assert "- Left out, being for networks of another kind: cache-dit, DBCache." in text
    assert "OTHER bits" in text and "OTHER" not in notes({}, [], same=True)
