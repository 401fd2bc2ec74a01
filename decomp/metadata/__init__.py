"""What is known of tensors before they exist: fake tensors, strides, symbolic sizes."""
