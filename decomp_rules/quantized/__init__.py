"""Programs quantised by `prepare_pt2e` and `convert_pt2e`: the ops of `quantized_decomposed`."""
