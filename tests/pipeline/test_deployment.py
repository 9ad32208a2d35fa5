"""PipeDream's conf JSON and driver YAML: read, written, turned into stages and topologies, and every way to be wrong."""

import json

import pytest

from detrain.errors import GraphError
from detrain.pipeline import deployment
from detrain.pipeline.deployment import Deployment
from detrain.pipeline.layers import Layer, Profile
from detrain.pipeline.plan import Plan, Stage

HYBRID = """{
    "module_to_stage_map": [0, 1, 1],
    "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]},
    "stage_to_depth_map": {"0": 1, "1": 0}
}
"""


def test_a_conf_is_written_in_the_bytes_in_which_it_was_read(tmp_path):
    (tmp_path / "conf.json").write_text(HYBRID)
    found = deployment.read(tmp_path / "conf.json")
    assert found == Deployment((0, 1, 1), ((0, 1, 2), (3,)), (1, 0))
    deployment.write(tmp_path / "again.json", found)
    assert (tmp_path / "again.json").read_text() == HYBRID


@pytest.mark.parametrize(
    ("modules", "ranks"),
    [
        ([0, 0, 0], {"0": [0, 1, 2, 3]}), ([0, 1, 2, 3, 3], {"0": [0], "1": [1], "2": [2], "3": [3]}),
        ([0, 0, 1, 1, 1], {"0": [0, 1], "1": [2]}), ([0, 1, 2, 2], {"0": [0, 1, 4, 5], "1": [2, 6], "2": [3, 7]}),
    ],
    ids=["data parallel", "straight", "two modules in a stage", "machine by machine"],
)  # fmt: skip
def test_a_conf_without_depths_is_the_same_behind_its_file(modules, ranks, tmp_path):
    (tmp_path / "conf.json").write_text(json.dumps({"module_to_stage_map": modules, "stage_to_rank_map": ranks}))
    found = deployment.read(tmp_path / "conf.json")
    deployment.write(tmp_path / "again.json", found)
    assert deployment.read(tmp_path / "again.json") == found
    assert json.loads((tmp_path / "again.json").read_text()) == {
        "module_to_stage_map": modules,
        "stage_to_rank_map": ranks,
    }


@pytest.mark.parametrize(
    ("ranks", "depths", "warmups"),
    [
        # The ranks behind a stage's first, over the stage's: 15 of 15, then none of 1.
        ((tuple(range(15)), (15,)), None, (1, 0)), (((0,), (1,), (2,), (3,)), None, (3, 2, 1, 0)),
        (((0, 1), (2, 3, 4), (5,)), None, (2, 1, 0)), ((tuple(range(4)),), None, (0,)),
        (((0,), (1,)), (5, 2), (5, 2)),
    ],
)  # fmt: skip
def test_warmups_are_the_depths_or_what_the_runtime_reckons(ranks, depths, warmups):
    stages = range(len(ranks))
    assert Deployment((*stages, stages[-1]), ranks, depths).warmups() == warmups


