"""Lab Streaming Layer announces its streams to everybody; here it speaks to a network of its own alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import anchorinv
from anchorinv import AnchorInvClassifier
from anchorinv.live.sources import LslSource
from tests.live.test_session import model, samples
from tests.report.looking import CHROMIUM

CONFIG = "[multicast]\nResolveScope = machine\nAddressesOverride = {127.0.0.1}\n"
ALONE = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """How to run a command where there is no network but a loopback."""
    pytest.importorskip("pylsl", reason="needs the extra live")
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network of its own needs unshare and ip (util-linux, iproute2)")
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network of its own is not allowed here")
    config = tmp_path_factory.mktemp("lsl") / "lsl_api.cfg"
    config.write_text(CONFIG)
    root = Path(anchorinv.__file__).parents[1]
    paths = os.pathsep.join([str(root), str(Path(__file__).parents[2])])
    return {**os.environ, "LSLAPICFG": str(config), "PYTHONPATH": paths}


def scenario(alone, tmp_path, *words):
    path = tmp_path / "hand.anchorinv"
    model().save(path)
    for name, label in (("hand", "left"), ("tongue", "tongue")):
        np.save(tmp_path / f"{name}.npy", samples(label, n=20).astype("float32"))
    script = Path(__file__).with_name("lsl_scenario.py")
    done = subprocess.run(
        [*ALONE, sys.executable, str(script), str(path), *words],
        env=alone,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_streams_in_and_out(alone, tmp_path):
    assert scenario(alone, tmp_path).split()[-1] == "predictions_as_markers"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
def test_a_page_on_a_stream(alone, tmp_path):
    pytest.importorskip("playwright", reason="needs playwright")
    pytest.importorskip("uvicorn", reason="needs the extra live")
    scenario(alone, tmp_path, "page")
    (saved,) = tmp_path.glob("hand-2-*.anchorinv")
    assert AnchorInvClassifier.load(saved).classes_.tolist() == ["left", "right", "tongue"]


def test_a_stream_that_comes_back_in_another_unit_is_refused(monkeypatch):
    """Its samples would be multiplied by the factor of the unit that it had."""
    source = object.__new__(LslSource)
    source.name, source.ch_names, source.units, source.sfreq = "amp", ("C3",), ("V",), 250.0
    source._factors = np.array([[1e-6]])
    monkeypatch.setattr(LslSource, "_describe", lambda *_: (("C3",), ("V",), np.array([[1e-3]])))
    with pytest.raises(ValueError, match="came back in another unit; start again"):
        source._is_readable(SimpleNamespace(nominal_srate=lambda: 250.0))
