"""Topologies: seconds by hand, files and short ways to write them, and every way to be wrong."""

from pathlib import Path

import pytest

from detrain.errors import GraphError
from detrain.pipeline import topologyfile
from detrain.pipeline.topology import Device, Level, Topology, machines, nested
from detrain.plans.units import parse_bytes, parse_rate

FLAT = nested([4], [10.0], 1.0)
TWO = machines([2, 4], 100.0, 10.0, 1.0, across_collective=30.0)
UNEVEN = machines([3, 4], 100.0, 10.0, 1.0)
DEEP = nested([2, 2, 2], [100.0, 10.0, 1.0], 1.0)
LATE = nested([2, 2], [100.0, 10.0], 1.0, latencies_s=[0.5, 2.0])
MATRIX = Topology(
    (Device(1.0),) * 3, bandwidths=((0.0, 10.0, 5.0), (20.0, 0.0, 4.0), (1.0, 2.0, 0.0)),
    latencies_s=((0.0, 0.5, 1.0), (0.25, 0.0, 3.0), (0.0, 7.0, 0.0)),
)  # fmt: skip
SPLIT = Topology(
    (Device(1.0),) * 4, (Level(100.0, (0, 1, 0, 1)), Level(10.0, (0, 0, 0, 0)))
)  # machines of devices 0 and 2, and of 1 and 3


@pytest.mark.parametrize(
    ("topology", "pairs", "expected"),
    [
        # 100 bytes each time. One link: as many bytes as the device with most to send or to receive has.
        (FLAT, [([0], [1])], 10.0), (FLAT, [([0], [0])], 0.0),
        (FLAT, [], 0.0), (FLAT, [([0], [1, 2])], 10.0), (FLAT, [([0, 1], [2])], 10.0),
        (FLAT, [([0, 1], [2, 3])], 5.0),
        # Each keeps half of its half and sends the other; and 1 keeps a quarter while 0 sends a half.
        (FLAT, [([0, 1], [0, 1])], 2.5), (FLAT, [([0, 1], [1, 2])], 5.0),
        # Copies beside each other have links of their own, unless they send from one device.
        (FLAT, [([0], [1]), ([2], [3])], 10.0), (FLAT, [([0], [1]), ([0], [2])], 20.0), (FLAT, [([0], [1]), ([1], [0])], 10.0),
        (TWO, [([0], [1])], 1.0), (TWO, [([0], [2])], 10.0), (TWO, [([0], [2, 3])], 10.0), (TWO, [([0, 1], [2, 3])], 10.0),
        # Two copies on one uplink; there and back are two ways; a quarter goes each way.
        (TWO, [([0], [2]), ([1], [3])], 20.0), (TWO, [([0], [2]), ([3], [1])], 10.0), (TWO, [([0, 2], [1, 3])], 2.5),
        (UNEVEN, [([0, 1, 2], [3])], 10.0), (UNEVEN, [([0], [3]), ([1], [3])], 20.0), (UNEVEN, [([0], [1]), ([1], [2])], 1.0),
        (DEEP, [([0], [1])], 1.0), (DEEP, [([0], [2])], 10.0), (DEEP, [([0], [4])], 100.0), (DEEP, [([0], [4]), ([2], [6])], 200.0),
        (DEEP, [([0], [2]), ([4], [6])], 10.0),
        (SPLIT, [([0], [2])], 1.0), (SPLIT, [([0], [1])], 10.0), (SPLIT, [([0], [1]), ([2], [3])], 20.0),
        (LATE, [([0], [1])], 1.5), (LATE, [([0], [2])], 12.0), (LATE, [([0], [0])], 0.0), (LATE, [([0], [1]), ([2], [3])], 1.5),
        # From and to a device one after the other: 50/10 + 50/5, 50/5 + 50/4; then the longest latency.
        (MATRIX, [([0], [1])], 10.5), (MATRIX, [([1], [0])], 5.25), (MATRIX, [([0], [1, 2])], 16.0), (MATRIX, [([0, 1], [2])], 25.5),
        (MATRIX, [([0], [0])], 0.0), (MATRIX, [([0], [1]), ([1], [0])], 10.5), (MATRIX, [], 0.0),
    ],
)  # fmt: skip
def test_a_transfer_takes_as_long_as_the_link_with_most_to_carry(topology, pairs, expected):
    assert topology.transfer_s(pairs, 100.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("topology", "devices", "expected"),
    [
        # 120 bytes; a link carries 2 (g - 1) / g of them: 120 for two, 160 for three, 180 for four.
        (FLAT, [0], 0.0), (FLAT, [2, 2], 0.0), (FLAT, [0, 1], 12.0), (FLAT, [0, 1, 3], 16.0), (FLAT, [3, 2, 1, 0], 18.0),
        (TWO, [0, 1], 1.2), (TWO, [0, 2], 4.0), (TWO, [0, 1, 2, 3], 6.0), (UNEVEN, [0, 1, 2], 1.6), (UNEVEN, [2, 3], 12.0),
        (DEEP, [0, 2], 12.0), (DEEP, [0, 1, 4, 5], 180.0),
        # And 2 (g - 1) latencies of the outermost level.
        (LATE, [0, 1], 1.2 + 2 * 0.5), (LATE, [0, 1, 2, 3], 18.0 + 6 * 2.0),
        # The ring 0 to 1 to 2 to 0: the slowest link has 1, the longest latency is 3.
        (MATRIX, [0, 1, 2], 160.0 + 4 * 3.0), (MATRIX, [0, 1], 12.0 + 2 * 0.5),
    ],
)  # fmt: skip
def test_an_all_reduce_is_a_ring_over_the_slowest_link(topology, devices, expected):
    assert topology.all_reduce_s(devices, 120.0) == pytest.approx(expected, rel=1e-12)


