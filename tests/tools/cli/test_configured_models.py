"""Models by configuration alone: hf:NAME."""

import json

import pytest
import torch

import decomp
from decomp.results import Methods
from decomp.tools.cli.arguments import load_callable, load_methods, load_model, require_weights
from decomp.tools.cli.terminal import Unusable
from decomp_rules import targets

pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("name", "inputs", "count"),
    [
        ("hf:gpt2,n_layer=2,tokens=8,batch=3", {"input_ids": (3, 8)}, 53_561_088),
        ("hf:t5,num_layers=1,num_decoder_layers=1,tokens=4", {"input_ids": (1, 4), "decoder_input_ids": (1, 4)}, None),
        ("hf:vit,num_hidden_layers=1", {"pixel_values": (1, 3, 224, 224)}, None),
        ("hf:qwen2_vl,text_config.num_hidden_layers=1,vision_config.depth=1,tokens=4", {"input_ids": (1, 4)}, None),
    ],
)
def test_a_model_type_is_a_program_of_its_published_size_without_weights(name, inputs, count):
    program = load_model(name)
    found = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    assert {node.name: tuple(node.meta["val"].shape) for node in found} == inputs
    parameters = [program.state_dict[key] for key in program.graph_signature.parameters]
    assert all(parameter.is_meta for parameter in parameters)
    distinct = {id(parameter): parameter.numel() for parameter in parameters}
    assert count is None or sum(distinct.values()) == count


def test_a_file_is_read_and_sizes_can_be_dynamic(tmp_path):
    layers = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "hidden_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 11}
    config = {"model_type": "qwen2", "architectures": ["Qwen2Model"], **layers, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        program = load_model(f"hf:{path},num_hidden_layers=1,tokens=6", dynamic=["input_ids:1"])
        output = next(iter(program.graph.output_node().args[0])).meta["val"]
        assert output.shape[0] == 1 and isinstance(output.shape[1], torch.SymInt) and output.shape[2] == 16
        assert not any("layers.1" in key for key in program.state_dict)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:lama", "no file, folder or model type 'lama'. Did you mean 'llama'"),
        ("hf:meta-llama/Llama-3.1-8B", "Nothing is downloaded: pass the path of a config.json"),
        ("hf:", "no file, folder or model type ''"),
        ("hf:llama,tokns=3", "there is no setting 'tokns'. Did you mean 'tokens'"),
        ("hf:qwen2_vl,text_config.num_layers=2", "there is no setting 'text_config.num_layers'. Did you mean"),
        ("hf:llama,tokens=0", "batch and tokens must be whole numbers above 0"),
        ("hf:llama,tokens", "'tokens' must be KEY=VALUE, such as tokens=2048"),
        ("hf:llama,hidden_size=many", "hidden_size"),
        ("hf:encodec,batch=true", "batch and tokens must be whole numbers above 0"),
    ],
)
def test_what_cannot_be_made_is_named(name, words):
    with pytest.raises(Unusable) as caught:
        load_model(name)
    assert words in str(caught.value)


def test_a_configuration_names_models_and_nothing_else(tmp_path):
    written = {"model_type": "gpt2", "architectures": ["pipeline", "GPT2Model"], "n_layer": 1, "n_embd": 8, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps(written))
    program = load_model(f"hf:{tmp_path},tokens=2")
    assert next(iter(program.graph.output_node().args[0])).meta["val"].shape == (1, 2, 8)


def test_commands_that_run_a_model_say_that_it_has_no_weights():
    for load in (load_callable, require_weights):
        with pytest.raises(Unusable, match="hf:gpt2 has no weights, and this command runs the model"):
            load("hf:gpt2")


def test_a_configuration_of_no_known_type_is_refused_and_its_code_not_run(tmp_path):
    written = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    (tmp_path / "mine.py").write_text("raise SystemExit('was run')")
    with pytest.raises(Unusable, match="transformers knows no model type 'mine'"):
        load_model(f"hf:{tmp_path}")


TINY = (
    "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,num_key_value_heads=1,intermediate_size=8,vocab_size=11"
)


def test_methods_of_a_model_share_its_weights_and_decode_takes_the_cache_of_prefill():
    programs = load_methods(f"hf:llama,{TINY},head_dim=8,tokens=6,batch=2", ["prefill", "decode"])
    inputs = {name: shapes_of_inputs(program) for name, program in programs.items()}
    assert inputs == {"prefill": [(2, 6)], "decode": [(2, 1, 6, 8), (2, 1, 6, 8), (2, 1)]}
    returned = [tuple(each.meta["val"].shape) for each in programs["decode"].graph.output_node().args[0]]
    assert returned == [(2, 1, 11), (2, 1, 7, 8), (2, 1, 7, 8)]
    first, second = ({id(each) for each in program.state_dict.values()} for program in programs.values())
    assert first == second
    found = Methods.of({name: decomp.plan(program, to=targets.core_aten) for name, program in programs.items()})
    assert found.complete and all(each.weights == found.weights for each in found.methods)


def test_decode_of_an_encoder_and_decoder_takes_what_was_encoded():
    sizes = "d_model=8,d_kv=4,d_ff=8,num_heads=2,num_layers=1,num_decoder_layers=1,vocab_size=11,tokens=3"
    (program,) = load_methods(f"hf:t5,{sizes}", ["decode"]).values()
    assert shapes_of_inputs(program) == [(1, 2, 3, 4)] * 4 + [(1, 1), (1, 3, 8)]


def test_a_model_that_compares_images_with_texts_takes_both_and_has_a_vision_tower():
    layers = "text_config.num_hidden_layers=1,vision_config.num_hidden_layers=1"
    programs = load_methods(f"hf:clip,{layers}", ["forward", "vision"])
    assert shapes_of_inputs(programs["forward"]) == [(1, 77), (1, 3, 224, 224)]  # as many tokens as positions
    assert shapes_of_inputs(programs["vision"]) == [(1, 3, 224, 224)]


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        (
            "hf:llama," + TINY,
            "decod",
            "there is no method 'decod'. Did you mean 'decode'? Available: forward, prefill,",
        ),
        ("hf:llama," + TINY, "vision", "has no vision: LlamaForCausalLM has no get_image_features"),
        ("hf:bert,num_hidden_layers=1", "decode", "has no decode: BertForMaskedLM does not generate text"),
        (
            "gpt",
            "decode",
            "--methods is for models of transformers, hf:NAME, not gpt\n  to do: plan each method of your",
        ),
    ],
)
def test_a_method_that_a_model_lacks_is_named(name, method, said):
    with pytest.raises(Unusable) as caught:
        load_methods(name, [method])
    assert said in str(caught.value)


def shapes_of_inputs(program):
    user = program.graph_signature.user_inputs
    return [tuple(node.meta["val"].shape) for node in program.graph.nodes if node.name in user]