def conf(modules=(0, 1, 1), ranks=None, **other):
    return json.dumps({"module_to_stage_map": modules, "stage_to_rank_map": ranks or {"0": [0, 1], "1": [2]}, **other})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON: "),
        ('{"stage_to_rank_map": {"0": [0], 1: [1]}}', "is not JSON: "),
        ('{"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": [0], "0": [1]}}', "'0' stands there twice"),
        ("[]", "is [], not a table of names and values"),
        ("{}", "module_to_stage_map is missing"),
        ('{"module_to_stage_map": [0, 0]}', "stage_to_rank_map is missing"),
        (conf(stage_to_dept_map={}), "'stage_to_dept_map' is none of module_to_stage_map, "),
        (conf(modules="0, 1"), "module_to_stage_map is '0, 1', not a list"),
        (conf(modules=[0, True]), "module_to_stage_map is [0, True], not a list of whole numbers from 0 on"),
        (conf(modules=[0, -1]), "module_to_stage_map is [0, -1], not a list of whole numbers"),
        (conf(modules=[0, 0.5]), "module_to_stage_map is [0, 0.5], not a list of whole numbers"),
        (conf(modules=[], ranks={"0": [0]}), "stage_to_rank_map has a stage '0', and module_to_stage_map has none of that number"),
        (conf(modules=[1, 1]), "module_to_stage_map begins with stage 1, not with 0"),
        (conf(modules=[0, 1, 0]), "module_to_stage_map goes back from stage 1 to stage 0"),
        (conf(modules=[0, 2, 2], ranks={"0": [0], "1": [1], "2": [2]}), "module_to_stage_map goes on from stage 0 to stage 2"),
        (conf(modules=[0, 0]), "stage_to_rank_map has a stage '1', and module_to_stage_map has none of that number"),
        (conf(modules=[0, 1, 2]), "stage_to_rank_map: 2 is missing"),
        (conf(modules=[0, 10**9]), "stage_to_rank_map: 2 is missing"),
        (conf(ranks={"0": [0], "first": [1]}), "stage_to_rank_map has a stage 'first'"),
        (conf(ranks={"00": [0], "1": [1]}), "stage_to_rank_map has a stage '00'"),
        (conf(ranks=[[0], [1]]), "stage_to_rank_map is [[0], [1]], not a table"),
        (conf(ranks={"0": [0], "1": 1}), "stage_to_rank_map: 1 is 1, not a list"),
        (conf(ranks={"0": [0], "1": ["1"]}), "stage_to_rank_map: 1 is ['1'], not a list of whole numbers"),
        (conf(ranks={"0": [0, 1], "1": []}), "stage_to_rank_map: stage 1 has no ranks"),
        (conf(ranks={"0": [0, 1], "1": [1]}), "stage_to_rank_map: rank 1 is in stage 1 and in stage 0"),
        (conf(ranks={"0": [0, 0], "1": [1]}), "stage_to_rank_map: rank 0 is twice in stage 0"),
        (conf(ranks={"0": [0, 1], "1": [3]}), "stage_to_rank_map: ranks count from 0 on, and 2 of 3 is missing"),
        (conf(stage_to_depth_map={"0": 1}), "stage_to_depth_map: 1 is missing"),
        (conf(stage_to_depth_map={"0": 1, "1": 0, "2": 0}), "stage_to_depth_map has a stage '2', and module_to_stage_map has none"),
        (conf(stage_to_depth_map={"0": -1, "1": 0}), "stage_to_depth_map: 0 is -1, not a whole number from 0 on"),
        (conf(stage_to_depth_map={"0": "1", "1": 0}), "stage_to_depth_map: 0 is '1', not a whole number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_conf_is_named_with_file_and_key(text, said, tmp_path):
    (tmp_path / "conf.json").write_text(text)
    with pytest.raises(GraphError) as caught:
        deployment.read(tmp_path / "conf.json")
    assert str(caught.value).startswith(str(tmp_path / "conf.json"))
    assert said in str(caught.value)


def test_a_conf_that_is_no_text_is_no_json(tmp_path):
    (tmp_path / "conf.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphError, match=r"conf\.json is not JSON: "):
        deployment.read(tmp_path / "conf.json")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (((0, 1, 1), ((0,),)), "stage_to_rank_map has 1 stages, and module_to_stage_map has 2"),
        (((0, 0), ((0,),), (1, 0)), "stage_to_depth_map has 2 stages, and module_to_stage_map has 1"),
        (((0, 0), ((0,),), (-1,)), "stage_to_depth_map: a depth is -1"), (((), ()), "begins with stage none"),
    ],
)  # fmt: skip
def test_a_deployment_cannot_be_made_of_maps_that_do_not_agree(fields, said):
    with pytest.raises(GraphError, match=said):
        Deployment(*fields)


def plan_of(*stages, replication=1):
    return Plan("by hand", stages, replication, 1.0, 1.0, 1.0)


