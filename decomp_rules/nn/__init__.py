"""Attention, normalization, losses, embeddings, recurrent layers, quantization."""
