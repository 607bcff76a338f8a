"""Triton kernels of the update, for a GPU. The torch forms beside their calls are their oracles."""
