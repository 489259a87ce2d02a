"""The Transformer's forward pass in NumPy, one sentence at a time, from the paper's formulas.

Slow and plain on purpose, in float64, and without a line from the package: padding is cut off, and
where a position may look is a list of positions. Numbers in brackets are sections of the paper.

Weights are dictionaries of arrays:

- attention: "query", "key", "value": (matrix (heads, d_model, d_k), bias (heads, d_k));
  "output": (matrix (heads * d_k, d_model), bias (d_model,));
- layer: "self", "self_norm", "cross", "cross_norm" (decoder only), "ffn", "ffn_norm";
- model: "source_embedding", "target_embedding" (vocabulary, d_model), "output" (d_model,
  vocabulary), "source_positions", "target_positions" (length, d_model) or None for sinusoids,
  "encoder", "decoder" (lists of layers), "encoder_norm", "decoder_norm" or None.
"""

import math

import numpy as np

PADDING = 0


def layer_norm(x, weights):
    """Normalise each vector to mean 0 and variance 1, then scale and shift (Ba et al. 2016)."""
    gain, bias = weights
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return gain * (x - mean) / np.sqrt(variance + 1e-6) + bias


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def activation(name, x):
    if name == "relu":
        return np.maximum(0.0, x)
    if name == "gelu":  # x * P(X <= x), X standard normal (Hendrycks and Gimpel 2016)
        return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
    if name == "silu":
        return x / (1.0 + np.exp(-x))
    raise ValueError(name)


def multi_head_attention(queries, memory, visible, weights):
    """MultiHead(Q, K, V) (3.2.2); position t of `queries` sees the positions visible[t]."""
    output_matrix, output_bias = weights["output"]
    outputs = []
    for position, query in enumerate(queries):
        seen = memory[visible[position]]
        heads = []
        for head in range(len(weights["query"][0])):
            q, k, v = (
                vectors @ weights[name][0][head] + weights[name][1][head]
                for name, vectors in (("query", query), ("key", seen), ("value", seen))
            )
            heads.append(softmax(k @ q / math.sqrt(len(q))) @ v)  # (3.2.1, equation 1)
        outputs.append(np.concatenate(heads) @ output_matrix + output_bias)
    return np.array(outputs)


def feed_forward(x, weights, activation_name):
    """FFN(x) = activation(x W1 + b1) W2 + b2 (3.3, equation 2)."""
    w1, b1, w2, b2 = weights
    return activation(activation_name, x @ w1 + b1) @ w2 + b2


def sublayer(x, function, norm, pre_norm):
    """LayerNorm(x + Sublayer(x)) (3.1), or x + Sublayer(LayerNorm(x)) (Xiong et al. 2020)."""
    if pre_norm:
        return x + function(layer_norm(x, norm))
    return layer_norm(x + function(x), norm)


def positional_encoding(length, d_model):
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) its cosine (3.5)."""
    table = np.zeros((length, d_model))
    for position in range(length):
        for i in range(d_model // 2):
            angle = position / 10000 ** (2 * i / d_model)
            table[position, 2 * i] = math.sin(angle)
            table[position, 2 * i + 1] = math.cos(angle)
    return table


def embed(ids, embedding, positions):
    """Embedding times sqrt(d_model) (3.4), plus the position's vector (3.5)."""
    d_model = embedding.shape[1]
    if positions is None:
        positions = positional_encoding(len(ids), d_model)
    return embedding[ids] * math.sqrt(d_model) + positions[: len(ids)]


def encode(source_ids, weights, activation_name, pre_norm):
    """The encoder (3.1) on the ids of one sentence, without padding."""
    x = embed(source_ids, weights["source_embedding"], weights["source_positions"])
    everywhere = [list(range(len(x)))] * len(x)
    for layer in weights["encoder"]:
        x = sublayer(
            x,
            lambda h, layer=layer: multi_head_attention(h, h, everywhere, layer["self"]),
            layer["self_norm"],
            pre_norm,
        )
        x = sublayer(
            x,
            lambda h, layer=layer: feed_forward(h, layer["ffn"], activation_name),
            layer["ffn_norm"],
            pre_norm,
        )
    return layer_norm(x, weights["encoder_norm"]) if pre_norm else x


def decode(target_ids, encoder_output, weights, activation_name, pre_norm):
    """The decoder (3.1) and the output projection (3.4) on one sentence, without padding."""
    x = embed(target_ids, weights["target_embedding"], weights["target_positions"])
    the_past = [list(range(t + 1)) for t in range(len(x))]
    everywhere = [list(range(len(encoder_output)))] * len(x)
    for layer in weights["decoder"]:
        x = sublayer(
            x,
            lambda h, layer=layer: multi_head_attention(h, h, the_past, layer["self"]),
            layer["self_norm"],
            pre_norm,
        )
        x = sublayer(
            x,
            lambda h, layer=layer: multi_head_attention(
                h, encoder_output, everywhere, layer["cross"]
            ),
            layer["cross_norm"],
            pre_norm,
        )
        x = sublayer(
            x,
            lambda h, layer=layer: feed_forward(h, layer["ffn"], activation_name),
            layer["ffn_norm"],
            pre_norm,
        )
    if pre_norm:
        x = layer_norm(x, weights["decoder_norm"])
    return x @ weights["output"]


def transformer(source_ids, target_ids, weights, activation_name="relu", pre_norm=False):
    """Return a list of logits (real target length, vocabulary), one for each sentence."""
    logits = []
    for source, target in zip(source_ids, target_ids, strict=True):
        encoder_output = encode(source[source != PADDING], weights, activation_name, pre_norm)
        logits.append(
            decode(target[target != PADDING], encoder_output, weights, activation_name, pre_norm)
        )
    return logits