def level(*groups, bandwidth=1.0, **other):
    return Level(bandwidth, groups, **other)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"devices": ()}, "at least one device"), ({"devices": (Device(0.0),)}, "device 0 has 0 bytes and speed 1"),
        ({"devices": (Device(1.0, 0.0),)}, "device 0 has 1 bytes and speed 0"), ({"levels": ()}, "either levels or a matrix"),
        ({"bandwidths": ((0.0,),)}, "either levels or a matrix"), ({"latencies_s": ((0.0,),)}, "a matrix of latencies goes with"),
        ({"levels": (level(0, 0, bandwidth=0.0),)}, "level 1 has a bandwidth that is not above zero"),
        ({"levels": (level(0, 0, collective_bandwidth=0.0),)}, "level 1 has a bandwidth that is not above zero"),
        ({"levels": (level(0, 0, latency_s=-1.0),)}, "level 1 has a latency below zero"),
        ({"levels": (level(0),)}, "level 1 has groups of 1 devices, not of 2"),
        ({"levels": (level(0, 1),)}, "the outermost level has more than one group"),
        ({"levels": (level(0, 0), level(0, 1))}, "a group of a level lies in more than one group of the level around it"),
        ({"levels": (), "bandwidths": ((0.0, 1.0),)}, "the matrix of bandwidth is not 2 by 2"),
        ({"levels": (), "bandwidths": ((0.0, 1.0), (0.0, 0.0))}, "the bandwidth from device 1 to device 0 is 0"),
        ({"levels": (), "bandwidths": ((0.0, 1.0), (1.0, 0.0)), "latencies_s": ((0.0, 1.0), (-1.0, 0.0))}, "the latency from device 1"),
    ],
)  # fmt: skip
def test_a_topology_that_cannot_be_is_refused(fields, said):
    with pytest.raises(GraphError, match=said):
        Topology(**{"devices": (Device(1.0),) * 2, "levels": (level(0, 0),), **fields})


def read(tmp_path, text):
    (tmp_path / "cluster.toml").write_text(text)
    return topologyfile.read(tmp_path / "cluster.toml")


def test_a_file_has_levels_of_equal_groups(tmp_path):
    found = read(
        tmp_path,
        """
        [device]
        memory = "16GiB"
        [[level]]
        size = 2
        bandwidth = "25GB/s"
        [[level]]
        size = 3
        bandwidth = "10Gbit/s"
        collective_bandwidth = 3e9
        latency_s = 1e-5
        """,
    )
    assert found.devices == (Device(2**34),) * 6
    assert found.levels == (
        Level(25e9, (0, 0, 1, 1, 2, 2)), Level(1.25e9, (0,) * 6, 3e9, 1e-5),
    )  # fmt: skip
    assert found.name == "cluster"


