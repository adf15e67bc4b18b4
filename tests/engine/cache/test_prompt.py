"""A prompt that is read once, or twice: scores of its tokens, and caches of part of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esscher.core.errors import InputError
from esscher.engine.cache.budgets import Keeping
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.repeating import FIRST, SUFFIX
from esscher.engine.cache.scores import combined, key_scores, prompt_scores
from esscher.engine.cache.storage import Kept
from esscher.engine.models.capture import attention_override
from esscher.engine.models.loaded import wrap_model
from esscher.engine.models.weights import rotation_of
from tests.engine.cache.plans import prompts
from tests.engine.cache.reading import decoder, read

KEEPING = Keeping(sinks=2, recent=4)
COUNT = 80


def instructed(loaded, ids):
    """The prompt, the instruction, and the prompt again."""
    instruction = loaded.tokenizer(FIRST + SUFFIX, add_special_tokens=False)["input_ids"]
    return torch.cat([ids, torch.tensor(instruction, dtype=torch.long), ids])


def repeated_score(inputs):
    """Scores of the prompt by the queries of its second copy, of one dense pass over both."""
    weights = torch.stack(
        [torch.softmax(inputs.logits(0, h), -1)[-COUNT:, :COUNT] for h in range(inputs.q.shape[1])]
    ).float()
    values = inputs.v[0, :, :COUNT]
    mean = weights.mean(1)
    output = mean.view(len(values), -1, COUNT) @ values.float()
    return key_scores(weights.square().mean(1), output.flatten(0, 1), values)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_scores_are_those_of_the_queries_that_were_asked_for(name):
    loaded, ids = decoder(name), prompts([COUNT])[0].numpy()
    layers = {}
    read(loaded, torch.from_numpy(ids), lambda inputs: layers.update({inputs.layer: inputs}))
    full = {number: inputs for number, inputs in layers.items() if inputs.window is None}
    assert (len(full) < len(layers)) == (name == "gemma2")
    last, every, repeat = (
        ObservedPrompt(loaded, ids, KEEPING, score) for score in ("last", "all", "repeat")
    )
    assert set(last.scores) == set(every.scores) == set(repeat.scores) == set(full)
    whole = instructed(loaded, torch.from_numpy(ids))
    second = {}

    def watch(inputs):
        if inputs.window is None:
            second[inputs.layer] = repeated_score(inputs)

    with torch.no_grad(), attention_override(loaded, watch):
        loaded.backbone(input_ids=whole[None])
    for number, inputs in full.items():
        rotation = rotation_of(loaded, number)
        seen = prompt_scores(inputs, "all", rotation)
        torch.testing.assert_close(last.scores[number], prompt_scores(inputs, "last", rotation))
        torch.testing.assert_close(every.scores[number], seen)
        torch.testing.assert_close(
            repeat.scores[number], combined(seen, second[number]), rtol=1e-3, atol=1e-5
        )


def test_what_is_kept_for_certain_and_caches_of_part_of_a_prompt():
    loaded, ids = decoder(), prompts([COUNT])[0].numpy()
    prompt = ObservedPrompt(loaded, ids, KEEPING)
    assert np.flatnonzero(prompt.certain).tolist() == [0, 1, 76, 77, 78, 79]
    kept = {
        layer: [Kept(torch.arange(10 + g), torch.zeros(10 + g)) for g in range(2)]
        for layer in prompt.scores
    }
    assert prompt.reduced(kept).kept.tolist() == [[10, 11]] * 3
    # the prompt itself stays whole
    assert prompt.cache.get_seq_length() == COUNT
    everything = {layer: [Kept(torch.arange(COUNT), torch.zeros(COUNT))] * 2 for layer in kept}
    more = torch.tensor([[5, 9, 7]])
    with torch.no_grad():
        dense = loaded.model(torch.cat([torch.from_numpy(ids)[None], more], 1)).logits[:, -3:]
        result = loaded.model(more, past_key_values=prompt.reduced(everything)).logits
    torch.testing.assert_close(result, dense, rtol=1e-3, atol=1e-4)


def test_repeating_takes_a_tokenizer_and_room():
    loaded, ids = decoder(), prompts([COUNT])[0].numpy()
    with pytest.raises(InputError, match="without a tokenizer"):
        ObservedPrompt(wrap_model(loaded.model, name="llama"), ids, KEEPING, "repeat")
    with pytest.raises(InputError, match="reads 200 tokens at most, and cannot repeat"):
        ObservedPrompt(loaded, prompts([120])[0].numpy(), KEEPING, "repeat")
