"""BERT-base and GPT-2 small."""

# torch.nn's layers and transformers' GPT-2 have query, key and value in one tensor, which changes
# the messages; for BERT alone the package would be needed beside these layers.

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradred_lab.train.framework import Size
from gradred_lab.train.pytorch.models.network import Network, Tensors, scaled

_HEAD = 64  # elements of an attention head in both
_MASKED = 0.15  # of BERT's tokens
_DEVIATION = 0.02  # of the first weights in both
_DROPOUT = 0.1  # in both


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class _Attention(nn.Module):
    """Attention of all heads at once."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = [
            linear(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        ]
        seen = nn.functional.scaled_dot_product_attention(
            *parts, dropout_p=_DROPOUT if self.training else 0.0, is_causal=self.causal
        )
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))


class _Layer(nn.Module):
    """Attention and two linear layers; normalised after each (BERT) or before it (GPT-2)."""

    def __init__(self, width: int, *, is_decoder: bool) -> None:
        super().__init__()
        epsilon = 1e-5 if is_decoder else 1e-12
        self.is_decoder = is_decoder
        self.attention = _Attention(width, width // _HEAD, is_decoder)
        self.norms = nn.ModuleList([nn.LayerNorm(width, eps=epsilon) for _ in range(2)])
        gelu = nn.GELU(approximate="tanh" if is_decoder else "none")
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Any) -> Any:
        for part, norm in zip((self.attention, self.wide), self.norms, strict=True):
            if self.is_decoder:
                x = x + self.dropout(part(norm(x)))
            else:
                x = norm(x + self.dropout(part(x)))
        return x


class BertEncoder(nn.Module):
    """Embeddings, the layers of the encoder, and the pooler: what is counted as BERT-base."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(_DROPOUT)
        self.layers = nn.Sequential(*(_Layer(width, is_decoder=False) for _ in range(layers)))
        self.pooler = nn.Linear(width, width)

    def forward(self, words: Any, segments: Any) -> tuple[Any, Any]:
        """A vector for each token, and one for the sequence."""
        places = self.places.weight[: words.shape[1]]
        x = self.dropout(self.norm(self.words(words) + places + self.segments(segments)))
        x = self.layers(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


class BertBase(Network):
    """BERT-base, uncased, with both heads of its pre-training (Devlin et al., 2019).

    All tokens are scored, as in the first published code for several devices; the loss is of the
    masked ones.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.vocabulary = scaled(768, size.scale, _HEAD), scaled(30522, size.scale)
        self.length = size.sequence or 128
        self.encoder = BertEncoder(width, size.layers or 12, self.vocabulary)
        self.transform = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12)
        )
        self.bias = nn.Parameter(torch.zeros(self.vocabulary))
        self.is_next = nn.Linear(width, 2)
        self.apply(_initialise)

    def forward(self, words: Any, segments: Any) -> tuple[Any, Any]:
        """Scores of each word at each place, and of the question if sentences follow each other."""
        tokens, pooled = self.encoder(words, segments)
        weights = self.encoder.words.weight  # of the input and of the output
        scores = nn.functional.linear(self.transform(tokens), weights, self.bias)
        return scores, self.is_next(pooled)

    def sample(self, batch: int, numbers: Any) -> tuple[Tensors, Tensors]:
        """Words at random, of which 15 % are to be found, and two sentences."""
        shape = batch, self.length
        words = torch.randint(self.vocabulary, shape, generator=numbers)
        wanted = torch.randint(self.vocabulary, shape, generator=numbers)
        masked = torch.rand(shape, generator=numbers) < _MASKED
        masked[:, 0] = True  # so that there is one
        wanted = torch.where(masked, wanted, -100)
        segments = (torch.arange(self.length) >= self.length // 2).long().expand(shape).clone()
        return (words, segments), (wanted, torch.randint(2, (batch,), generator=numbers))

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The cross-entropy of the masked words, and that of the next sentence."""
        (scores, is_next), (wanted, follows) = outputs, targets
        words = nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        return words + nn.functional.cross_entropy(is_next, follows)


class Gpt2(Network):
    """GPT-2 small (Radford et al., 2019). The words' embedding is the last layer too."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.vocabulary = scaled(768, size.scale, _HEAD), scaled(50257, size.scale)
        self.length = size.sequence or 1024
        self.words, self.places = nn.Embedding(self.vocabulary, width), nn.Embedding(1024, width)
        self.dropout = nn.Dropout(_DROPOUT)
        layers = size.layers or 12
        self.layers = nn.Sequential(*(_Layer(width, is_decoder=True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.apply(_initialise)

    def forward(self, words: Any) -> Any:
        """Scores of each word at each place."""
        x = self.dropout(self.words(words) + self.places.weight[: words.shape[1]])
        return nn.functional.linear(self.norm(self.layers(x)), self.words.weight)

    def sample(self, batch: int, numbers: Any) -> tuple[Tensors, Tensors]:
        """Words at random; each place's target is the next word."""
        words = torch.randint(self.vocabulary, (batch, self.length + 1), generator=numbers)
        return (words[:, :-1].clone(),), (words[:, 1:].clone(),)

    def loss(self, outputs: Any, targets: Tensors) -> Any:
        """The cross-entropy of the next words."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets[0].flatten())