def test_a_file_has_uneven_groups_and_devices_of_their_own(tmp_path):
    found = read(
        tmp_path,
        """
        name = "lab"
        device = { memory = 8e9, speed = 2 }
        level = [
            { ends = [1, 4, 6], bandwidth = 100 },
            { ends = [4, 6], bandwidth = 10 },
            { size = 2, bandwidth = 1 },
        ]
        [[devices]]
        first = 4
        last = 5
        speed = 0.5
        [[devices]]
        first = 5
        last = 5
        memory = "4GB"
        """,
    )
    assert [one.groups for one in found.levels] == [(0, 1, 1, 1, 2, 2), (0, 0, 0, 0, 1, 1), (0, 0, 0, 0, 0, 0)]
    assert found.devices == (*[Device(8e9, 2.0)] * 4, Device(8e9, 0.5), Device(4e9, 0.5))
    assert found.name == "lab"


def test_a_file_has_a_matrix(tmp_path):
    found = read(
        tmp_path,
        """
        device.memory = 1
        [matrix]
        bandwidth = [[0, "1kB/s"], [500, 0]]
        latency_s = [[0, 0.25], [0.5, 0]]
        """,
    )
    assert (found.bandwidths, found.latencies_s) == (((0.0, 1000.0), (500.0, 0.0)), ((0.0, 0.25), (0.5, 0.0)))
    assert found.transfer_s([([0], [1])], 500.0) == 0.75


