"""Advice and certificates over a Dask cluster are those of this process."""

import pytest
import torch

import decomp
from tests.forms import Holder

distributed = pytest.importorskip("distributed", reason="needs Dask: pip install decomp[dask]")


def square(x):
    """x²."""
    return x * x


def program():
    """A program and its example inputs."""
    return Holder(lambda x: torch.square(x) + x), (torch.randn(3),)


@pytest.fixture(scope="module")
def cluster():
    """A worker to which everything is sent in messages; in this process, for starting another takes seconds."""
    how = dict(n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None)
    with distributed.LocalCluster(**how) as cluster, distributed.Client(cluster) as client:
        yield client.get_executor()


@pytest.mark.filterwarnings("ignore")  # of the cluster's own event loop, when it closes
def test_what_a_cluster_finds_is_what_this_process_finds(cluster):
    rules = decomp.Rules({"square": square})
    how = dict(to=decomp.Target("few", ["add"]), rules=rules)
    here, there = (decomp.advise({"program": program}, executor=where, **how) for where in (None, cluster))
    assert there == here and here.ops == ("mul",)
    how = dict(dtypes=[torch.float32])
    here, there = (decomp.certify(rules["square"], executor=where, **how) for where in (None, cluster))
    assert there == here and not any(one.error for one in there.values())