def test_a_plan_has_a_module_for_each_stage_and_the_criterion_with_the_last():
    plan = plan_of(Stage(0, 2, ("a", "b"), 3, (0, 1, 2)), Stage(2, 3, ("c",), 1, (3,)))
    assert deployment.of_plan(plan) == Deployment((0, 1, 1), ((0, 1, 2), (3,)))


def test_copies_of_a_pipeline_make_one_and_its_ranks_have_no_gaps():
    plan = plan_of(Stage(0, 1, ("a",), 2, (0, 2, 8, 10)), Stage(1, 2, ("b",), 1, (4, 12)), replication=2)
    # Devices 0 2 4 8 10 12 are ranks 0 to 5.
    assert deployment.of_plan(plan).ranks == ((0, 1, 3, 4), (2, 5))


def test_a_device_with_two_stages_cannot_be_a_rank():
    with pytest.raises(GraphError, match="rank 0 is in stage 1 and in stage 0"):
        deployment.of_plan(plan_of(Stage(0, 1, ("a",), 1, (5,)), Stage(1, 2, ("b",), 1, (5,))))


def profile_of(*stages, edges=((0, 1), (1, 2), (2, 3))):
    names = ("Input", "f", "f", "f")
    layers = (
        Layer(f"n{number}", name, 1.0, 1.0, (1.0,), 0.0, stage)
        for number, (name, stage) in enumerate(zip(names, stages, strict=True))
    )
    return Profile(tuple(layers), edges)


@pytest.mark.parametrize(
    ("stage_of", "ranks", "stages", "expected"),
    [
        ((0, 1, 1), ((0, 1), (2,)), (0, 0, 0, 1), [(0, 2, ("n1", "n2"), 2, (0, 1)), (2, 3, ("n3",), 1, (2,))]),
        # Two modules in a stage, as in a data-parallel run of a divided model; modules go by the order of the numbers.
        ((0, 0, 0), ((0, 1),), (0, 0, 4, 4), [(0, 3, ("n1", "n2", "n3"), 2, (0, 1))]),
        ((0, 0), ((0,),), (None, None, None, None), [(0, 3, ("n1", "n2", "n3"), 1, (0,))]),
    ],
)
def test_stages_are_those_of_the_layers_modules(stage_of, ranks, stages, expected):
    found = deployment.stages_of(Deployment(stage_of, ranks), profile_of(*stages))
    assert [(one.start, one.end, one.layers, one.replicas, one.devices) for one in found] == expected


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ((0, 0, 1, 2), "the profile's layers are of 3 modules, and module_to_stage_map has 2 and the criterion"),
        ((None, None, None, None), "the profile's layers are of 1 modules"),
        ((0, 0, None, 1), "layer n2 says no stage_id, and others do"),
        ((0, 1, 0, 1), "layer n2 is in stage 0 and takes what n1 makes in stage 1"),
    ],
)
def test_what_does_not_belong_together_is_said(stages, said):
    with pytest.raises(GraphError, match=said):
        deployment.stages_of(Deployment((0, 1, 1), ((0,), (1,))), profile_of(*stages))


def test_a_plan_is_found_again_behind_its_conf_and_its_profile():
    profile = profile_of(None, None, None, None)
    stages = (Stage(0, 1, ("n1",), 1, (0,)), Stage(1, 3, ("n2", "n3"), 2, (1, 2)))
    marked = profile.in_stages({name: number for number, stage in enumerate(stages) for name in stage.layers})
    assert deployment.stages_of(deployment.of_plan(plan_of(*stages)), marked) == stages


MACHINES = "['one:0', 'one:1', 'two:2', 'one:3']"
DRIVER = f"""\
'log_directory': '/logs'
'module': 'models.vgg16.gpus=4'
'data_dir': '/data'
'config_file': 'models/vgg16/gpus=4/hybrid_conf.json'
'container': 'somewhere/image:1'
'machines': {MACHINES}
'batch_size': 64
'learning_rate': 0.01
'weight_decay': 0.000
'synthetic_data': True
'model_type': 'image_classification'
'distributed_backend': 'gloo'
"""