DEVICE = "device.memory = 1\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[device", "is not TOML: "),
        ("", "device is missing"),
        ("device = 3", "device is 3, not a table"),
        ("[device]", "device: memory is missing"),
        ("device.memory = 0", "device: memory is 0, not a number above zero"),
        ("device.memory = '16 fish'", "device: memory: there is no unit FISH: it is one of B, KB, "),
        ("device.memory = '0GB'", "device: memory is 0.0, not a number above zero"),
        ("device.memory = true", "device: memory is True, not a number above zero"),
        ("device = { memory = 1, speed = -1 }", "device: speed is -1, not a number above zero"),
        ("device = { memory = 1, sped = 1 }", "device: 'sped' is none of memory, speed"),
        (DEVICE, "there is either level or matrix, and not both"),
        (DEVICE + "colour = 1", "'colour' is none of name, device, devices, level, matrix"),
        (DEVICE + "level = []", "there are no levels"),
        (DEVICE + "level = 2", "level is 2, not a list"),
        (DEVICE + "level = [{ size = 2 }]", "level[0]: bandwidth is missing"),
        (DEVICE + "level = [{ bandwidth = 1 }]", "level[0]: there is either size or ends, and not both"),
        (DEVICE + "level = [{ size = 2, ends = [2], bandwidth = 1 }]", "level[0]: there is either size or ends, and not both"),
        (DEVICE + "level = [{ size = 2, bandwidth = 0 }]", "level[0]: bandwidth is 0, not a number above zero"),
        (DEVICE + "level = [{ size = 2, bandwidth = '10Gb/s' }]", "level[0]: bandwidth: there is no unit Gb/s: it is one of B/s, "),
        (DEVICE + "level = [{ size = 2, bandwidth = '0GB/s' }]", "level[0]: bandwidth is 0.0, not a number above zero"),
        (DEVICE + "level = [{ size = 2, bandwidth = inf }]", "level[0]: bandwidth is inf, not a number above zero"),
        (DEVICE + "level = [{ size = 2, bandwidth = 1, collective_bandwidth = 0 }]", "level[0]: collective_bandwidth is 0, not"),
        (DEVICE + "level = [{ size = 2, bandwidth = 1, latency_s = -1 }]", "level[0]: latency_s is -1, not a number of zero or more"),
        (DEVICE + "level = [{ size = 2, bandwith = 1 }]", "level[0]: 'bandwith' is none of size, ends, bandwidth"),
        (DEVICE + "level = [{ size = 0, bandwidth = 1 }]", "level[0]: size is 0, not a whole number from 1 on"),
        (DEVICE + "level = [{ size = 99999999, bandwidth = 1 }]", "there are 99999999 devices; 65536 is the most"),
        (DEVICE + "level = [{ ends = [], bandwidth = 1 }]", "level[0]: ends is [], not numbers that rise"),
        (DEVICE + "level = [{ ends = [4, 2], bandwidth = 1 }]", "level[0]: ends is [4, 2], not numbers that rise"),
        (DEVICE + "level = [{ ends = [0, 2], bandwidth = 1 }]", "level[0]: ends is [0, 2], not a list of whole numbers from 1 on"),
        (DEVICE + "level = [{ ends = [2, 4], bandwidth = 1 }]", "the outermost level has more than one group"),
        (
            DEVICE + "level = [{ ends = [2, 4], bandwidth = 1 }, { ends = [5], bandwidth = 1 }]",
            "level[1]: ends is [5], and another level has 4",
        ),
        (
            DEVICE + "level = [{ size = 2, bandwidth = 1 }, { ends = [3, 4], bandwidth = 1 }]",
            "level[1]: ends is [3, 4], and one of them lies within",
        ),
        (
            DEVICE + "level = [{ ends = [2, 3, 4], bandwidth = 1 }, { size = 2, bandwidth = 1 }]",
            "level[1]: size is 2, and there are 3 groups within it",
        ),
        (DEVICE + "matrix.bandwidth = [[0, 1]]", "matrix: bandwidth is not square"),
        (DEVICE + "matrix.bandwidth = []", "matrix: bandwidth is not square"),
        (DEVICE + "matrix.bandwidth = [1]", "matrix: bandwidth is not square"),
        (DEVICE + "matrix.bandwidth = [[0, 0], [1, 0]]", "matrix: bandwidth[0][1] is 0, not a number above zero"),
        (DEVICE + "matrix.bandwidth = [[0, 'fast'], [1, 0]]", "matrix: bandwidth[0][1]: fast is no number with a unit"),
        (DEVICE + "matrix.latency_s = [[0]]", "matrix: bandwidth is missing"),
        (DEVICE + "[matrix]\nbandwidth = [[0, 1], [1, 0]]\nlatency_s = [[0]]", "the matrix of latency is not 2 by 2"),
        (DEVICE + "matrix.bandwidth = [[0]]\nlevel = [{ size = 1, bandwidth = 1 }]", "there is either level or matrix, and not both"),
        (DEVICE + "level = [{ size = 2, bandwidth = 1 }]\ndevices = [{ first = 1, last = 2 }]", "devices[0]: there are no devices 1 to 2"),
        (DEVICE + "level = [{ size = 2, bandwidth = 1 }]\ndevices = [{ first = 1, last = 0 }]", "devices[0]: there are no devices 1 to 0"),
        (DEVICE + "level = [{ size = 2, bandwidth = 1 }]\ndevices = [{ first = 1 }]", "devices[0]: last is missing"),
        (DEVICE + "level = [{ size = 2, bandwidth = 1 }]\ndevices = [{ first = 0, last = 1, speed = 0 }]", "devices[0]: speed is 0, not"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_named_with_its_key(text, said, tmp_path):
    with pytest.raises(GraphError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "cluster.toml"))
    assert said in str(caught.value)


