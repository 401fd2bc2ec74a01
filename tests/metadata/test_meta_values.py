import copy
import pickle

import pytest
import torch

from decomp.metadata.meta_values import convert_constant, is_abstract, known_value, made_on_meta, on_host, on_meta
from decomp.torch_internals.fakes import FakeTensorMode

TABLE = torch.tensor([1.0, 2.0, 3.0])


def test_a_constant_on_the_meta_device_has_its_numbers_with_it():
    constant = on_meta(TABLE)
    assert constant.is_meta and constant.shape == (3,) and constant.dtype == torch.float32
    assert torch.equal(known_value(constant), TABLE)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda tensor: pickle.loads(pickle.dumps(tensor))])
def test_copies_have_them_too(copied):
    assert torch.equal(known_value(copied(on_meta(TABLE))), TABLE)


def test_the_numbers_of_weights_on_the_meta_device_and_of_fake_tensors_are_not_known():
    with FakeTensorMode():
        fake = torch.ones(3)
    weight = torch.ones(3, device="meta")
    assert known_value(weight) is None and known_value(fake) is None and known_value(TABLE) is TABLE
    assert is_abstract(weight) and is_abstract(fake) and not is_abstract(TABLE)


def test_a_function_of_a_constant_has_numbers_where_the_constant_has():
    assert torch.equal(known_value(convert_constant(torch.neg, on_meta(TABLE))), -TABLE)
    assert known_value(convert_constant(torch.neg, torch.ones(3, device="meta"))) is None
    assert torch.equal(convert_constant(torch.neg, TABLE), -TABLE)


def test_what_makes_tensors_of_numbers_keeps_them_on_the_meta_device():
    made = made_on_meta(torch.tensor, ([1.0, 2.0, 3.0],), {"device": torch.device("meta")})
    assert made.is_meta and torch.equal(known_value(made), TABLE)
    assert made_on_meta(torch.tensor, ([1.0],), {"device": "cpu"}) is None
    assert made_on_meta(torch.zeros, (3,), {"device": "meta"}) is None


def test_calls_that_compute_numbers_are_made_on_the_host():
    assert on_host([3, "meta"], {"device": torch.device("meta"), "dtype": torch.int8}) == (
        [3, torch.device("cpu")],
        {"device": torch.device("cpu"), "dtype": torch.int8},
    )
