"""The run folder: what a run writes, and how it survives being killed while it does.

    files -> checkpoint, ledger -> folder

Nothing here is ever unpickled: tensors are safetensors, everything else is JSON or YAML.
"""