@pytest.fixture
def driver():
    pytest.importorskip("yaml", reason='drivers are YAML: pip install "detrain-run[plan]"')
    from detrain.pipeline import driver

    return driver


def test_a_driver_is_the_same_behind_its_file(driver, tmp_path):
    (tmp_path / "driver.yml").write_text(DRIVER)
    found = driver.read(tmp_path / "driver.yml")
    assert found.machines == (("one", 0), ("one", 1), ("two", 2), ("one", 3))
    assert (found.options["batch_size"], found.options["weight_decay"], found.options["synthetic_data"]) == (
        64,
        0.0,
        True,
    )
    driver.write(tmp_path / "again.yml", found)
    assert driver.read(tmp_path / "again.yml") == found


def test_a_drivers_hosts_are_the_machines_of_a_topology(driver, tmp_path):
    (tmp_path / "driver.yml").write_text(DRIVER)
    found = driver.topology_of(
        driver.read(tmp_path / "driver.yml"), Deployment((0, 0), ((0, 1, 2, 3),)), 10e9, 1e9, 16e9
    )
    assert found.levels[0].groups == (0, 0, 1, 0)
    # A billion bytes take a tenth of a second within host one, and a second from host to host.
    assert found.transfer_s([([0], [3])], 1e9) == 0.1
    assert found.transfer_s([([1], [2])], 1e9) == 1.0


def test_machines_on_one_host_need_no_network(driver):
    found = driver.topology_of(driver.Driver((("one", 0), ("one", 1))), None, 10e9, 1e9, 16e9)
    assert [level.bandwidth for level in found.levels] == [10e9]


def test_more_ranks_than_machines_are_refused(driver):
    with pytest.raises(GraphError, match="there are 3 ranks and 2 machines"):
        driver.topology_of(driver.Driver((("a", 0), ("b", 0))), Deployment((0, 0), ((0, 1, 2),)), 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (DRIVER, "a: [", "is not YAML: "),
        (DRIVER, "- 1\n", "is [1], not a table of names and values"),
        (DRIVER, "", "is None, not a table"),
        (DRIVER, "!!python/object/apply:os.getcwd []\n", "is not YAML: could not determine a constructor"),
        (DRIVER, "2001-13-45", "is not YAML: month must be in 1..12"),
        ("'module'", "'modul'", "'modul' is none of machines, log_directory"),
        ("'module': 'models.vgg16.gpus=4'\n", "", "module is missing"),
        ("'/logs'", "3", "log_directory is 3, not a text"),
        ("64", "'64'", "batch_size is '64', not a whole number from 0 on"),
        ("64", "-1", "batch_size is -1, not a whole number from 0 on"),
        ("0.01", "1e-2", "learning_rate is '1e-2', not a number of zero or more"),
        ("0.01", ".nan", "learning_rate is nan, not a number"),
        ("True", "1", "synthetic_data is 1, not true or false"),
        (MACHINES, "[]", "machines is empty"),
        (MACHINES, "one:0", "machines is 'one:0', not a list"),
        ("'one:1'", "7", "machines is ['one:0', 7, 'two:2', 'one:3'], not a list of texts"),
        ("'one:1'", "'one'", "machines[1] is 'one', not host:device"),
        ("'one:1'", "'one:a'", "machines[1] is 'one:a', not host:device"),
        ("'one:1'", "':1'", "machines[1] is ':1', not host:device"),
        ("'one:1'", "'one:0'", "machines has one:0 twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_driver_is_named_with_file_and_key(driver, old, new, said, tmp_path):
    assert old in DRIVER
    (tmp_path / "driver.yml").write_text(DRIVER.replace(old, new))
    with pytest.raises(GraphError) as caught:
        driver.read(tmp_path / "driver.yml")
    assert str(caught.value).startswith(str(tmp_path / "driver.yml"))
    assert said in str(caught.value)
