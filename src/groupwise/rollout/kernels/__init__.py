"""Triton kernels of the decoding step. Imported on the first step on a GPU; the torch forms are their oracles."""
