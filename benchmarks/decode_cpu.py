"""Sampling on a CPU: the embedded engine beside `generate` of transformers, same model, same prompts, one run.

    python benchmarks/decode_cpu.py --prompts 8 --n 8 --prompt-tokens 32 --answer-tokens 64 --rounds 5

A random Qwen3 of 0.8 million parameters in float32, no end-of-sequence token, so that every answer has full length.
Rounds alternate between the two; the best of each counts, because other load on the machine only ever adds time. On
a busy machine look at one thread's processor time: threads that wait for each other add to both clocks.
`--ragged` ends answers at random lengths: generate then waits for the longest, the engine refills its rows.
"""

from __future__ import annotations

import argparse
import time

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from groupwise.policy.load import wrap
from groupwise.rollout import EmbeddedEngine
from groupwise.types import Prompt, Sampling, Task


def make_policy(ragged: bool):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=8192, tie_word_embeddings=True,
        eos_token_id=list(range(1, 5)) if ragged else 1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    raw = Tokenizer(models.WordLevel({str(i): i for i in range(128)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="0", eos_token="1")
    policy = wrap(Qwen3ForCausalLM(config), tokenizer)
    if not ragged:
        policy.eos_ids = frozenset()
    return policy


def timed(run) -> tuple[float, float, int]:
    """Wall and processor seconds, and the tokens made."""
    wall, processor = time.perf_counter(), time.process_time()
    tokens = run()
    return time.perf_counter() - wall, time.process_time() - processor, tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("prompts", 8), ("n", 8), ("prompt-tokens", 32), ("answer-tokens", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--max-num-seqs", type=int, default=512)
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    policy = make_policy(args.ragged)
    ids = torch.randint(5, 128, (args.prompts, args.prompt_tokens))
    prompts = [Prompt(f"0-{i}", Task(str(i), "", ""), tuple(row)) for i, row in enumerate(ids.tolist())]
    engine = EmbeddedEngine(policy, args.max_num_seqs)
    repeated = ids.repeat_interleave(args.n, 0)
    forever = {} if args.ragged else {"eos_token_id": None, "min_new_tokens": args.answer_tokens}

    def ours() -> int:
        groups = engine.generate(prompts, args.n, Sampling(max_tokens=args.answer_tokens))
        return sum(len(answer.token_ids) for group in groups for answer in group.completions)

    def theirs() -> int:
        with torch.inference_mode():
            out = policy.model.generate(
                repeated, attention_mask=torch.ones_like(repeated), max_new_tokens=args.answer_tokens,
                do_sample=True, top_k=0, **forever,
            )  # fmt: skip
        answers = out[:, args.prompt_tokens :]
        ended = torch.isin(answers, torch.tensor(sorted(policy.eos_ids) or [-1]))
        return int((ended.cumsum(1) - ended.long() == 0).sum())

    ours(), theirs()
    rounds = [(timed(ours), timed(theirs)) for _ in range(args.rounds)]
    rates = []
    for name, runs in zip(("groupwise", "generate"), zip(*rounds, strict=True), strict=True):
        tokens = runs[0][2]
        wall, processor = min(run[0] for run in runs), min(run[1] for run in runs)
        rates.append((tokens / wall, tokens / processor))
        print(f"{name:<10} {tokens:6d} tokens  wall {wall * 1e3:7.1f} ms  processor {processor * 1e3:7.1f} ms")
    by_wall, by_processor = (ours / theirs for ours, theirs in zip(*rates, strict=True))
    print(f"tokens per second, groupwise over generate: {by_wall:.2f} by wall, {by_processor:.2f} by processor time")
    print(f"{args.threads} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