def test_a_file_that_is_no_text_is_no_toml(tmp_path):
    (tmp_path / "cluster.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphError, match=r"cluster\.toml is not TOML: "):
        topologyfile.read(tmp_path / "cluster.toml")


def test_dapples_machines_have_the_constants_of_its_planner():
    found = topologyfile.of_machines("8,16", topologyfile.preset("dapple"))
    assert found.devices == (Device(16e9),) * 16
    # NVLink within a machine, Ethernet across; all-reduces across have a bandwidth of their own.
    assert found.transfer_s([([0], [7])], 25e9) == 1.0
    assert found.transfer_s([([0], [8])], 1e9) == 1.0
    assert found.all_reduce_s([0, 8], 3e9) == 1.0
    assert found.all_reduce_s([0, 1], 25e9) == 1.0


def test_pipedreams_machines_have_its_default_bandwidth_where_none_is_given():
    assert topologyfile.of_levels([4]).levels == (Level(1e9, (0, 0, 0, 0)),)
    found = topologyfile.of_levels([2, 2], [1e10, 1.25e9])
    assert [one.bandwidth for one in found.levels] == [1e10, 1.25e9]
    assert found.devices == (Device(16e9),) * 4


def test_a_single_machine_needs_no_bandwidth_to_others():
    assert topologyfile.of_shape("1x4", [100.0]).levels == topologyfile.of_levels((4,), [100.0]).levels
    with pytest.raises(GraphError, match="there are 2 levels of machines and 1 bandwidths"):
        topologyfile.of_shape("2x4", [100.0])


def test_a_shape_says_machines_before_devices():
    found = topologyfile.of_shape("2x3", [100.0, 10.0])
    assert [one.groups for one in found.levels] == [(0, 0, 0, 1, 1, 1), (0,) * 6]
    assert [one.bandwidth for one in found.levels] == [100.0, 10.0]


def test_a_preset_of_ones_own_may_have_latencies_and_fewer_levels_than_are_asked_for(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'device = { memory = "1GB", speed = 2 }\nlevel = [{ bandwidth = 8, latency_s = 0.5 }, { bandwidth = 4, latency_s = 1 }]'
    )
    mine = topologyfile.read_preset(tmp_path / "mine.toml")
    found = topologyfile.of_shape("2x2x2", links=mine)
    assert [(one.bandwidth, one.latency_s) for one in found.levels] == [(8.0, 0.5), (4.0, 1.0), (4.0, 1.0)]
    assert topologyfile.of_machines("1,3", mine).devices == (Device(1e9, 2.0),) * 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: topologyfile.preset("cray"), "there is no preset cray: it is one of dapple, pipedream"),
        (lambda: topologyfile.preset("../profile"), r"there is no preset \.\./profile"),
        (lambda: topologyfile.of_machines("8;16", topologyfile.preset("dapple")), "machines are where they end, as in 8,16, not 8;16"),
        (lambda: topologyfile.of_machines("8,8", topologyfile.preset("dapple")), "separators rise from above zero: 8,8 do not"),
        (lambda: topologyfile.of_machines("0", topologyfile.preset("dapple")), "separators rise from above zero: 0 do not"),
        (lambda: topologyfile.of_machines("123456789", topologyfile.preset("dapple")), "there are 123456789 devices"),
        (lambda: topologyfile.of_levels([4, 4], [1.0]), "there are 2 levels of machines and 1 bandwidths"),
        (lambda: topologyfile.of_levels([]), "there are 0 levels of machines"),
        (lambda: topologyfile.of_levels([4, 0]), "a level has at least one machine, not 0"),
        (lambda: topologyfile.of_levels([4], [0.0]), "level 1 has a bandwidth that is not above zero"),
        (lambda: topologyfile.of_levels([99999, 99999]), "there are 9999800001 devices; 65536 is the most"),
        (lambda: topologyfile.of_shape("2*8"), r"a shape is machines by devices, as in 2x8, not 2\*8"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_short_way_is_said(make, said):
    with pytest.raises(GraphError, match=said):
        make()


def test_every_preset_says_where_it_is_from():
    folder = Path(topologyfile.__file__).parent / "presets"
    assert sorted(path.stem for path in folder.glob("*.toml")) == ["dapple", "pipedream"]
    for path in folder.glob("*.toml"):
        assert topologyfile.read_preset(path) == topologyfile.preset(path.stem)
        assert path.read_text().startswith("# ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16GiB", (2**34, "GIB")),
        ("1.5 gb", (1.5e9, "GB")),
        ("0.4", (0.4, "")),
        ("2e3B", (2000.0, "B")),
        (".5KiB", (512.0, "KIB")),
        ("1TB", (1e12, "TB")),
    ],
)  # fmt: skip
def test_bytes_are_read_with_their_unit(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("25GB/s", 25e9), ("10Gbit/s", 1.25e9), ("800 Mbit/s", 1e8), ("1GiB/s", 2**30), ("1e9", 1e9), ("8bit/s", 1.0)],
)
def test_rates_are_read_as_bytes_a_second(text, expected):
    assert parse_rate(text) == expected


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "1.2.3GB", "1GB/s/s", "nan", "inf", "1e999", "1_000", "0x10", "١GB"]
)
def test_what_is_no_number_with_a_unit_is_refused(text):
    for parse in (parse_bytes, parse_rate):
        with pytest.raises(ValueError, match=r"is no number with a unit|there is no unit"):
            parse(text)
