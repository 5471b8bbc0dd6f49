"""The card's counters without a card: what is read is kept with its samples, what is not is None with the reason."""

import sys

import pytest

from bertopt.measure import gpu
from bertopt.measure.gpu import GpuProbe
from tests.simulated_nvml import SimulatedNvml


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setattr(gpu, "POLL_SECONDS", 0.002)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**settings):
        module = SimulatedNvml(**settings)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return install


def probe(until_samples=3):
    with GpuProbe("cuda") as found:
        while len(found._polled.get("memory_mib", [])) < until_samples and not found._stop.wait(0.001):
            pass
    return found


def test_activity_power_clocks_and_samples(nvml):
    module = nvml()
    reading = probe().reading()
    assert (reading.sm_active, reading.tensor_active, reading.dram_active) == pytest.approx((0.956, 0.927, 0.41))
    assert reading.nvidia_smi == pytest.approx(0.99)
    assert reading.energy_j == pytest.approx(90.0)
    assert reading.power_w == pytest.approx(90.0 / reading.seconds)
    assert reading.power_from == "energy counter"
    assert (reading.power_limit_w, reading.sm_clock_mhz, reading.max_sm_clock_mhz) == (700, 1500, 1980)
    assert reading.memory_used_mib == 3072
    assert reading.samples >= 3
    assert reading.throttled == {}
    assert reading.reasons == []
    assert module.live_samples == 0, "GPM samples are given back"


def test_energy_of_a_thousand_sequences(nvml):
    nvml()
    reading = probe().reading()
    assert reading.energy_j_per_1000(450) == pytest.approx(200.0)
    assert reading.energy_j_per_1000(0) is None


def test_throttle_reasons_are_shares_of_the_samples_and_an_idle_card_is_none(nvml):
    nvml(throttle_bits=0x4 | 0x1)  # power cap, and idle
    assert probe().reading().throttled == {"power cap": 1.0}


def test_without_the_energy_counter_power_is_the_mean_of_the_samples(nvml):
    nvml(lacks=("nvmlDeviceGetTotalEnergyConsumption",))
    reading = probe().reading()
    assert reading.energy_j is None
    assert (reading.power_w, reading.power_from) == (650, "samples")
    assert any("energy not read: Not Supported" in reason for reason in reading.reasons)


def test_one_counter_that_is_missing_takes_no_other_with_it(nvml):
    nvml(lacks=("nvmlDeviceGetClockInfo",), gpm=False)
    reading = probe().reading()
    assert reading.sm_clock_mhz is None
    assert reading.sm_active is None
    assert reading.power_w is not None
    assert any("clocks not read" in reason for reason in reading.reasons)
    assert any("Hopper" in reason for reason in reading.reasons)


def test_a_window_that_is_too_short_says_so(nvml, monkeypatch):
    nvml()
    monkeypatch.setattr(gpu, "POLL_SECONDS", 10)
    with GpuProbe("cuda") as found:
        pass
    reading = found.reading()
    assert (reading.samples, reading.sm_clock_mhz) == (0, None)
    assert any("too short" in reason for reason in reading.reasons)


@pytest.mark.parametrize(("visible", "handle"), [("", 0), ("3,1", 3), ("GPU-8a1b", "GPU-8a1b")])
def test_the_card_is_the_one_that_cuda_sees(nvml, monkeypatch, visible, handle):
    module = nvml()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    GpuProbe("cuda")
    assert module.opened == handle


def test_no_binding_is_a_reason_and_a_cpu_has_none():
    assert GpuProbe("cpu").reasons == []
    with GpuProbe("cpu") as found:
        pass
    assert found.reading().power_w is None
