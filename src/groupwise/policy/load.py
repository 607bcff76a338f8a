"""Load a model and its tokenizer from a folder, the hub or a .gguf file; save them as transformers does.

Code that comes with a model is never run, and nothing is unpickled: weights are safetensors or gguf.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from groupwise.config import ModelConfig
from groupwise.errors import BadValueError, unknown_name
from groupwise.policy.attention import register
from groupwise.policy.compiled import number_layers
from groupwise.policy.model import Policy
from groupwise.policy.norms import widen_rms_norms
from groupwise.policy.probe import head_is_plain, joins_siblings, takes_attend
from groupwise.policy.products import take_faster_products

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def load_policy(config: ModelConfig, embedded_path: Path) -> Policy:
    """The model that `model.path` names, ready to sample from and to train.

    embedded_path: the folder that `model.path=embedded` stands for.
    """
    device = _device(config.device)
    dtype = _dtype(device) if config.dtype == "auto" else config.dtype
    if dtype not in _DTYPES:
        raise unknown_name("model.dtype", dtype, {"auto", *_DTYPES})
    path = str(embedded_path) if config.path == "embedded" else config.path
    source, options = _source(path)
    with _without_bars():
        tokenizer = _load("tokenizer", source, options)
        if tokenizer.get_vocab().keys() <= tokenizer.get_added_vocab().keys():
            # transformers makes an empty one where a folder has none.
            raise BadValueError(f"model.path={config.path!r}: there is no tokenizer; save one beside the model")
        model = _load("model", source, options | {"dtype": _DTYPES[dtype]})
    return wrap(
        model.to(device),
        tokenizer,
        compiles=config.compile and device.type == "cuda",
        checkpoints=config.enable_gradient_checkpointing,
    )


def wrap(model: Any, tokenizer: Any, *, compiles: bool = False, checkpoints: bool = False) -> Policy:
    """A transformers model that is already in memory as a policy: dropout off, our attention set.

    compiles: compile the layers where all of them are alike. checkpoints: compute them again in the backward pass.
    """
    if model.dtype == torch.float16:
        raise BadValueError(
            f"{type(model).__name__} is in float16, whose range is too small for the gradients of a loss over many "
            "tokens; load it in bfloat16 or float32"
        )
    register()
    _clear_quantized_marks(model)
    model.eval()
    widen_rms_norms(model)
    packs = takes_attend(model)
    if not packs:
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    if not head_is_plain(model):
        raise BadValueError(
            f"{type(model).__name__} changes its logits after the output layer (soft-capping or scaling), "
            "which is not supported; choose a model without final_logit_softcapping and logit scales"
        )
    wants_few_lengths = take_faster_products(model)
    is_numbered = packs and number_layers(model)
    if compiles and is_numbered:
        joins_siblings(model)
    return Policy(
        model,
        tokenizer,
        packs,
        compiles=compiles and is_numbered,
        checkpoints=checkpoints and is_numbered,
        wants_few_lengths=wants_few_lengths,
    )


def _device(name: str) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_gpu else "cpu")
    if name not in ("cpu", "cuda"):
        raise BadValueError(f"model.device={name!r} is not known; choose auto, cpu or cuda")
    if name == "cuda" and not has_gpu:
        raise BadValueError(f"model.device={name!r}, but torch finds no NVIDIA GPU here; choose auto or cpu")
    return torch.device(name)


def _dtype(device: torch.device) -> str:
    """bfloat16 where the card computes in it."""
    is_fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if is_fast else "float32"


def save_model(policy: Policy, folder: Path) -> None:
    """config.json, model.safetensors and the tokenizer, as `from_pretrained` reads them."""
    with _without_bars():
        policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """The progress of loading a file is not what a console is for; transformers shows it unless told."""
    from transformers.utils import logging as untyped_logging

    logging: Any = untyped_logging
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def _source(path: str) -> tuple[str, dict[str, Any]]:
    """What to hand to `from_pretrained`: a folder or hub id, or a .gguf file's folder and name."""
    if path.endswith(".gguf"):
        file = Path(path).expanduser()
        if not file.is_file():
            raise BadValueError(f"model.path={path!r}: there is no such file")
        if find_spec("gguf") is None or find_spec("accelerate") is None:
            raise BadValueError(
                f"model.path={path!r}: reading .gguf needs two more packages; pip install gguf accelerate"
            )
        return str(file.parent), {"gguf_file": file.name}
    folder = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1 or _holds_models(folder.parent)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise BadValueError(f"model.path={path!r}: the folder has no config.json; give one that transformers wrote")
        return str(folder), {}
    if looks_local or folder.exists():
        raise BadValueError(f"model.path={path!r}: there is no such folder; give a folder, a hub id or a .gguf file")
    return path, {}


def _holds_models(folder: Path) -> bool:
    """Whether a run or a model lies in the folder; then a name in it that does not exist is a slip, and no hub id."""
    if not folder.is_dir() or folder == Path():
        return False
    return any((entry / name).is_file() for entry in folder.iterdir() for name in ("config.yaml", "config.json"))


def _load(what: str, source: str, options: dict[str, Any]) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        if what == "tokenizer":
            return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
        weights = {} if "gguf_file" in options else {"use_safetensors": True}
        return AutoModelForCausalLM.from_pretrained(source, trust_remote_code=False, **weights, **options)
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise BadValueError(f"model.path={source!r}: the {what} cannot be loaded: {reason}") from error


def _clear_quantized_marks(model: Any) -> None:
    """Weights read from a gguf file are plain ones by now, but their config says quantized and refuses to save."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
